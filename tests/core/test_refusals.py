"""What is refused without judging a row: nothing is left out for it, and one caller's rows do not hold another's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from producerd.core.failures import meaning_of_answer, meaning_of_error, names_record
from producerd.core.lanes.lane import ANY_BYTES
from producerd.core.rows.frame import Frame
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.body_limit import BodyLimit
from producerd.core.sending.health import HealthState
from producerd.errors import Code, Outcome
from tests.core.refusals import GRACE_SECONDS, WAYS, serve
from tests.core.rows import even_map
from tests.core.stories import (
    BAD_HASH_KEY,
    BAD_KEY,
    BARE,
    HIGH,
    INVALID,
    LOW,
    ODD,
    Desk,
    Sent,
    ends_of,
    on_the_wire,
)

pytestmark = pytest.mark.law("Verdicts")

NULL_DATA = (
    "1 validation error detected: Value null at 'records.1.member.data' failed to satisfy constraint: "
    "Member must not be null"
)
"""What a service says that cannot read CBOR: each body has the data of all its records."""


def judged_in(frame: Frame) -> set[int]:
    return {row for row, why in on_the_wire(frame.result()).failed_rows() if why.judged}


def bad(i: int) -> tuple[bytes, bytes, bytes | None]:
    return b"a%d" % i, b"bad %d" % i, None


def good(i: int) -> tuple[bytes, bytes, bytes | None]:
    return b"b%d" % i, b"good %d" % i, None


def refuses_bad_with(failed: RequestFailed) -> Callable[[Sent], RequestFailed | None]:
    return lambda sent: failed if any(data.startswith(b"bad") for data in sent.users) else None


@pytest.mark.promise("message-judges-record")
@pytest.mark.parametrize(("aggregate", "per_key"), WAYS)
@pytest.mark.parametrize("failed", [INVALID, ODD, BARE])
def test_a_caller_s_refused_rows_do_not_hold_or_end_another_s(
    failed: RequestFailed, aggregate: bool, per_key: bool
) -> None:
    desk = Desk(even_map(2), aggregate=aggregate, per_key=per_key)
    of_a = desk.submit([bad(i) for i in range(24)], "a", takes_good=True)
    of_b = desk.queue([good(i) for i in range(60)], "b")
    assert serve(desk, refuses_bad_with(failed), of_b) < GRACE_SECONDS
    assert of_b.tallies[Outcome.STORED] == 60
    serve(desk, refuses_bad_with(failed), of_a)
    assert judged_in(of_a) == ({*range(24)} if failed is INVALID else set())
    assert desk.is_empty()


@pytest.mark.promise("message-judges-record")
@pytest.mark.parametrize("per_key", [False, True])
def test_however_many_rows_are_judged_the_stream_is_not_refused(per_key: bool) -> None:
    """Kinesis names the first of them, so that it is tried by itself next: two requests find a bad row."""
    desk = Desk(per_key=per_key)
    frame = desk.queue([bad(i) for i in range(100)], takes_good=True)
    failed = RequestFailed("ValidationException", BAD_KEY, maybe_stored=False, status=400, request_id="d3f1")
    serve(desk, lambda _: failed, frame)
    assert desk.stats.put_requests["failed"] < 2 * 100
    assert desk.health is HealthState.UNPROVEN
    assert judged_in(frame) == {*range(100)}


@pytest.mark.promise("rows-given-back-failure")
@pytest.mark.parametrize("takes_good", [False, True])
def test_a_judged_row_fails_no_later_one_of_a_session_that_wants_its_good_ones(takes_good: bool) -> None:
    desk = Desk(per_key=True)
    first = desk.submit([bad(1)], takes_good=takes_good)
    second = desk.queue([good(1)], takes_good=takes_good)
    serve(desk, refuses_bad_with(INVALID), first, second)
    third = desk.queue([good(2)], takes_good=takes_good)
    if takes_good:
        serve(desk, refuses_bad_with(INVALID), third)
    for frame in (second, third):
        assert ends_of(frame) == ({} if takes_good else {0: (Outcome.NOT_STORED, Code.PREDECESSOR_FAILED, False)})


def test_a_row_that_an_earlier_attempt_may_have_stored_is_judged_by_its_last_one() -> None:
    desk = Desk()
    frame = desk.queue([bad(1)])
    desk.send().fail(RequestFailed(Code.UNREACHABLE, "reset", maybe_stored=True))
    desk.send_when_due().fail(INVALID)
    assert ends_of(frame) == {0: (Outcome.UNKNOWN, Code.RECORD_INVALID, True)}
    assert judged_in(frame) == {0}


@pytest.mark.promise("proxy-refuses-rows-wait")
@pytest.mark.parametrize(("aggregate", "per_key"), WAYS)
def test_where_a_proxy_refuses_all_rows_wait_without_an_end_and_none_is_lost(aggregate: bool, per_key: bool) -> None:
    desk = Desk(aggregate=aggregate, per_key=per_key)
    frames = [desk.submit([good(i) for i in range(25)], owner) for owner in ("a", "b", "c")]
    desk.sort()
    serve(desk, lambda _: BARE, *frames, seconds=600.0)
    assert not any(frame.finished for frame in frames)
    assert desk.stats.put_requests["failed"] < 1_200, "two in a second"
    serve(desk, lambda _: None, *frames)
    assert all(frame.tallies[Outcome.STORED] == 25 for frame in frames)


def test_a_proxy_that_refuses_the_only_row_is_what_holds_it_until_another_row_is_stored() -> None:
    """Between its attempts, too, of which none is in flight."""
    desk = Desk()
    desk.queue([bad(1)])
    desk.send().fail(BARE)
    desk.now += 30.0
    assert (desk.pipeline.diagnosis.holding(desk.now).cause, desk.pipeline.sender.rows_refused_as) == (
        "service",
        Code.PROXY_REFUSED,
    )
    serve(desk, refuses_bad_with(BARE), desk.queue([good(2)]))
    assert (desk.pipeline.diagnosis.holding(desk.now).cause, desk.pipeline.sender.rows_refused_as) == ("daemon", "")


@pytest.mark.promise("proxy-refuses-rows-wait")
def test_what_was_sent_before_a_proxy_refused_a_row_does_not_end_it_by_passing_later() -> None:
    desk = Desk()
    desk.queue([good(1)])
    slow = desk.send()
    desk.now += 1.0
    frame = desk.queue([bad(1)])
    desk.send().fail(BARE)
    desk.now += 1.0
    slow.stored()
    serve(desk, lambda _: BARE, frame, seconds=3 * GRACE_SECONDS)
    assert not frame.finished
    serve(desk, refuses_bad_with(BARE), desk.queue([good(2)], "b"))
    serve(desk, lambda _: BARE, frame)
    assert ends_of(frame) == {0: (Outcome.UNKNOWN, Code.PROXY_REFUSED, True)}


@pytest.mark.promise("proxy-refuses-rows-wait")
def test_a_row_whose_mate_passed_before_it_was_refused_by_itself_ends_after_the_grace() -> None:
    desk = Desk()
    frame = desk.queue([bad(1), good(1)])
    desk.send().fail(BARE)
    desk.now += 1.0
    part, mate = desk.send_all()
    mate.stored()
    part.fail(BARE)
    assert GRACE_SECONDS <= serve(desk, lambda _: BARE, frame) < GRACE_SECONDS + 6.0
    assert ends_of(frame) == {0: (Outcome.UNKNOWN, Code.PROXY_REFUSED, True)}


@pytest.mark.promise("kinesis-refuses-stream")
@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("worked", [False, True])
@pytest.mark.parametrize("rows", [1, 100])
def test_where_kinesis_refuses_all_the_stream_is_refused_after_the_grace(
    per_key: bool, worked: bool, rows: int
) -> None:
    desk = Desk(per_key=per_key)
    if worked:
        desk.put([good(0)]).stored()
    frame = desk.queue([good(i) for i in range(rows)])
    assert 59.0 < serve(desk, lambda _: ODD, frame) < 70.0
    assert {end.message for end in frame.result().codes if end.code == Code.REQUEST_REFUSED} == {ODD.message}
    assert {end[:2] for end in ends_of(frame).values()} <= {
        (Outcome.NOT_STORED, Code.REQUEST_REFUSED),
        (Outcome.NOT_STORED, Code.PREDECESSOR_FAILED),
    }
    assert not judged_in(frame)


@pytest.mark.promise("proxy-refuses-rows-wait")
def test_a_row_that_waits_by_itself_holds_its_own_session_in_order_and_no_other() -> None:
    desk = Desk(per_key=True)
    keys = [(b"k", b"bad", None), *[(b"k", b"row %d" % i, None) for i in range(5)]]
    of_a = desk.submit(keys, "a")
    of_b = desk.queue([(b"k", b"of b", None)], "b")
    begins, order = desk.now, []

    def answer(sent: Sent) -> RequestFailed | None:
        if desk.now < begins + 20.0 and b"bad" in sent.users:
            return BARE
        order.extend(sent.users)
        return None

    assert serve(desk, answer, of_b) < 10.0
    serve(desk, answer, of_a)
    assert order == [b"of b", b"bad", *[b"row %d" % i for i in range(5)]]


@pytest.mark.promise("proxy-refuses-rows-wait")
def test_rows_that_come_back_while_their_session_is_held_back_go_before_its_later_ones() -> None:
    desk = Desk(even_map(2), per_key=True, request_max_records=1)
    frame = desk.queue([(b"k", b"first", LOW), (b"k", b"second", LOW), (b"b", b"bad", HIGH)])
    first, refused = desk.send_all()
    refused.fail(BARE)
    first.throttle({0})
    order: list[bytes] = []
    serve(desk, lambda sent: order.extend(sent.users), frame)
    assert order == [b"bad", b"first", b"second"]


def test_the_row_for_which_kinesis_fails_holds_no_other_session_in_order() -> None:
    desk = Desk(per_key=True)
    desk.queue([(b"k", b"bad", None), (b"k", b"behind", None)], "a")
    fault = RequestFailed("500", "m", maybe_stored=True, status=500)
    for i in range(20):  # others are stored, so that the row itself is suspected
        frame = desk.queue([(b"k%d" % i, b"of b", None)], "b")
        waited = serve(desk, refuses_bad_with(fault), frame)
    assert waited < 1.0
    assert desk.pipeline.diagnosis.census()["held back"] == 1


@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("failed", [ODD, BARE])
def test_rows_that_pass_do_not_wait_for_another_caller_s_refused_ones(failed: RequestFailed, per_key: bool) -> None:
    desk = Desk(per_key=per_key)
    for i in range(100):
        if not i % 20:
            desk.submit([bad(row) for row in range(12)], f"a{i}", takes_good=True)
        of_b = desk.queue([good(i)], "b")
        assert serve(desk, refuses_bad_with(failed), of_b) < (6.0 if failed is BARE else GRACE_SECONDS)
        desk.now += 0.1


def test_a_first_refusal_of_a_row_by_itself_never_ends_it() -> None:
    """Long before, a request was refused that had another row, too."""
    desk = Desk()
    frame = desk.queue([bad(1), good(1)])
    desk.send().fail(BARE)
    part, other = desk.send_all()
    part.fail(RequestFailed("LimitExceededException", "slow", maybe_stored=False, status=400, request_id="d3f1"))
    other.stored()
    desk.now += 70.0
    desk.send_when_due().fail(BARE)
    assert not frame.finished
    desk.send_when_due().stored()
    assert ends_of(frame) == {}


def test_one_entry_that_is_refused_again_and_again_does_not_refuse_the_stream() -> None:
    """Each attempt ends the row's entry in an answer with results, as Kinesis has for an entry of its own."""
    desk = Desk()
    odd = desk.queue([bad(1)])
    while not odd.finished:
        desk.send_when_due().answer([{"ErrorCode": "ValidationException", "ErrorMessage": "The stream is odd"}])
        assert desk.health is HealthState.UNPROVEN
    assert ends_of(odd) == {0: (Outcome.NOT_STORED, Code.REQUEST_REFUSED, False)}


