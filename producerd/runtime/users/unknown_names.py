"""Control-plane calls about streams that may not exist: a client may invent any number of names.

AWS allows an account few of these calls, which all its programs share.  A call about a stream that is not in the
settings and has never worked therefore takes one of a user's calls.  A call that finds the stream gives it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, TypeVar

from producerd.core.failures import meaning_of
from producerd.core.sending.answers import RequestFailed
from producerd.errors import Code
from producerd.runtime.kinesis import Address, ControlPlane, StreamSummary, Tried

T = TypeVar("T")

CALLS_AT_ONCE: Final = 32
"""Calls that a user's unknown names may make at once, after a time without any."""
CALLS_A_MINUTE: Final = 4
"""Further calls, in a minute."""
LOOK_SECONDS: Final = 1.0
_NOT_FOUND: Final = (Code.STREAM_NOT_FOUND, Code.ACCESS_DENIED)


class CallAllowance:
    """The calls that each user's unknown names have used up, and that come back with time."""

    def __init__(self) -> None:
        self._used: dict[int | None, tuple[float, float]] = {}  # by user: how many at that time

    @property
    def users(self) -> int:
        """How many users have used calls up."""
        return len(self._used)

    async def wait_for_call(self, users: Callable[[], Collection[int | None]]) -> int | None:
        """Wait until one of the users may make another call, count it, and return who it was."""
        while True:
            used = {uid: self._used_now(uid) for uid in users()}
            uid = min(used, key=lambda each: used[each])
            seconds = (used[uid] + 1 - CALLS_AT_ONCE) * 60 / CALLS_A_MINUTE
            if seconds <= 0:
                break
            await asyncio.sleep(min(seconds, LOOK_SECONDS))  # another user may open the stream meanwhile
        self._add(uid, 1)
        return uid

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

    async def list_shards(self, address: Address) -> list[dict[str, Any]] | RequestFailed:
        return await self._spared(lambda: self._calls.list_shards(address))

    async def describe_stream_summary(self, address: Address) -> StreamSummary | RequestFailed:
        return await self._spared(lambda: self._calls.describe_stream_summary(address))

    async def try_storing(self, address: Address, *, aggregates: bool) -> Tried:
        return await self._spared(lambda: self._calls.try_storing(address, aggregates=aggregates))

    async def _spared(self, call: Callable[[], Awaitable[T]]) -> T:
        if self._is_known():
            return await call()
        uid = await self._allowance.wait_for_call(self._users)
        answer = await call()
        failed = answer.failed if isinstance(answer, Tried) else answer
        if not (isinstance(failed, RequestFailed) and meaning_of(failed.code).code in _NOT_FOUND):
            self._allowance.give_back(uid)
        return answer
