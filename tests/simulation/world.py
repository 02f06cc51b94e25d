"""The world around a stream: its clock, its worker threads and its network."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise
from math import inf
from random import Random
from typing import Any, Final

from producerd.core.budget import QueueBudget
from producerd.core.encoding.entries import EncodedRequest, encode
from producerd.core.failures import refuses
from producerd.core.filling import SortJob
from producerd.core.gate import AdmissionGate
from producerd.core.pipeline import Pipeline
from producerd.core.rows.frame import Frame
from producerd.core.rows.job import Job
from producerd.core.rows.sorting import SortedRows, sort_rows
from producerd.core.rules import PipelineRules
from producerd.core.sending.answers import Answer, RequestFailed, parse_answer
from producerd.core.sending.requests import Request
from producerd.core.turn import settle, take
from producerd.errors import Code, Outcome
from producerd.testing import FakeKinesis
from tests.simulation.callers import Session
from tests.simulation.consumer import Consumer
from tests.simulation.events import Events
from tests.simulation.laws import LawBroken, Laws, laws_named
from tests.simulation.setting import ADDRESS, STREAM, make_rules
from tests.simulation.shard_watch import ShardWatch, error_of

TIMED_OUT: Final = RequestFailed(Code.UNREACHABLE, "timed out", maybe_stored=True, timed_out=True)
INLINE_ROWS: Final = 500
"""Most rows of a job or request that the loop thread works on itself, as the dispatcher has it."""
WORKER_SECONDS: Final = 0.002
"""The most that a worker thread takes for a job or a request."""


class Simulation(Events):
    """One stream.  ``workers``: how many jobs or requests are sorted or encoded at a time."""

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
        max_record_kib: int = 1024,
    ) -> None:
        super().__init__()
        self.random = Random(seed)
        self.kinesis = FakeKinesis(seed)
        self.stream = self.kinesis.create_stream(STREAM, shards, max_record_kib, now=self.now)
        self.consumer = Consumer()
        self.budget = QueueBudget(limit_records, limit_bytes)
        self.pipeline = Pipeline(rules or make_rules(), self.budget, Random(seed))
        self.gate = AdmissionGate(
            self.budget, self.pipeline.refuses, max_frame_bytes=max_frame_bytes, max_frame_records=10_000
        )
        self.fractions = [(self.now, self.pipeline.rules.shard_rate_fraction)]  # of the shards' rate, since when
        self.least_request_records = self.pipeline.rules.entries.request_max_records
        self.watch = ShardWatch(self)
        self.laws = Laws(self)
        self.sessions: list[Session] = []
        self.max_record_bytes = max_record_kib * 1024  # the largest row that callers send
        self.pipeline.set_record_limit(self.max_record_bytes)
        self.body_seconds = 0.01  # the most that a granted body takes to come
        self.arrival_seconds = (0.0, 0.0)  # from the moment when a request is sent until the service has it
        self.is_aws = False  # its endpoint
        self.refused_connections = 0.0  # the fraction of requests that get none
        self.unsortable = self.unencodable = b""  # a row with these bytes makes the daemon's own code raise
        self.maybe_stored_requests = 0  # that failed so that nobody knows
        self.handed_back = 0  # rows that an encoded request had no room for
        self.gave_up = False
        self._workers = workers
        self._busy = 0
        self._jobs: list[Job] = []  # that hold memory
        self._open_calls: dict[Request, None] = {}
        self._sent_rows: dict[Request, list[list[tuple[bytes, int]]]] = {}
        self._old_edges: set[int] = set()  # of streams that are deleted

    # ---- driving it

    def session(self, **options: Any) -> Session:
        session = Session(self, **options)
        self.sessions.append(session)
        return session

    def run(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let that much time pass, or less: until something stops it.

        As in the dispatcher, work is looked for when something has happened or is due, and at no other time.
        """
        until = self.now + seconds
        with laws_named():
            begun = self._pump()
            while not stop():
                event = self._events[0][0] if self._events else inf
                due = self._due()
                if min(event, due) > until:
                    self.now = until
                    return
                self.now = max(self.now, min(event, due))
                if event > self.now and not begun:
                    self.laws.woken_for_nothing(self.now)
                while self._events and self._events[0][0] <= self.now:
                    heapq.heappop(self._events)[2]()
                    self.laws.hold()
                begun = self._pump()

    def run_until_idle(self, seconds: float = 600.0) -> None:
        """Until every accepted row settled and nobody waits, and what was due has passed."""
        self.run(seconds, stop=self._is_idle)
        if not self._is_idle():
            raise LawBroken("Row", f"not idle after {seconds} s: {self.describe()}")

    def _is_idle(self) -> bool:
        pipeline = self.pipeline
        nothing_to_do = not self._busy and pipeline.idle and pipeline.next_time() is None
        return nothing_to_do and not any(session.waiting for session in self.sessions)

    def describe(self) -> str:
        return (
            f"{self.pipeline.queued_records} queued, {self.pipeline.diagnosis.requests_in_flight} in flight, "
            f"budget {self.budget.used_records}/{self.budget.used_bytes}, {self.gate.blocked_callers} blocked, "
            f"{self.pipeline.health.state}, {self.pipeline.stats}"
        )

    def make_stream_again(self, edges: Sequence[int], seconds: float, *, restart_sequences: bool) -> None:
        """Delete the stream, and after a while make one of that name with the same shard ids and other ranges."""
        old = self.stream
        self.consume()
        self.kinesis.delete_stream(STREAM)

        def make() -> None:
            self._old_edges |= {shard.start for shard in old.shards}
            self.stream = self.kinesis.create_stream(
                STREAM, None, old.max_record_kib, edges=edges, restart_sequences=restart_sequences, now=self.now
            )
            self.stream.list_shards_lag_seconds = old.list_shards_lag_seconds
            self.pipeline.cannot_aggregate = ""

        self.after(seconds, make)

    def reload(self, rules: PipelineRules, limit_records: int, limit_bytes: int) -> None:
        """As `producerd.runtime.stream` does it."""
        self.pipeline.set_rules(rules, self.now)
        self.gate.set_limits(limit_records, limit_bytes, self.now)
        self.fractions.append((self.now, rules.shard_rate_fraction))
        self.least_request_records = min(self.least_request_records, rules.entries.request_max_records)

    def give_up(self) -> None:
        """The deadline of a drain: every request is given up, and every row that is left ends."""
        self.gave_up = True
        self.run(inf, stop=lambda: not self._busy)
        for request in list(self.pipeline.sender.in_flight):
            failed = RequestFailed(Code.UNREACHABLE, "given up", maybe_stored=request.encoded is not None)
            self.complete(request, failed)
        self.pipeline.abandon()
        self._settle()
        self.laws.hold()
        self.gave_up = False  # if anything could still be sent, it would

    # ---- what the laws ask

    def consume(self) -> Consumer:
        """The consumer, who has read everything."""
        self.consumer.look(self.stream)
        return self.consumer

    def edges(self) -> list[int]:
        """Return where shards begin, or have begun at any time."""
        return sorted(self._old_edges.union(shard.start for shard in self.stream.shards))

    def unsorted_bytes(self) -> int:
        """The charge of frames whose rows are still in the frames' own buffers."""
        ledger = self.pipeline.ledger
        frames = {frame for frame in ledger.frames if frame.rows is not None}
        return sum([frame.row_charge_bytes for frame in frames.union(ledger.sorting)])

    def buffer_bytes(self) -> int:
        """The charge of jobs and of their buffers, as long as they hold memory."""
        self._jobs = [job for job in self._jobs if job.live_buffers]
        sorting = self.pipeline.ledger.sorting  # jobs are handed on in order: these wait for an earlier one
        jobs = [job for job in self._jobs if job.frames[0] not in sorting]
        return sum([job.charge_bytes + sum([buffer.charge_bytes for buffer in job.buffers]) for job in jobs])

    def outcomes(self) -> Counter[Outcome]:
        """Return how the rows of all acknowledged frames ended."""
        total: Counter[Outcome] = Counter()
        for session in self.sessions:
            for result in session.acked.values():
                total[Outcome.STORED] += result.stored
                total[Outcome.NOT_STORED] += result.not_stored
                total[Outcome.UNKNOWN] += result.unknown
                total[Outcome.RETURNED] += result.returned
        return total

    # ---- the loop thread

    def _due(self) -> float:
        """When something is due that no event brings about."""
        due = self.pipeline.next_time()
        return due if due is not None and due > self.now else inf  # else it waits for a worker

    def _pump(self) -> int:
        """Do what can be done now; returns how much work was begun."""
        for begun in count():
            self._settle()
            self.watch.look()
            self.laws.hold()
            if self.gave_up or self._busy >= self._workers:
                return begun
            if (work := take(self.pipeline, self.now)) is not None:
                self._start(work)
            elif not self._settle():  # rows end too while work is looked for
                self.laws.hold_at_rest()
                return begun
        raise AssertionError

    def _settle(self) -> bool:
        may_have_work = settle(self.pipeline, self.gate, self.now)
        self.laws.settled_frames_are_told()
        return may_have_work

    def _start(self, work: Request | SortJob) -> None:
        if isinstance(work, Request):
            self.laws.request_is_taken(work)
            self._in_worker(work.records, lambda: self._encode(work), lambda done: self._send(work, done))
        else:
            records = sum([frame.records for frame in work.frames])
            self._in_worker(records, lambda: self._sort(work), lambda done: self._has_sorted(work, done))

    # ---- worker threads

    def _in_worker(self, records: int, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Small work at once; other work is really done somewhen between its beginning and its end."""
        if records <= INLINE_ROWS and self.random.random() < 0.5:
            done(work())
            return
        self._busy += 1
        early = work() if self.random.random() < 0.5 else None

        def finish() -> None:
            self._busy -= 1
            done(early if early is not None else work())

        self.after(self.random.uniform(0, WORKER_SECONDS), finish)

    def _sort(self, job: SortJob) -> list[tuple[list[Frame], SortedRows | None]]:
        poisoned = [
            bool(self.unsortable) and frame.rows is not None and self.unsortable in bytes(frame.rows.data)
            for frame in job.frames
        ]
        if not any(poisoned):
            return [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))]
        return [
            ([frame], None if bad else sort_rows([frame], job.shard_map, job.seed))
            for frame, bad in zip(job.frames, poisoned, strict=True)
        ]

    def _has_sorted(self, job: SortJob, results: list[tuple[list[Frame], SortedRows | None]]) -> None:
        self._jobs += [rows.job for _, rows in results if rows is not None and rows.job.buffers]
        self.pipeline.sorted(job, results)

    def _encode(self, request: Request) -> EncodedRequest | RequestFailed:
        if self.unencodable and any(self.unencodable in piece.span.buffer.data for piece in request.pieces):
            for _, span in request.pieces:
                at = span.buffer.data_offsets
                first, last = at[span.first - span.buffer.first], at[span.last - span.buffer.first]
                if self.unencodable in span.buffer.data[first:last]:
                    return RequestFailed(Code.INTERNAL, "the daemon failed", maybe_stored=False)
        rules = self.pipeline.rules.entries
        try:
            format_ = self.pipeline.format_of(request, is_aws=self.is_aws)
            return encode(ADDRESS, request.numbered, rules, request.aggregate_bytes, request.shard_map, format_)
        except ValueError as error:
            return RequestFailed(Code.INTERNAL, str(error), maybe_stored=False)

    # ---- the network

    def _send(self, request: Request, encoded: EncodedRequest | RequestFailed) -> None:
        if isinstance(encoded, RequestFailed):
            self.complete(request, encoded)
            return
        records = request.records
        self.pipeline.encoded(request, encoded, self.now)
        self.handed_back += records - request.records
        self.laws.request_is_made(request, self.now)
        self._open_calls[request] = None
        if self.pipeline.rules.entries.per_key:
            self._sent_rows[request] = list(_rows_of_entries(request, encoded))
            self.laws.entries_in_flight_are_apart([rows for sent in self._sent_rows.values() for rows in sent])
        if self.random.random() < self.refused_connections:
            self._answer_after(0.01, request, RequestFailed(Code.UNREACHABLE, "connection refused", maybe_stored=False))
            return
        sent_at = self.now
        self._answer_after(request.timeout_seconds, request, TIMED_OUT)
        self.after(self.random.uniform(*self.arrival_seconds), lambda: self.arrive(request, encoded, sent_at))

    def arrive(self, request: Request, encoded: EncodedRequest, sent_at: float) -> None:
        """The service has it, maybe after the caller gave up waiting."""
        reply = self.kinesis.handle("PutRecords", encoded.body, self.now, content_type=encoded.content_type)
        if reply.how in ("lost", "replaced") or reply.status == 200:
            self.laws.request_reaches_its_shards(request, encoded, sent_at)
        if reply.how in ("reset", "lost"):
            failed = RequestFailed(Code.UNREACHABLE, "connection reset", maybe_stored=True)
            self._answer_after(reply.delay_seconds, request, failed)
        elif reply.how == "answer":
            self._answer_after(reply.delay_seconds, request, _outcome(reply.status, reply.body, encoded.entries))
        elif reply.how == "replaced":
            failed = RequestFailed(str(reply.status), "a proxy's page", maybe_stored=True, status=reply.status)
            self._answer_after(reply.delay_seconds, request, failed)

    def _answer_after(self, seconds: float, request: Request, outcome: Answer | RequestFailed) -> None:
        def arrived() -> None:
            if request in self._open_calls:
                self.complete(request, outcome)

        self.after(seconds, arrived)

    def complete(self, request: Request, outcome: Answer | RequestFailed) -> None:
        self._open_calls.pop(request, None)
        self._sent_rows.pop(request, None)
        if isinstance(outcome, RequestFailed):
            self.maybe_stored_requests += outcome.maybe_stored
        self.laws.request_is_answered(outcome, self.now)
        for late in self.pipeline.complete(request, outcome, self.now):
            self._answer_after(max(0.0, late.sent_at + late.timeout_seconds - self.now), late, TIMED_OUT)


def _rows_of_entries(request: Request, encoded: EncodedRequest) -> Iterator[list[tuple[bytes, int]]]:
    """Yield the rows of each entry, each with its partition key and its hash key."""
    for first, last in pairwise([0, *encoded.ends.tolist()]):
        rows: list[tuple[bytes, int]] = []
        for _, span in request.pieces_of(first, last):
            buffer = span.buffer
            a, b = span.first - buffer.first, span.last - buffer.first
            keys = [buffer.keys[start:end] for start, end in pairwise(buffer.key_offsets[a : b + 1].tolist())]
            halves = zip(buffer.hashes[0][a:b].tolist(), buffer.hashes[1][a:b].tolist(), strict=True)
            rows += zip(keys, [high << 64 | low for high, low in halves], strict=True)
        yield rows


def _outcome(status: int, body: bytes, entries: int) -> Answer | RequestFailed:
    if status == 200:
        return parse_answer(body, entries)
    code, message = error_of(body)
    return RequestFailed(code, message, maybe_stored=not refuses(status, code), status=status, request_id="d3f1")
