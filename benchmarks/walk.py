"""Walk records through a daemon in one process, from the bytes of a frame to the bytes of its acknowledgement.

Sessions, stream, dispatcher and core are the daemon's own, on asyncio's event loop.  There are stand-ins for four
things.  Clients have their bytes ready.  Kinesis takes CBOR and answers after `ANSWER_SECONDS`; its answers are read as
usual.  Worker threads do their work on the spot.  The clock advances only while there is nothing to do, so that the
same walk takes the same steps each time.  The work of clients and of Kinesis is not counted.

The program walks each of its arguments, a JSON of `Case` and of two numbers of records, and prints its cost as JSON::

    python -m benchmarks.walk '[{"aggregation": "kpl"}, 28000, 14000]'
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import selectors
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any, Final

import cbor2
import numpy as np
import numpy.typing as npt
import orjson
import structlog

from benchmarks.counter import Counter
from producerd.config import StreamSettings
from producerd.config.tuning import TUNING
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.encoding.formats import CBOR, Format
from producerd.core.lanes.lane import Lane
from producerd.core.sending.answers import Answer, RequestFailed, parse_answer
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.runtime.asking import ServiceAnswer
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.kinesis import StreamSummary
from producerd.runtime.session import Session
from producerd.runtime.stream import Stream
from producerd.runtime.users.shares import LoopShares
from producerd.wire import messages
from producerd.wire.columns import FRAME_CHARGE_BYTES, PREFIX, RECORD_CHARGE_BYTES, Columns, Layout

STREAM: Final = "bench"
KEY_BYTES: Final = 16
ANSWER_SECONDS: Final = 0.02
FASTER_THAN_ANY_SHARD: Final = 10_000.0
ENDLESS: Final = 10**12
"""Number of records that no walk reaches."""
MOST_DIFFERENT: Final = 200_000
"""Number of different records, after which they repeat."""
_QUEUE_BYTES: Final = StreamSettings().queue_limit_bytes


@dataclass(frozen=True, slots=True)
class Case:
    """A walk.  ``keys`` is the number of different keys, or None if each row has its own.

    ``frame_records`` is None for the largest frames.  ``queued_share`` is the share of the queue's byte limit that
    clients keep full, because they are faster than the shards; at 0 the shards accept any rate.  With ``steady``,
    clients put records all the time, so that the daemon never sends early for lack of more.  Otherwise all records are
    put and flushed.
    """

    aggregation: str
    record_bytes: int = 100
    shards: int = 4
    sessions: int = 4
    keys: int | None = None
    frame_records: int | None = None
    queued_share: float = 0.0
    steady: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a walk: ``counted`` for all records, in the counter's unit."""

    records: int
    counted: int
    requests: int
    entries: int
    entry_bytes: int

    @property
    def per_record(self) -> float:
        return self.counted / self.records

    @property
    def mean_entry_bytes(self) -> int:
        return round(self.entry_bytes / self.entries)


class RecordsWrong(Exception):
    """Not every record was acknowledged as stored exactly once."""


def walk(case: Case, counter: Counter, records: int, warm_records: int) -> Cost:
    """Walk some records uncounted, then ``records`` or somewhat more, and return their cost.  Raise `RecordsWrong`."""
    loop = _Loop()
    try:
        laid_out = make_frames(case, min(MOST_DIFFERENT, max(records, warm_records)))
        return loop.run_until_complete(_Walk(case, counter, loop, laid_out).run(records, warm_records))
    except ExceptionGroup as failed:  # the first error ends the task group
        raise failed.exceptions[0] from None
    finally:
        loop.close()


