"""The gate admits callers in turn and within limits, and none waits forever.  A caller that leaves holds nothing.

`tests.simulation.gate_machine` compares each answer with these rules.  Here is what its random callers seldom meet.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from producerd.core.budget import NodeBudget
from producerd.core.gate import MAX_RECORD_BYTES, RECORD_SLACK_BYTES, Refusal, Ticket
from producerd.core.rows.frame import RowEnd
from producerd.errors import Code, Outcome
from producerd.wire.columns import FLAG_RESENT, FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, Layout
from tests.core.gates import GateCaller, make_gate
from tests.simulation.gate_machine import GateMachine

pytestmark = pytest.mark.law("AdmissionGate", "QueueBudget")

DRAINS = Refusal(Code.DRAINING, "the daemon stops")
NO_KEY = RowEnd(Outcome.NOT_STORED, "KMS", "no key")
NO_HOST = RowEnd(Outcome.NOT_STORED, Code.UNREACHABLE, "no such host")


def test_any_callers_keep_the_order_and_the_limits_and_none_of_them_waits_forever() -> None:
    run_state_machine_as_test(GateMachine, settings=settings(max_examples=120, stateful_step_count=40))


# ---- turns and shares


def test_the_session_with_the_least_taken_on_goes_first_and_ties_go_to_the_longest_waiting() -> None:
    gate = make_gate(limit_bytes=20_000)
    holder, full, early, late = (GateCaller(gate) for _ in range(4))
    holder.take(2_400)
    full.take(15_000)
    holder.ask(2_400, now=1.0)
    early.take(2_500, now=2.0)
    assert early.grants == [1], "the reserved eighth is for those who hold less than their share"
    early.ask(2_300, now=3.0)
    late.ask(2_600, now=4.0)
    assert (holder.grants, early.grants, late.grants) == ([1], [1], [])
    full.settle(5.0)
    assert (late.grants, holder.grants, early.grants) == ([1], [1, 2], [1]), "0, 2,400 and 2,500 bytes are taken on"
    late.receive()
    assert early.grants == [1, 2]


@pytest.mark.parametrize(("limit_records", "limit_bytes"), [(80, 10**6), (10_000, 80_000)])
def test_who_comes_back_finds_room_for_an_equal_share_of_seven_eighths(limit_records: int, limit_bytes: int) -> None:
    """Frames of a fortieth of the limit: 7 sessions fill seven eighths with 5 each, and 4 are less than a share."""
    gate = make_gate(limit_bytes, limit_records)
    busy, back = [GateCaller(gate) for _ in range(7)], GateCaller(gate)
    for caller in (*busy * 5, *busy, *[back] * 5):
        caller.take(2_000, 2)
    assert [len(caller.grants) for caller in busy] == [5] * 7
    assert len(back.grants) == 4


@pytest.mark.parametrize("more", [1, 2])
def test_who_holds_exactly_an_equal_share_may_take_of_the_last_eighth_and_who_holds_more_not(more: int) -> None:
    """Of 32 records 4 are kept free, and each of two sessions has a share of 14."""
    gate = make_gate(limit_records=32)
    other, caller = GateCaller(gate), GateCaller(gate)
    for who, records in ((other, 8), (other, 7), (caller, 8), (caller, 5)):
        who.take(10_000, records)
    caller.ask(10_000, more)
    assert bool(caller.body) is (more == 1)


def test_who_is_alone_may_fill_the_last_eighth_and_leaves_it_while_another_session_is_there() -> None:
    gate = make_gate(limit_bytes=80_000)
    caller, other = GateCaller(gate), GateCaller(gate)
    for _ in range(7):
        caller.take(10_000)
    caller.ask(1_100)
    assert len(caller.grants) == 7
    other.vanish()
    assert len(caller.grants) == 8


def test_room_is_wanted_for_a_frame_that_fits_nowhere_though_its_user_s_other_body_is_on_its_way() -> None:
    gate = make_gate(limit_bytes=20_000)
    caller, other = GateCaller(gate), GateCaller(gate)
    caller.ask(2_000)
    caller.ask(3_000)
    assert not gate.wants_room(), "its own body comes first"
    other.ask(19_000)
    assert gate.wants_room()


# ---- frames that are too large


def test_the_largest_frame_is_a_share_of_the_limit_and_never_less_than_one_record() -> None:
    gate = make_gate(limit_bytes=80_000, limit_records=3, max_frame_bytes=30_000)
    assert gate.largest_frame == (30_000, 1)
    for _ in range(4):
        GateCaller(gate)
    assert (gate.sessions, gate.largest_frame) == (4, (10_000, 1))


def test_a_frame_of_exactly_the_largest_size_is_taken_and_one_with_a_byte_or_a_record_more_is_not() -> None:
    gate = make_gate(limit_bytes=80_000, limit_records=200)
    caller, _ = GateCaller(gate), GateCaller(gate)
    for charge_bytes, records in ((20_001, 50), (20_000, 51), (20_000, 50)):
        caller.take(charge_bytes, records)
    assert ([*caller.refusals], caller.grants) == ([1, 2], [3])


@pytest.mark.parametrize(
    ("limit_bytes", "node_bytes", "named"),
    [(80_000, 90_000, "queue_limit_bytes = 80000"), (90_000, 80_000, "node_queue_limit_bytes = 80000")],
)
def test_a_record_that_can_never_fit_is_refused_by_the_setting_s_name(
    limit_bytes: int, node_bytes: int, named: str
) -> None:
    gate = make_gate(limit_bytes, node=NodeBudget(node_bytes, 0))
    caller = GateCaller(gate)
    refused = caller.ask(80_001)
    refusal = caller.refusals[refused]
    assert (refusal.code, refusal.judged) == (Code.CONFIGURATION, False)
    assert f" {named}" in refusal.message
    gate.cancel(caller.tickets[refused], 0.0)
    caller.take(80_000)
    assert caller.grants == [2]


@pytest.mark.promise("record-larger-stream")
def test_a_record_larger_than_any_stream_takes_is_refused_before_it_has_any_room() -> None:
    gate = make_gate()
    caller = GateCaller(gate)
    most = MAX_RECORD_BYTES + RECORD_SLACK_BYTES + FRAME_CHARGE_BYTES + RECORD_CHARGE_BYTES
    caller.ask(most + 1)
    assert (caller.refusals[1].code, caller.refusals[1].judged) == (Code.RECORD_TOO_LARGE, True)
    assert "passes Kinesis's 10485760 bytes a record" in caller.refusals[1].message
    assert gate.budget.used_bytes == 0
    caller.ask(most)
    assert caller.grants == [2]


# ---- callers that act from within an answer


def test_a_session_that_asks_again_each_time_it_is_refused_does_not_exhaust_the_stack() -> None:
    caller = GateCaller(make_gate(refuses=lambda now, *, patient, probes=True, owner=None: NO_KEY))

    def again() -> None:
        caller.when_told = again if caller.ids < 1_000 else None
        caller.ask(2_000)

    caller.when_told = again
    caller.ask(2_000)
    assert len(caller.refusals) == 1_001


def test_a_caller_may_cancel_leave_or_ask_while_another_one_is_answered() -> None:
    gate = make_gate(limit_bytes=80_000)
    holder, first, second = (GateCaller(gate) for _ in range(3))
    holder.take(79_000)
    first.ask(13_000, 2)
    second.ask(13_000, 2)
    first.when_told = lambda: second.cancel(1)
    gate.set_limits(10_000, 40_000, 0.0)
    assert (first.refusals[1].code, second.refusals) == (Code.TOO_LARGE, {})
    gate.set_limits(10_000, 80_000, 0.0)
    first.ask(12_000, 2)
    second.ask(12_000, 2)
    first.when_told = second.vanish
    gate.refuse_all(DRAINS, 0.0)
    assert first.refusals[2].code == Code.DRAINING
    assert not gate.wants_room()
    granted, other = GateCaller(gate := make_gate()), GateCaller(gate)
    granted.when_told = lambda: other.ask(2_000)
    granted.ask(2_000)
    assert (granted.grants, other.grants) == ([1], [1])


# ---- a stream that accepts nothing


def test_a_stream_that_refuses_tells_each_caller_that_waits_and_is_asked_once_for_each() -> None:
    answers: list[RowEnd | None] = [None, NO_KEY, None]
    gate = make_gate(refuses=lambda now, *, patient, probes=True, owner=None: answers.pop(0) if probes else None)
    caller = GateCaller(gate)
    for _ in range(3):
        caller.ask(2_000)
    caller.receive()
    assert caller.grants == [1, 3]
    assert (caller.refusals[2].code, caller.refusals[2].message) == ("KMS", "no key")
    assert answers == []


@pytest.mark.parametrize(
    ("flags", "resumed", "patient"), [(0, False, False), (FLAG_RESENT, False, True), (0, True, True)]
)
def test_frames_that_are_sent_again_and_sessions_that_go_on_are_patient(
    flags: int, resumed: bool, patient: bool
) -> None:
    """A client of version 0.1 says it by the frame alone."""
    asked: list[tuple[bool, object]] = []

    def refuses(now: float, *, patient: bool, probes: bool = True, owner: object = None) -> None:
        if probes:
            asked.append((patient, owner))

    gate = make_gate(refuses=refuses)
    caller = GateCaller(gate)
    caller.open[1] = layout = Layout(1, 10, 10, 0, flags)
    ticket = gate.ask(gate.join(caller, patient=resumed), 1, layout, 0.0)
    assert ticket.patient is patient
    assert asked == [(patient, caller)]


def test_no_caller_waits_behind_a_queue_that_outlasts_a_stream_which_takes_nothing() -> None:
    """Rows of an earlier daemon fill the queue of a stream whose endpoint is wrong."""
    ends: list[RowEnd] = []

    def refuses(now: float, *, patient: bool, probes: bool = True, owner: object = None) -> RowEnd | None:
        assert not probes, "there is no room for a probe"
        return ends[patient] if len(ends) > patient else None

    gate = make_gate(limit_bytes=20_000, refuses=refuses)
    fresh, resumed = GateCaller(gate), GateCaller(gate)
    resumed.member = gate.join(resumed, patient=True)
    gate.budget.charge(1, 18_000)
    fresh.ask(4_000)
    resumed.ask(4_000)
    assert (fresh.refusals, fresh.grants) == ({}, [])
    ends.append(NO_HOST)
    gate.pump(1.0)
    fresh.ask(4_000, now=2.0)
    assert [(refusal.code, refusal.message) for refusal in fresh.refusals.values()] == [
        (Code.UNREACHABLE, "no such host")
    ] * 2
    assert (resumed.refusals, gate.blocked_callers) == ({}, 1)
    ends.append(NO_KEY)
    gate.pump(3.0)
    assert resumed.refusals[1].code == "KMS"


def test_who_has_room_and_cannot_receive_a_body_yet_waits_and_may_be_the_probe() -> None:
    """A stream that fails refuses those without room at once.  It may take one of the others as its next probe."""
    fails: list[RowEnd] = []
    gate = make_gate(refuses=lambda now, *, patient, probes=True, owner=None: None if probes or not fails else fails[0])
    caller = GateCaller(gate)
    caller.ask(2_000)
    caller.ask(2_000)
    fails.append(NO_HOST)
    gate.pump(1.0)
    assert (caller.refusals, caller.grants) == ({}, [1])
    caller.receive()
    assert (caller.refusals, caller.grants) == ({}, [1, 2])


def test_a_closed_gate_lets_no_caller_in_and_tells_each_that_waits() -> None:
    gate = make_gate(limit_bytes=20_000)
    holder, waits = GateCaller(gate), GateCaller(gate)
    holder.take(18_000)
    waits.ask(4_000)
    gate.refuse_all(DRAINS, 5.0)
    assert gate.active_seconds(9.0) == 5.0, "no caller waits any more"
    holder.ask(1_100)
    assert [caller.refusals[caller.ids].code for caller in (waits, holder)] == [Code.DRAINING] * 2


def test_a_session_whose_window_is_full_is_blocked_from_then_on_while_it_has_rows_of_the_stream() -> None:
    gate = make_gate()
    caller = GateCaller(gate)
    gate.window(caller.member, 1.0, is_full=True)
    assert (gate.blocked_callers, gate.active_seconds(3.0)) == (0, 0.0), "its window holds rows of another stream"
    caller.take(2_000, now=4.0)
    gate.window(caller.member, 6.0, is_full=False)
    gate.window(caller.member, 10.0, is_full=True)
    assert (gate.blocked_callers, gate.active_seconds(11.0)) == (1, 3.0)
    caller.settle(12.0)
    assert (gate.blocked_callers, gate.active_seconds(20.0)) == (0, 4.0)


# ---- several streams on one node


def test_a_stream_whose_last_caller_left_leaves_its_floor_to_others() -> None:
    node = NodeBudget(20_000, 5_000)
    hot, cold = make_gate(node=node), make_gate(node=node)
    greedy, modest = GateCaller(hot), [GateCaller(cold), GateCaller(cold)]
    greedy.take(15_000)
    greedy.ask(5_000)
    for caller in modest:
        assert greedy.grants == [1]
        caller.vanish()
        assert node.take_freed() is (caller is modest[-1])
        hot.pump(0.0)
    assert greedy.grants == [1, 2]


@pytest.mark.parametrize("end", ["vanish", "close", "cancel"])
def test_who_is_gone_or_refused_wants_nothing_of_the_node_any_more(end: str) -> None:
    node = NodeBudget(20_000, 1_000)
    first, second = make_gate(node=node), make_gate(node=node)
    one, other = GateCaller(first), GateCaller(second)
    one.ask(19_000)
    other.ask(6_000)
    assert node.wanted_by == {second.budget: 6_000}
    node.take_freed()
    if end == "vanish":
        other.vanish()
    elif end == "close":
        second.refuse_all(DRAINS, 1.0)
    else:
        other.cancel(1)
    assert node.wanted_by == {}
    assert node.take_freed(), "others left room free for it"


# ---- users share what is on its way


@pytest.mark.promise("record-larger-stream")
def test_a_user_whose_bodies_do_not_come_holds_an_equal_part_of_what_may_be_on_its_way() -> None:
    """A quarter of 80,000 is 20,000, and 10,000 for each of two users."""
    gate = make_gate(limit_bytes=80_000)
    mute = [GateCaller(gate, uid=1) for _ in range(20)]
    for caller in mute:
        caller.ask(2_000)
    assert sum(len(caller.grants) for caller in mute) == 10, "the whole quarter, as long as no other user is there"
    honest = GateCaller(gate, uid=2)
    assert gate.users == [1, 2]
    honest.ask(2_000)
    assert not honest.grants
    for caller in mute[:5]:
        caller.cancel(1)
    honest.receive()
    for number in range(2, 30):
        honest.take(2_000)
        assert honest.grants[-1] == number, "it never waits for them again"
        honest.settle()
    assert sum(len(caller.grants) for caller in mute) == 10
    mute[5].cancel(1)
    assert sum(len(caller.grants) for caller in mute) == 11, "exactly its part"
    honest.vanish()
    assert sum(len(caller.grants) for caller in mute) == 16, "the whole quarter again"


@pytest.mark.promise("record-larger-stream")
def test_a_frame_larger_than_the_quarter_is_a_users_at_most_once_in_four_grants() -> None:
    """While it is on its way no other user's may be, and a user who sends nothing could ask for the next at once."""
    gate = make_gate(limit_bytes=80_000)
    order: list[int] = []

    class NotedCaller(GateCaller):
        def granted(self, ticket: Ticket) -> None:
            super().granted(ticket)
            order.append(ticket.member.uid or 0)

    greedy, honest = [NotedCaller(gate, uid=1) for _ in range(3)], [NotedCaller(gate, uid=2) for _ in range(2)]
    for caller in (*greedy, *honest):
        caller.ask(30_000 if caller in greedy else 12_000)
    while len(order) < 21:
        for caller in (*greedy, *honest):
            if caller.body is None:
                continue
            if caller in greedy:
                caller.cancel(caller.body.frame_id)
                caller.ask(30_000)
            else:
                caller.receive()
                caller.settle()
                caller.ask(12_000)
    assert order[:9] == [1, 2, 2, 2, 1, 2, 2, 2, 1]


def test_while_no_other_user_waits_frames_larger_than_the_quarter_follow_each_other() -> None:
    gate = make_gate(limit_bytes=80_000)
    caller, _ = GateCaller(gate, uid=1), GateCaller(gate, uid=2)
    for number in range(1, 4):
        caller.take(30_000)
        assert caller.grants[-1] == number
        caller.settle()


def test_where_there_is_only_one_user_larger_frames_keep_their_order() -> None:
    gate = make_gate(limit_bytes=80_000)
    first, second, third = [GateCaller(gate, uid=1) for _ in range(3)]
    for caller in (first, second, third):
        caller.ask(30_000)
    first.receive()
    assert (second.grants, third.grants) == ([1], [])
