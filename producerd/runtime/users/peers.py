"""Who is at the other end of a unix socket: a process, as the kernel reports it and no client can forge it, and more.

A client of a session also says things about itself.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any, Final, NamedTuple

from producerd.wire.messages import BadRows, Hello, OnDisconnect

_UCRED: Final = struct.Struct("=iII")  # struct ucred: pid_t, uid_t, gid_t (unix(7), SO_PEERCRED)
MOST_OWN_WORDS: Final = 300
"""Most characters of what a client says about itself in a line of the log."""


class Peer(NamedTuple):
    """A connected process, and its user and group at the time when it connected."""

    pid: int
    uid: int
    gid: int


def peer_of(transport: Any) -> Peer | None:
    """Return the process at the other end of an asyncio transport, or None where the platform does not report it."""
    option = getattr(socket, "SO_PEERCRED", None)
    connected = transport.get_extra_info("socket")
    if option is None or connected is None:
        return None
    return Peer(*_UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _UCRED.size)))


def may_administer(peer: Peer | None) -> bool:
    """Return whether a process may give orders: only root and the daemon's own user may.

    Where the platform does not report processes, the mode of the socket alone decides.
    """
    return peer is None or peer.uid in (0, os.geteuid())


class Client(NamedTuple):
    """A client of a session: its process, and what its HELLO says, all of which may be invented."""

    peer: Peer | None = None
    calls_itself: str = ""  # until HELLO
    delivers: bool = False  # its rows, also after it has gone
    takes_good: bool = False  # the good rows of a frame are taken, even if others are bad
    stays_away: bool = False  # it does not come back after TABLE_FULL

    def greeted(self, hello: Hello) -> Client:
        """Return the client after its HELLO."""
        words = f"{hello.client or 'client'} pid {hello.pid}"
        if hello.application_id:
            task = f"stage {hello.stage_id} partition {hello.partition} attempt {hello.attempt}"
            words = f"{words} {hello.application_id} {task}"
        delivers, takes_good = hello.on_disconnect == OnDisconnect.DELIVER, hello.bad_rows == BadRows.TAKE_GOOD
        return Client(self.peer, words[:MOST_OWN_WORDS], delivers, takes_good, not hello.comes_back)

    @property
    def uid(self) -> int | None:
        """The client's user id, or None if it is not known."""
        return None if self.peer is None else self.peer.uid

    @property
    def who(self) -> str:
        """The client as lines of the log name it."""
        process = "an unknown process" if self.peer is None else f"uid {self.peer.uid} pid {self.peer.pid}"
        words = f"calls itself {self.calls_itself!r}" if self.calls_itself else "has not sent HELLO"
        return f"{process}, which {words}"
