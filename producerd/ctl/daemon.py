"""Ask the daemon of this machine over its admin socket, which speaks HTTP with JSON in both directions."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import time
from collections.abc import Callable
from math import inf
from typing import Any, Final
from urllib.parse import quote

from producerd.ctl.address import admin_paths, why_unread

TIMEOUT_SECONDS: Final = 10.0
"""Time-out of a request that the daemon answers at once."""
STATUS: Final = "/status"
"""The question that every daemon answers."""
_UNKNOWN: Final = (404, 405)
LOOK_SECONDS: Final = 1.0
"""Time between two reports on how far a long command is."""


class Failed(Exception):
    """A command failed.  The message is what `producerctl` prints before it exits with 1."""


class _NoObject(ValueError):
    """The answer is not a JSON object, as producerd's answers to its own commands are."""


def _object_in(answer: bytes) -> dict[str, Any]:
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _NoObject("an answer that is not producerd's")
    return found


class AdminClient:
    """The daemon that answers at a path, or at the first of those that the environment leads to.

    Each request returns the JSON object of the answer.  It raises Failed with the daemon's error, or with the reason
    why no daemon answers.

    An order that one daemon may have received goes to no other.
    """

    def __init__(self, path: str | None) -> None:
        self._paths = [path] if path else admin_paths()
        self._is_named = bool(path)

    def get(self, target: str) -> Any:
        return self._ask("GET", target)

    def post(
        self,
        target: str,
        given: dict[str, Any] | None = None,
        meanwhile: Callable[[], None] | None = None,
        *,
        seconds: float | None = None,
        until_end: bool = False,
    ) -> Any:
        """Send a command.  Until its answer comes, call ``meanwhile`` every second.

        ``seconds``: how long the daemon may take for it; None waits forever.  With ``until_end`` wait after the answer
        until the daemon has ended.
        """
        return self._ask("POST", target, given, meanwhile, seconds=seconds, until_end=until_end)

    def _ask(
        self,
        method: str,
        target: str,
        given: dict[str, Any] | None = None,
        meanwhile: Callable[[], None] | None = None,
        *,
        seconds: float | None = None,
        until_end: bool = False,
    ) -> Any:
        problems = []
        for path in self._paths:
            connection, is_order_sent = _UnixConnection(path), False
            try:
                connection.connect()
                is_order_sent = method == "POST"
                connection.request(method, target, None if given is None else json.dumps(given))
                if meanwhile is not None:
                    connection.wait(meanwhile, seconds)
                answer = connection.getresponse()
                body = _object_in(answer.read())
                if until_end and answer.status == 200:
                    connection.wait_for_end()
            except PermissionError:
                problem = f"{path}: it answers only to the daemon's own user and to root: try sudo"
            except _NoObject as error:
                if answer.status in _UNKNOWN and target != STATUS:  # otherwise any program may have answered
                    version = self.get(STATUS).get("version")
                    raise Failed(f"the daemon is of version {version}, which does not know this command") from None
                problem = f"{path}: {error}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                is_other = type(error) is http.client.BadStatusLine  # as at the socket for clients
                words = (
                    "what answers there is no admin socket" if is_other else getattr(error, "strerror", None) or error
                )
                problem = f"{path}: {words}"
            else:
                if answer.status != 200:
                    raise Failed(body.get("error", f"status {answer.status}"))
                return body
            finally:
                connection.close()
            if is_order_sent:  # this daemon may have received it, and the next path leads to another one
                raise Failed(f"{problem}; the order may have been carried out")
            problems.append(problem)
        if not self._is_named and (unread := why_unread()):
            problems.append(unread)
        raise Failed("no daemon answers: " + "; ".join(problems) + "; --admin-socket names another place")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def wait(self, meanwhile: Callable[[], None], seconds: float | None) -> None:
        """Call ``meanwhile`` every second until the answer begins.

        Raise TimeoutError if it is late by `TIMEOUT_SECONDS`: a daemon that hangs.
        """
        ends = inf if seconds is None else time.monotonic() + seconds + TIMEOUT_SECONDS
        while not select.select([self.sock], [], [], LOOK_SECONDS)[0]:
            if time.monotonic() > ends:
                raise TimeoutError("timed out")
            meanwhile()

    def wait_for_end(self) -> None:
        """Wait until the daemon's end is closed, which the kernel does when the process ends.

        The path may still answer then: systemd holds the socket, and a new connection would start the daemon again.
        """
        self.sock.settimeout(None)
        with contextlib.suppress(ConnectionError):  # it may also end without closing
            while self.sock.recv(1):
                pass


def path_of(stream: str) -> str:
    """Return the path of a stream's questions and orders."""
    return f"/streams/{quote(stream, safe='')}"
