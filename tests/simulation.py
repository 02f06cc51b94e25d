"""A whole stream in virtual time: sessions, gate, pipeline and the fake Kinesis, driven by a seed.

Everything is real but the threads, the sockets and the clock.  `Simulation.check` asserts the starred laws of
docs/architecture.md, and runs after every step.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import orjson

from producerd.core import intake
from producerd.core.budget import QueueBudget
from producerd.core.entries import EntryRules, RequestFailed, encode, parse_answer
from producerd.core.frame import Frame, FrameResult
from producerd.core.pipeline import Pipeline, PipelineRules, SortJob
from producerd.core.requests import Request
from producerd.core.shards import map_from_listing
from producerd.core.spans import Job, sort_rows
from producerd.errors import Code, Outcome
from producerd.runtime.gate import AdmissionGate, Refusal, Ticket
from producerd.testing.rules import FakeKinesis
from producerd.wire import columns
from producerd.wire.columns import FRAME_CHARGE_BYTES, Columns

STREAM = "flights"
TIMEOUT_SECONDS = 6.0


def make_rules(**changes: Any) -> PipelineRules:
    """The defaults of docs/names.md, with some changed."""
    entry: dict[str, Any] = {
        "aggregate": False,
        "aggregate_max_bytes": 51_200,
        "aggregate_max_records": 2**32 - 1,
        "request_max_records": 500,
        "request_max_bytes": 1 << 20,
    }
    rest: dict[str, Any] = {
        "linger_seconds": 0.1,
        "max_in_flight_requests": 24,
        "max_in_flight_bytes": 32 << 20,
        "shard_map_wait_seconds": 10.0,
        "permanent_error_grace_seconds": 60.0,
    }
    for name, value in changes.items():
        (entry if name in entry else rest)[name] = value
    return PipelineRules(EntryRules(**entry), **rest)


def make_body(laid_out: Columns, frame_id: int = 1) -> columns.Body:
    """A frame's body as the daemon reads it."""
    payload = laid_out.body_prefix(frame_id) + b"".join(bytes(part) for part in laid_out.parts)
    return columns.parse_body(payload, laid_out.layout.flags)


class Session:
    """A caller that sends frames, waits for room, and remembers how each frame ended."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.member = sim.gate.join(self)
        self.gone = False
        self.incomplete = False
        self.rows: dict[int, list[tuple[bytes, bytes]]] = {}
        self.columns: dict[int, Columns] = {}
        self.waiting: dict[int, Ticket] = {}  # asked or granted, and not received
        self.accepted: set[int] = set()
        self.acked: dict[int, FrameResult] = {}
        self.refusals: dict[int, Refusal] = {}
        self._ids = count(1)

    def may_receive(self, charge_bytes: int) -> bool:
        return not self.incomplete

    def granted(self, ticket: Ticket) -> None:
        assert not self.gone
        self.waiting[ticket.frame_id] = ticket
        self.incomplete = True
        self.sim.after(self.sim.random.uniform(0, 0.01), lambda: self._body_arrives(ticket))

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        self.waiting.pop(ticket.frame_id, None)
        self.refusals[ticket.frame_id] = refusal

    def send(self, rows: list[tuple[bytes, bytes]]) -> int:
        frame_id = next(self._ids)
        laid_out = columns.lay_out([key for key, _ in rows], [data for _, data in rows])
        self.rows[frame_id] = rows
        self.columns[frame_id] = laid_out
        ticket = self.sim.gate.ask(self.member, frame_id, laid_out.layout, self.sim.now)
        if frame_id not in self.refusals:
            self.waiting[frame_id] = ticket
        return frame_id

    def cancel(self, frame_id: int) -> None:
        """What a caller's time-out does."""
        if frame_id in self.waiting:
            ticket = self.waiting.pop(frame_id)
            if ticket.granted:
                self.incomplete = False
            self.sim.gate.cancel(ticket, self.sim.now)

    def vanish(self) -> None:
        self.gone = True
        for ticket in [*self.waiting.values()]:
            if ticket.granted:
                self.sim.gate.cancel(ticket, self.sim.now)
        self.waiting.clear()
        self.sim.pipeline.discard(self)
        self.sim.gate.leave(self.member, self.sim.now)

    def finished(self, frame: Frame) -> None:
        assert not self.gone, "acknowledged to a caller that is gone"
        assert frame.frame_id not in self.acked, "acknowledged twice"
        self.acked[frame.frame_id] = frame.result()
        self.sim.gate.settled(self.member, frame.charge_bytes)

    def _body_arrives(self, ticket: Ticket) -> None:
        if self.gone or ticket.frame_id not in self.waiting:
            return
        del self.waiting[ticket.frame_id]
        self.incomplete = False
        self.accepted.add(ticket.frame_id)
        rows = intake.check(make_body(self.columns.pop(ticket.frame_id), ticket.frame_id), 1 << 20)
        self.sim.gate.received(ticket)
        self.sim.pipeline.submit(Frame(self, ticket.frame_id, rows, ticket.layout.charge_bytes), self.sim.now)


