"""The dispatcher completes every job and request exactly once: answered, failed, poisoned or given up."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from structlog.testing import capture_logs

import producerd.runtime.dispatcher as module
from producerd.config import StreamSettings
from producerd.core.budget import NodeInFlight
from producerd.core.encoding import entries
from producerd.core.rows import sorting
from producerd.core.rows.frame import Frame
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.backoff import RetryPolicy
from producerd.core.sending.requests import Request
from producerd.core.turn import take
from producerd.errors import Code, Outcome
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.stream import Stream
from producerd.wire.columns import Columns, lay_out
from tests.daemon import rows, until_on_loop
from tests.runtime.stand_ins import StandInKinesis
from tests.simulation.setting import make_body

T = TypeVar("T")

pytestmark = pytest.mark.law("Dispatcher")


@pytest.fixture(autouse=True)
def _no_tracebacks() -> Iterator[None]:
    """Keep structlog's default from rendering tracebacks, which takes it a second of CPU each."""
    with capture_logs():
        yield


class Bench:
    """A dispatcher and one stream, and an owner that counts how often each frame is finished."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        kinesis: StandInKinesis,
        stopped: asyncio.Event,
        settings_: dict[str, Any],
        *,
        name: str = "flights",
        in_flight: NodeInFlight | None = None,
    ) -> None:
        self.dispatcher = dispatcher
        self.kinesis = kinesis
        self.stopped = stopped
        settings = StreamSettings(linger_seconds=0, max_in_flight_requests=2).model_copy(update=settings_)
        self.stream = Stream(name, settings, in_flight=in_flight)
        dispatcher.carry(self.stream, kinesis)
        self.stream.pipeline.shard_map_failed("AccessDeniedException", "no", 0.0)  # nobody waits for it
        self.finishes: Counter[int] = Counter()
        self.frames: dict[int, Frame] = {}
        self.completed: Counter[int] = Counter()
        complete = self.stream.pipeline.complete

        def count(request: Any, outcome: Any, now: float) -> list[Request]:
            self.completed[id(request)] += 1
            self._kept.append(request)
            return complete(request, outcome, now)

        self._kept: list[Any] = []  # so that no identity is used twice
        self.stream.pipeline.complete = count  # type: ignore[method-assign]

    def finished(self, frame: Frame) -> None:
        self.finishes[frame.frame_id] += 1

    def submit(self, columns_: Columns) -> Frame:
        number = len(self.frames) + 1
        layout = columns_.layout
        frame = Frame(self, number, self.stream.check(make_body(columns_)), layout.charge_bytes)
        self.frames[number] = frame
        self.stream.budget.charge(layout.records, layout.charge_bytes)
        self.stream.pipeline.submit(frame, asyncio.get_running_loop().time())
        self.dispatcher.look_at(self.stream)
        return frame

    async def until_finished(self) -> None:
        await until_on_loop(lambda: len(self.finishes) == len(self.frames))

    def assert_all_ended_once(self) -> None:
        assert self.finishes == dict.fromkeys(self.frames, 1)
        assert set(self.completed.values()) <= {1}
        assert self.stream.pipeline.idle
        assert self.stream.pipeline.diagnosis.requests_in_flight == 0
        assert (self.stream.budget.used_records, self.stream.budget.used_bytes) == (0, 0)


@asynccontextmanager
async def bench(
    workers: int = 1, *, settled: Callable[[], None] = lambda: None, **settings: Any
) -> AsyncIterator[Bench]:
    kinesis, stopped = StandInKinesis(), asyncio.Event()
    with ThreadPoolExecutor(workers) as pool:
        dispatcher = Dispatcher(pool, workers, settled)
        async with asyncio.TaskGroup() as group:
            group.create_task(dispatcher.run(stopped))
            await asyncio.sleep(0)
            yield Bench(dispatcher, kinesis, stopped, settings)
            stopped.set()


async def turn_over(turns: int = 3) -> None:
    """Let the loop have some turns."""
    for _ in range(turns):
        await asyncio.sleep(0)


def spied(monkeypatch: pytest.MonkeyPatch, name: str, note: Callable[[], T]) -> list[T]:
    """What ``note`` says at each call of this function of the dispatcher's module."""
    notes: list[T] = []
    call = getattr(module, name)

    def spy(*arguments: Any) -> Any:
        notes.append(note())
        return call(*arguments)

    monkeypatch.setattr(module, name, spy)
    return notes


