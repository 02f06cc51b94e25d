"""A turn of a stream acknowledges what has ended, hands its room on, and takes first what is nearest its end."""

from __future__ import annotations

import pytest

from producerd.core.filling import SortJob
from producerd.core.gate import AdmissionGate
from producerd.core.rows.frame import Frame
from producerd.core.sending.requests import Request
from producerd.core.turn import settle, take
from tests.core.gates import GateCaller
from tests.core.stories import Desk

pytestmark = pytest.mark.law("Dispatcher", "AdmissionGate")


class TurnCaller(GateCaller):
    """A caller that keeps the frames that are acknowledged to it."""

    def __init__(self, gate: AdmissionGate) -> None:
        super().__init__(gate)
        self.acknowledged: list[Frame] = []

    def finished(self, frame: Frame) -> None:
        self.acknowledged.append(frame)


def gate_of(desk: Desk) -> tuple[AdmissionGate, TurnCaller]:
    gate = AdmissionGate(desk.budget, desk.pipeline.refuses, max_frame_bytes=1 << 20, max_frame_records=10_000)
    return gate, TurnCaller(gate)


def full(desk: Desk) -> tuple[AdmissionGate, TurnCaller, Frame]:
    """Let 9 records, too few for a batch, wait in a queue of 40 with room for one more, and a caller for room for 5."""
    gate, caller = gate_of(desk)
    desk.budget.charge(30, 0)
    frame = desk.submit(9, caller)
    caller.ask(1_000, records=5, now=desk.now)
    assert caller.grants == []
    return gate, caller, frame


def test_a_request_is_taken_before_a_job() -> None:
    desk = Desk()
    desk.queue(3)
    desk.submit(3)
    desk.pipeline.flush("caller")
    assert isinstance(take(desk.pipeline, desk.now), Request)
    assert isinstance(take(desk.pipeline, desk.now), SortJob)
    assert take(desk.pipeline, desk.now) is None


def test_rows_do_not_linger_while_a_caller_waits_for_room() -> None:
    desk = Desk(limit_records=40, linger_seconds=60.0)
    gate, _, _ = full(desk)
    assert take(desk.pipeline, desk.now) is None
    assert settle(desk.pipeline, gate, desk.now), "there is work now"
    assert isinstance(take(desk.pipeline, desk.now), SortJob)


@pytest.mark.parametrize("is_full", [False, True])
def test_rows_of_a_session_do_not_linger_while_its_window_is_full(is_full: bool) -> None:
    desk = Desk(linger_seconds=60.0)
    gate, caller = gate_of(desk)
    desk.submit(9, caller)
    gate.window(caller.member, desk.now, is_full=is_full)
    assert settle(desk.pipeline, gate, desk.now) is is_full
    assert (take(desk.pipeline, desk.now) is not None) is is_full


def test_the_room_of_an_acknowledged_frame_goes_to_the_caller_that_waits_in_the_same_turn() -> None:
    desk = Desk(limit_records=40)
    gate, caller, frame = full(desk)
    desk.sort()
    desk.send().stored()
    assert settle(desk.pipeline, gate, desk.now), "the caller may have sent more"
    assert (caller.acknowledged, caller.grants) == ([frame], [1])
    assert not settle(desk.pipeline, gate, desk.now)
