"""Acceptor: connections that come by a listener's path, also after the socket's file was deleted.

Every two seconds it has its listener look at the path.  That is two stats of a local file system, some microseconds,
and they see everything that can happen to a path: a file deleted, renamed or replaced, a directory deleted, made again
or mounted over.  inotify would need a watch for each directory on the way, and would not see the last one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Never

from producerd.runtime.listener import BACKLOG, Listener, PathProblem
from producerd.runtime.logs import get_logger

log = get_logger("producerd")

LOOK_SECONDS: Final = 2.0


class Acceptor:
    """Makes a protocol for each connection to the listener's sockets.

    ``problem`` says why nobody can connect at the path now; None where clients can.  Those that are connected, and
    those that reach an earlier socket, are served all the same.
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
        """See now that clients find the daemon, and bind the path again where they do not."""
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
        """Accept nobody any more, and leave the path as it is."""
        self._closed = True
        for server in self._servers.values():
            server.close()

    async def _accept(self) -> None:
        """Accept from the listener's sockets, and from no other."""
        sockets = [bound.socket for bound in self.listener.bound]
        for retired in self._servers.keys() - sockets:
            self._servers.pop(retired).close()
        for one in sockets:
            if one not in self._servers:
                loop = asyncio.get_running_loop()
                # uvloop listens once more, with its own backlog of 100 if it is given none.
                self._servers[one] = await loop.create_unix_server(self._make_protocol, sock=one, backlog=BACKLOG)