# ---- what judges


@pytest.mark.promise("message-judges-record")
@pytest.mark.parametrize(
    ("message", "judges"),
    [
        (BAD_KEY, True),
        (BAD_KEY.replace("records.1.member.partitionKey", "streamName"), False),
        (BAD_KEY.replace("1 validation error", "2 validation errors"), False),
        (BAD_KEY.replace("records.1.member.partitionKey", "records"), False),
        (NULL_DATA, False),
        (NULL_DATA.replace("Value null", "Value"), False),
        (BAD_KEY.replace("less than or equal to 256", "greater than or equal to 1"), False),
        (BAD_HASH_KEY, True),
        ("Record 1 of stream s under account 1 has 9 bytes, more than the maximum record size of 8 bytes.", True),
        ("Records size exceeds 10 MB limit", False),
        ("StreamARN and StreamName do not match", False),
        ("StreamName must not be given with PartitionKey", False),
        ("Stream orders.partitionkey under account 1 is not ready to be written to.", False),
        ("The maximum record size of stream record-1 under account 1 is being updated.", False),
        ("KMS key of stream s cannot decrypt the partition key", False),
        ("Stream s does not accept an ExplicitHashKey in its present mode.", False),
        ("1 validation error detected", False),
        ("", False),
    ],
)
def test_a_message_judges_a_record_only_if_it_names_one_and_nothing_else(message: str, judges: bool) -> None:
    assert names_record(message) is judges


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.CREDENTIALS, Code.PROXY_REFUSED])
def test_a_code_of_producerd_s_own_means_nothing_in_an_answer(code: str) -> None:
    assert meaning_of_answer(code, "message", 500, "d3f1").code == Code.SERVICE_FAULT
    assert meaning_of_error(code, "message").code == Code.SERVICE_FAULT
    assert meaning_of_answer(code, "message", 0, "").code == code


