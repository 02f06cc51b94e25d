"""The simulation finds faults: each one that a test plants in the core breaks a law, and the right one by name.

A plant replaces a method of the core by one that does the wrong thing, for the length of a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile
from math import inf
from typing import Any, TypeVar

import orjson
import pytest

from producerd.core.budget import NodeInFlight
from producerd.core.gate import AdmissionGate, Ticket
from producerd.core.lanes.lane import Lane, Piece, spans_of
from producerd.core.lanes.lanes import Lanes
from producerd.core.lanes.pacing import Pacer, _Bucket
from producerd.core.lanes.taken import Taken
from producerd.core.ledger import Ledger
from producerd.core.pipeline import Pipeline
from producerd.core.rows.buffers import SpanBuffer, _mixed
from producerd.core.rows.flushing import Flushing
from producerd.core.rows.frame import Frame, RowEnd
from producerd.core.rows.job import IN_REQUEST, QUEUED
from producerd.core.rows.spans import Span
from producerd.core.sending import judging
from producerd.core.sending.answers import Answer, RequestFailed, parse_answer
from producerd.core.sending.aside import live_of
from producerd.core.sending.backoff import RetryPolicy
from producerd.core.sending.health import HealthState
from producerd.core.sending.in_flight import InFlight
from producerd.core.sending.judging import Judgement
from producerd.core.sending.requests import Request
from producerd.core.sending.sender import Sender
from producerd.core.sending.strays import Strays
from producerd.core.sending.verdicts import Verdicts
from producerd.core.shards.knowledge import KnownShards
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.errors import Outcome
from producerd.testing import Fault
from tests.simulation.story import first_broken

M = TypeVar("M", bound=Callable[..., Any])
Plant = Callable[[pytest.MonkeyPatch], None]


def replace_method(patch: pytest.MonkeyPatch, owner: type, name: str, fault: M) -> M:
    """Plant a fault in place of a method, and return the method."""
    really: M = getattr(owner, name)
    patch.setattr(owner, name, fault)
    return really


SEEDS = range(400)
"""Most plants show within ten."""

PLANTS: list[Any] = []


def breaks(law: str, **fixed: Any) -> Callable[[Plant], Plant]:
    """Which law a plant breaks.  ``fixed``: what the stories that show it soon have in common."""

    def keep(plant: Plant) -> Plant:
        PLANTS.append(pytest.param(plant, law, fixed, id=plant.__name__))
        return plant

    return keep


@pytest.mark.law("Pipeline")
def test_without_a_plant_the_same_stories_hold() -> None:
    for fixed in {repr(plant.values[2]): plant.values[2] for plant in PLANTS}.values():
        assert first_broken(range(1), **fixed) is None


# ---- what a consumer is handed

SPLITS: dict[str, Any] = {
    "kind": "reshard",
    "aggregate": True,
    "per_key": False,
    "keys": "many",
    "aggregates": False,
    "limit_records": 1_000,
    "limit_bytes": 1 << 20,
    "aggregate_max_bytes": 51_200,
    "ending": "idle",
}
"""Shards change under aggregates of many records."""

WRAPPED: dict[str, Any] = {
    "aggregate": True,
    "per_key": False,
    "aggregates": True,
    "shards": 16,
    "record_ttl_seconds": inf,
    "made_again": False,
    "ending": "idle",
}
"""Rows that are aggregates themselves, of several shards."""


@breaks("acknowledgement", **SPLITS)
def success_is_judged_per_record_inside_a_mixed_aggregate(patch: pytest.MonkeyPatch) -> None:
    """The KPL since 0.15.11: a consumer drops the records inside the range too."""

    def decide(self: Strays, waiting: Any, now: float) -> None:
        shard = self._known.get(waiting.copies[0][0])
        if shard is None:
            really(self, waiting, now)
            return
        for lane, span in live_of(waiting.pieces):
            for row in range(span.first, span.last):
                piece = Piece(lane, span.cut(row + 1)[0].cut(row)[1])
                if piece.span.lies_in(shard):
                    span.job.mark_maybe_stored(row, row + 1, "")
                    span.job.state[row] = IN_REQUEST
                    self._ledger.store([piece.span], now)
        really(self, waiting, now)  # with what is left of them

    really = replace_method(patch, Strays, "_decide", decide)


@breaks("acknowledgement", **(SPLITS | {"shards": 1, "limit_records": 20, "vanishing": 0.2}))
def an_aggregate_is_judged_by_the_rows_that_are_left(patch: pytest.MonkeyPatch) -> None:
    """Its other rows lost their caller while a map was awaited: a consumer drops it because of them all the same."""

    def decide(self: Strays, waiting: Any, now: float) -> None:
        ((shard_id, *hash_keys),) = waiting.copies
        left = [piece.span.hash_range() for piece in live_of(waiting.pieces)] or [hash_keys]
        copy = (shard_id, min(left)[0], max([last for _, last in left]))
        really(self, waiting._replace(copies=[copy]), now)

    really = replace_method(patch, Strays, "_decide", decide)


@breaks("acknowledgement", **SPLITS)
def settled_by_the_predicted_shard(patch: pytest.MonkeyPatch) -> None:
    """Settle rows without reading the shard in the answer."""

    def judge(request: Request, answer: Answer, known: KnownShards) -> Judgement:
        return Judgement(answer.errors + 1, answer.errors < -1, [])

    patch.setattr("producerd.core.sending.verdicts.judge", judge)


@breaks(
    "acknowledgement",
    kind="mixed",
    faults=[Fault("fail", fraction=0.2), Fault("failed_count", fraction=0.5, count=0)],
    ending="idle",
)
def the_failed_record_count_is_believed(patch: pytest.MonkeyPatch) -> None:
    def parse(body: bytes, entries: int) -> Answer | RequestFailed:
        answer = orjson.loads(body)
        if not answer["FailedRecordCount"]:
            stored = {"ShardId": "shardId-000000000000", "SequenceNumber": "1"}
            answer["Records"] = [stored if "ErrorCode" in result else result for result in answer["Records"]]
        return parse_answer(orjson.dumps(answer), entries)

    patch.setattr("tests.simulation.world.parse_answer", parse)


@breaks("possible_duplicates", kind="mixed", faults=[Fault("lost", fraction=0.3)], record_ttl_seconds=inf)
def a_lost_reply_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    def mark_maybe_stored(self: Ledger, spans: list[Span], cause: str) -> None:
        pass

    patch.setattr(Ledger, "mark_maybe_stored", mark_maybe_stored)


@breaks("possible_duplicates", kind="mixed", faults=[Fault("lost", fraction=0.6)], record_ttl_seconds=inf)
def rows_are_counted_and_not_copies(patch: pytest.MonkeyPatch) -> None:
    def mark_maybe_stored(self: Ledger, spans: list[Span], cause: str) -> None:
        for span in spans:
            span.job.mark_maybe_stored(span.first, span.last, cause)

    patch.setattr(Ledger, "mark_maybe_stored", mark_maybe_stored)


@breaks("possible_duplicates", kind="mixed", request_max_records=50, faults=[Fault("fail", fraction=0.3)], **WRAPPED)
def parts_that_were_stored_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Of a row that is an aggregate itself, when its other parts failed."""

    def judge(request: Request, answer: Answer, known: KnownShards) -> Judgement:
        return really(request, answer, known)._replace(partly=[])

    really = judging.judge
    patch.setattr("producerd.core.sending.verdicts.judge", judge)


