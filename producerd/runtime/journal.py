"""Journal: writes log lines to systemd's journal with their priority, stream and code, if standard error leads there.

So `journalctl -p err` shows the errors, and `journalctl PRODUCERD_STREAM=flights` the lines about one stream.  The
format is systemd's native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/): one datagram for each line.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Mapping
from typing import Final

SOCKET: Final = "/run/systemd/journal/socket"
STREAM_VARIABLE: Final = "JOURNAL_STREAM"
"""Device and inode of the journal's stream, by which a process knows it as its standard error (systemd.exec(5))."""
MAX_MESSAGE_BYTES: Final = 48 * 1024
"""Longest text of a line, so that it fits into a datagram.  systemd cuts standard error there, too (LineMax=)."""
_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_LENGTH: Final = struct.Struct("<Q")


class Journal:
    """The journal's socket.  Lines that it does not take are the caller's to write elsewhere."""

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def write(self, text: bytes, level: int, fields: Mapping[str, str]) -> bool:
        """Send a line with its level, and with a field PRODUCERD_NAME for each of ``fields``.

        Return whether the journal took it.
        """
        named = {f"PRODUCERD_{name.upper()}": value.encode(errors="replace") for name, value in fields.items()}
        entry = {
            "MESSAGE": _cut(text.rstrip(b"\n")),
            "PRIORITY": b"%d" % priority_of(level),
            "SYSLOG_IDENTIFIER": b"producerd",
            **named,
        }
        data = b"".join(
            b"%b\n%b%b\n" % (name.encode(), _LENGTH.pack(len(value)), value) for name, value in entry.items()
        )
        try:
            self._socket.sendto(data, self._path)
        except OSError:  # the journal is being restarted, or is out of reach in a container
            return False
        return True

    def close(self) -> None:
        self._socket.close()


def _cut(text: bytes) -> bytes:
    """Return what fits into an entry, cut between two characters: journalctl shows other bytes than UTF-8 as a blob."""
    end = min(len(text), MAX_MESSAGE_BYTES)
    while end < len(text) and text[end] & 0xC0 == 0x80:  # a byte inside a character
        end -= 1
    return text[:end]


def journal_of(descriptor: int, environ: Mapping[str, str] = os.environ) -> Journal | None:
    """Return the journal if this descriptor leads there, or None."""
    return Journal() if leads_to_journal(descriptor, environ) and os.path.exists(SOCKET) else None


def leads_to_journal(descriptor: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether systemd has connected this descriptor to its journal."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environ.get(STREAM_VARIABLE) == f"{found.st_dev}:{found.st_ino}"


def priority_of(level: int) -> int:
    """Return the priority of syslog(3) for a level of logging."""
    return next((priority for least, priority in _PRIORITIES if level >= least), 7)
