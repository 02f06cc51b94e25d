"""TurnShares: how much of one turn of the event loop the clients of one user may have.

A turn handles what all sockets have to say, and each of them waits for it.  So a user whose clients send any number of
control messages would slow down every other user.  What exceeds a user's share is handled in the next turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Final

from producerd.runtime.logs import get_logger
from producerd.runtime.peers import Peer
from producerd.wire.frames import MessageType

log = get_logger("producerd")

UNITS_OF_A_TURN: Final = 512
"""Most units of one user in a turn: some 12 ms of CPU.  192 cores with two sessions each and a message each are 384."""
COSTLY_UNITS: Final = 8
UNITS: Final = {MessageType.STATUS: COSTLY_UNITS, MessageType.OPEN: COSTLY_UNITS}
"""What a message counts, if that is not 1: its CPU time in units of 25 us, about."""
FLOOD_TURNS: Final = 1_000
"""A user whose clients were put off this often within `FLOOD_SECONDS` is reported."""
FLOOD_SECONDS: Final = 60.0


class TurnShares:
    """The units of each user in the present turn of the loop."""

    def __init__(self) -> None:
        self._used: Counter[int | None] = Counter()
        self._put_off: Counter[int | None] = Counter()
        self._counts_from = 0.0

    def take(self, peer: Peer | None, message: MessageType) -> bool:
        """Return whether a client's next message may be handled in this turn."""
        uid = None if peer is None else peer.uid
        used = self._used[uid]
        if used >= UNITS_OF_A_TURN:
            self._count(peer, uid)
            return False
        if not self._used:
            asyncio.get_running_loop().call_soon(self._used.clear)
        self._used[uid] = used + UNITS.get(message, 1)
        return True

    def _count(self, peer: Peer | None, uid: int | None) -> None:
        """Count that a client is put off, and report a flood at most once a minute."""
        now = asyncio.get_running_loop().time()
        if now >= self._counts_from + FLOOD_SECONDS:
            self._counts_from = now
            self._put_off.clear()
        self._put_off[uid] += 1
        if self._put_off[uid] == FLOOD_TURNS:
            pid = None if peer is None else peer.pid
            log.warning("clients flood the daemon", uid=uid, pid=pid, command=_command_of(pid))


def _command_of(pid: int | None) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has ended, or is in another namespace
        return ""