@breaks("copies", **SPLITS, shards=1)
def what_strays_is_never_sent_raw(patch: pytest.MonkeyPatch) -> None:
    """With a map that lags, every attempt strays."""

    def await_map(self: Strays, answer: Answer, encoded: Any, entry: int, pieces: list[Piece], now: float) -> None:
        self._ledger.mark_maybe_stored(spans_of(pieces), "reshard")
        self._aside.requeue([Piece(lane, self._ledger.retried(span)) for lane, span in pieces])

    patch.setattr(Strays, "await_map", await_map)
    patch.setattr(Strays, "check_map", lambda self, *_: self._known.want())


# ---- order

ONE_KEY: dict[str, Any] = {
    "kind": "mixed",
    "per_key": True,
    "keys": "few",
    "limit_records": 1_000,
    "limit_bytes": 1 << 20,
    "record_ttl_seconds": inf,
    "request_max_records": 5,
    "made_again": False,
    "ending": "idle",
    "faults": [Fault("throttle", fraction=0.3), Fault("fail", fraction=0.1)],
}


@breaks("per_key", **ONE_KEY)
def what_is_tried_again_goes_to_the_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lane, "put_back", Lane.extend)


@breaks("per_key", **ONE_KEY)
def a_lane_does_not_wait_for_its_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lanes, "_must_wait", lambda self, lane: False)


