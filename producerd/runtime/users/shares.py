"""LoopShares: how much of the event loop's time the clients of one user may have.

The loop handles the messages of all sockets one after the other: a user whose clients send any number of messages would
slow down every other user.  The shares count the time that the loop spends on each user's clients, and what it is
assumed to need for the delivery of their frames.  While others speak, too, a user has a short time at once and a part
of the time in the long run.  What exceeds it waits, in the order in which it came.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

from producerd.runtime.logs import get_logger
from producerd.runtime.users.peers import Peer
from producerd.wire import messages

log = get_logger("producerd")


class Share(NamedTuple):
    """The time that a user has at once, and the part of the time that comes back."""

    at_once_seconds: float
    part: float


ALONE: Final = Share(0.012, 1.0)
"""Of the only user: no limit in the long run, but the loop's other work goes on."""
WITH_OTHERS: Final = Share(0.001, 0.25)
"""Of a user next to others, each of whom may have to wait for it."""
ACTIVE_SECONDS: Final = 10.0
"""Time after a user's last message in which the others leave room for the next one."""
MOST_DEBT_SECONDS: Final = 0.05
"""Most time beyond the share that is counted: a connection that is accepted cannot wait, so it may exceed the share."""
FRAME_SECONDS: Final = 0.000_25
RECORD_SECONDS: Final = 0.000_001
"""Time that counts for the delivery of a frame, and for each of its records.  They are chosen, not
measured, so that floods of frames slow other users by less than twice (`./dev bench abuse`)."""
BREACH_SECONDS: Final = 0.005
"""Time that counts for a breach of the protocol, which no honest client commits.  It is chosen likewise."""
FLOOD_MESSAGES: Final = (messages.Status, messages.Cancel, messages.Open)
"""Messages that bring no record closer to its stream.  Clients need few of them."""
MOST_MESSAGES: Final = 60_000
"""The daemon reports a user whose clients send more such messages in `FLOOD_SECONDS`."""
FLOOD_SECONDS: Final = 60.0


class LoopShares:
    """The time that each user has used.

    A user is next to others while another one's clients have spoken within `ACTIVE_SECONDS`.  Without others it has the
    share ``alone``.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter, alone: Share | None = None) -> None:
        self.clock = clock
        self._alone = alone or ALONE
        # By user: seconds that count at that time.  Who has spoken last is the last, and who is silent is forgotten.
        self._used: dict[int | None, tuple[float, float]] = {}
        self._put_off: dict[int | None, deque[Callable[[], None]]] = {}
        self._timer: asyncio.Handle | None = None  # of `_serve`
        self._serves_at = 0.0
        self._messages: Counter[int | None] = Counter()
        self._counts_from = 0.0

    @property
    def users(self) -> int:
        """How many users it keeps the time of."""
        return len(self._used)

    def has_time(self, peer: Peer | None, began: float) -> bool:
        """Return whether a client that the loop serves since ``began`` may go on.  If not, it calls `put_off`."""
        uid, now, share = self._look_at(peer)
        return self._used_at(uid, now, share) + now - began < share.at_once_seconds

    def spend(self, peer: Peer | None, began: float) -> None:
        """Count that the loop has served a client since ``began``."""
        uid, now, share = self._look_at(peer)
        self._add(uid, share, now - began, now)
        if len(self._used) > 1:
            self._forget_silent(now)

    def put_off(self, peer: Peer | None, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` when the user has time again, after what was put off before for the same user."""
        uid = _uid(peer)
        self._put_off.setdefault(uid, deque()).append(go_on)
        self._serve_later(uid)

    def count(self, peer: Peer | None, message: messages.Message) -> None:
        """Count a message, and report a flood of messages without records at most once a minute."""
        if not isinstance(message, FLOOD_MESSAGES):
            return
        now = self.clock()
        if now >= self._counts_from + FLOOD_SECONDS:
            self._counts_from = now
            self._messages.clear()
        uid = _uid(peer)
        self._messages[uid] += 1
        if self._messages[uid] == MOST_MESSAGES:
            pid = None if peer is None else peer.pid
            log.warning("clients flood the daemon", uid=uid, pid=pid, command=_command_of(pid))

    def will_deliver(self, peer: Peer | None, records: int) -> None:
        """Count a frame that was accepted from a client, for the time that its delivery will take."""
        self.expect(peer, FRAME_SECONDS + records * RECORD_SECONDS)

    def broke_the_protocol(self, peer: Peer | None) -> None:
        """Count a client that was turned away.  Its user may send the next one at once."""
        self.expect(peer, BREACH_SECONDS)

    def expect(self, peer: Peer | None, seconds: float) -> None:
        """Count time that `spend` will not measure, if others may have to wait for it."""
        uid, now, share = self._look_at(peer)
        if share is not ALONE:
            self._add(uid, share, seconds, now)

    # ---- inside

    def _add(self, uid: int | None, share: Share, seconds: float, now: float) -> None:
        used = min(share.at_once_seconds + MOST_DEBT_SECONDS, self._used_at(uid, now, share) + seconds)
        if len(self._used) > 1:
            self._used.pop(uid, None)  # to the end
        self._used[uid] = used, now

    def _look_at(self, peer: Peer | None) -> tuple[int | None, float, Share]:
        """Return the user, the time and the user's share now."""
        uid, now = None if peer is None else peer.uid, self.clock()
        if len(self._used) == 1 and uid in self._used:
            return uid, now, self._alone
        return uid, now, self._share_of(uid, now)

    def _share_of(self, uid: int | None, now: float) -> Share:
        for other, (_, at) in reversed(self._used.items()):  # the last, or the one before
            if other != uid:
                return WITH_OTHERS if now - at < ACTIVE_SECONDS else self._alone
        return self._alone

    def _forget_silent(self, now: float) -> None:
        """Forget users silent for `ACTIVE_SECONDS`: their time no longer counts, and they no longer count as others."""
        while self._used:
            uid, (_, at) = next(iter(self._used.items()))
            if now - at < ACTIVE_SECONDS:
                return
            del self._used[uid]

    def _used_at(self, uid: int | None, now: float, share: Share) -> float:
        """Return the user's time that counts now."""
        if uid not in self._used:
            return 0.0
        used, at = self._used[uid]
        return max(0.0, used - (now - at) * share.part)

    def _serve_later(self, uid: int | None) -> None:
        """See to it that `_serve` is called when this user has half a share again, or before."""
        loop, now = asyncio.get_running_loop(), self.clock()
        share = self._share_of(uid, now)
        seconds = max(0.0, self._used_at(uid, now, share) - share.at_once_seconds / 2) / share.part
        if self._timer is not None:
            if self._serves_at <= now + seconds:
                return
            self._timer.cancel()
        self._serves_at = now + seconds
        self._timer = loop.call_later(seconds, self._serve) if seconds else loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Let those go on whose user has time again, as far as it goes."""
        self._timer = None
        for uid, line in list(self._put_off.items()):
            for _ in range(len(line)):  # a client that is put off again joins the end of the line
                now = self.clock()
                share = self._share_of(uid, now)
                if self._used_at(uid, now, share) >= share.at_once_seconds:
                    break
                line.popleft()()
            if not line:
                del self._put_off[uid]
        self._forget_silent(self.clock())
        for uid in self._put_off:
            self._serve_later(uid)


def _uid(peer: Peer | None) -> int | None:
    return None if peer is None else peer.uid


def _command_of(pid: int | None) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has ended, or is in another namespace
        return ""
