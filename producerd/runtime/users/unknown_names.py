"""Control-plane calls about streams that may not exist: a client may invent any number of names.

AWS allows an account few of these calls, which all its programs share.  A call about a stream that is not in the
settings and has never worked therefore takes one of a user's calls.  A call that finds the stream gives it back.

Calls about a stream that was missing at the last one leave half of them to other names.  Otherwise a few misspelt names
would keep a stream that exists from its shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from math import inf
from typing import Any, Final, TypeVar

from producerd.core.failures import meaning_of
from producerd.core.sending.answers import RequestFailed
from producerd.errors import Code
from producerd.runtime.kinesis import Address, ControlPlane, StreamSummary, Tried

T = TypeVar("T")

CALLS_AT_ONCE: Final = 32
"""Calls that a user's unknown names may make at once, after a time without any."""
CALLS_AGAIN: Final = CALLS_AT_ONCE // 2
"""How many of these may be about streams that were missing before."""
CALLS_A_MINUTE: Final = 4
"""Further calls, in a minute."""
LOOK_SECONDS: Final = 1.0
WAIT_SECONDS: Final = 10.0
"""Longest time that a first call about a stream, or a client's question, is held back.  Then it has failed."""
HELD_BACK: Final = RequestFailed(
    Code.STREAM_LIMIT,
    "the daemon asks seldom about streams that have never worked, and others that do not exist have used up its calls: "
    "`producerctl status` shows them",
    maybe_stored=False,
)
_NOT_FOUND: Final = (Code.STREAM_NOT_FOUND, Code.ACCESS_DENIED)


class CallAllowance:
    """The calls that each user's unknown names have used up, and that come back with time."""

    def __init__(self) -> None:
        self._used: dict[int | None, tuple[float, float]] = {}  # by user: how many at that time

    @property
    def users(self) -> int:
        """How many users have used calls up."""
        return len(self._used)

    def take(self, users: Collection[int | None], most: int) -> tuple[int | None, float]:
        """Count a call of the user who has used up least, if that is below ``most``.

        Return the user, and the seconds until the call may go, which are 0 if it is counted.
        """
        used = {uid: self._used_now(uid) for uid in users}
        uid = min(used, key=lambda each: used[each])
        seconds = max(0.0, (used[uid] + 1 - most) * 60 / CALLS_A_MINUTE)
        if not seconds:
            self._add(uid, 1)
        return uid, seconds

    def give_back(self, uid: int | None) -> None:
        """Take a call back that found its stream."""
        self._add(uid, -1)

    def _used_now(self, uid: int | None) -> float:
        used, at = self._used.get(uid, (0.0, 0.0))
        return max(0.0, used - (asyncio.get_running_loop().time() - at) * CALLS_A_MINUTE / 60)

    def _add(self, uid: int | None, calls: int) -> None:
        used = max(0.0, self._used_now(uid) + calls)
        self._used.pop(uid, None)
        if used:
            self._used[uid] = used, asyncio.get_running_loop().time()


class SparingCalls:
    """The control-plane calls of one stream, each within a user's allowance until ``is_known()``.

    ``users`` returns who has the stream open, and who opened it first.  Each of them may have a call left.
    """

    def __init__(
        self,
        calls: ControlPlane,
        allowance: CallAllowance,
        users: Callable[[], Collection[int | None]],
        is_known: Callable[[], bool],
    ) -> None:
        self._calls = calls
        self._allowance = allowance
        self._users = users
        self._is_known = is_known
        self._was_missing = False

    async def list_shards(self, address: Address) -> list[dict[str, Any]] | RequestFailed:
        return await self._spared(lambda: self._calls.list_shards(address), self._patience, HELD_BACK)

    async def describe_stream_summary(self, address: Address) -> StreamSummary | RequestFailed:
        return await self._spared(lambda: self._calls.describe_stream_summary(address), self._patience, HELD_BACK)

    async def try_storing(self, address: Address, *, aggregates: bool) -> Tried:
        held_back = Tried(HELD_BACK, by_put_records=False)
        return await self._spared(
            lambda: self._calls.try_storing(address, aggregates=aggregates), WAIT_SECONDS, held_back
        )

    @property
    def _patience(self) -> float:
        """How many seconds a reading may be held back.  No row waits for one of a stream that was missing."""
        return inf if self._was_missing else WAIT_SECONDS

    async def _spared(self, call: Callable[[], Awaitable[T]], seconds: float, held_back: T) -> T:
        most = CALLS_AGAIN if self._was_missing else CALLS_AT_ONCE
        while not self._is_known():
            uid, waits_seconds = self._allowance.take(self._users(), most)
            if not waits_seconds:
                answer = await call()
                failed = answer.failed if isinstance(answer, Tried) else answer
                self._was_missing = isinstance(failed, RequestFailed) and meaning_of(failed.code).code in _NOT_FOUND
                if not self._was_missing:
                    self._allowance.give_back(uid)
                return answer
            if seconds <= 0:
                return held_back
            step_seconds = min(waits_seconds, seconds, LOOK_SECONDS)
            seconds -= step_seconds
            await asyncio.sleep(step_seconds)  # another user may open the stream meanwhile, or a record may be stored
        return await call()
