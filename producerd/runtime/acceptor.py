"""Acceptor: accepts connections at a listener's path, even after the socket's file was deleted.

Every two seconds its listener looks at the path.  That takes two stats of a local file system, some microseconds of
CPU.  They see everything that can happen to a path: its file or a directory may be deleted, renamed or replaced, made
again, or mounted over.  inotify would need a watch for each directory of the path, and would not see a mount.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any, Final, Never

from producerd.runtime.listener import BACKLOG, Listener, PathProblem
from producerd.runtime.logs import get_logger

log = get_logger("producerd")

LOOK_SECONDS: Final = 2.0

KEEP_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""Without this option a server that closes deletes its socket's file since Python 3.13, also a service manager's file.

The listener owns the file.
"""


class Acceptor:
    """The acceptor of a listener's sockets, which makes a protocol for each connection.

    ``problem`` says why no client can connect at the path now, or is None if clients can.  The daemon always serves
    clients that are connected, and clients that reach an earlier socket.
    """

    def __init__(self, listener: Listener, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self.listener = listener
        self.problem: str | None = None
        self._make_protocol = make_protocol
        self._servers: dict[socket.socket, asyncio.AbstractServer] = {}
        self._closed = False

    async def start(self) -> None:
        await self._accept()
        await self.look()

    async def run(self) -> Never:
        """Look after the path until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Check now that clients find the daemon, and bind the path again if they do not."""
        if self._closed:
            return
        path, remedy = str(self.listener.path), self.listener.remedy
        try:
            was_bound = self.listener.look()
        except PathProblem as error:
            problem = f"nobody can connect to {path}: {error}: {remedy}"
            if problem != self.problem:
                log.error("nobody can connect any more", socket=path, why=str(error), do=remedy)
            self.problem = problem
            return
        await self._accept()
        if was_bound:
            log.warning("the socket's file was gone; it is bound again", socket=path, do=self.listener.reminder)
        elif self.problem is not None:
            log.info("clients can connect again", socket=path)
        self.problem = None

    def close(self) -> None:
        """Accept no more clients, and leave the path as it is."""
        self._closed = True
        for server in self._servers.values():
            server.close()

    async def _accept(self) -> None:
        """Accept clients from the listener's sockets and from no others."""
        sockets = [bound.socket for bound in self.listener.bound]
        for retired in self._servers.keys() - sockets:
            self._servers.pop(retired).close()
        for one in sockets:
            if one not in self._servers:
                loop = asyncio.get_running_loop()
                # uvloop calls listen again, and without this argument its own backlog of 100 would count.
                self._servers[one] = await loop.create_unix_server(
                    self._make_protocol, sock=one, backlog=BACKLOG, **KEEP_FILE
                )
