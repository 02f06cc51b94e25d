"""While there is no list of shards, aggregates wait for it, and then go plain at the pace of one shard.

Their rows never fail because of that, unless the service denies the list.
"""

from __future__ import annotations

from typing import Any

import pytest

from producerd.core.failures import CREDENTIALS_LATE
from producerd.core.kpl.aggregation import InnerRecord, parse
from producerd.core.rows.frame import RowEnd
from producerd.core.sending.health import HealthState
from producerd.core.shards.map_wait import UNANSWERED, MapWait
from producerd.errors import Code, Outcome
from producerd.testing.streams import SHARD_RECORDS_PER_SECOND
from tests.core.given import Service, aggregate_of
from tests.core.rows import even_map
from tests.core.stories import INVALID, LOW, Desk, Sent, ends_of, spread
from tests.simulation.setting import make_rules

pytestmark = pytest.mark.law("Lane")

DENIED = ("AccessDeniedException", "no ListShards for you")
UNREACHABLE = (Code.UNREACHABLE, "no route to host")
MISSING = ("ResourceNotFoundException", "gone")
TRANSIENT = [
    ("LimitExceededException", "Rate exceeded"),
    ("InternalFailure", "an answer that is not a map of shards"),
    ("ServiceUnavailable", "soon"),
    ("ValidationException", "odd"),
    ("NewFailure", "whatever comes next"),
    ("RequestExpired", "the clock is wrong"),
]
THROTTLED = TRANSIENT[0]