@breaks("per_key", **(ONE_KEY | {"keys": "explicit", "aggregate": False}))
def rows_of_one_partition_key_go_at_once_if_their_hash_keys_differ(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpanBuffer, "key_numbers", lambda self, a, b: _mixed(self.hashes[0][a:b], self.hashes[1][a:b]))


@breaks("per_key", **(ONE_KEY | {"faults": [Fault("throttle", fraction=0.3)], "fail_if_throttled": True}))
def what_follows_a_failed_row_is_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "_fail_followers", lambda self, frame, from_row: None)


# ---- room

ROOMY: dict[str, Any] = {"limit_records": 1_000, "limit_bytes": 1 << 20, "ending": "idle"}


@breaks("QueueBudget", **ROOMY)
def room_is_freed_at_the_send(patch: pytest.MonkeyPatch) -> None:
    def start(self: Sender, taken: Taken) -> Request:
        request = really(self, taken)
        self.ledger.budget.release(request.records, 0)
        return request

    really = replace_method(patch, Sender, "_start", start)


@breaks("AdmissionGate", **ROOMY, body_seconds=1.0)
def a_cancelled_waiter_keeps_its_grant(patch: pytest.MonkeyPatch) -> None:
    def cancel(self: AdmissionGate, ticket: Ticket, now: float) -> None:
        if not ticket.granted:
            really(self, ticket, now)

    really = replace_method(patch, AdmissionGate, "cancel", cancel)


# ---- rows and frames end


@breaks("Frame", **ROOMY)
def an_acknowledgement_before_the_last_row(patch: pytest.MonkeyPatch) -> None:
    def take_finished(self: Ledger) -> list[Frame]:
        nearly = [frame for frame in self.frames if frame.unsettled == 1 and frame.owner is not None]
        return [*really(self), *nearly]

    really = replace_method(patch, Ledger, "take_finished", take_finished)


@breaks("Row", **ROOMY)
def rows_of_a_caller_that_vanished_are_discarded_in_flight(patch: pytest.MonkeyPatch) -> None:
    def withdraw(self: Ledger, frame: Frame, end: RowEnd | None, from_row: int = 0) -> None:
        if end is None and (job := self._jobs.get(frame)) is not None:
            rows = job.positions_of(frame)
            rows = rows[job.state[rows] == IN_REQUEST]
            job.state[rows] = QUEUED
        really(self, frame, end, from_row)

    really = replace_method(patch, Ledger, "withdraw", withdraw)


@breaks("Row", kind="mixed", record_ttl_seconds=1.0, linger_seconds=2.0)
def an_expired_row_is_not_reported(patch: pytest.MonkeyPatch) -> None:
    really = Ledger.expire
    patch.setattr(Ledger, "expire", lambda self, now, end: really(self, now, None))  # type: ignore[arg-type]


@breaks("Row", kind="mixed", record_ttl_seconds=1.0, faults=[Fault("throttle")])
def rows_never_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "expire", lambda self, now, end: None)