def shard_map(shards: int) -> ShardMap:
    """Return the map of this many shards of the same size."""
    edges = [(MAX_HASH_KEY + 1) * number // shards for number in range(shards + 1)]
    return ShardMap(Shard(f"shardId-{n:012}", edges[n], edges[n + 1] - 1) for n in range(shards))


def make_frames(case: Case, records: int) -> list[Columns]:
    """Return the frames, which are the same in each run: whole frames with this many records or a few more."""
    drawn = np.random.default_rng(1)
    different = _keys(drawn, case.keys or 0)
    largest = min(TUNING.max_frame_bytes, _QUEUE_BYTES // (2 * case.sessions))  # as in the daemon's OPENED
    fit = (largest - FRAME_CHARGE_BYTES) // (KEY_BYTES + case.record_bytes + RECORD_CHARGE_BYTES)
    rows = case.frame_records or min(fit, TUNING.max_frame_records)

    def frame() -> Columns:
        keys = different[drawn.integers(0, len(different), rows)] if len(different) else _keys(drawn, rows)
        offsets = [np.arange(rows + 1, dtype="<i4") * size for size in (KEY_BYTES, case.record_bytes)]
        layout = Layout(rows, rows * KEY_BYTES, rows * case.record_bytes)
        columns = (*(at.tobytes() for at in offsets), keys.tobytes(), drawn.bytes(rows * case.record_bytes))
        return Columns(layout, columns)

    return [frame() for _ in range(-(-records // rows))]


def _keys(drawn: np.random.Generator, count: int) -> npt.NDArray[np.uint8]:
    """Return the keys of rows, in hexadecimal digits."""
    return np.frombuffer(drawn.bytes(count * KEY_BYTES // 2).hex().encode(), np.uint8).reshape(count, KEY_BYTES)


def answer_to(
    request: EncodedRequest, lanes: Sequence[Lane], first_number: int = 1, *, format_: Format = CBOR
) -> bytes:
    """Return the answer of Kinesis if all is stored.  A stream's sequence numbers rise."""
    ids = [lane.shard.shard_id for lane in lanes]
    results = [
        {"SequenceNumber": f"{number:056d}", "ShardId": ids[lane]}
        for number, lane in enumerate(request.lanes.tolist(), first_number)
    ]
    answer = {"EncryptionType": "KMS", "FailedRecordCount": 0, "Records": results}
    return cbor2.dumps(answer, indefinite_containers=True) if format_ is CBOR else orjson.dumps(answer)


class _Walk:
    """The host of the walk's sessions, and the Kinesis of their stream."""

    def __init__(self, case: Case, counter: Counter, loop: _Loop, laid_out: Sequence[Columns]) -> None:
        largest = max(TUNING.max_frame_bytes, _largest(case))
        self.case = case
        self.counter = counter
        self.loop = loop
        settings = StreamSettings(
            aggregation=case.aggregation,  # type: ignore[arg-type]
            shard_rate_fraction=1.0 if case.queued_share else FASTER_THAN_ANY_SHARD,
        )
        self.room_bytes = int(_QUEUE_BYTES * case.queued_share) // case.sessions
        self.tuning = replace(
            TUNING,
            # In walks with a full queue, the queue's limit decides how much waits.
            session_window_bytes=max(TUNING.session_window_bytes, self.room_bytes),
            session_window_frames=TUNING.session_window_frames if not case.queued_share else 1_000,
            max_frame_bytes=largest,
            body_timeout_seconds=1e9,
        )
        self.allowed_uids: frozenset[int] = frozenset()
        self.shares = LoopShares(lambda: 0.0)  # on a slow emulator a client would have used up its share
        self.stream = Stream(STREAM, settings, touched=self._touched, tuning=self.tuning)
        self.frames = laid_out
        self.requests = self.entries = self.entry_bytes = 0  # since counting began
        self.numbers = 0  # the last sequence number
        self.acked = self._goal = 0
        self._reached: asyncio.Future[None] = loop.create_future()
        self.error: Exception | None = None

    async def run(self, records: int, warm_records: int) -> Cost:
        self.stream.pipeline.set_shard_map(shard_map(self.case.shards), self.loop.time())
        self.dispatcher = Dispatcher(_OnTheSpot(), 1)
        self.dispatcher.carry(self.stream, self)
        stopped = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.dispatcher.run(stopped))
            await asyncio.sleep(0)
            clients = [_Client(self, number) for number in range(self.case.sessions)]
            steady = self.case.steady or self.case.queued_share > 0
            if steady:
                self._put(clients, ENDLESS)
            for count in (warm_records, records):
                gc.collect()
                self.acked = self.requests = self.entries = self.entry_bytes = 0
                delivered = self.stream.pipeline.stats.delivered_records
                self.counter.take()
                await self._until(count if steady else self._put(clients, count))
                counted = self.counter.take()
                # Frames are acknowledged many at a time, after their delivery.
                walked = self.stream.pipeline.stats.delivered_records - delivered
                cost = Cost(walked, counted, self.requests, self.entries, self.entry_bytes)
            stopped.set()
        return cost

    def _put(self, clients: Sequence[_Client], records: int) -> int:
        """Let all clients together put this many records or a few more, and return how many."""
        return sum([client.put(-(-records // len(clients))) for client in clients])

    async def _until(self, acked: int) -> None:
        self._goal = acked
        self._reached = self.loop.create_future()
        await self._reached
        if self.error is not None:
            raise self.error

    def stored(self, records: int) -> None:
        self.acked += records
        if self.acked >= self._goal and not self._reached.done():
            self._reached.set_result(None)

    def wrong(self, error: Exception) -> None:
        self.error = self.error or error
        if not self._reached.done():
            self._reached.set_result(None)

    # ---- Kinesis

    async def ready(self) -> None:
        pass

    @property
    def is_aws(self) -> bool:
        return True

    async def put_records(
        self,
        address: Mapping[str, str],  # noqa: ARG002 - the Protocol's, as those below
        request: EncodedRequest,
        timeout_seconds: float,  # noqa: ARG002
    ) -> Answer | RequestFailed:
        await asyncio.sleep(ANSWER_SECONDS)
        self.counter.pause()
        self.requests += 1
        self.entries += request.entries
        self.entry_bytes += request.payload_bytes
        (lanes,) = [sent.lanes for sent in self.stream.pipeline.sender.in_flight if sent.encoded is request]
        body, entries = answer_to(request, lanes, self.numbers + 1), request.entries
        self.numbers += entries
        self.counter.go_on()
        return parse_answer(body, entries)

    def await_until(self, request: EncodedRequest, at: float) -> None:
        raise NotImplementedError

    async def list_shards(self, address: Mapping[str, str]) -> list[dict[str, Any]] | RequestFailed:
        raise NotImplementedError

    async def describe_stream_summary(self, address: Mapping[str, str]) -> Any:
        raise NotImplementedError

    # ---- host

    def admit(self, session: Session) -> str | None:  # noqa: ARG002
        return None

    def open_stream(self, name: str, uid: int | None, *, dry_run: bool) -> Stream:  # noqa: ARG002
        return self.stream

    def ask_service(self, stream: Stream, hear: Callable[[ServiceAnswer], None]) -> None:  # noqa: ARG002
        raise AssertionError("a walk asks no question")

    def ask_where(self, stream: Stream, hear: Callable[[StreamSummary | None], None]) -> None:  # noqa: ARG002
        raise AssertionError("a walk asks no question")

    def end_loudly(self, error: Exception) -> None:
        self.wrong(error)

    def _touched(self, stream: Stream) -> None:
        self.dispatcher.look_at(stream)

    def session_ended(self, session: Session) -> None:
        pass


def _largest(case: Case) -> int:
    row = KEY_BYTES + case.record_bytes + RECORD_CHARGE_BYTES
    return FRAME_CHARGE_BYTES + row * (case.frame_records or 1)


class _Client(asyncio.Transport):
    """A connection with both ends: what the daemon writes is read here, and answered in a later turn of the loop."""

    def __init__(self, walk: _Walk, number: int) -> None:
        super().__init__()
        self._walk = walk
        self._counter = walk.counter
        self._next = number  # all clients share the frames, and each begins at another one
        self._frame_id = 0
        self._left = 0
        self._unacked: dict[int, Columns] = {}
        self._unacked_bytes = 0
        self._waits = False
        self._bodies = [_body(columns) for columns in walk.frames]
        self._session = Session(walk, number)
        self._session.connection_made(self)
        self._tell(messages.encode(messages.Hello(1, 1, client="bench")) + messages.encode(messages.Open(1, STREAM)))

    def put(self, records: int) -> int:
        """Put this many records or a few more, and return how many."""
        self._counter.pause()
        rows = self._walk.frames[0].layout.records
        self._left = -(-records // rows) * rows
        self._reserve()
        self._counter.go_on()
        return self._left

    # ---- the client's work, which is not counted

    def _reserve(self) -> None:
        """Reserve room for the next frame, if there is one and the window allows it."""
        if self._waits or self._left <= 0:
            return
        columns = self._walk.frames[self._next % len(self._walk.frames)]
        tuning = self._walk.tuning
        full = self._unacked_bytes + columns.layout.charge_bytes > (
            self._walk.room_bytes or tuning.session_window_bytes
        )
        if self._unacked and (full or len(self._unacked) >= tuning.session_window_frames):
            return
        self._waits = True
        self._frame_id += 1
        self._later(messages.encode(messages.Reserve(self._frame_id, 1, columns.layout)))

    def _granted(self, frame_id: int) -> None:
        place = self._next % len(self._walk.frames)
        columns, body = self._walk.frames[place], self._bodies[place]
        PREFIX.pack_into(body, messages.HEADER.size, frame_id, *_prefix(columns))
        self._unacked[frame_id] = columns
        self._unacked_bytes += columns.layout.charge_bytes
        self._left -= columns.layout.records
        self._next += self._walk.case.sessions
        self._waits = False
        self._later(body)
        self._reserve()
        if self._left <= 0:
            self._later(messages.encode(messages.Flush()))

    def _acked(self, ack: messages.Ack) -> None:
        columns = self._unacked.pop(ack.frame_id)
        self._unacked_bytes -= columns.layout.charge_bytes
        if ack.stored != columns.layout.records:
            self._walk.wrong(RecordsWrong(f"{ack.stored} of {columns.layout.records} records are stored: {ack}"))
        self._walk.stored(ack.stored)
        self._reserve()

    def _later(self, data: bytes | bytearray) -> None:
        self._walk.loop.call_soon(self._tell, data)

    # ---- the socket, which is counted

    def _tell(self, data: bytes | bytearray) -> None:
        view, at = memoryview(data), 0
        while at < len(view):
            buffer = self._session.get_buffer(-1)
            count = min(len(buffer), len(view) - at)
            buffer[:count] = view[at : at + count]
            at += count
            self._session.buffer_updated(count)

    def write(self, data: Any) -> None:
        self._counter.pause()
        header = messages.parse_header(data)
        message = messages.decode(header, data[messages.HEADER.size :])
        if isinstance(message, messages.Grant):
            self._granted(message.frame_id)
        elif isinstance(message, messages.Ack):
            self._acked(message)
        elif not isinstance(message, (messages.Welcome, messages.Opened)):
            self._walk.wrong(RecordsWrong(f"the daemon says {message}"))
        self._counter.go_on()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def _body(columns: Columns) -> bytearray:
    """Return the BODY of a frame, without its id."""
    return bytearray(
        b"".join((messages.body_header(columns.layout), columns.body_prefix(0), *map(bytes, columns.parts)))
    )


def _prefix(columns: Columns) -> tuple[int, int, int, int]:
    layout = columns.layout
    return layout.records, layout.key_bytes, layout.data_bytes, layout.hash_key_bytes


class _OnTheSpot(Executor):
    """An executor that does the work of worker threads on the spot."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except Exception as error:  # the future raises it
            future.set_exception(error)
        return future


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps over the time in which it would sleep."""

    def __init__(self) -> None:
        self.now = 1_000.0
        super().__init__(_NoWaiting(self))

    def time(self) -> float:
        return self.now


class _NoWaiting(selectors.SelectSelector):
    def __init__(self, loop: _Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing will ever happen here")
        if not ready and timeout:
            self._loop.now += timeout
        return ready


def freeze() -> Counter:
    """Leave garbage alone as the daemon does, log errors only, and return a counter."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    counter = Counter()
    gc.collect()
    gc.freeze()
    return counter


def main(arguments: Sequence[str]) -> None:
    counter = freeze()
    for argument in arguments:
        case, records, warm_records = json.loads(argument)
        cost = walk(Case(**case), counter, records, warm_records)
        print(json.dumps([counter.unit, cost.per_record, cost.mean_entry_bytes]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
