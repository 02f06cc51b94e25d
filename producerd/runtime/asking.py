"""Asking: find out whether Kinesis would store a stream's records, for clients that have not sent any yet.

The question stores nothing.  At AWS itself it is a dry run of PutRecords; elsewhere it is ListShards with one result.
Clients that ask at about the same time share one question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from producerd.core.failures import meaning_of
from producerd.core.sending.health import WHERE_TO_LOOK, HealthState
from producerd.errors import Code
from producerd.runtime.kinesis import ControlPlane, Tried
from producerd.runtime.stream import Stream
from producerd.wire import messages

ASK_AGAIN_SECONDS: Final = 2.0
"""Time for which an answer is reused, because a check of a Spark cluster asks once from each executor."""


class ServiceAnswer(NamedTuple):
    """The answer to a client's question: what the service said, with an error code and a message.

    ``code`` is a `Code`, or "" if nothing speaks against storing records.
    """

    service: messages.Service
    code: str = ""
    message: str = ""


NOT_ASKED: Final = ServiceAnswer(messages.Service.NOT_ASKED)
"""The answer of a stream that no client has asked about."""


class Asking:
    """The questions about one stream, of which at most one is on its way.

    ``task`` is the question that is on its way, or None.  Its owner may cancel it.
    """

    def __init__(self, stream: Stream, service: ControlPlane, tasks: asyncio.TaskGroup) -> None:
        self.task: asyncio.Task[None] | None = None
        self._stream = stream
        self._service = service
        self._tasks = tasks
        self._waiting: list[Callable[[ServiceAnswer], None]] = []
        self._answer = NOT_ASKED
        self._asked_at = -inf

    def ask(self, receive: Callable[[ServiceAnswer], None]) -> None:
        """Call ``receive`` with the service's answer: at once if a recent one is there, otherwise when it arrives."""
        if self.task is None and asyncio.get_running_loop().time() < self._asked_at + ASK_AGAIN_SECONDS:
            receive(self._answer)
            return
        self._waiting.append(receive)
        if self.task is None:
            self.task = self._tasks.create_task(self._ask())

    def close(self) -> None:
        """Cancel the question that is on its way, because the daemon forgets the stream."""
        if self.task is not None:
            self.task.cancel()

    async def _ask(self) -> None:
        aggregates = self._stream.pipeline.rules.entries.aggregate
        tried = await self._service.try_storing(self._stream.address, aggregates=aggregates)
        self._answer, self._asked_at = answer_of(tried, self._stream), asyncio.get_running_loop().time()
        waiting, self._waiting, self.task = self._waiting, [], None
        for receive in waiting:
            receive(self._answer)


def answer_of(tried: Tried, stream: Stream) -> ServiceAnswer:
    """Return what the service's answer means for clients of this stream."""
    pipeline, failed, by_put_records = stream.pipeline, tried.failed, tried.by_put_records
    if failed is None or meaning_of(failed.code).code == Code.THROTTLED:  # a throttled service has answered, too
        health = pipeline.health
        if pipeline.cannot_aggregate:
            return ServiceAnswer(messages.Service.FAILED, Code.SHARD_MAP_MISSING, pipeline.cannot_aggregate)
        # That ListShards works does not show that PutRecords is allowed again.
        if health.state is HealthState.BROKEN and health.code in (Code.ACCESS_DENIED, Code.KMS) and not by_put_records:
            message = f"the last records were refused: {health.code}: {health.message}"
            return ServiceAnswer(messages.Service.NOT_VERIFIED, health.code, message)
        how = "a dry run of PutRecords is allowed" if by_put_records else "ListShards answers; PutRecords was not tried"
        return ServiceAnswer(messages.Service.READY, message=f"{how}, at {tried.endpoint}")
    code = meaning_of(failed.code).code
    message = failed.message if failed.code == code else f"{failed.code}: {failed.message}"
    if code == Code.UNREACHABLE:
        message += f": {WHERE_TO_LOOK}"
    if code == Code.ACCESS_DENIED and not by_put_records:
        if not pipeline.rules.entries.aggregate:
            return ServiceAnswer(
                messages.Service.NOT_VERIFIED, code, f"the daemon may not list the stream's shards: {message}"
            )
        message += '; aggregation = "kpl" needs kinesis:ListShards'
    return ServiceAnswer(messages.Service.FAILED, code, message)