@breaks("flush", **ROOMY)
def a_flush_waits_for_later_frames_too(patch: pytest.MonkeyPatch) -> None:
    flushed: dict[object, set[Frame]] = {}

    def flush(self: Pipeline, owner: object) -> None:
        flushed[owner] = {frame for frame in self.ledger.frames if frame.owner is owner}
        really_flush(self, owner)

    def take_finished(self: Pipeline) -> list[Frame]:
        """The last acknowledgement that a flush waits for is kept while anything else of its session is under way."""
        told = []
        for frame in really_take(self):
            mates = flushed.get(frame.owner, set())
            if mates != {frame} or all(other.owner is not frame.owner for other in self.ledger.frames):
                told.append(frame)
            mates.discard(frame)
        return told

    really_flush, really_take = Pipeline.flush, Pipeline.take_finished
    patch.setattr(Pipeline, "flush", flush)
    patch.setattr(Pipeline, "take_finished", take_finished)


@breaks("Pipeline", **SPLITS)
def rows_that_await_a_map_are_lost(patch: pytest.MonkeyPatch) -> None:
    def await_map(self: Strays, *of: Any) -> None:
        really(self, *of)
        del self._awaiting[-1]

    really = replace_method(patch, Strays, "await_map", await_map)


# ---- shards


@breaks("Lane", **(SPLITS | {"aggregate": False, "keys": "many"}))
def a_new_map_leaves_waiting_rows_unsorted(patch: pytest.MonkeyPatch) -> None:
    def place(span: Span, shard_map: ShardMap) -> list[tuple[int, Span]]:
        high, low = span.buffer.hashes
        row = span.first - span.buffer.first
        return [(int(shard_map.locate(high[row : row + 1], low[row : row + 1])[0]), span)]

    patch.setattr("producerd.core.lanes.lanes.place", place)


@breaks("ShardMap", **SPLITS)
def a_map_that_never_learns(patch: pytest.MonkeyPatch) -> None:
    def set_shard_map(self: Pipeline, shard_map: ShardMap, now: float, asked_at: float | None = None) -> None:
        if self.shard_map is None:
            really(self, shard_map, now)

    really = replace_method(patch, Pipeline, "set_shard_map", set_shard_map)


@breaks("ShardMap", **SPLITS)
def nobody_asks_for_a_newer_map(patch: pytest.MonkeyPatch) -> None:
    known_at_all = property(lambda self: self.map is None, lambda self, value: None)
    patch.setattr(KnownShards, "wanted", known_at_all, raising=False)


# ---- no list of the shards

LATE: dict[str, Any] = {
    "kind": "mixed",
    "aggregate": True,
    "per_key": False,
    "aggregates": False,
    "keys": "many",
    "shards": 16,
    "limit_records": 100_000,
    "limit_bytes": 64 << 20,
    "aggregate_max_bytes": 51_200,
    "record_ttl_seconds": inf,
    "reshards": False,
    "made_again": False,
    "ending": "idle",
    "faults": [
        Fault("error", fraction=0.99, status=400, code="LimitExceededException", action="ListShards"),
    ],
}
"""Rows wait for the list of shards, and go plain without it."""


@breaks("acknowledgement", **LATE)
def rows_without_a_list_are_aggregated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("producerd.core.lanes.lanes.as_raw", list)


@breaks("Pacer", **LATE, shard_rate_fraction=0.01)
def the_lane_of_all_shards_is_sent_whatever_there_is(patch: pytest.MonkeyPatch) -> None:
    def lane(self: Lanes, shard: Shard) -> Lane:
        found = really(self, shard)
        if found.nameless:
            found.pacer = None
        return found

    really = replace_method(patch, Lanes, "_lane", lane)


# ---- pace

HUGE: dict[str, Any] = {
    "kind": "calm",
    "huge": True,
    "keys": "few",
    "limit_records": 1_000,
    "limit_bytes": 64 << 20,
    "aggregate": False,
    "shard_rate_fraction": 0.3,
    "ending": "idle",
    "record_ttl_seconds": inf,
}


@breaks("Pacer", **HUGE)
def a_bucket_that_never_holds_the_largest_entry(patch: pytest.MonkeyPatch) -> None:
    """It is waited for as many tokens as the entry has bytes, and there are never more than a second's rate."""
    patch.setattr(_Bucket, "lacks_seconds", lambda self, tokens: max(0.0, tokens - self.tokens) / self.rate)


