"""The daemon of this machine, over its admin socket: HTTP, and JSON both ways."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
from collections.abc import Callable
from typing import Any, Final

TIMEOUT_SECONDS: Final = 10.0
"""For what is answered at once."""
LOOK_SECONDS: Final = 1.0
"""How often whoever waits for a long command hears how far it is."""


class Failed(Exception):
    """What to say before the exit with 1."""


class Daemon:
    """Asks at the given path, or at the default ones.  Raises Failed with what the daemon says, or why none answers."""

    def __init__(self, path: str | None) -> None:
        self._paths = [path] if path else _default_paths()

    def get(self, target: str) -> Any:
        return self._ask("GET", target, None, None)

    def post(
        self, target: str, given: dict[str, Any] | None = None, meanwhile: Callable[[], None] | None = None
    ) -> Any:
        """``meanwhile``: for a command that may take long; it is called every second until the answer comes."""
        return self._ask("POST", target, given, meanwhile)

    def _ask(self, method: str, target: str, given: dict[str, Any] | None, meanwhile: Callable[[], None] | None) -> Any:
        problems = []
        for path in self._paths:
            connection = _UnixConnection(path)
            try:
                connection.connect()
                connection.request(method, target, None if given is None else json.dumps(given))
                if meanwhile is not None:
                    connection.wait(meanwhile)
                answer = connection.getresponse()
                body = json.loads(answer.read())
                if not isinstance(body, dict):
                    raise ValueError("an answer that is not producerd's")
            except PermissionError:
                problems.append(f"{path}: it answers to the daemon's own user and to root alone: try sudo")
                continue
            except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                problems.append(f"{path}: {getattr(error, 'strerror', None) or error}")
                continue
            finally:
                connection.close()
            if answer.status != 200:
                raise Failed(body.get("error", f"status {answer.status}"))
            return body
        raise Failed("no daemon answers: " + "; ".join(problems) + "; --admin-socket names another place")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def wait(self, meanwhile: Callable[[], None]) -> None:
        """Until the answer begins."""
        while not select.select([self.sock], [], [], LOOK_SECONDS)[0]:
            meanwhile()


def _default_paths() -> list[str]:
    """Where the daemon's admin socket is if neither it nor `socket` is set."""
    user = os.environ.get("XDG_RUNTIME_DIR")
    return [f"{folder}/producerd/producerd.admin.sock" for folder in ("/run", user) if folder]
