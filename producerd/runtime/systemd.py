"""The service manager: the sockets that it passes, and what it is told.  Without one, nothing here does anything.

The protocols are those of sd_listen_fds(3) and sd_notify(3): a few variables, and lines in a datagram.  The variables
are taken out of the environment, as they are meant for this process and for no child of it.  What cannot be told now
is told with the next message; that never ends the daemon.
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

FIRST_DESCRIPTOR: Final = 3  # SD_LISTEN_FDS_START
ADMIN: Final = "admin"
"""FileDescriptorName= of the socket that is producerctl's; every other name is that of the clients' one."""
STATUS_SECONDS: Final = 5.0
"""How old `systemctl status` may be; and how long a drain may take to say that it goes on, with room to spare below."""
EXTENSION_SECONDS: Final = 30
"""A daemon that drains has so long again with each message, beyond TimeoutStopSec=; one that hangs has no more."""


class PassedSockets(NamedTuple):
    """The listening sockets that were passed, and the unit of the clients' one, as far as it tells its name."""

    records: socket.socket | None = None
    admin: socket.socket | None = None
    unit: str = "producerd.socket"


def take_sockets(environ: MutableMapping[str, str] = os.environ) -> PassedSockets:
    """The listening sockets that were passed to this process.  Raises ConfigurationError for anything else."""
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
        told = ", ".join(f"{number} ({named.get(number) or 'no name'})" for number in descriptors)
        raise ConfigurationError([f"too many sockets were passed: {told}: one for clients, and one named {ADMIN}"])
    records, admin = (_take(numbers[0]) if numbers else None for numbers in (of_records, of_admin))
    taken = PassedSockets(records, admin)
    # Without FileDescriptorName= a socket has the name of its unit.
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
    """Tells systemd of this process, where it asked for that.

    From `ready` on the event loop itself says every few seconds how it is, and that it lives: at least twice in each
    WatchdogSec=, and never while it hangs.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", str(os.getpid()))
        watched = usec.isdecimal() and int(usec) > 0 and pid == str(os.getpid())
        self._interval_seconds = min(STATUS_SECONDS, int(usec) / 2e6) if watched else STATUS_SECONDS
        self._regularly = {"WATCHDOG": "1"} if watched else {}
        self._owed: dict[str, str] = {}  # one value for each word: it cannot grow
        self._timer: asyncio.TimerHandle | None = None
        self._status: Callable[[], str] = str  # empty until `ready`
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address[:1] in ("/", "@") else None

    def ready(self, status: Callable[[], str]) -> None:
        """Clients are served; ``status`` is asked from now on, and returns one line."""
        if self._socket is not None:
            self._socket.setblocking(False)
            self._status = status
            self._owed["READY"] = "1"
            self._tell()

    def stopping(self) -> None:
        """The end has begun; it may take longer than TimeoutStopSec= as long as the loop goes on."""
        if self._timer is not None:
            self._timer.cancel()
            self._owed["STOPPING"] = "1"
            self._regularly["EXTEND_TIMEOUT_USEC"] = str(EXTENSION_SECONDS * 1_000_000)
            self._tell()

    def close(self) -> None:
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
