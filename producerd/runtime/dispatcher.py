"""Dispatcher: does jobs itself or in worker threads, carries requests to Kinesis, and carries results back.

It completes every job and request that it takes from a pipeline exactly once, even a cancelled one.  It takes work only
while a worker is free.  It encodes requests before it sorts jobs, because the rows of a request are nearer to their
end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from producerd.core.encoding.entries import EncodedRequest, encode
from producerd.core.filling import SortJob
from producerd.core.rows.frame import Frame
from producerd.core.rows.sorting import SortedRows, sort_rows
from producerd.core.sending.answers import Answer, RequestFailed
from producerd.core.sending.requests import Request
from producerd.core.turn import settle, take
from producerd.errors import Code
from producerd.runtime.kinesis import Kinesis
from producerd.runtime.logs import get_logger
from producerd.runtime.stream import Stream

log = get_logger("producerd.dispatcher")

TIMEOUTS_TO_TELL: Final = 5
INLINE_MICROSECONDS: Final = 16_000
"""Largest piece of work that the loop thread does itself: a whole request, or a batch of one full frame.

Two threads that both need the interpreter wait for each other and warm two caches.  That takes more CPU and more time
than it saves (docs/decisions, 0007).  Larger pieces would keep all connections waiting.
"""
TURN_MICROSECONDS: Final = 1_600
"""Work in one turn of the loop after which the loop thread begins no more, so that the sockets have their turn."""
BYTES_A_MICROSECOND: Final = 256
"""Bytes that the loop thread is assumed to handle in a microsecond, in addition to one row.  Measured are up to 220 for
encoding aggregates, and 3,000 for other work."""

R = TypeVar("R")


class Dispatcher:
    """The carrier of the work of the node's streams, which completes each piece exactly once.

    `carry` gives it a stream and the stream's way to Kinesis.  It looks at a stream after each `look_at`.  It calls
    ``settled`` each time that streams have settled.
    """

    def __init__(
        self,
        executor: Executor,
        workers: int,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._kinesis: dict[Stream, Kinesis] = {}
        self._getting_ready: dict[Stream, asyncio.Task[None]] = {}
        self._settled = settled
        self._executor = executor
        self._free_workers = workers
        self._loop = asyncio.get_running_loop()
        self._tasks: asyncio.TaskGroup | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._sorting: set[asyncio.Task[None]] = set()
        self._gives_up = False
        self._touched: dict[Stream, None] = {}  # streams that may have work, in line
        self._held_back: dict[Stream, None] = {}  # streams with work, which the node's limit in flight holds back
        self._timers: dict[Stream, tuple[float, asyncio.TimerHandle]] = {}  # and when they ring
        self._pump_scheduled = False
        self._inline_left = 0

    async def run(self, stopped: asyncio.Event) -> None:
        """Own every task until ``stopped``.  Then start nothing, and give up what is in flight."""
        async with asyncio.TaskGroup() as self._tasks:
            await stopped.wait()
            await self.give_up()
        self._tasks = None

    async def give_up(self) -> None:
        """Start nothing more, and cancel requests.  Wait until each is completed as given up and each job is sorted."""
        self._gives_up = True
        await asyncio.sleep(0)  # a task that is cancelled before it began would not complete its request
        for task in self._sending:
            task.cancel()
        if self._sending or self._sorting:
            await asyncio.wait(self._sending | self._sorting)

    def carry(self, stream: Stream, kinesis: Kinesis) -> None:
        """Carry this stream's work to Kinesis from now on."""
        self._kinesis[stream] = kinesis
        self.look_at(stream)

    def look_at(self, stream: Stream) -> None:
        """Look at a stream once, after this turn of the loop: it may have work to do, or acknowledgements to send.

        Do nothing for a stream that was forgotten, because its last session may end late.
        """
        if stream in self._kinesis:
            self._touched[stream] = None
            self._schedule_pump()

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def forget(self, stream: Stream) -> None:
        """Carry no more work of this stream.  The caller ensures that none is in flight."""
        del self._kinesis[stream]
        if (getting_ready := self._getting_ready.pop(stream, None)) is not None:
            getting_ready.cancel()
        self._touched.pop(stream, None)
        self._held_back.pop(stream, None)
        if stream in self._timers:
            self._timers.pop(stream)[1].cancel()

    def _pump(self) -> None:
        try:
            self._look_at_all()
        except Exception as error:
            self.fail_loudly(error)

    def fail_loudly(self, error: Exception) -> None:
        """End the daemon loudly, because an owner of state has failed.  It must not run on half broken."""
        self._spawn(_raise(error), set())

    def _look_at_all(self) -> None:
        self._pump_scheduled = False
        now = self._loop.time()
        for stream in list(self._touched):
            settle(stream.pipeline, stream.gate, now)
        self._inline_left = TURN_MICROSECONDS
        while self._touched and self._free_workers > 0 and self._inline_left > 0:
            stream = next(iter(self._touched))
            del self._touched[stream]
            if self._start(stream, now) or stream.settle(now):  # looking for work may end rows
                self._touched[stream] = None  # at the end of the line
            else:
                if stream.pipeline.held_by_node:
                    self._held_back[stream] = None
                self._set_timer(stream, now)
        for stream in list(self._touched):  # for which no worker is free, or no time
            stream.settle(now)
        if self._touched and self._inline_left <= 0:
            self._schedule_pump()  # after the sockets have had their turn
        self._settled()

    def _start(self, stream: Stream, now: float) -> bool:
        """Start one piece of the stream's work, if there is any."""
        if self._tasks is None or self._gives_up or not self._is_ready(stream):
            return False
        work = take(stream.pipeline, now)
        if isinstance(work, Request):
            explicit = any(piece.span.buffer.explicit is not None for piece in work.pieces)
            if self._does_inline(work.records, work.bytes, row_by_row=explicit):
                self._spawn(self._carry(stream, work, self._encoded(stream, work)), self._sending)
            else:
                self._free_workers -= 1
                self._spawn(self._carry(stream, work, None), self._sending)
        elif work is not None:
            checked = [frame.rows for frame in work.frames if frame.rows is not None]
            records, bytes_ = sum([rows.records for rows in checked]), sum([len(rows.data) for rows in checked])
            has_aggregates = any(rows.aggregates is not None for rows in checked)
            if self._does_inline(records, bytes_, row_by_row=has_aggregates):
                stream.pipeline.sorted(work, _sort(stream.name, work))
            else:
                self._free_workers -= 1
                self._spawn(self._sort(stream, work), self._sorting)
        return work is not None

    def _is_ready(self, stream: Stream) -> bool:
        """Return whether a stream's endpoint is known, by which its requests are encoded.

        The first look asks for it.  No worker waits meanwhile: reading AWS's files may hang.
        """
        if stream not in self._getting_ready:
            ready = self._get_ready(stream, self._kinesis[stream])
            self._getting_ready[stream] = self._spawn(ready, self._sending)
        return self._getting_ready[stream].done()

    async def _get_ready(self, stream: Stream, kinesis: Kinesis) -> None:
        await kinesis.ready()
        self.look_at(stream)

    def _does_inline(self, records: int, bytes_: int, *, row_by_row: bool) -> bool:
        """Return whether the loop thread does a piece of work itself.  If so, charge the piece to this turn.

        With ``row_by_row`` the work may handle single rows, at up to some hundreds of microseconds each.  These are
        rows that are aggregates, or that have explicit hash keys because a client gave them or because there is no key.
        """
        microseconds = records + bytes_ // BYTES_A_MICROSECOND
        if microseconds > (TURN_MICROSECONDS if row_by_row else INLINE_MICROSECONDS):
            return False
        self._inline_left -= microseconds
        return True

    def _spawn(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        assert self._tasks is not None
        task = self._tasks.create_task(work)  # of the group that `run` encloses
        among.add(task)
        task.add_done_callback(among.discard)
        return task

    def _set_timer(self, stream: Stream, now: float) -> None:
        due = stream.pipeline.next_time()
        if due is None or due <= now:  # work that is due already waits for a worker or an answer
            return
        if stream in self._timers:
            rings_at, timer = self._timers[stream]
            if rings_at <= due:  # it may ring for nothing, which takes less time than to set it again each time
                return
            timer.cancel()
        self._timers[stream] = due, self._loop.call_at(due, self._rings, stream)

    def _rings(self, stream: Stream) -> None:
        del self._timers[stream]
        self.look_at(stream)

    async def _carry(self, stream: Stream, request: Request, encoded: EncodedRequest | Exception | None) -> None:
        """Send a request and complete it.  Unless it is ``encoded``, have a worker do that."""
        outcome: Answer | RequestFailed = _GIVEN_UP
        try:
            outcome = await self._send(stream, request, encoded)
            if isinstance(outcome, RequestFailed) and outcome.timed_out and request.timeouts + 1 == TIMEOUTS_TO_TELL:
                shards = [lane.shard.shard_id for lane in request.lanes]
                log.error(
                    "the same records had no answer, again and again; they are still sent",
                    stream=stream.name,
                    times=TIMEOUTS_TO_TELL,
                    records=request.records,
                    shards=shards,
                )
        except asyncio.CancelledError:
            outcome = replace(_GIVEN_UP, maybe_stored=request.encoded is not None)
            raise
        except Exception:  # an error in pure work on rows must not end the node, so halving finds the row
            log.exception("a request could not be made", stream=stream.name, records=request.records, exc_text=False)
            outcome = RequestFailed(Code.INTERNAL, "the daemon failed; see its log", request.encoded is not None)
        finally:
            for late in stream.pipeline.complete(request, outcome, self._loop.time()):
                assert late.encoded is not None
                self._kinesis[stream].await_until(late.encoded, late.sent_at + late.timeout_seconds)
            for other in self._held_back:  # first, as they had to wait
                self.look_at(other)
            self._held_back.clear()
            self.look_at(stream)

    async def _send(
        self, stream: Stream, request: Request, encoded: EncodedRequest | Exception | None
    ) -> Answer | RequestFailed:
        if encoded is None:
            encoded = await self._in_worker(self._encoding(stream, request))
            stream.pipeline.encoded(request, encoded, self._loop.time())
            self.look_at(stream)
        elif isinstance(encoded, Exception):
            raise encoded
        return await self._kinesis[stream].put_records(stream.address, encoded, request.timeout_seconds)

    def _encoded(self, stream: Stream, request: Request) -> EncodedRequest | Exception:
        """Encode a request here and now, or return why that failed."""
        try:
            encoded = self._encoding(stream, request)()
            stream.pipeline.encoded(request, encoded, self._loop.time())
        except Exception as error:
            return error
        return encoded

    def _encoding(self, stream: Stream, request: Request) -> Callable[[], EncodedRequest]:
        rules, sizes = stream.pipeline.rules.entries, request.aggregate_bytes
        format_ = stream.pipeline.format_of(request, is_aws=self._kinesis[stream].is_aws)
        return partial(encode, stream.address, request.numbered, rules, sizes, request.shard_map, format_)

    async def _sort(self, stream: Stream, job: SortJob) -> None:
        stream.pipeline.sorted(job, await self._in_worker(partial(_sort, stream.name, job)))
        self.look_at(stream)

    async def _in_worker(self, work: Callable[[], R]) -> R:
        """Do a piece of work in the worker that `_start` has reserved."""
        try:
            return await self._loop.run_in_executor(self._executor, work)
        finally:
            self._free_workers += 1


def _sort(stream_name: str, job: SortJob) -> list[tuple[list[Frame], SortedRows | None]]:
    """Sort a job's frames together.  If that raises, sort them one by one, so that only the bad frame fails."""
    try:
        return [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))]
    except Exception:  # an error in pure work on rows must not end the node
        log.exception("a job could not be sorted", stream=stream_name, frames=len(job.frames), exc_text=False)
    results: list[tuple[list[Frame], SortedRows | None]] = []
    for frame in job.frames:
        try:
            results.append(([frame], sort_rows([frame], job.shard_map, job.seed)))
        except Exception:  # this is the bad frame; the error was logged
            results.append(([frame], None))
    return results


async def _raise(error: Exception) -> None:
    raise error


_GIVEN_UP: Final = RequestFailed(Code.UNREACHABLE, "given up, because the daemon stops", maybe_stored=True)
