"""The service manager: the sockets that it passes to the daemon, and what the daemon reports to it.

Without a service manager, nothing here has an effect.  The protocols, of sd_listen_fds(3) and sd_notify(3), are a few
variables of the environment, and lines in a datagram.  This module removes the variables from the environment, because
they are for this process and not for its children.  If a report cannot be sent, its values go out with the next one,
and the daemon runs on.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, MutableMapping
from typing import Final, NamedTuple

from producerd.errors import ConfigurationError
from producerd.runtime.logs import get_logger

log = get_logger("producerd.systemd")

FIRST_DESCRIPTOR: Final = 3
"""Number of the first passed descriptor, SD_LISTEN_FDS_START."""
ADMIN: Final = "admin"
"""FileDescriptorName= of the socket of `producerctl`; every other name stands for the clients' socket."""
STATUS_SECONDS: Final = 5.0
"""Time between two reports, and so the greatest age of the status that `systemctl status` shows."""
EXTENSION_SECONDS: Final = 30
"""Time beyond TimeoutStopSec= that each report of a draining daemon adds; a daemon that hangs gets no more."""


class PassedSockets(NamedTuple):
    """The listening sockets that the service manager passed, and the name of the clients' socket unit."""

    records: socket.socket | None = None
    admin: socket.socket | None = None
    unit: str = "producerd.socket"


def take_sockets(environ: MutableMapping[str, str] = os.environ) -> PassedSockets:
    """Return the listening sockets that were passed to this process.

    Raise ConfigurationError for any other descriptor, and for a second socket of one kind.
    """
    pid, count, names = (environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if pid != str(os.getpid()):
        return PassedSockets()
    if not count.isdecimal():
        raise ConfigurationError([f"LISTEN_FDS = {count}: not a number"])
    descriptors = range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count))
    named = dict(zip(descriptors, names.split(":"), strict=False))
    of_admin = [number for number in descriptors if named.get(number) == ADMIN]
    of_records = [number for number in descriptors if number not in of_admin]
    if len(of_admin) > 1 or len(of_records) > 1:
        passed = ", ".join(f"{number} ({named.get(number) or 'no name'})" for number in descriptors)
        raise ConfigurationError([f"too many sockets were passed: {passed}: one for clients, and one named {ADMIN}"])
    records, admin = (_take(numbers[0]) if numbers else None for numbers in (of_records, of_admin))
    taken = PassedSockets(records, admin)
    # Without FileDescriptorName=, a socket has the name of its unit.
    units = [name for number in of_records if (name := named.get(number, "")).endswith(".socket")]
    return taken._replace(unit=units[0]) if units else taken


def _take(descriptor: int) -> socket.socket:
    try:
        passed = socket.socket(fileno=descriptor)
    except OSError as error:
        raise _not_it(descriptor, error.strerror or str(error)) from None
    listens = bool(passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    if (passed.family, passed.type, listens) != (socket.AF_UNIX, socket.SOCK_STREAM, True):
        family, kind = (getattr(value, "name", str(value)) for value in (passed.family, passed.type))
        passed.close()
        raise _not_it(descriptor, f"{family}, {kind}, {'listening' if listens else 'not listening'}")
    passed.set_inheritable(False)
    passed.setblocking(False)
    return passed


def _not_it(descriptor: int, came: str) -> ConfigurationError:
    needed = "not a listening AF_UNIX, SOCK_STREAM socket: give its unit ListenStream=PATH and Accept=no"
    return ConfigurationError([f"the socket that was passed as descriptor {descriptor} ({came}) is {needed}"])


class Notifier:
    """The daemon's reports to systemd, if systemd asked for them.

    From `ready` on, the event loop sends its status every few seconds, and at least twice in each period of
    WatchdogSec=. The reports stop when the loop hangs.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", str(os.getpid()))
        watched = usec.isdecimal() and int(usec) > 0 and pid == str(os.getpid())
        self._interval_seconds = min(STATUS_SECONDS, int(usec) / 2e6) if watched else STATUS_SECONDS
        self._regularly = {"WATCHDOG": "1"} if watched else {}
        self._owed: dict[str, str] = {}  # one value for each word, so it stays small
        self._timer: asyncio.TimerHandle | None = None
        self._status: Callable[[], str] = str  # empty until `ready`
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address[:1] in ("/", "@") else None

    def ready(self, status: Callable[[], str]) -> None:
        """Report that the daemon serves clients, and from now on the line that ``status`` returns."""
        if self._socket is not None:
            self._socket.setblocking(False)
            self._status = status
            self._owed["READY"] = "1"
            self._tell()

    def stopping(self) -> None:
        """Report that the daemon stops, which may last longer than TimeoutStopSec= while the event loop runs."""
        if self._timer is not None:
            self._timer.cancel()
            self._owed["STOPPING"] = "1"
            self._regularly["EXTEND_TIMEOUT_USEC"] = str(EXTENSION_SECONDS * 1_000_000)
            self._tell()

    def close(self) -> None:
        """Send no more reports."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()

    def _tell(self) -> None:
        assert self._socket is not None
        self._timer = asyncio.get_running_loop().call_later(self._interval_seconds, self._tell)
        self._owed |= self._regularly | {"STATUS": self._status()}
        lines = "\n".join(f"{word}={value}" for word, value in self._owed.items())
        try:
            self._socket.sendto(lines.encode(), self._address)
        except OSError as error:
            log.debug("systemd was not told", error=str(error))
        else:
            self._owed.clear()
