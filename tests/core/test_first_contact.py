"""A stream waits for a provably wrong endpoint as long as the setting says, and without limit for other faults."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from producerd.core.rows.frame import Frame
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.health import HealthState
from producerd.errors import Code, Outcome
from tests.core.rows import even_map
from tests.core.stories import THROTTLED, Desk

NOT_TLS = RequestFailed("400", "plain HTTP", maybe_stored=True, status=400, wrong_endpoint=True)
NO_SUCH_HOST = RequestFailed(Code.UNREACHABLE, "no such host", maybe_stored=False, wrong_endpoint=True)
PASSES = [
    pytest.param(RequestFailed(Code.UNREACHABLE, "EAI_AGAIN", maybe_stored=False), id="EAI_AGAIN"),
    pytest.param(RequestFailed(Code.UNREACHABLE, "refused", maybe_stored=False), id="refused"),
    pytest.param(RequestFailed(Code.UNREACHABLE, "reset", maybe_stored=True), id="reset"),
    pytest.param(RequestFailed(Code.UNREACHABLE, "no answer", maybe_stored=True, timed_out=True), id="time-out"),
    pytest.param(RequestFailed("ServiceUnavailable", "503", maybe_stored=True), id="503"),
    pytest.param(RequestFailed("ThrottlingException", "slow down", maybe_stored=False), id="throttled"),
]


def desk_with(rows: int = 3, **rules: Any) -> tuple[Desk, Frame]:
    """A stream that waits for its first contact, with one frame to send."""
    desk = Desk(**{"first_contact_timeout_seconds": 60.0, **rules})
    frame = desk.queue(rows)
    return desk, frame


def fails_for(desk: Desk, seconds: float, failure: RequestFailed) -> None:
    """Every request fails so, as soon as the pipeline makes it."""
    end = desk.now + seconds
    while desk.now < end:
        for sent in desk.send_all():
            sent.fail(failure)
        due = desk.pipeline.next_time()
        desk.now = min(end, max(desk.now + 0.01, end if due is None else due))
    assert desk.try_send() is None or desk.now == end


def ends(frame: Frame) -> tuple[int, int, set[str]]:
    result = frame.result()
    return result.not_stored, result.unknown, {end.code for end in result.codes}


def test_rows_wait_for_the_first_contact_and_then_end_with_what_to_look_at() -> None:
    desk, frame = desk_with()
    fails_for(desk, 59.9, NO_SUCH_HOST)
    assert desk.finished() == []
    fails_for(desk, 0.2, NO_SUCH_HOST)
    assert desk.finished() == [frame]
    assert ends(frame) == (3, 0, {Code.UNREACHABLE})
    (end,) = frame.result().codes
    assert end.outcome is Outcome.NOT_STORED
    for part in ("no such host", "every attempt in 60 s", "region", "endpoint_url", "AWS_CA_BUNDLE"):
        assert part in end.message
    assert desk.is_empty()


def test_an_endpoint_that_answers_nothing_but_a_bare_400_is_given_up_as_well() -> None:
    desk, frame = desk_with()
    fails_for(desk, 66.0, NOT_TLS)
    assert desk.finished() == [frame]
    assert ends(frame) == (0, 3, {Code.UNREACHABLE})


@pytest.mark.promise("whatever-pass-waited")
@pytest.mark.parametrize("failure", PASSES)
def test_whatever_may_pass_is_waited_for(failure: RequestFailed) -> None:
    desk, _ = desk_with()
    fails_for(desk, 600, failure)
    assert desk.finished() == []
    assert desk.health is HealthState.UNPROVEN


@pytest.mark.parametrize("failure", PASSES)
def test_one_attempt_that_ends_otherwise_begins_the_wait_again(failure: RequestFailed) -> None:
    desk, frame = desk_with()
    for _ in range(5):
        fails_for(desk, 50, NO_SUCH_HOST)
        fails_for(desk, 10, failure)
    assert desk.finished() == []
    fails_for(desk, 70, NO_SUCH_HOST)
    assert desk.finished() == [frame]


def test_rows_of_an_earlier_daemon_wait_on_and_are_stored_when_it_answers() -> None:
    desk = Desk(first_contact_timeout_seconds=60.0)
    fresh, resent = desk.submit(2), desk.submit(3, "resumed", patient=True)
    desk.sort()
    fails_for(desk, 300, NO_SUCH_HOST)
    assert desk.finished() == [fresh]
    later = desk.queue(1, "resumed", patient=True)
    fails_for(desk, 300, NO_SUCH_HOST)
    assert desk.finished() == []
    desk.now += 10
    while desk.pipeline.queued_records:
        for sent in desk.send_all():
            sent.stored()
        desk.now += 0.1
    assert {frame.result().stored for frame in desk.finished()} == {3, 1}
    assert (resent.finished, later.finished) == (True, True)
    assert desk.health is HealthState.WORKING
    assert desk.is_empty()


def test_rows_that_were_on_their_way_when_the_wait_ended_end_when_they_come_back() -> None:
    desk, first = desk_with()
    began = desk.now
    desk.send().fail(NO_SUCH_HOST)
    desk.now = began + 58
    second = desk.queue(2)
    sent = desk.send_all()
    desk.now = began + 59.5
    assert desk.try_send() is None
    assert desk.pipeline.next_time() == began + 60, "nothing else is due, and callers must not wait longer"
    desk.now = began + 60
    assert desk.try_send() is None
    for each in sent:
        each.fail(NO_SUCH_HOST)
    assert set(desk.finished()) == {first, second}
    assert desk.is_empty()


def test_afterwards_callers_hear_it_at_once_and_one_every_few_seconds_is_the_probe() -> None:
    desk, _ = desk_with()
    fails_for(desk, 61, NO_SUCH_HOST)
    pipeline = desk.pipeline
    end = pipeline.refuses(desk.now)
    assert end is not None
    assert end.code == Code.UNREACHABLE
    assert pipeline.refuses(desk.now, patient=True) is None
    desk.now += 6
    assert pipeline.refuses(desk.now) is None, "the probe"
    assert pipeline.refuses(desk.now) is not None
    probe = desk.queue(1)
    desk.now += 5
    desk.send().fail(NO_SUCH_HOST)
    assert probe in desk.finished()


@pytest.mark.parametrize("aggregate", [False, True])
def test_every_probe_ends_with_the_next_attempt_whatever_it_waits_for(aggregate: bool) -> None:
    """Without a list of shards it gets no request, and behind rows that wait on its turn may never come."""
    desk = Desk(known=not aggregate, aggregate=aggregate, first_contact_timeout_seconds=60.0)
    desk.submit(2_000, "resumed", patient=True)

    def attempts(seconds: float) -> None:
        if not aggregate:
            desk.sort()
            fails_for(desk, seconds, NO_SUCH_HOST)
        for _ in range(int(seconds) if aggregate else 0):
            assert not desk.begin()
            assert desk.try_send() is None
            desk.map_failed(Code.UNREACHABLE, "no such host", wrong_endpoint=True)
            desk.now += 1

    attempts(62)
    assert desk.health is HealthState.BROKEN
    for number in range(5):
        probe = desk.submit(3, f"probe {number}")
        attempts(10)
        assert desk.finished() == [probe]
        assert ends(probe) == (3, 0, {Code.UNREACHABLE})


def test_a_probe_that_fails_in_any_other_way_has_callers_wait_again() -> None:
    desk, _ = desk_with()
    fails_for(desk, 61, NO_SUCH_HOST)
    desk.finished()
    desk.queue(1)
    desk.now += 5
    desk.send().fail(RequestFailed(Code.UNREACHABLE, "EAI_AGAIN", maybe_stored=False))
    assert desk.refuses() is None
    assert desk.finished() == []
    assert desk.health is HealthState.UNPROVEN


def test_a_stream_that_waits_for_its_first_list_of_shards_gives_up_as_well() -> None:
    desk = Desk(known=False, aggregate=True, first_contact_timeout_seconds=60.0)
    frame = desk.submit(3)
    for second in range(0, 60, 2):
        assert not desk.begin()
        assert desk.try_send() is None
        assert desk.finished() == [], second
        desk.map_failed(Code.UNREACHABLE, "no such host", wrong_endpoint=True)
        desk.now += 2
    assert desk.try_send() is None
    assert desk.finished() == [frame]
    assert ends(frame) == (3, 0, {Code.UNREACHABLE})
    assert desk.is_empty()


@pytest.mark.parametrize("what", ["a list of the shards", "entries that are throttled"])
def test_an_answer_of_any_kind_shows_that_the_endpoint_is_right(what: str) -> None:
    desk, _ = desk_with()
    desk.send().fail(NO_SUCH_HOST)
    assert desk.pipeline.health.gives_up_at == 160.0
    if what == "a list of the shards":
        desk.set_map(even_map(1))
    else:
        desk.now += 6.0
        desk.send().answer([{"ErrorCode": THROTTLED, "ErrorMessage": "Rate exceeded"}] * 3)
    assert desk.pipeline.health.gives_up_at == inf


@pytest.mark.parametrize("wrong_endpoint", [None, False, True])
def test_a_reading_of_the_shards_begins_the_wait_only_where_the_endpoint_is_wrong(wrong_endpoint: bool | None) -> None:
    desk = Desk(known=False, first_contact_timeout_seconds=60.0)
    told: dict[str, Any] = {} if wrong_endpoint is None else {"wrong_endpoint": wrong_endpoint}
    desk.map_failed(Code.UNREACHABLE, "no such host", **told)
    assert desk.pipeline.health.gives_up_at == (160.0 if wrong_endpoint else inf)


def test_in_a_pause_the_wait_does_not_end_and_nobody_looks() -> None:
    desk, frame = desk_with()
    desk.send().fail(NO_SUCH_HOST)
    desk.now += 6.0
    desk.pipeline.pause()
    assert desk.try_send() is None
    assert desk.pipeline.next_time() is None
    desk.pipeline.resume()
    assert desk.pipeline.next_time() == 160.0
    desk.pipeline.pause()
    desk.now = 161.0
    assert desk.try_send() is None
    assert desk.finished() == []
    desk.pipeline.resume()
    assert desk.try_send() is None
    assert desk.finished() == [frame]


def test_a_stream_that_worked_or_has_no_such_time_never_gives_up() -> None:
    desk, _ = desk_with()
    desk.send().stored()
    desk.queue(1)
    fails_for(desk, 300, NO_SUCH_HOST)
    assert desk.health is HealthState.WORKING

    desk, frame = desk_with(first_contact_timeout_seconds=inf)
    fails_for(desk, 600, NO_SUCH_HOST)
    assert not frame.finished
