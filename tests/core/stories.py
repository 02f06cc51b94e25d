"""A pipeline that a test drives step by step, with its requests and the answers that a service gives to them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from producerd.core.budget import NodeInFlight, QueueBudget
from producerd.core.encoding.entries import encode
from producerd.core.filling import SortJob
from producerd.core.holding import Holding
from producerd.core.kpl.aggregation import parse
from producerd.core.lanes.lane import Lane
from producerd.core.lanes.pacing import Allowance
from producerd.core.pipeline import Pipeline
from producerd.core.rows.frame import Frame, FrameResult, RowEnd
from producerd.core.rows.sorting import sort_rows
from producerd.core.sending.answers import RequestFailed, loads, parse_answer
from producerd.core.sending.health import HealthState
from producerd.core.sending.requests import Request
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.core.stats import StreamStats
from producerd.errors import Code
from producerd.testing import hash_of
from producerd.wire import messages
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES
from tests.core.rows import Row, even_map, rows_of
from tests.simulation.setting import ADDRESS, make_rules


def on_the_wire(result: FrameResult) -> messages.Ack:
    """The acknowledgement as a client reads it: `messages.decode` checks that it holds together."""
    codes = tuple(messages.RowCode(end.outcome, end.code, end.message, end.maybe_stored) for end in result.codes)
    tallies = (result.stored, result.not_stored, result.unknown, result.returned)
    counts = (result.retries, result.throttled, result.possible_duplicates, result.spread_keys)
    ack = messages.Ack(1, result.records, *tallies, *counts, result.bitmap, result.code_rows, codes, result.judged)
    data = messages.encode(ack)
    again = messages.decode(messages.parse_header(data), data[messages.HEADER.size :])
    assert isinstance(again, messages.Ack)
    return again


THROTTLED = "ProvisionedThroughputExceededException"
REFUSED = RequestFailed("AccessDeniedException", "not authorized", maybe_stored=False)
BAD_KEY = (
    "1 validation error detected: Value 'kkk' at 'records.1.member.partitionKey' failed to satisfy constraint: "
    "Member must have length less than or equal to 256"
)
BAD_HASH_KEY = "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was -1"
INVALID = RequestFailed("InvalidArgumentException", BAD_HASH_KEY, maybe_stored=False, status=400, request_id="d3f1")
ODD = RequestFailed(
    "ValidationException", "StreamARN and StreamName do not match", False, status=400, request_id="d3f1"
)
GOOD = {"SequenceNumber": "1", "ShardId": "shard-0"}
SLOW_DOWN = {"ErrorCode": THROTTLED, "ErrorMessage": "Rate exceeded"}
BROKEN = {"ErrorCode": "InternalFailure", "ErrorMessage": "m"}
LOW, HIGH = b"0", b"%d" % MAX_HASH_KEY
HALVES = ShardMap([Shard("low", 0, 2**127 - 1), Shard("high", 2**127, MAX_HASH_KEY)])
MERGED = ShardMap([Shard("merged", 0, MAX_HASH_KEY)])
BARE = RequestFailed("413", "Request Entity Too Large", maybe_stored=True, status=413)
LOST = RequestFailed(Code.UNREACHABLE, "connection reset", maybe_stored=True)
TIMED_OUT = RequestFailed(Code.UNREACHABLE, "timed out", maybe_stored=True, timed_out=True)
UNSENT = RequestFailed(Code.UNREACHABLE, "connection refused", maybe_stored=False)


class Desk:
    """Hands work to one pipeline and back by hand; `now` is where the story is."""

    def __init__(
        self,
        shard_map: ShardMap | None = None,
        *,
        known: bool = True,
        limit_records: int = 10_000,
        limit_bytes: int = 64 << 20,
        in_flight: NodeInFlight | None = None,
        is_aws: bool = False,
        **rules: Any,
    ) -> None:
        self.now = 100.0
        self.is_aws = is_aws
        self.budget = QueueBudget(limit_records, limit_bytes)
        rules = {"shard_rate_fraction": 1_000.0} | rules  # pacing has stories of its own
        self.pipeline = Pipeline(make_rules(**rules), self.budget, Random(1), in_flight)
        if known:
            self.pipeline.set_shard_map(shard_map or even_map(1), self.now)
        self.ids = 0

    def submit(
        self,
        rows: Sequence[Row] | int,
        owner: object = "caller",
        *,
        patient: bool = False,
        takes_good: bool = False,
    ) -> Frame:
        """Accept a frame, granted as the gate would."""
        if isinstance(rows, int):
            rows = [(b"k%d" % (i % 10), b"row %d" % i, None) for i in range(rows)]
        self.ids += 1
        checked = rows_of(list(rows))
        charge = FRAME_CHARGE_BYTES + RECORD_CHARGE_BYTES * len(rows)
        charge += len(checked.keys) + len(checked.data) + len(checked.hash_keys or b"")
        self.budget.charge(len(rows), charge)
        frame = Frame(owner, self.ids, checked, charge, patient=patient, takes_good=takes_good)
        frame.end_bad_rows()
        self.pipeline.submit(frame, self.now)
        return frame

    def queue(self, rows: Sequence[Row] | int, owner: object = "caller", **how: bool) -> Frame:
        """Accept a frame, and sort whatever waits."""
        frame = self.submit(rows, owner, **how)
        self.sort()
        return frame

    def put(self, rows: Sequence[Row] | int, owner: object = "caller", **how: bool) -> Sent:
        """Accept a frame, sort whatever waits, and send the next request."""
        self.queue(rows, owner, **how)
        return self.send()

    def job(self) -> SortJob:
        job = self.pipeline.take_job(self.now)
        assert job is not None
        return job

    def sorted(self, job: SortJob) -> None:
        self.pipeline.sorted(job, [(job.frames, sort_rows(job.frames, job.shard_map, job.seed))])

    def sort(self) -> None:
        """Whatever waits is sealed and sorted."""
        self.pipeline.press(self.now)
        while (job := self.pipeline.take_job(self.now + 1)) is not None:
            self.sorted(job)

    def begin(self) -> bool:
        """Sort what may be sorted now, and return whether there was any."""
        self.pipeline.press(self.now)
        jobs = 0
        while (job := self.pipeline.take_job(self.now)) is not None:
            self.sorted(job)
            jobs += 1
        return jobs > 0

    def send(self, *, one_entry: bool = False) -> Sent:
        """Send the next request, or only its first entry."""
        sent = Sent(self, self.take_request(), one_entry=True) if one_entry else self.try_send()
        assert sent is not None, "nothing to send"
        return sent

    def try_send(self) -> Sent | None:
        request = self.pipeline.take_request(self.now)
        return Sent(self, request) if request is not None else None

    def send_when_due(self) -> Sent:
        """Send the next request at the time at which it is due."""
        while (sent := self.try_send()) is None:
            self.now = max(self.now + 0.01, self.due())
        return sent

    def send_all(self) -> list[Sent]:
        found = []
        while (sent := self.try_send()) is not None:
            found.append(sent)
        return found

    def store_all(self) -> None:
        """Send and store, request after request, whatever may be sent now."""
        while (sent := self.try_send()) is not None:
            sent.stored_as_predicted()

    def take_request(self) -> Request:
        """Take the next request without encoding it."""
        request = self.pipeline.take_request(self.now)
        assert request is not None, "nothing to send"
        return request

    def due(self) -> float:
        due = self.pipeline.next_time()
        assert due is not None, "nothing will be due"
        return due

    def finished(self) -> list[Frame]:
        return self.pipeline.take_finished()

    def is_empty(self) -> bool:
        assert self.pipeline.idle == (self.pipeline.queued_records == 0)
        if not self.pipeline.idle:
            return False
        assert (self.budget.used_records, self.budget.used_bytes, self.pipeline.sender.in_flight.bytes) == (0, 0, 0)
        return True

    def delivered(self, *frames: Frame, copies: int = 0) -> None:
        """Each frame is stored whole, with this many possible duplicates, and nothing is left of it."""
        results = [frame.result() for frame in frames]
        assert [(result.stored, result.possible_duplicates) for result in results] == [
            (result.records, copies) for result in results
        ]
        assert self.is_empty()

    # ---- the shards

    @property
    def lane(self) -> Lane:
        """The only lane with rows or with requests."""
        (lane,) = self.pipeline.sender.lanes
        return lane

    def allowances(self) -> list[Allowance]:
        """What each lane may send now by its pace."""
        return [lane.pacer.allowance(self.now) for lane in self.pipeline.sender.lanes if lane.pacer is not None]

    @property
    def wants_map(self) -> bool:
        return self.pipeline.wants_shard_map

    def set_map(self, shard_map: ShardMap) -> None:
        self.pipeline.set_shard_map(shard_map, self.now)

    def map_failed(self, code: str, message: str, *, wrong_endpoint: bool = False, request_id: str = "") -> None:
        self.pipeline.shard_map_failed(code, message, self.now, wrong_endpoint=wrong_endpoint, request_id=request_id)

    # ---- what the stream says of itself

    @property
    def stats(self) -> StreamStats:
        return self.pipeline.stats

    @property
    def health(self) -> HealthState:
        return self.pipeline.health.state

    @property
    def holds_until(self) -> float:
        """Until when the whole stream sends nothing, or 0."""
        return self.pipeline.sender.in_flight.hold_until

    def in_outage(self) -> bool:
        return self.pipeline.diagnosis.in_outage

    def hold(self, until: float) -> None:
        """As after failures of whole requests."""
        self.pipeline.sender.in_flight.hold_until = until

    def holding(self) -> Holding:
        return self.pipeline.diagnosis.holding(self.now)

    def refuses(self, *, patient: bool = False, probes: bool = True, owner: object = None) -> RowEnd | None:
        return self.pipeline.refuses(self.now, patient=patient, probes=probes, owner=owner)

    def open_window(self) -> None:
        """As after many answers in time: all requests that the rules allow may be in flight."""
        window = self.pipeline.sender.in_flight.window
        while window.size < window.most:
            window.measure(0.02, 6.0)


class Sent:
    """A request on its way: what the service sees of it, and the answers to it."""

    def __init__(self, desk: Desk, request: Request, *, one_entry: bool = False) -> None:
        self.desk = desk
        self.request = request
        rules = desk.pipeline.rules.entries
        rules = replace(rules, request_max_records=1) if one_entry else rules
        format_ = desk.pipeline.format_of(request, is_aws=desk.is_aws)
        self.encoded = encode(ADDRESS, request.numbered, rules, request.aggregate_bytes, request.shard_map, format_)
        desk.pipeline.encoded(request, self.encoded, desk.now)
        self.format = desk.pipeline.diagnosis.wire_format
        self.entries: list[dict[str, Any]] = loads(bytes(self.encoded.body))["Records"]

    @property
    def data(self) -> list[bytes]:
        data = [entry["Data"] for entry in self.entries]
        return data if self.format == "cbor" else [base64.b64decode(text) for text in data]

    @property
    def users(self) -> list[bytes]:
        """The data of every user record in it."""
        found = []
        for data in self.data:
            inside = parse(data)
            found += [user.data for user in inside] if inside is not None else [data]
        return found

    def all_in(self, entry: int, shard: Shard) -> bool:
        """Whether a consumer of that shard takes this entry."""
        inside = parse(self.data[entry]) or []
        hash_keys = [user.explicit_hash_key.decode() if user.explicit_hash_key else None for user in inside]
        hashes = [hash_of(user.partition_key.decode(), key) for user, key in zip(inside, hash_keys, strict=True)]
        return all(shard.start <= number <= shard.end for number in hashes)

    def stored(self, shard_id: str = "shard-0") -> None:
        self.answer([{"SequenceNumber": "1", "ShardId": shard_id}] * len(self.entries))

    def stored_as_predicted(self) -> list[Request]:
        table, lanes = self.request.lanes, self.encoded.lanes.tolist()
        return self.answer([{"SequenceNumber": "1", "ShardId": table[lane].shard.shard_id} for lane in lanes])

    def throttle(self, entries: set[int]) -> None:
        self.answer([SLOW_DOWN if i in entries else GOOD for i in range(len(self.entries))])

    def answer(self, results: list[dict[str, Any]]) -> list[Request]:
        """Answer it.  Returns the requests whose time-outs that cut."""
        body = json.dumps({"FailedRecordCount": 0, "Records": results}).encode()
        return self.desk.pipeline.complete(self.request, parse_answer(body, len(self.entries)), self.desk.now)

    def fail(self, failed: RequestFailed) -> None:
        self.desk.pipeline.complete(self.request, failed, self.desk.now)


def ends_of(frame: Frame) -> dict[int, tuple[int, str, bool]]:
    ack = on_the_wire(frame.result())
    return {row: (code.outcome, code.code, code.maybe_stored) for row, code in ack.failed_rows()}


def spread(rows: int) -> list[Row]:
    """Rows whose hash keys lie evenly over the whole range."""
    return [(b"k", b"%d" % i, b"%d" % (i * (MAX_HASH_KEY // rows) + rows)) for i in range(rows)]


def go_on(desk: Desk, under_way: list[Any]) -> int:
    """Finish what is under way, and send whatever is left; returns how many rows were sent after it."""
    for work in under_way:
        if isinstance(work, SortJob):
            desk.sorted(work)
        elif isinstance(work, Sent):
            work.stored()
        elif work.encoded is None:
            Sent(desk, work).stored()
        else:
            body = json.dumps({"Records": [GOOD] * work.encoded.entries})
            desk.pipeline.complete(work, parse_answer(body.encode(), work.encoded.entries), desk.now)
    rows = 0
    for _ in range(100):
        desk.now += 1.0
        while (job := desk.pipeline.take_job(desk.now)) is not None:
            desk.sorted(job)
        for sent in desk.send_all():
            rows += len(sent.users)
            sent.stored()
    return rows


def reload(desk: Desk, **changes: Any) -> None:
    rules = desk.pipeline.rules
    entries = {name: changes.pop(name) for name in list(changes) if hasattr(rules.entries, name)}
    desk.pipeline.set_rules(replace(rules, entries=replace(rules.entries, **entries), **changes), desk.now)
