"""Requests go in CBOR where the endpoint takes it, and in JSON where it does not."""

from __future__ import annotations

import pytest

from producerd.core.budget import NodeInFlight
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.format_choice import REFUSING_CODES, REFUSING_STATUSES
from producerd.core.sending.health import HealthState
from tests.core.stories import THROTTLED, Desk, ends_of

REFUSAL = RequestFailed("SerializationException", "", maybe_stored=False, status=400, request_id="d3f1")


def taken_in(desk: Desk, rows: int = 1) -> str:
    """The format of the next request."""
    sent = desk.put(rows)
    sent.stored()
    return sent.format


@pytest.mark.parametrize(
    ("wire_format", "is_aws", "expected"),
    [
        ("auto", True, "cbor"),
        ("auto", False, "json"),
        ("json", True, "json"),
        ("json", False, "json"),
        ("cbor", True, "cbor"),
        ("cbor", False, "cbor"),
    ],
)
def test_the_setting_and_the_endpoint_choose(wire_format: str, is_aws: bool, expected: str) -> None:
    desk = Desk(wire_format=wire_format, is_aws=is_aws)
    assert desk.pipeline.diagnosis.wire_format == ""
    assert taken_in(desk) == expected


@pytest.mark.parametrize("wire_format", ["auto", "cbor"])
@pytest.mark.parametrize("status", sorted(REFUSING_STATUSES))
@pytest.mark.parametrize("code", sorted(REFUSING_CODES))
def test_rows_refused_in_cbor_go_in_json_and_all_that_follow(wire_format: str, status: int, code: str) -> None:
    """No row waits for it, none counts as failed, and the stream's health does not change."""
    desk = Desk(wire_format=wire_format, is_aws=True)
    assert taken_in(desk) == "cbor"
    frame = desk.queue(10)
    first = desk.send()
    first.fail(refusal := RequestFailed(code, "m", maybe_stored=False, status=status))
    again = desk.send()
    assert (first.format, again.format) == ("cbor", "json")
    assert again.data == first.data
    again.stored()
    assert desk.finished()[-1] is frame
    assert ends_of(frame) == {}
    assert desk.pipeline.diagnosis.cbor_refused_as is refusal
    assert desk.pipeline.health.state is HealthState.WORKING
    assert not desk.pipeline.stats.record_errors
    assert taken_in(desk) == "json"


def test_rows_that_json_cannot_carry_either_are_no_reason_to_leave_cbor() -> None:
    desk = Desk(wire_format="cbor")
    frame = desk.queue(1)
    while not frame.finished:
        desk.send_when_due().fail(REFUSAL)
    assert [code for _, code, _ in ends_of(frame).values()] == ["REQUEST_REFUSED"]
    assert desk.pipeline.diagnosis.cbor_refused_as is None
    desk.now += 6.0
    assert taken_in(desk) == "cbor"


def test_of_many_rows_the_one_that_is_refused_fails_alone_and_cbor_stays() -> None:
    desk = Desk(wire_format="cbor")
    frame = desk.queue(40)
    while not frame.finished:
        sent = desk.send_when_due()
        if b"row 17" in sent.data:
            sent.fail(REFUSAL)
        else:
            sent.stored()
    assert {row: code for row, (_, code, _) in ends_of(frame).items()} == {17: "REQUEST_REFUSED"}
    assert desk.pipeline.diagnosis.cbor_refused_as is None


@pytest.mark.parametrize(
    "failed",
    [
        RequestFailed("ValidationException", "m", maybe_stored=False, status=400),
        RequestFailed("InternalFailure", "m", maybe_stored=True, status=500),
        RequestFailed("SerializationException", "m", maybe_stored=True, status=500),
        RequestFailed("UnknownOperationException", "m", maybe_stored=True),
    ],
)
def test_other_failures_do_not_concern_the_format(failed: RequestFailed) -> None:
    desk = Desk(wire_format="cbor")
    desk.put(2).fail(failed)
    desk.now += 60
    assert desk.send().format == "cbor"


def test_an_answer_that_stores_nothing_does_not_show_that_json_is_taken() -> None:
    desk = Desk(wire_format="cbor")
    desk.put(2).fail(REFUSAL)
    desk.send().answer([{"ErrorCode": THROTTLED, "ErrorMessage": "Rate exceeded"}] * 2)
    assert desk.pipeline.diagnosis.cbor_refused_as is None
    desk.now += 60
    assert desk.send().format == "cbor"


def test_a_refused_request_in_json_is_a_refused_request() -> None:
    desk = Desk(wire_format="json")
    desk.put(1).fail(REFUSAL)
    assert desk.pipeline.stats.record_errors == {"REQUEST_REFUSED": 1}


def test_rows_that_may_be_stored_are_said_so_when_they_go_in_json() -> None:
    desk = Desk(wire_format="cbor")
    frame = desk.queue(1)
    sent = desk.send()
    (lane,) = desk.pipeline.sender.lanes
    assert lane.pacer is not None
    left = lane.pacer.allowance(desk.now)
    sent.fail(RequestFailed("SerializationException", "", maybe_stored=True, status=400))
    assert lane.pacer.allowance(desk.now) == left, "its shard may have taken them"
    desk.send().stored()
    assert desk.finished() == [frame]
    assert frame.result().possible_duplicates == 1


def test_part_of_the_rows_shows_nothing_of_the_others() -> None:
    """Requests of another stream leave room for three of them: the row that was refused may be another one."""
    node, other = NodeInFlight(200_000, 30_000), object()
    desk = Desk(wire_format="cbor", in_flight=node)
    first = desk.put([(b"k", b"x" * 9_999, None)] * 9)
    assert len(first.data) == 9
    first.fail(REFUSAL)
    node.count_sent(other, node.room(other))
    part = desk.send()
    assert (len(part.data), part.format) == (3, "cbor")
    part.stored()
    assert desk.pipeline.diagnosis.cbor_refused_as is None


@pytest.mark.law("Lane")
def test_the_order_of_a_key_holds() -> None:
    desk = Desk(wire_format="cbor", per_key=True)
    first = desk.put([(b"k", b"%d" % number, None) for number in range(10)])
    first.fail(REFUSAL)
    desk.queue([(b"k", b"10", None)])
    found = []
    while (sent := desk.try_send()) is not None:
        assert sent.format == "json"
        found += sent.data
        sent.stored()
    assert found == [b"%d" % number for number in range(11)]
