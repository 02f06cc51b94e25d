"""The process at the other end of a unix socket, as the kernel reports it: a client cannot forge this."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any, Final, NamedTuple

_UCRED: Final = struct.Struct("=iII")  # struct ucred: pid_t, uid_t, gid_t (unix(7), SO_PEERCRED)


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
