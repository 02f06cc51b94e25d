"""Who is at the other end of a unix socket, as the kernel says it: nobody can claim to be another one."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any, Final, NamedTuple

_UCRED: Final = struct.Struct("=iII")  # struct ucred: pid_t, uid_t, gid_t (unix(7), SO_PEERCRED)


class Peer(NamedTuple):
    """A process that connected, and the user that it had then."""

    pid: int
    uid: int
    gid: int


def peer_of(transport: Any) -> Peer | None:
    """Who is connected by this asyncio transport; None where the platform does not say."""
    option = getattr(socket, "SO_PEERCRED", None)
    connected = transport.get_extra_info("socket")
    if option is None or connected is None:
        return None
    return Peer(*_UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _UCRED.size)))


def may_administer(peer: Peer | None) -> bool:
    """The daemon's own user, and root; whoever the socket's mode lets in where the platform does not say."""
    return peer is None or peer.uid in (0, os.geteuid())