class Late(Desk):
    """A stream that aggregates, and whose list of shards has not come."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(known=False, **({"aggregate": True} | rules))

    def until_plain(self) -> None:
        """The list fails until rows wait no longer."""
        self.map_failed(*THROTTLED)
        self.now += self.pipeline.rules.shard_map_wait_seconds + 1.0  # `Desk.sort` is a second ahead
        self.map_failed(*THROTTLED)


def inside(sent: Sent) -> list[int]:
    """The number of records of each entry: 1 of a plain one."""
    return [len(parse(data) or [data]) for data in sent.data]


# ---- the wait


def test_aggregates_wait_for_the_map_and_go_out_when_it_comes() -> None:
    desk = Late()
    frame = desk.submit(20)
    assert not desk.begin()
    assert desk.holding().cause == "shard_map"
    assert desk.pipeline.next_time() is None, "nobody knows yet whether the service can be reached"
    desk.pipeline.service_answered(desk.now)
    assert desk.pipeline.next_time() == desk.now + 10.0
    desk.now += 9.9
    assert not desk.begin()
    assert desk.refuses() is None
    desk.set_map(even_map(1))
    assert not desk.wants_map
    desk.sort()
    sent = desk.send()
    assert inside(sent) == [20]
    sent.stored()
    assert frame.finished
    assert desk.is_empty()


@pytest.mark.promise("list-fails-now-waited", "list-fails-now-waited-records")
@pytest.mark.parametrize(("code", "message"), TRANSIENT, ids=[code for code, _ in TRANSIENT])
def test_a_list_that_fails_for_now_is_waited_for_and_then_records_go_plain(code: str, message: str) -> None:
    desk = Late()
    frame = desk.submit(20)
    desk.map_failed(code, message)
    for _ in range(3):
        assert not desk.begin()
        assert not desk.pipeline.goes_plain
        assert desk.pipeline.next_time() == 110.0
        desk.now += 3.0
        desk.map_failed(code, message)
    desk.now = 110.0
    assert desk.begin()
    assert desk.pipeline.goes_plain
    assert desk.refuses() is None, "and the gate admits callers"
    sent = desk.send()
    assert inside(sent) == [1] * 20
    sent.stored("shard-7")
    assert frame.result().stored == 20
    later = desk.submit(5)
    assert desk.begin(), "nobody waits a second time"
    desk.send().stored("shard-7")
    assert later.finished
    assert desk.stats.shard_mispredictions == 0
    assert desk.is_empty()


@pytest.mark.promise("list-fails-now-waited-records")
@pytest.mark.parametrize("first", ["the list", "the summary"])
def test_the_wait_counts_from_the_first_answer_of_the_service_to_any_call(first: str) -> None:
    desk = Late()
    desk.submit(20)
    for _ in range(20):
        desk.now += 6.0
        desk.map_failed(*UNREACHABLE)
        assert not desk.begin()
        assert desk.refuses() is None
        assert desk.pipeline.next_time() is None, "the next reading brings it about"
    if first == "the list":
        desk.map_failed("ServiceUnavailable", "soon")
    else:
        desk.pipeline.service_answered(desk.now)
    assert desk.pipeline.next_time() == desk.now + 10.0
    desk.now += 9.0
    desk.map_failed(*UNREACHABLE)
    assert not desk.begin()
    desk.now += 1.0
    assert desk.begin(), "though the list alone cannot be reached any more"
    desk.send().stored("shard-7")
    assert desk.is_empty()


def test_a_list_that_failed_before_the_first_row_is_not_waited_for_again() -> None:
    desk = Late()
    desk.until_plain()
    desk.submit(20)
    assert desk.begin()
    assert inside(desk.send()) == [1] * 20


@pytest.mark.parametrize(("aggregate", "seconds"), [(False, 1.0), (True, 10.0)])
def test_the_wait_begins_with_the_first_row_and_not_before(aggregate: bool, seconds: float) -> None:
    desk = Late(aggregate=aggregate, linger_seconds=60.0)
    desk.pipeline.service_answered(desk.now)
    assert not desk.begin()
    desk.now += 5.0
    due = desk.now + seconds
    for now in (due - seconds, due - 0.5):
        desk.now = now
        desk.submit(20)
        assert not desk.begin()
        assert desk.pipeline.next_time() == due
    desk.now = due
    assert desk.begin()


def test_a_denial_before_the_first_row_begins_no_wait() -> None:
    desk = Desk(known=False, aggregate=True)
    desk.map_failed(*DENIED)
    desk.now += 20.0
    desk.submit(1)
    assert not desk.begin()
    assert desk.due() == desk.now + 10.0


@pytest.mark.parametrize("aggregate", [False, True])
def test_a_batch_that_is_to_be_sorted_does_not_wait_for_a_list_that_has_come(aggregate: bool) -> None:
    desk = Desk(aggregate=aggregate)
    desk.submit(20)
    desk.pipeline.press(desk.now)
    assert desk.holding().cause == "daemon"


def test_a_reload_leaves_what_waits_its_patience() -> None:
    desk = Late()
    desk.submit(20)
    desk.map_failed(*THROTTLED)
    assert not desk.begin()
    desk.pipeline.set_rules(make_rules(aggregate=True, shard_map_wait_seconds=100.0), desk.now)
    assert desk.pipeline.next_time() == desk.now + 10.0


# ---- a denial


@pytest.mark.promise("list-shards-plain-records")
def test_only_a_denial_refuses_aggregates_and_says_what_to_do() -> None:
    desk = Late()
    frame = desk.submit(20)
    assert not desk.begin()
    desk.map_failed(*DENIED)
    late = desk.submit(3)
    desk.now += 10.0
    assert not desk.begin()
    assert desk.finished() == [frame, late]
    for ended in (frame, late):
        assert set(ends_of(ended).values()) == {(Outcome.NOT_STORED, Code.SHARD_MAP_MISSING, False)}
    refusal = desk.refuses()
    assert refusal is not None
    assert refusal == RowEnd(
        Outcome.NOT_STORED,
        Code.SHARD_MAP_MISSING,
        (
            'aggregation = "kpl" needs the stream\'s shards, and ListShards is denied '
            "(AccessDeniedException: no ListShards for you); allow kinesis:ListShards, or set "
            'aggregation = "none"'
        ),
    )
    assert desk.is_empty()
    desk.map_failed(*THROTTLED)
    assert desk.refuses() is None, "the denial is over"
    desk.now += 5.0
    for seconds in (2.0, 7.9, 0.1):
        desk.map_failed(*DENIED)
        assert desk.refuses() is None, "a new one is waited for as long, and counts from the first one"
        desk.now += seconds
    assert desk.refuses() is not None
    desk.set_map(even_map(1))
    assert desk.refuses() is None


def test_a_body_that_comes_after_a_refusal_is_told_in_time_too() -> None:
    """It was granted before; the time that has passed must not hide when its batch is due."""
    desk = Late(linger_seconds=0.1)
    desk.submit(1)
    desk.map_failed(*DENIED)
    assert not desk.begin()
    desk.now += 10.0
    assert not desk.begin()
    desk.finished()
    desk.now += 5.0
    late = desk.submit(1)
    assert desk.pipeline.next_time() == desk.now + 0.1
    desk.now += 0.1
    assert desk.pipeline.take_job(desk.now) is None
    assert desk.finished() == [late]
    assert desk.pipeline.next_time() is None, "nothing is kept of batches that ended"
    assert desk.is_empty()


def test_a_stream_that_distributes_its_records_itself_is_refused_at_once_though_the_list_fails() -> None:
    desk = Late()
    frame = desk.submit(1)
    desk.map_failed(*THROTTLED)
    desk.pipeline.cannot_aggregate = "the stream distributes its records itself"
    assert not desk.begin()
    assert {end[1] for end in ends_of(frame).values()} == {Code.SHARD_MAP_MISSING}
    assert desk.is_empty()


# ---- plain records


@pytest.mark.promise("list-fails-now-waited-records")
@pytest.mark.parametrize("aggregate", [True, False])
def test_records_that_go_plain_for_lack_of_a_list_keep_one_shards_pace(aggregate: bool) -> None:
    """A stream that does not aggregate may have many shards, and nobody may ever read their list: nothing paces it."""
    desk = Late(aggregate=aggregate, shard_rate_fraction=1.0)
    desk.submit(9_000)
    desk.until_plain()
    assert desk.begin()
    began, sent = desk.now, 0
    while desk.now < began + 4.0 and sent < 9_000:
        for request in desk.send_all():
            sent += len(request.entries)
            request.stored("shard-7")
        desk.now = min(max(desk.now + 0.001, desk.pipeline.next_time() or desk.now), began + 4.0)
    if aggregate:
        assert 2 * SHARD_RECORDS_PER_SECOND <= sent <= 5 * SHARD_RECORDS_PER_SECOND
        assert desk.holding().cause == "shard_map", "and that holds what waits"
    else:
        assert sent == 9_000


@pytest.mark.promise("waits-list-comes-sorted")
def test_what_waits_when_the_list_comes_is_sorted_by_it_and_aggregated_again() -> None:
    desk = Late(shard_rate_fraction=1.0, max_in_flight_requests=1)
    frame = desk.submit(spread(3_000))
    desk.until_plain()
    assert desk.begin()
    plain = desk.send()
    assert set(inside(plain)) == {1}
    desk.set_map(even_map(4))
    assert not desk.pipeline.goes_plain
    plain.stored("shard-2")
    sents: list[Sent] = []
    while not frame.finished:
        desk.now += 1.0
        sents += (later := desk.send_all())
        for sent in later:
            sent.stored_as_predicted()
    assert sum(sum(inside(sent)) for sent in sents) == 3_000 - len(plain.entries)
    assert max(max(inside(sent)) for sent in sents) > 100
    assert frame.result().possible_duplicates == 0
    assert desk.is_empty()


def test_what_is_held_alone_when_the_list_is_given_up_goes_plain_too() -> None:
    """Rows of a request that is halved stand in no lane."""
    desk = Desk(even_map(1), aggregate=True)
    desk.put(1).stored()
    desk.put(spread(20)).fail(INVALID)
    desk.map_failed(*MISSING)
    desk.submit(1)
    desk.map_failed(*THROTTLED)
    desk.now += 10.0
    desk.sort()
    assert desk.pipeline.goes_plain
    found = 0
    while found < 21:
        desk.now += 5.0
        for sent in desk.send_all():
            assert set(inside(sent)) == {1}
            found += len(sent.entries)
            sent.stored("another")
    assert desk.is_empty()


@pytest.mark.promise("waits-list-comes-sorted")
@pytest.mark.parametrize("then", ["the list comes", "it is given up"])
def test_with_per_key_nothing_overtakes_what_is_on_its_way_when_the_list_comes_or_goes(then: str) -> None:
    desk: Desk
    if then == "the list comes":
        late = desk = Late(per_key=True)
        desk.submit([(b"k", b"first", None)])
        late.until_plain()
    else:
        desk = Desk(even_map(2), aggregate=True, per_key=True)
        desk.put(1).stored_as_predicted()
        desk.submit([(b"k", b"first", None)])
    desk.sort()
    first = desk.send()
    desk.submit([(b"k", b"second", None)])
    if then == "the list comes":
        desk.set_map(even_map(2))
    else:
        desk.map_failed(*MISSING)
        desk.map_failed(*THROTTLED)
        desk.now += 10.0
    desk.sort()
    assert desk.try_send() is None
    first.answer([{"ErrorCode": "InternalFailure", "ErrorMessage": "once more"}])
    desk.now += 5.0
    again = desk.send()
    assert again.data[0] == b"first"
    again.stored_as_predicted() if then == "the list comes" else again.stored("another")
    if again.users == [b"first"]:
        assert desk.send().users == [b"second"]
    else:
        assert again.users == [b"first", b"second"]


def test_while_the_shards_are_not_known_nothing_is_in_doubt_and_plain_records_flow_on() -> None:
    """A first answer after a long silence doubts a map, and lanes wait then; here there is none."""
    desk = Late()
    desk.until_plain()
    for _ in range(5):
        desk.submit(5)
        assert desk.begin()
        desk.now += 30.0
        desk.send().stored("shard-7")
        desk.map_failed(*THROTTLED)
    assert desk.is_empty()


# ---- what cannot go plain


def of_shards(service: Service, count: int) -> bytes:
    """An aggregate with a record for each of that many shards."""
    keys = [b"%d" % shard.start for shard in service.map().shards[:count]]
    return aggregate_of([InnerRecord(b"k", key, b"inside " + key) for key in keys])


def late_service() -> Service:
    service = Service()
    service.desk = Late()
    return service


@pytest.mark.promise("rows-aggregates-wait")
def test_rows_that_are_aggregates_wait_for_the_list_and_hold_up_no_others() -> None:
    service = late_service()
    desk = service.desk
    given = service.submit([b"plain", of_shards(service, 4)])
    other = service.submit([b"another"])
    assert isinstance(desk, Late)
    desk.until_plain()
    later = service.submit([b"later", b"and later"])
    desk.sort()
    for sent in desk.send_all():
        service.answer(sent)
    assert (given.finished, other.finished, later.finished) == (False, True, True)
    assert desk.try_send() is None
    assert desk.pipeline.next_time() is None
    assert desk.pipeline.awaits_map
    assert desk.holding().cause == "shard_map"
    desk.set_map(service.map())
    desk.sort()
    for sent in desk.send_all():
        service.answer(sent)
    assert given.result().stored == 2
    assert service.stream.read().dropped_aggregates == 0
    assert len(service.read()) == 8
    assert desk.is_empty()


@pytest.mark.parametrize("end", ["its caller leaves", "it is denied", "shards do not follow the keys"])
def test_rows_that_wait_for_the_list_alone_can_end_before_it_comes(end: str) -> None:
    service = late_service()
    desk = service.desk
    assert isinstance(desk, Late)
    frame = service.submit([aggregate_of([InnerRecord(b"k", LOW, b"inside")])])
    desk.until_plain()
    assert not desk.begin()
    assert desk.pipeline.diagnosis.census()["filling"] == 1
    assert not desk.finished()
    if end == "its caller leaves":
        desk.pipeline.discard("caller")
    elif end == "it is denied":  # and the gate admits no more callers, whose rows would be sorted
        desk.map_failed(*DENIED)
        assert desk.pipeline.next_time() == desk.now + 10.0
        desk.now += 10.0
    else:
        desk.pipeline.cannot_aggregate = "AUTO"
    assert not desk.begin()
    assert frame.finished
    assert not desk.pipeline.diagnosis.census()["filling"], "nothing is kept of it"
    assert desk.is_empty()


def test_one_denial_of_a_list_that_fails_for_now_ends_nothing() -> None:
    desk = Late()
    desk.submit(2_000)
    desk.until_plain()
    desk.begin()
    desk.send().stored("shard-0")
    later = desk.submit(5)
    desk.map_failed(*DENIED)
    desk.now += 3.0
    assert desk.begin(), "it goes plain as those before it"
    assert desk.refuses() is None
    desk.map_failed(*THROTTLED)
    desk.now += 30.0
    assert desk.refuses() is None
    assert not later.finished


def test_a_denial_that_lasts_refuses_what_comes_and_what_went_plain_is_still_sent() -> None:
    desk = Late()
    plain = desk.submit(2_000)
    desk.until_plain()
    desk.begin()
    desk.map_failed(*DENIED)
    desk.now += 10.0
    end = desk.refuses()
    assert end is not None
    assert end.code == Code.SHARD_MAP_MISSING
    late = desk.submit(1)
    desk.now += 1.0
    assert not desk.begin()
    assert {told.code for told in late.result().codes} == {Code.SHARD_MAP_MISSING}
    while (sent := desk.try_send()) is not None:
        sent.stored("shard-0")
        desk.now += 1.0
    assert plain.result().stored == 2_000


def test_what_went_plain_ends_as_well_where_shards_turn_out_not_to_follow_the_keys() -> None:
    desk = Late()
    plain = desk.submit(3)
    desk.until_plain()
    assert desk.begin()
    desk.pipeline.set_cannot_aggregate("AUTO")
    late = desk.submit(1)
    desk.pipeline.flush("caller")
    assert not desk.begin()
    for frame in (plain, late):
        assert {*frame.result().codes} == {RowEnd(Outcome.NOT_STORED, Code.SHARD_MAP_MISSING, "AUTO")}
    assert desk.is_empty()


def test_a_denial_leaves_alone_what_is_being_sorted_and_goes_plain() -> None:
    desk = Late()
    frame = desk.submit(20)
    desk.until_plain()
    desk.pipeline.press(desk.now)
    job = desk.job()
    desk.map_failed(*DENIED)
    desk.now += 10.0
    late = desk.submit(1)
    desk.now += 1.0
    assert not desk.begin()
    assert desk.finished() == [late]
    desk.sorted(job)
    sent = desk.send()
    assert inside(sent) == [1] * 20
    sent.stored("shard-7")
    desk.delivered(frame)


# ---- the list is missed again


@pytest.mark.promise("list-fails-now-waited-records")
def test_after_ten_idle_minutes_a_list_that_fails_for_now_is_waited_for_and_then_records_go_plain() -> None:
    desk = Desk(even_map(2), aggregate=True)
    desk.put(1).stored_as_predicted()
    assert not desk.pipeline.forget_shards(desk.now)
    desk.now += 600.0
    assert desk.pipeline.forget_shards(desk.now)
    desk.now += 1_000.0
    frame = desk.submit(10)
    assert not desk.begin()
    assert desk.pipeline.next_time() == desk.now + 10.0, "it answered before"
    desk.map_failed(*UNREACHABLE)
    desk.now += 10.0
    desk.sort()
    sent = desk.send()
    assert inside(sent) == [1] * 10
    sent.stored("shard-7")
    assert frame.finished
    desk.now += 600.0
    desk.pipeline.forget_shards(desk.now)
    desk.now += 600.0
    assert desk.pipeline.forget_shards(desk.now)
    assert not desk.pipeline.goes_plain
    assert desk.is_empty()


@pytest.mark.promise("list-fails-now-waited-records")
def test_a_stream_made_again_whose_list_fails_for_now_gets_plain_records() -> None:
    """Its lanes are another stream's; what waits in them goes plain, too."""
    desk = Desk(even_map(2), aggregate=True)
    desk.put(1).stored_as_predicted()
    waiting = desk.queue(spread(10))
    desk.map_failed(*MISSING)
    frame = desk.submit(10)
    desk.now += 11.0
    assert not desk.begin(), "its health decides"
    assert desk.health is HealthState.SUSPECT
    desk.map_failed(*THROTTLED)
    desk.sort()
    assert [lane.shard.shard_id for lane in desk.pipeline.sender.lanes] == [""]
    while not (waiting.finished and frame.finished):
        desk.now += 5.0
        for sent in desk.send_all():
            assert set(inside(sent)) == {1}
            sent.stored("another")
    assert waiting.result().stored == frame.result().stored == 10
    assert waiting.result().possible_duplicates == 0
    assert desk.is_empty()


# ---- by itself


@pytest.mark.parametrize(
    "code",
    ["ResourceNotFoundException", "ExpiredTokenException", Code.CREDENTIALS, Code.CONFIGURATION, CREDENTIALS_LATE],
)
def test_while_the_stream_itself_fails_its_health_decides(code: str) -> None:
    wait = MapWait(aggregates=True)
    wait.begin(1.0, 10.0)
    wait.reading_failed(code, "no", 2.0)
    assert (wait.ends_at, wait.denied) == (float("inf"), False)
    wait.reading_failed("InternalFailure", "for now", 3.0)
    # A failure of our own credentials is not an answer of the service.
    assert wait.ends_at == (13.0 if code in UNANSWERED else 12.0)