class Simulation:
    """One stream.  ``workers`` jobs or requests are sorted or encoded at a time."""

    def __init__(
        self,
        seed: int,
        *,
        rules: PipelineRules | None = None,
        limit_records: int = 1_000_000,
        limit_bytes: int = 64 << 20,
        shards: int = 4,
        workers: int = 1,
        max_frame_bytes: int = 1 << 20,
    ) -> None:
        self.random = Random(seed)
        self.now = 1_000.0
        self.kinesis = FakeKinesis(seed)
        self.stream = self.kinesis.create_stream(STREAM, shards, now=self.now)
        self.budget = QueueBudget(limit_records, limit_bytes)
        self.pipeline = Pipeline(rules or make_rules(), self.budget, Random(seed))
        self.gate = AdmissionGate(
            self.budget, self.pipeline.refuses, max_frame_bytes=max_frame_bytes, max_frame_records=10_000
        )
        self.most_records, self.most_bytes = limit_records, limit_bytes  # the largest limits there were
        self.sessions: list[Session] = []
        self.steps = 0
        self._workers = workers
        self._busy = 0
        self._listing = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._jobs: dict[int, Job] = {}

    # ---- driving it

    def session(self) -> Session:
        session = Session(self)
        self.sessions.append(session)
        return session

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def run(self, seconds: float) -> None:
        """Let that much time pass."""
        until = self.now + seconds
        while True:
            self._pump()
            due = self._next(until)
            if due is None:
                self.now = until
                self._pump()
                return
            self.now = max(self.now, due)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
                self.check()

    def run_until_idle(self, seconds: float = 600.0) -> None:
        """Until every accepted row settled and nobody waits."""
        until = self.now + seconds
        while not (self.pipeline.idle and not any(session.waiting for session in self.sessions)):
            assert self.now < until, f"not idle after {seconds} s: {self.describe()}"
            self.run(0.5)

    def describe(self) -> str:
        return (
            f"{self.pipeline.queued_records} queued, {self.pipeline.requests_in_flight} in flight, "
            f"budget {self.budget.used_records}/{self.budget.used_bytes}, {self.gate.blocked_callers} blocked, "
            f"{self.pipeline.health.state}, {self.pipeline.stats}"
        )

    def _next(self, until: float) -> float | None:
        times = [until]
        if self._events:
            times.append(self._events[0][0])
        due = self.pipeline.next_time()
        if due is not None and due > self.now:
            times.append(due)
        return min(times) if min(times) < until else None

    def _pump(self) -> None:
        while True:
            self.steps += 1
            for frame in self.pipeline.take_finished():
                frame.owner.finished(frame)
            self.gate.pump(self.now)
            if self.gate.wants_room():
                self.pipeline.press(self.now)
            if self.pipeline.wants_shard_map and not self._listing:
                self._list_shards()
            self.check()
            if self._busy >= self._workers or not self._start():
                return

    def _start(self) -> bool:
        if (request := self.pipeline.take_request(self.now)) is not None:
            self._busy += 1
            self.after(self.random.uniform(0, 0.002), lambda: self._encode(request))
            return True
        if (job := self.pipeline.take_job(self.now)) is not None:
            self._busy += 1
            self.after(self.random.uniform(0, 0.002), lambda: self._sort(job))
            return True
        return False

    def _sort(self, job: SortJob) -> None:
        self._busy -= 1
        self.pipeline.sorted(job.frames, sort_rows(job.rows, job.shard_map, job.seed), job.shard_map)

    def _encode(self, request: Request) -> None:
        self._busy -= 1
        encoded = encode(STREAM, request.pieces, self.pipeline.rules.entries)
        self.pipeline.encoded(request, encoded)
        reply = self.kinesis.handle("PutRecords", encoded.body, self.now)
        if reply.how == "hang" or reply.delay_seconds > TIMEOUT_SECONDS:
            failed = RequestFailed(Code.UNREACHABLE, "timed out", maybe_stored=True, timed_out=True)
            self.after(TIMEOUT_SECONDS, lambda: self.pipeline.complete(request, failed, self.now))
        elif reply.how in ("reset", "lost"):
            failed = RequestFailed(Code.UNREACHABLE, "connection reset", maybe_stored=True)
            self.after(reply.delay_seconds, lambda: self.pipeline.complete(request, failed, self.now))
        else:
            outcome = _outcome(reply.status, reply.body, encoded.entries)
            self.after(reply.delay_seconds, lambda: self.pipeline.complete(request, outcome, self.now))

    def _list_shards(self) -> None:
        self._listing = True
        reply = self.kinesis.handle("ListShards", b'{"StreamName":"%s"}' % STREAM.encode(), self.now)

        def arrived() -> None:
            self._listing = False
            if reply.how == "answer" and reply.status == 200:
                self.pipeline.set_shard_map(map_from_listing([orjson.loads(reply.body)]))
            else:
                self.pipeline.shard_map_failed("AccessDeniedException", "denied", self.now)
                self._listing = True
                self.after(5.0, lambda: setattr(self, "_listing", False))

        self.after(max(reply.delay_seconds, 0.01), arrived)

    # ---- the laws

    def check(self) -> None:
        """What holds between any two steps."""
        pipeline, budget = self.pipeline, self.budget
        assert budget.peak_records <= self.most_records
        assert budget.peak_bytes <= self.most_bytes
        granted = [ticket for session in self.sessions for ticket in session.waiting.values() if ticket.granted]
        unsettled = sum(frame.unsettled for frame in pipeline.ledger.frames)
        assert budget.used_records == unsettled + sum(ticket.layout.records for ticket in granted)
        jobs = self._live_jobs()
        buffers = sum(job.charge_bytes + sum(buffer.charge_bytes for buffer in job.buffers) for job in jobs)
        unsorted = {frame for frame in pipeline.ledger.frames if frame.job is None and not frame.withdrawn}
        unsorted |= set(pipeline.ledger.sorting)
        charge = (
            sum(ticket.layout.charge_bytes for ticket in granted)
            + FRAME_CHARGE_BYTES * len(pipeline.ledger.frames)
            + sum(frame.row_charge_bytes for frame in unsorted)
            + buffers
        )
        assert budget.used_bytes == charge, (budget.used_bytes, charge)
        stats = pipeline.stats
        ended = stats.delivered_records + stats.failed_records.total() + stats.discarded_records.total()
        assert stats.ingest_records == ended + unsettled, self.describe()
        if pipeline.idle and not pipeline.ledger.sorting:
            assert budget.used_records == sum(ticket.layout.records for ticket in granted)
            if not pipeline._in_flight:
                assert pipeline.in_flight_bytes == 0

    def _live_jobs(self) -> list[Job]:
        """Jobs that hold memory: also of finished frames, while a neighbour's rows keep their buffer."""
        self._jobs |= {id(frame.job): frame.job for frame in self.pipeline.ledger.frames if frame.job is not None}
        self._jobs = {key: job for key, job in self._jobs.items() if any(buffer.live for buffer in job.buffers)}
        return list(self._jobs.values())

    def stored(self) -> Counter[tuple[str, bytes]]:
        """What a consumer reads: (key, data)."""
        return Counter((record.partition_key, record.data) for record in self.stream.read().records)

    def check_acknowledged(self) -> None:
        """Every row that was acknowledged as STORED can be read."""
        stored = self.stored()
        for session in self.sessions:
            for frame_id, result in session.acked.items():
                failed = {i * 8 + bit for i, byte in enumerate(result.bitmap) for bit in range(8) if byte >> bit & 1}
                assert len(failed) == result.not_stored + result.unknown + result.returned
                for row, (key, data) in enumerate(session.rows[frame_id]):
                    if row not in failed:
                        assert stored[(key.decode() or "-", data)] > 0, "acknowledged and not readable"

    def outcomes(self) -> Counter[Outcome]:
        """How the rows of all acknowledged frames ended."""
        total: Counter[Outcome] = Counter()
        for session in self.sessions:
            for result in session.acked.values():
                total[Outcome.STORED] += result.stored
                total[Outcome.NOT_STORED] += result.not_stored
                total[Outcome.UNKNOWN] += result.unknown
                total[Outcome.RETURNED] += result.returned
        return total


def _outcome(status: int, body: bytes, entries: int) -> Any:
    if status == 200:
        return parse_answer(body, entries)
    error = orjson.loads(body) if body else {"__type": "InternalFailure", "message": ""}
    return RequestFailed(error["__type"], error["message"], maybe_stored=status >= 500)
