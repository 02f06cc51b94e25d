"""Lines in the journal have their priority, stream and code; without a journal nothing changes."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from producerd.runtime import journal as module
from producerd.runtime import logs
from producerd.runtime.journal import MAX_MESSAGE_BYTES, Journal, journal_of, leads_to_journal


def entry_of(data: bytes) -> dict[str, bytes]:
    """Read a datagram as journald does: NAME, newline, length, value, newline."""
    entry = {}
    while data:
        name, _, rest = data.partition(b"\n")
        (length,) = struct.unpack_from("<Q", rest)
        entry[name.decode()] = rest[8 : 8 + length]
        assert rest[8 + length : 9 + length] == b"\n"
        data = rest[9 + length :]
    return entry


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "journal"))
        listening.settimeout(10)
        yield listening


def test_an_entry_has_the_text_as_it_is_with_priority_and_fields(journald: socket.socket) -> None:
    journal = Journal(journald.getsockname())
    text = "caf\xe9\nTraceback\n  line = 2\n".encode()
    for level, priority in ((50, b"3"), (40, b"3"), (30, b"4"), (20, b"6"), (10, b"7")):
        assert journal.write(text, level, {"stream": "flights", "code": "KMS"})
        assert entry_of(journald.recv(1 << 20)) == {
            "MESSAGE": text.rstrip(),
            "PRIORITY": priority,
            "SYSLOG_IDENTIFIER": b"producerd",
            "PRODUCERD_STREAM": b"flights",
            "PRODUCERD_CODE": b"KMS",
        }
    assert journal.write(b"x" * (1 << 20), 40, {})
    assert len(entry_of(journald.recv(1 << 20))["MESSAGE"]) == MAX_MESSAGE_BYTES == 49_152
    journal.close()


@pytest.mark.parametrize("character", ["\xe9", "\u20ac", "\U0001f600"])
def test_a_text_that_is_too_long_is_cut_between_two_characters(journald: socket.socket, character: str) -> None:
    """Journalctl shows a text that ends inside of one as a blob."""
    journal = Journal(journald.getsockname())
    for before in range(len(character.encode())):
        assert journal.write(b"x" * before + character.encode() * MAX_MESSAGE_BYTES, 40, {})
        message = entry_of(journald.recv(1 << 20))["MESSAGE"]
        assert message.decode().endswith(character)
        assert MAX_MESSAGE_BYTES - len(character.encode()) < len(message) <= MAX_MESSAGE_BYTES
    journal.close()


def test_a_journal_that_is_gone_takes_nothing_and_raises_nothing(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "nobody"))
    assert not journal.write(b"line", 40, {})
    journal.close()


def test_it_is_known_by_device_and_inode(
    journald: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SOCKET", journald.getsockname())
    with (tmp_path / "stderr").open("w") as stderr, (tmp_path / "other").open("w") as other:
        found = os.fstat(stderr.fileno())
        environ = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        journal = journal_of(stderr.fileno(), environ)
        assert journal is not None
        journal.close()
        assert journal_of(other.fileno(), environ) is None
        assert journal_of(stderr.fileno(), {}) is None
        monkeypatch.setattr(module, "SOCKET", str(tmp_path / "nobody"))
        assert journal_of(stderr.fileno(), environ) is None
        assert leads_to_journal(stderr.fileno(), environ), "also where its socket is out of reach"
        assert not leads_to_journal(other.fileno(), environ)
    assert not leads_to_journal(-1, environ)


@pytest.mark.promise("journal-finds-lines")
def test_the_daemon_s_lines_go_there_and_to_standard_error_where_they_cannot(
    journald: socket.socket, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "journal_of", lambda _: Journal(journald.getsockname()))
    with logs.running("info", "text"):
        logs.get_logger("producerd.gate").error("records failed", stream="flights", code="KMS", records=7)
        entry = entry_of(journald.recv(1 << 20))
        assert (entry["PRIORITY"], entry["PRODUCERD_STREAM"], entry["PRODUCERD_CODE"]) == (b"3", b"flights", b"KMS")
        assert b"ERROR   producerd.gate: records failed stream=flights code=KMS records=7" in entry["MESSAGE"]
        logging.getLogger("aiohttp").warning("a library says %s", "something")
        entry = entry_of(journald.recv(1 << 20))
        assert (entry["PRIORITY"], set(entry)) == (b"4", {"MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER"})
        journald.close()
        logs.get_logger("producerd").warning("the journal is gone")
    structlog.reset_defaults()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("Z WARNING producerd: the journal is gone")


def test_the_end_of_a_log_closes_the_journal(journald: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(journald.getsockname())
    monkeypatch.setattr(logs, "journal_of", lambda _: journal)
    with logs.running("info", "text"):
        assert journal.write(b"open", logging.INFO, {})
    structlog.reset_defaults()
    assert not journal.write(b"closed", logging.INFO, {})