# ---- how large a request may be


@pytest.mark.promise("proxy-refuses-rows-wait")
def test_the_size_that_a_proxy_takes_is_learned_and_tried_upwards() -> None:
    desk = Desk(limit_records=100_000)
    largest = 300_000

    def answer(sent: Sent) -> RequestFailed | None:
        return BARE if sent.request.bytes > largest else None

    for megabytes in range(12):
        frame = desk.queue([(b"k%d" % i, b"x" * 1_000, None) for i in range(1_000)])
        serve(desk, answer, frame)
        assert frame.tallies[Outcome.STORED] == 1_000
        limit = desk.pipeline.sender.body_limit
        if megabytes == 2:
            assert largest / 2.2 < limit.bytes <= largest
            refused = desk.stats.put_requests["failed"]
            desk.now += BodyLimit.TRY_SECONDS / 10
        elif megabytes == 3:
            assert desk.stats.put_requests["failed"] == refused, "no request is too large any more"
        elif megabytes > 3:
            largest = 10 << 20
            desk.now += BodyLimit.TRY_SECONDS
    assert limit.bytes == ANY_BYTES


@pytest.mark.promise("proxy-refuses-rows-wait")
def test_a_small_request_that_is_refused_takes_the_blame_from_the_size() -> None:
    limit = BodyLimit()
    limit.passed(200_000, 260_000, 0.0)
    limit.body_refused(500_000, 660_000, 1.0)
    assert (limit.bytes, limit.passed_body_bytes, limit.refused_body_bytes) == (200_000, 260_000, 660_000)
    limit.body_refused(100, 200, 2.0)
    assert limit.bytes == ANY_BYTES


def test_rows_that_a_proxy_refuses_leave_their_shard_s_pace_to_others() -> None:
    desk = Desk(shard_rate_fraction=1.0)
    desk.queue([(b"a%d" % i, b"bad" + bytes(900_000), None) for i in range(8)], "a")
    while desk.pipeline.diagnosis.census()["queued"]:
        desk.send_when_due().fail(BARE)
    waits = []
    for i in range(20):
        of_b = desk.queue([good(i)], "b")
        waits.append(serve(desk, refuses_bad_with(BARE), of_b))
    assert max(waits) < 10.0
    assert sum(waits) < 60.0