def give_back(self: Bench) -> None:
    """What the daemon does at its deadline."""
    self.stream.pipeline.abandon()
    self.stream.settle(asyncio.get_running_loop().time())


@pytest.mark.parametrize("records", [10, 1_000], ids=["on the loop", "in a worker"])
async def test_what_is_taken_is_answered_and_told_once(records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INLINE_MICROSECONDS", 64)
    async with bench() as on:
        for _ in range(20):
            on.submit(rows(records))
        await on.until_finished()
        on.assert_all_ended_once()
        assert on.kinesis.records == 20 * records


async def test_rows_that_end_while_work_is_looked_for_are_told_at_once() -> None:
    """They expire in a batch that lingers, and nothing else happens to the stream."""
    async with bench(linger_seconds=600.0, record_ttl_seconds=0.05) as on:
        frame = on.submit(rows(10))
        await on.until_finished()
        on.assert_all_ended_once()
        assert frame.tallies[Outcome.NOT_STORED] == 10


@pytest.mark.parametrize("turns", range(10))
@pytest.mark.parametrize("sizes", [(10,), (600,), (10, 600)], ids=str)
async def test_giving_up_at_any_moment_completes_what_was_taken(
    sizes: tuple[int, ...], turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From before the first task has begun until requests hang: after each number of turns of the loop."""
    monkeypatch.setattr(module, "INLINE_MICROSECONDS", 64)
    async with bench() as on:
        on.kinesis.answers.clear()
        for size in sizes:
            on.submit(rows(size))
        for _ in range(turns):
            await asyncio.sleep(0)
        on.stream.pipeline.return_rows()
        await on.dispatcher.give_up()
        give_back(on)
        on.assert_all_ended_once()
        assert all(frame.tallies[Outcome.RETURNED] == frame.records for frame in on.frames.values())


async def test_nothing_is_started_after_it_gave_up() -> None:
    async with bench() as on:
        on.kinesis.answers.clear()
        for _ in range(60):  # more than may be in flight
            frame = on.submit(rows(500))
            frame.owner = None  # nobody has them back: they would be sent
        await until_on_loop(lambda: on.kinesis.requests == 2)
        await on.dispatcher.give_up()
        await turn_over(5)
        assert on.kinesis.requests == 2
        assert on.stream.pipeline.diagnosis.requests_in_flight == 0
        on.stream.pipeline.abandon()
        assert on.stream.stats.discarded_records == {"abandoned": 30_000}


async def test_a_request_that_is_given_up_may_be_stored() -> None:
    async with bench() as on:
        on.kinesis.answers.clear()
        sent = on.submit(rows(10))
        await until_on_loop(lambda: on.kinesis.requests > 0)
        on.stream.pipeline.return_rows()
        await on.dispatcher.give_up()
        give_back(on)
        (line,) = sent.result().codes
        assert (line.outcome, line.maybe_stored) == (Outcome.RETURNED, True)


@pytest.mark.parametrize("records", [10, 1_000], ids=["on the loop", "in a worker"])
async def test_a_frame_that_cannot_be_sorted_fails_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, records: int
) -> None:
    sort_rows = sorting.sort_rows

    def poisoned(parts: Any, *rest: Any) -> Any:
        if any(bytes(part.rows.data[:6]) == b"poison" for part in parts):
            raise ZeroDivisionError("a bug")
        return sort_rows(parts, *rest)

    monkeypatch.setattr(module, "sort_rows", poisoned)
    with capture_logs() as logs:
        async with bench() as on:
            good, bad = on.submit(rows(records)), on.submit(rows(records, name="poison"))
            other = on.submit(rows(records))
            await on.until_finished()
            on.assert_all_ended_once()
    told = {"event": "a job could not be sorted", "log_level": "error", "stream": "flights", "frames": 3}
    assert logs[0] == {**told, "exc_info": True, "exc_text": False}
    assert [line["event"] for line in logs[1:]] == ["stream works"]
    assert good.tallies[Outcome.STORED] == other.tallies[Outcome.STORED] == records
    (line,) = bad.result().codes
    assert (line.outcome, line.code) == (Outcome.NOT_STORED, Code.INTERNAL)


@pytest.mark.parametrize("records", [8, 256], ids=["on the loop", "in a worker"])
async def test_a_row_that_cannot_be_encoded_fails_alone(monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    encode = entries.encode

    def poisoned(address: Any, pieces: Any, *rest: Any) -> Any:
        for _, span in pieces:
            at = span.buffer.data_offsets[span.first - span.buffer.first : span.last - span.buffer.first + 1].tolist()
            if b"poison" in bytes(span.buffer.data[at[0] : at[-1]]):
                raise ZeroDivisionError("a bug")
        return encode(address, pieces, *rest)

    monkeypatch.setattr(module, "encode", poisoned)
    data = [b"good"] * records
    data[records // 3] = b"poison"
    async with bench() as on:
        frame = on.submit(lay_out([b"k"] * records, data))
        await on.until_finished()
        on.assert_all_ended_once()
    assert frame.tallies[Outcome.STORED] == records - 1
    result = frame.result()
    assert [(line.outcome, line.code, line.maybe_stored) for line in result.codes] == [
        (Outcome.NOT_STORED, Code.INTERNAL, False)
    ]
    assert int.from_bytes(result.bitmap, "little") == 1 << records // 3


async def test_a_transport_that_raises_fails_rows_and_not_the_daemon() -> None:
    with capture_logs() as logs:
        async with bench() as on:
            on.kinesis.raises = ZeroDivisionError("a bug")
            frame = on.submit(rows(4))
            await on.until_finished()
            on.assert_all_ended_once()
    told = {"event": "a request could not be made", "log_level": "error", "stream": "flights", "records": 4}
    assert logs[0] == {**told, "exc_info": True, "exc_text": False}
    assert {line["event"] for line in logs} == {"a request could not be made"}
    assert {(line.code, line.maybe_stored) for line in frame.result().codes} == {(Code.INTERNAL, True)}


async def test_a_request_whose_time_out_is_cut_is_awaited_only_until_then() -> None:
    async with bench() as on:
        on.kinesis.holds = True
        for _ in range(2):
            on.submit(rows(4))
            await until_on_loop(lambda: len(on.kinesis.waiting) == len(on.frames))
        late, _ = on.stream.pipeline.sender.in_flight
        complete = on.stream.pipeline.complete

        def cutting(request: Request, outcome: Any, now: float) -> list[Request]:
            complete(request, outcome, now)
            return [late] if request is not late else []

        on.stream.pipeline.complete = cutting  # type: ignore[method-assign]
        for event in reversed(on.kinesis.waiting):
            event.set()
        await on.until_finished()
    assert on.kinesis.cut == [(late.encoded, late.sent_at + late.timeout_seconds)]


async def test_what_one_stream_has_on_its_way_holds_another_back_no_longer_than_that_lasts() -> None:
    """Only the dispatcher sees that: nothing else happens to the other one."""
    node, kinesis = NodeInFlight(400_000, 70_000), StandInKinesis()
    kinesis.holds = True
    settings = {"request_max_bytes": 65_536, "max_in_flight_requests": 64}
    async with bench() as on:
        first, second = (
            Bench(on.dispatcher, kinesis, on.stopped, settings, name=name, in_flight=node)
            for name in ("first", "second")
        )
        first.submit(rows(40, size=10_000))
        await until_on_loop(lambda: len(kinesis.waiting) == 4)
        second.submit(rows(40, size=10_000))
        await until_on_loop(lambda: len(kinesis.waiting) == 5)
        await turn_over(5)
        assert second.stream.pipeline.diagnosis.requests_in_flight == 1, "its floor"
        for _ in range(3):
            kinesis.waiting.pop(0).set()  # the first one's
        await until_on_loop(lambda: second.stream.pipeline.diagnosis.requests_in_flight > 1)
        kinesis.holds = False
        for waiting in kinesis.waiting:
            waiting.set()
        await first.until_finished()
        await second.until_finished()
    assert node.used_bytes == 0


@pytest.mark.parametrize("in_worker", [False, True])
async def test_no_worker_waits_for_an_endpoint_to_be_known(in_worker: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS's files may lie on a network drive that hangs; streams that do not need them go on."""
    if in_worker:
        monkeypatch.setattr(module, "INLINE_MICROSECONDS", 0)
    async with bench() as on:
        on.kinesis.known.clear()
        on.submit(rows(4))
        other = Bench(on.dispatcher, StandInKinesis(), on.stopped, {})
        other.submit(rows(4))
        await other.until_finished()
        assert (on.kinesis.requests, other.kinesis.requests) == (0, 1)
        on.kinesis.known.set()
        await on.until_finished()
        on.assert_all_ended_once()


@pytest.mark.parametrize("turns", range(4))
async def test_a_stream_may_be_forgotten_before_its_endpoint_is_known(turns: int) -> None:
    """A client may open and close streams in any turn of the loop.  Nothing is left that waits for the endpoint."""
    async with bench() as on:
        on.kinesis.known.clear()
        await turn_over(turns)
        on.dispatcher.forget(on.stream)
        await turn_over(10)
        assert on.kinesis.getting_ready == 0


@pytest.mark.parametrize("verb", ["complete", "settle"])
async def test_an_owner_of_state_that_breaks_ends_the_dispatcher(verb: str) -> None:
    def broken(*_: Any) -> Any:
        raise AssertionError("a row settled twice")

    with pytest.RaisesGroup(pytest.RaisesGroup(AssertionError)):
        async with bench() as on:
            setattr(on.stream if verb == "settle" else on.stream.pipeline, verb, broken)
            on.submit(rows(4))
            await asyncio.sleep(5)


async def test_work_on_the_loop_thread_leaves_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of it there is: in one turn no more than about INLINE_MICROSECONDS of it."""
    turns = 0
    encoded_in = spied(monkeypatch, "encode", lambda: turns)
    async with bench(max_in_flight_requests=100) as on:
        on.kinesis.answers.clear()
        loop, ended = asyncio.get_running_loop(), False

        def turn() -> None:
            nonlocal turns
            turns += 1
            if not ended:
                loop.call_soon(turn)

        turn()
        on.submit(rows(9_000))
        await until_on_loop(lambda: on.kinesis.requests >= 4)  # what may be on its way at first
        ended = True
    assert max(Counter(encoded_in).values()) <= 1 + module.TURN_MICROSECONDS // 500
    assert len({*encoded_in}) > 1


async def test_large_work_is_done_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = spied(monkeypatch, "encode", threading.current_thread)
    monkeypatch.setattr(module, "INLINE_MICROSECONDS", 1_000)
    monkeypatch.setattr(module, "TURN_MICROSECONDS", 50)
    # Rows without a key have an explicit hash key: they may be looked at one by one.
    for key, row, beside in ((b"k", b"x" * 100, False), (b"k", b"x" * 10_000, True), (b"", b"x" * 100, True)):
        threads.clear()
        async with bench() as on:
            on.submit(lay_out([key] * 90, [row] * 90))
            await on.until_finished()
        assert ({*threads} != {threading.main_thread()}) is beside


async def test_what_is_left_for_the_next_turn_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody else asks for that turn: in the first one nothing is begun that would end."""
    sorted_ = spied(monkeypatch, "sort_rows", int)
    monkeypatch.setattr(module, "INLINE_MICROSECONDS", 64)
    async with bench() as on:
        streams = [on, *(Bench(on.dispatcher, on.kinesis, on.stopped, {}) for _ in range(5))]
        for each in streams:
            each.submit(rows(60))
        for each in streams:
            await each.until_finished()
    assert len(sorted_) == len(streams)


async def test_the_fifth_time_out_of_the_same_rows_makes_a_line_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for wait in ("delay", "hold"):
        monkeypatch.setattr(RetryPolicy, wait, lambda *_: 0.0)
    timed_out = RequestFailed(Code.UNREACHABLE, "no answer", maybe_stored=True, timed_out=True)
    no_route = RequestFailed(Code.UNREACHABLE, "no route", maybe_stored=False)
    failures = [*[timed_out] * 4, no_route, timed_out, timed_out]
    lines: list[int] = []
    with capture_logs() as logs:
        async with bench() as on:

            def fail_for_a_while() -> None:
                lines.append(len([line for line in logs if line["event"].startswith("the same records")]))
                on.kinesis.fails = failures.pop(0) if failures else None

            on.kinesis.put = fail_for_a_while
            on.submit(rows(1))
            await on.until_finished()
    assert lines == [0] * 6 + [1, 1], "before each request"


# ---- when it looks, and what it leaves


async def test_the_endpoint_of_a_stream_is_asked_for_as_soon_as_the_stream_is_there() -> None:
    async with bench() as on:
        await turn_over()
        assert on.kinesis.readied == 1


async def test_a_stream_to_which_much_happens_in_one_turn_is_looked_at_once() -> None:
    looks: list[int] = []
    async with bench(settled=lambda: looks.append(1)) as on:
        await until_on_loop(lambda: on.kinesis.readied == 1)
        await turn_over()
        looks.clear()
        for _ in range(3):
            on.dispatcher.look_at(on.stream)
        await turn_over()
        assert looks == [1]


async def test_a_stream_whose_work_must_wait_is_not_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are due now, and its endpoint is not known."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 100.0)
    looks: list[int] = []
    async with bench(settled=lambda: looks.append(1)) as on:
        on.kinesis.known.clear()
        on.submit(rows(4))
        for _ in range(10):
            await asyncio.sleep(0)
        assert on.stream.pipeline.next_time() == 100.0
        assert looks == [1]
        on.kinesis.known.set()
        for _ in range(10):
            await asyncio.sleep(0)
        on.assert_all_ended_once()


@pytest.mark.parametrize("inline_microseconds", [0, 16_000])
async def test_a_request_that_is_encoded_has_its_stream_looked_at(
    monkeypatch: pytest.MonkeyPatch, inline_microseconds: int
) -> None:
    """Rows may have come back that did not fit, and the stream waits for the time when the request is slow."""
    monkeypatch.setattr(module, "INLINE_MICROSECONDS", inline_microseconds)
    async with bench() as on:
        on.kinesis.answers.clear()
        settle, settled, before = on.stream.settle, 0, 0
        encoded = on.stream.pipeline.encoded

        def count(now: float) -> bool:
            nonlocal settled
            settled += 1
            return settle(now)

        def note(*arguments: Any) -> None:
            nonlocal before
            before = settled
            encoded(*arguments)

        on.stream.settle = count  # type: ignore[method-assign]
        monkeypatch.setattr(on.stream.pipeline, "encoded", note)
        on.submit(rows(4))
        await until_on_loop(lambda: on.kinesis.requests == 1)
        await turn_over()
        assert settled > before > 0


async def test_a_timer_is_set_again_only_if_it_would_ring_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as on:
        loop, set_for = asyncio.get_running_loop(), []
        now, call_at = loop.time(), loop.call_at

        def spy(when: float, *call: Any) -> asyncio.TimerHandle:
            set_for.append(round(when - now))
            return call_at(when, *call)

        monkeypatch.setattr(loop, "call_at", spy)
        for seconds in (50, 60, 40, 45):
            monkeypatch.setattr(on.stream.pipeline, "next_time", lambda due=now + seconds: due)
            on.dispatcher.look_at(on.stream)
            await turn_over()
        assert set_for == [50, 40]


async def test_a_stream_that_settles_may_have_another_looked_at() -> None:
    """Also in a turn that has no time for work: a session whose frame is acknowledged waits for another stream."""
    async with bench() as on:
        other = Stream("other", StreamSettings())
        on.dispatcher.carry(other, on.kinesis)
        settle, settled = on.stream.settle, Counter[str]()

        def settle_and_touch(now: float) -> bool:
            on.dispatcher.look_at(other)
            settled["flights"] += 1
            return settle(now)

        await turn_over()  # both have been looked at
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(on.stream, "settle", settle_and_touch)
            patch.setattr(module, "TURN_MICROSECONDS", 0)
            on.dispatcher.look_at(on.stream)
            await turn_over()
        assert settled["flights"]


async def test_work_that_comes_before_it_runs_waits() -> None:
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    stopped = asyncio.Event()
    with ThreadPoolExecutor(1) as pool:
        on = Bench(Dispatcher(pool, 1), StandInKinesis(), stopped, {})
        on.submit(rows(4))
        await turn_over()
        assert errors == []
        async with asyncio.TaskGroup() as group:
            group.create_task(on.dispatcher.run(stopped))
            await asyncio.sleep(0)
            on.dispatcher.look_at(on.stream)
            await on.until_finished()
            stopped.set()


async def test_giving_up_takes_no_time_where_nothing_is_on_its_way() -> None:
    async with bench() as on:
        await turn_over()
        giving_up = asyncio.create_task(on.dispatcher.give_up())
        await turn_over()
        assert giving_up.done()


async def test_nothing_is_left_of_a_stream_that_is_forgotten() -> None:
    """Not a timer either, though rows of it waited for their end, and for requests of other streams."""
    in_flight = NodeInFlight(100, 10)
    in_flight.count_sent("another stream", 1_000)  # one record that is larger than all that is shared
    async with bench() as on:
        gone = Bench(on.dispatcher, on.kinesis, on.stopped, {"record_ttl_seconds": 600.0}, in_flight=in_flight)
        gone.submit(rows(4))
        for _ in range(5):
            on.dispatcher.look_at(gone.stream)
            await asyncio.sleep(0)
        assert gone.stream.pipeline.held_by_node
        left = weakref.ref(gone.stream)
        on.dispatcher.forget(gone.stream)
        del gone
        gc.collect()
        assert left() is None


async def test_a_stream_that_was_held_back_is_not_looked_at_for_others_any_more() -> None:
    in_flight = NodeInFlight(100, 10)
    in_flight.count_sent("another stream", 1_000)
    async with bench() as on:
        held = Bench(on.dispatcher, on.kinesis, on.stopped, {}, in_flight=in_flight)
        held.submit(rows(4))
        await until_on_loop(lambda: held.stream.pipeline.held_by_node)
        in_flight.count_ended("another stream", 1_000)
        on.submit(rows(4))
        await held.until_finished()
        await on.until_finished()
        looked: list[float] = []
        held.stream.settle = lambda now: bool(looked.append(now))  # type: ignore[func-returns-value, method-assign]
        on.submit(rows(4))
        await on.until_finished()
        await turn_over()
        assert looked == []


# ---- where work is done


@pytest.mark.parametrize(("more_bytes", "beside"), [(0, False), (256, True)])
async def test_a_batch_of_16_ms_is_sorted_on_the_loop_and_a_larger_one_beside_it(
    monkeypatch: pytest.MonkeyPatch, more_bytes: int, beside: bool
) -> None:
    """A row counts as a microsecond, and so do 256 bytes."""
    threads = spied(monkeypatch, "sort_rows", threading.current_thread)
    async with bench() as on:
        on.kinesis.answers.clear()
        on.submit(lay_out([b"k"] * 8_000, [b"x" * (256 + more_bytes), *[b"x" * 256] * 7_999]))
        await until_on_loop(lambda: bool(threads))
    assert [thread is not threading.main_thread() for thread in threads] == [beside]


@pytest.mark.parametrize(("turn_microseconds", "turns"), [(20, 1), (21, 0)])
async def test_a_turn_begins_no_more_work_when_its_time_is_used_up(
    monkeypatch: pytest.MonkeyPatch, turn_microseconds: int, turns: int
) -> None:
    """Ten rows in 2,560 bytes are sorted in 20 microseconds, as it is counted."""
    monkeypatch.setattr(module, "TURN_MICROSECONDS", turn_microseconds)
    at: list[int] = []
    turn = 0
    sort_rows = sorting.sort_rows

    def note_sorted(*arguments: Any) -> Any:
        at.append(turn)
        return sort_rows(*arguments)

    def note_taken(*arguments: Any) -> Any:
        work = take(*arguments)
        if work is not None:
            at.append(turn)
        return work

    monkeypatch.setattr(module, "sort_rows", note_sorted)
    async with bench() as on:
        await turn_over()
        monkeypatch.setattr(module, "take", note_taken)
        on.submit(lay_out([b"k"] * 10, [b"x" * 256] * 10))
        for turn in range(5):  # noqa: B007 - the notes have it
            await asyncio.sleep(0)
        await on.until_finished()
    taken, sorted_, sent = at
    assert (sorted_ - taken, sent - sorted_) == (0, turns)


@pytest.mark.parametrize("what", ["sort_rows", "encode"])
async def test_while_all_workers_are_busy_nothing_is_begun_and_rows_are_acknowledged(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """And nothing is looked at for the sake of what waits."""
    monkeypatch.setattr(module, "INLINE_MICROSECONDS", 64)
    monkeypatch.setattr(module, "TURN_MICROSECONDS", 1)
    work, begun, may_end = getattr(module, what), threading.Event(), threading.Event()
    may_end.set()

    def wait(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            may_end.wait()
        return work(*arguments)

    monkeypatch.setattr(module, what, wait)
    # Many rows are sorted in a worker.  Rows without a key are encoded there.
    large = rows(1_000) if what == "sort_rows" else lay_out([b""] * 10, [b"x"] * 10)
    looks: list[int] = []
    answered, waiting = StandInKinesis(), StandInKinesis()
    answered.holds = True
    async with bench(settled=lambda: looks.append(1)) as on:
        sent, late = (Bench(on.dispatcher, kinesis, on.stopped, {}) for kinesis in (answered, waiting))
        on.submit(large)
        await on.until_finished()
        sent.submit(rows(10))
        await until_on_loop(lambda: len(answered.waiting) == 1)
        await until_on_loop(lambda: waiting.readied == 1)
        begun.clear()
        may_end.clear()
        try:
            on.submit(large)
            await until_on_loop(begun.is_set)
            late.submit(rows(10))
            await turn_over(5)
            looks.clear()
            await turn_over(5)
            assert looks == []
            assert late.stream.pipeline.diagnosis.census()["filling"] == 10
            answered.waiting.pop().set()
            await sent.until_finished()
        finally:
            may_end.set()
        await late.until_finished()
        await on.until_finished()