@breaks("Pacer", **HUGE)
def a_full_bucket_lets_no_larger_entry_go(patch: pytest.MonkeyPatch) -> None:
    really = Pacer.allowance
    patch.setattr(Pacer, "allowance", lambda self, now: really(self, now)._replace(one_larger=False))


@breaks("Pacer", **HUGE)
def a_shard_is_sent_whatever_there_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pacer, "take", lambda self, entries, bytes_, now: None)


@breaks("RetryPolicy", kind="mixed", faults=[Fault("error", status=503)], limit_records=1_000)
def nobody_waits_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RetryPolicy, "delay", lambda self, attempts: 0.001)
    patch.setattr(RetryPolicy, "hold", lambda self: 0.001)


# ---- the operator

OPERATED: dict[str, Any] = {"operated": True, "ending": "idle"}


@breaks("Row", **OPERATED, kind="mixed", faults=[Fault("error", status=503)])
def only_the_oldest_frames_expire(patch: pytest.MonkeyPatch) -> None:
    """After a reload a younger one may come first."""

    def expire(self: Ledger, now: float, end: RowEnd) -> None:
        for frame in list(takewhile(lambda frame: frame.expires_at <= now, self.frames)):
            if frame.withdrawn_from != 0:
                self.withdraw(frame, end)

    patch.setattr(Ledger, "expire", expire)


@breaks("Pipeline", **OPERATED)
def a_pause_holds_nothing(patch: pytest.MonkeyPatch) -> None:
    def has_room(self: Sender) -> bool:
        return self.in_flight.has_room(for_one=self.health.state is HealthState.SUSPECT)

    patch.setattr(Sender, "has_room", property(has_room))


@breaks("Pipeline", **OPERATED)
def what_a_pause_holds_is_due_all_the_time(patch: pytest.MonkeyPatch) -> None:
    def next_time(self: Sender) -> float:
        return min(really(self), self.lanes.next_time())

    really = replace_method(patch, Sender, "next_time", next_time)


@breaks("NodeInFlight", **OPERATED, sizes=(100, 2_000, 20_000), limit_bytes=64 << 20)
def requests_are_not_cut_to_what_the_node_has_room_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InFlight, "request_bytes", property(lambda self: self._request_max_bytes))


@breaks("NodeInFlight", **OPERATED, sizes=(100, 2_000, 20_000), limit_bytes=64 << 20)
def a_larger_row_is_sent_beside_another_stream_s(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeInFlight, "takes_larger", property(lambda _: True))


@breaks("NodeInFlight", **OPERATED, limit_bytes=64 << 20)
def what_had_no_answer_is_forgotten_by_the_node(patch: pytest.MonkeyPatch) -> None:
    def on_failure(self: Verdicts, request: Request, failed: RequestFailed, now: float) -> None:
        self._in_flight.node.count_sent(self._in_flight, 1)
        really(self, request, failed, now)

    really = replace_method(patch, Verdicts, "on_failure", on_failure)


@breaks("flush", **OPERATED)
def a_flush_counts_rows_that_had_ended_before_it(patch: pytest.MonkeyPatch) -> None:
    def init(self: Flushing, frames: Iterable[Frame], done: Callable[[], object]) -> None:
        really(self, frames, done)
        self._ended = dict.fromkeys(Outcome, 0)

    really = replace_method(patch, Flushing, "__init__", init)


@breaks("flush", **OPERATED)
def a_flush_waits_for_frames_that_came_later(patch: pytest.MonkeyPatch) -> None:
    def frame_finished(self: Flushing, frame: Frame) -> None:
        if frame in self._frames and len(self._frames) > 1:
            really(self, frame)

    really = replace_method(patch, Flushing, "frame_finished", frame_finished)


@pytest.mark.promise("answers-wrong-number")
@pytest.mark.parametrize(("plant", "law", "fixed"), PLANTS)
def test_the_simulation_finds(plant: Plant, law: str, fixed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    broken = first_broken(SEEDS, **fixed)
    assert broken is not None, "every law held"
    assert broken.law == law, broken
