"""The gate admits callers in turn and within limits, and none waits forever.  A caller that leaves holds nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from producerd.core.budget import NodeBudget, QueueBudget
from producerd.core.gate import (
    MAX_RECORD_BYTES,
    RECORD_SLACK_BYTES,
    AdmissionGate,
    Member,
    Refusal,
    Refuses,
    Ticket,
)
from producerd.core.rows.frame import RowEnd
from producerd.errors import Code, Outcome
from producerd.wire.columns import FLAG_RESENT, FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, Layout

LAW = pytest.mark.law("AdmissionGate")


def layout(charge_bytes: int, records: int = 1) -> Layout:
    """Return a frame's layout with this charge against the limits."""
    data_bytes = charge_bytes - FRAME_CHARGE_BYTES - RECORD_CHARGE_BYTES * records
    assert data_bytes >= 0
    made = Layout(records, 0, data_bytes)
    assert made.charge_bytes == charge_bytes
    return made


class Caller:
    """A session that remembers what the gate reported.  Its body arrives when the test says so."""

    def __init__(self, gate: AdmissionGate, window_bytes: int = 2**40, uid: int | None = None) -> None:
        self.gate = gate
        self.member: Member = gate.join(self, uid=uid)
        self.window_bytes = window_bytes
        self.incomplete: Ticket | None = None
        self.holds: list[Ticket] = []  # received and not settled
        self.grants: list[int] = []
        self.refusals: dict[int, Refusal] = {}
        self.when_told: Callable[[], None] | None = None
        self.ids = 0
        self.gone = False
        self.open: dict[int, Ticket | None] = {}  # asked and not answered

    def may_receive(self, charge_bytes: int) -> bool:
        used = sum(ticket.layout.charge_bytes for ticket in self.holds)
        return self.incomplete is None and (not used or used + charge_bytes <= self.window_bytes)

    def granted(self, ticket: Ticket) -> None:
        assert not self.gone, "granted to a caller that is gone"
        assert self.incomplete is None, "a grant before the body before it is whole"
        self.open.pop(ticket.frame_id)
        self.incomplete = ticket
        self.grants.append(ticket.frame_id)
        self._told()

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        assert not self.gone, "refused to a caller that is gone"
        self.open.pop(ticket.frame_id)
        self.refusals[ticket.frame_id] = refusal
        self._told()

    def _told(self) -> None:
        if self.when_told is not None:
            action, self.when_told = self.when_told, None
            action()

    def ask(self, charge_bytes: int, records: int = 1, now: float = 0.0) -> int:
        self.ids += 1
        frame_id = self.ids
        self.open[frame_id] = None
        ticket = self.gate.ask(self.member, frame_id, layout(charge_bytes, records), now)
        if frame_id in self.open:
            self.open[frame_id] = ticket
        return frame_id

    def receive(self, now: float = 0.0) -> None:
        assert self.incomplete is not None
        ticket, self.incomplete = self.incomplete, None
        self.gate.received(ticket)
        self.holds.append(ticket)
        self.gate.pump(now)

    def settle(self, now: float = 0.0) -> None:
        ticket = self.holds.pop(0)
        self.gate.budget.release(ticket.layout.records, ticket.layout.charge_bytes)
        self.gate.settled(self.member, ticket.layout.records, ticket.layout.charge_bytes)
        self.gate.pump(now)

    def cancel(self, frame_id: int, now: float = 0.0) -> None:
        if self.incomplete is not None and self.incomplete.frame_id == frame_id:
            ticket, self.incomplete = self.incomplete, None
            self.gate.cancel(ticket, now)
        elif (waiting := self.open.pop(frame_id, None)) is not None:
            self.gate.cancel(waiting, now)

    def vanish(self, now: float = 0.0) -> None:
        self.gone = True
        if self.incomplete is not None:
            self.gate.cancel(self.incomplete, now)  # may_receive is False meanwhile
        self.open.clear()
        self.gate.leave(self.member, now)


def make_gate(
    limit_bytes: int = 64 << 20,
    limit_records: int = 10_000,
    refuses: Refuses = lambda _, patient, probes=True, owner=None: None,
    max_frame_bytes: int = 1 << 20,
) -> AdmissionGate:
    budget = QueueBudget(limit_records, limit_bytes)
    return AdmissionGate(budget, refuses, max_frame_bytes=max_frame_bytes, max_frame_records=10_000)


def is_empty(gate: AdmissionGate) -> bool:
    gate.pump(0.0)
    return (gate.budget.used_records, gate.budget.used_bytes, gate._unreceived_bytes, gate._waiting) == (0, 0, 0, 0)


# ---- directed


@LAW
def test_whoever_fits_is_let_in_at_once() -> None:
    gate = make_gate()
    caller = Caller(gate)
    caller.ask(2_000)
    assert caller.grants == [1]
    assert gate.blocked_callers == 0
    assert gate.budget.used_bytes == 2_000


@LAW
def test_a_session_s_frames_are_let_in_in_their_order_one_body_at_a_time() -> None:
    caller = Caller(make_gate())
    for _ in range(3):
        caller.ask(2_000)
    assert caller.grants == [1]
    caller.receive()
    assert caller.grants == [1, 2]
    caller.receive()
    assert caller.grants == [1, 2, 3]


@LAW
def test_the_session_with_the_least_taken_on_goes_first_and_ties_go_to_the_longest_waiting() -> None:
    gate = make_gate(limit_bytes=20_000)
    holder, full, early, late = (Caller(gate) for _ in range(4))
    holder.ask(2_400, now=0.0)
    holder.receive()
    full.ask(15_000)
    full.receive()
    holder.ask(2_400, now=1.0)
    early.ask(2_500, now=2.0)
    assert early.grants == [1], "the reserved eighth is for those who hold less than their share"
    early.receive()
    early.ask(2_300, now=3.0)
    late.ask(2_600, now=4.0)
    assert (holder.grants, early.grants, late.grants) == ([1], [1], [])
    full.settle(5.0)
    # Least taken on first: late (0), then holder (2,400), then early (2,500), who waits for the bodies.
    assert (late.grants, holder.grants, early.grants) == ([1], [1, 2], [1])
    late.receive()
    assert early.grants == [1, 2]


@LAW
def test_nobody_overtakes_the_one_whose_turn_it_is() -> None:
    gate = make_gate(limit_bytes=20_000)
    holder, large, small = (Caller(gate) for _ in range(3))
    holder.ask(12_000)
    holder.receive()
    large.ask(10_000)
    small.ask(1_100)
    assert (large.grants, small.grants) == ([], []), "the small one would fit"
    holder.settle()
    assert large.grants == [1]
    large.receive()
    assert small.grants == [1]


@LAW
def test_while_others_have_the_stream_open_who_holds_rows_leaves_the_last_eighth() -> None:
    gate = make_gate(limit_bytes=80_000)
    caller, other = Caller(gate), Caller(gate)
    for _ in range(7):
        caller.ask(10_000)
        caller.receive()
    caller.ask(1_100)
    assert caller.grants == [1, 2, 3, 4, 5, 6, 7]
    assert gate.wants_room()
    other.ask(10_000)
    assert other.grants == [1], "a caller that comes back after its pause finds room"
    caller.cancel(8)
    other.vanish()
    caller.ask(10_000)
    assert caller.grants[-1] == 9, "alone it may take the limit whole"
    assert gate.budget.used_bytes == 80_000


@LAW
@pytest.mark.parametrize(("limit_records", "limit_bytes"), [(80, 10**6), (10_000, 80_000)])
def test_who_comes_back_finds_room_for_an_equal_share_of_seven_eighths(limit_records: int, limit_bytes: int) -> None:
    """Frames of a fortieth of the limit: 7 sessions fill seven eighths with 5 each, and 4 are less than a share."""
    gate = make_gate(limit_bytes, limit_records)
    busy, back = [Caller(gate) for _ in range(7)], Caller(gate)
    for caller in (*busy * 5, *busy, *[back] * 5):
        caller.ask(2_000, 2)
        if caller.incomplete is not None:
            caller.receive()
    assert [len(caller.grants) for caller in busy] == [5] * 7
    assert len(back.grants) == 4


@LAW
def test_granted_and_unreceived_bytes_stay_under_a_quarter_or_are_one_frame() -> None:
    gate = make_gate(limit_bytes=80_000)
    callers = [Caller(gate) for _ in range(4)]
    for caller in callers[:3]:
        caller.ask(10_000)
    assert [len(caller.grants) for caller in callers] == [1, 1, 0, 0]
    callers[0].receive()
    assert callers[2].grants == [1]
    for caller in callers[1:3]:
        caller.receive()
    callers[3].ask(50_000)
    assert callers[3].grants == [1], "exactly one frame, of any size"
    callers[0].ask(1_100)
    assert len(callers[0].grants) == 1
    callers[3].receive()
    assert len(callers[0].grants) == 1, "and the eighth"


@LAW
def test_a_limit_of_one_record_lets_one_in_at_a_time() -> None:
    gate = make_gate(limit_records=1)
    callers = [Caller(gate) for _ in range(3)]
    for caller in callers:
        caller.ask(2_000)
    for turn in range(3):
        assert [len(caller.grants) for caller in callers] == [int(i <= turn) for i in range(3)]
        callers[turn].receive()
        callers[turn].settle()
    assert is_empty(gate)
    assert gate.largest_frame[1] == 1


@LAW
def test_a_session_that_asks_again_each_time_it_is_refused_does_not_exhaust_the_stack() -> None:
    left = 1_000

    def again() -> None:
        nonlocal left
        left -= 1
        caller.when_told = again if left else None
        caller.ask(2_000)

    end = RowEnd(Outcome.NOT_STORED, "KMS", "no key")
    caller = Caller(make_gate(refuses=lambda _, patient, probes=True, owner=None: end))
    caller.when_told = again
    caller.ask(2_000)
    assert len(caller.refusals) == 1_001


@LAW
def test_a_record_larger_than_an_eighth_or_than_half_is_let_in() -> None:
    for charge in (20_000, 50_000, 80_000):
        gate = make_gate(limit_bytes=80_000)
        caller, other = Caller(gate), Caller(gate)
        other.ask(1_100)
        other.receive()
        caller.ask(1_100)
        caller.receive()
        caller.ask(charge)
        other.settle()
        caller.settle()
        assert caller.grants == [1, 2], charge


@LAW
def test_a_record_larger_than_the_limit_is_refused_by_the_setting_s_name() -> None:
    gate = make_gate(limit_bytes=80_000)
    caller = Caller(gate)
    caller.ask(80_001)
    assert (caller.refusals[1].code, caller.refusals[1].judged) == (Code.CONFIGURATION, False)
    assert "queue_limit_bytes = 80000" in caller.refusals[1].message
    caller.open[2] = None
    ticket = gate.ask(caller.member, 2, layout(80_001), 0.0)
    gate.cancel(ticket, 0.0)
    assert not ticket.waiting
    assert is_empty(gate)


@LAW
@pytest.mark.parametrize(("charge", "records"), [(20_001, 2), (5_000, 51)])
def test_a_frame_that_is_too_large_is_told_the_new_maximum(charge: int, records: int) -> None:
    gate = make_gate(limit_bytes=80_000, limit_records=200)
    caller, _ = Caller(gate), Caller(gate)
    caller.ask(charge, records)
    refusal = caller.refusals[1]
    assert refusal.code == Code.TOO_LARGE
    assert (refusal.max_frame_bytes, refusal.max_frame_records) == gate.largest_frame == (20_000, 50)
    caller.ask(20_000, 50)
    assert caller.grants == [2]


@LAW
def test_the_largest_frame_is_a_share_of_the_limit_and_never_less_than_one_record() -> None:
    gate = make_gate(limit_bytes=80_000, limit_records=3, max_frame_bytes=30_000)
    assert gate.largest_frame == (30_000, 1)
    for _ in range(4):
        Caller(gate)
    assert gate.sessions == 4
    assert gate.largest_frame == (10_000, 1)


@LAW
def test_when_a_limit_shrinks_whoever_no_longer_fits_is_told() -> None:
    gate = make_gate(limit_bytes=80_000)
    holder, large, single, small = (Caller(gate) for _ in range(4))
    holder.ask(70_000)
    holder.receive()
    large.ask(10_000, 2)
    assert large.grants == [1]
    large.receive()
    large.ask(10_000, 2)
    single.ask(30_000)
    small.ask(1_100)
    gate.set_limits(10_000, 16_000, 0.0)
    assert (large.refusals[2].code, large.refusals[2].max_frame_bytes) == (Code.TOO_LARGE, 2_000)
    assert single.refusals[1].code == Code.CONFIGURATION
    assert (small.refusals, small.grants) == ({}, [])
    holder.settle()
    assert small.grants == [1]


@LAW
def test_a_caller_that_asks_again_as_it_is_refused_upsets_nobody() -> None:
    gate = make_gate(limit_bytes=80_000)
    holder, first, second = (Caller(gate) for _ in range(3))
    holder.ask(79_000)
    holder.receive()
    first.ask(13_000, 2)
    second.ask(13_000, 2)
    first.when_told = lambda: second.cancel(1)
    gate.set_limits(10_000, 40_000, 0.0)
    assert first.refusals[1].code == Code.TOO_LARGE
    assert second.refusals == {}
    gate.set_limits(10_000, 80_000, 0.0)
    first.ask(12_000, 2)
    second.ask(12_000, 2)
    first.when_told = lambda: second.vanish()
    gate.close(Refusal(Code.DRAINING, "the daemon stops"), 0.0)
    assert first.refusals[2].code == Code.DRAINING
    assert gate._waiting == 0


@LAW
def test_a_granted_caller_may_ask_again_at_once() -> None:
    gate = make_gate()
    caller, other = Caller(gate), Caller(gate)
    caller.when_told = lambda: void(other.ask(2_000))
    caller.ask(2_000)
    assert (caller.grants, other.grants) == ([1], [1])


def void(_: object) -> None:
    """For an action whose answer nobody wants."""


@LAW
def test_a_cancelled_ticket_leaves_nothing_waiting_or_granted() -> None:
    gate = make_gate(limit_bytes=20_000)
    first, second, third = (Caller(gate) for _ in range(3))
    first.ask(10_000)
    second.ask(10_000)
    third.ask(10_000)
    assert second.grants == []
    second.cancel(1)
    assert second.grants == []
    first.cancel(1)
    assert third.grants == [1], "the room of a granted one goes to the next"
    third.cancel(1)
    assert is_empty(gate)
    assert gate.blocked_callers == 0


@LAW
def test_a_session_that_is_gone_gives_its_place_to_the_next() -> None:
    gate = make_gate(limit_bytes=20_000)
    holder, gone, waits = (Caller(gate) for _ in range(3))
    holder.ask(15_000)
    holder.receive()
    gone.ask(10_000)
    waits.ask(4_000)
    assert waits.grants == []
    gone.vanish()
    assert waits.grants == [1]
    assert gate.sessions == 2


def test_a_stream_that_refuses_tells_everybody_who_waits_and_asks_once_for_each() -> None:
    answers: list[RowEnd | None] = [None, RowEnd(Outcome.NOT_STORED, "KMS", "no key"), None]
    gate = make_gate(refuses=lambda _, patient, probes=True, owner=None: answers.pop(0) if probes else None)
    caller = Caller(gate)
    for _ in range(3):
        caller.ask(2_000)
    caller.receive()
    assert caller.grants == [1, 3]
    assert (caller.refusals[2].code, caller.refusals[2].message) == ("KMS", "no key")
    assert answers == []


def test_frames_that_are_sent_again_and_sessions_that_go_on_are_patient() -> None:
    """A client of version 0.1 says it by the frame alone."""
    asked: list[bool] = []

    def refuses(now: float, *, patient: bool, probes: bool = True, owner: object = None) -> None:
        if probes:
            asked.append(patient)

    gate = make_gate(refuses=refuses)
    first, again = Layout(1, 10, 10, 0), Layout(1, 10, 10, 0, FLAG_RESENT)
    for number, (layout_, resumed) in enumerate([(first, False), (again, False), (first, True)], start=1):
        caller = Caller(gate)
        caller.open[number] = None
        ticket = gate.ask(gate.join(caller, patient=resumed), number, layout_, 0.0)
        assert ticket.patient is asked[-1]
    assert asked == [False, True, True]


def test_nobody_waits_behind_a_queue_that_outlasts_a_stream_which_takes_nothing() -> None:
    """Rows of an earlier daemon fill the queue of a stream whose endpoint is wrong."""
    ends: list[RowEnd] = []

    def refuses(now: float, *, patient: bool, probes: bool = True, owner: object = None) -> RowEnd | None:
        assert not probes, "there is no room for a probe"
        return ends[patient] if len(ends) > patient else None

    gate = make_gate(limit_bytes=20_000, refuses=refuses)
    fresh, resumed = Caller(gate), Caller(gate)
    resumed.member = gate.join(resumed, patient=True)
    gate.budget.take(1, 18_000)
    fresh.ask(4_000)
    resumed.ask(4_000)
    assert (fresh.refusals, fresh.grants) == ({}, [])
    ends.append(RowEnd(Outcome.NOT_STORED, Code.UNREACHABLE, "no such host"))
    gate.pump(1.0)
    assert fresh.refusals[1].code == Code.UNREACHABLE
    fresh.ask(4_000, now=2.0)
    assert fresh.refusals[2].message == "no such host"
    assert resumed.refusals == {}
    assert gate.blocked_callers == 1
    ends.append(RowEnd(Outcome.NOT_STORED, "KMS", "no key"))
    gate.pump(3.0)
    assert resumed.refusals[1].code == "KMS"


def test_who_has_room_and_cannot_receive_a_body_yet_waits_and_may_be_the_probe() -> None:
    """A stream that fails refuses those without room at once.  It may take one of the others as its next probe."""
    fails: list[RowEnd] = []

    def refuses(now: float, *, patient: bool, probes: bool = True, owner: object = None) -> RowEnd | None:
        return None if probes or not fails else fails[0]

    gate = make_gate(refuses=refuses)
    caller = Caller(gate)
    caller.ask(2_000)
    caller.ask(2_000)
    fails.append(RowEnd(Outcome.NOT_STORED, Code.UNREACHABLE, "no such host"))
    gate.pump(1.0)
    assert (caller.refusals, caller.grants) == ({}, [1])
    caller.receive()
    assert (caller.refusals, caller.grants) == ({}, [1, 2])


def test_a_closed_gate_lets_nobody_in_and_tells_whoever_waits() -> None:
    gate = make_gate(limit_bytes=20_000)
    holder, waits = Caller(gate), Caller(gate)
    holder.ask(18_000)
    holder.receive()
    waits.ask(4_000)
    gate.close(Refusal(Code.DRAINING, "the daemon stops"), 5.0)
    assert gate.active_seconds(9.0) == 5.0, "nobody waits any more"
    assert waits.refusals[1].code == Code.DRAINING
    holder.ask(1_100)
    assert holder.refusals[2].code == Code.DRAINING
    holder.settle()
    assert is_empty(gate)


@LAW
def test_it_says_whether_room_is_wanted_and_how_long_callers_waited() -> None:
    gate = make_gate(limit_bytes=20_000)
    first, second = Caller(gate), Caller(gate)
    assert not gate.wants_room()
    first.ask(18_000, now=1.0)
    assert not gate.wants_room()
    first.receive(1.0)
    second.ask(4_000, now=2.0)
    assert gate.wants_room()
    assert gate.blocked_callers == 1
    assert gate.active_seconds(5.0) == 3.0
    first.settle(7.0)
    assert not gate.wants_room()
    assert (sum(gate.wait_seconds.counts), gate.wait_seconds.sum) == (1, 5.0)
    assert gate.active_seconds(100.0) == 5.0


@LAW
def test_room_is_wanted_for_a_frame_that_fits_nowhere_and_not_while_only_a_body_is_awaited() -> None:
    gate = make_gate(limit_bytes=20_000)
    caller, other = Caller(gate, window_bytes=4_000), Caller(gate)
    caller.ask(2_000)
    caller.ask(3_000)
    assert not gate.wants_room(), "its own body comes first"
    other.ask(19_000)
    assert gate.wants_room()
    other.cancel(1)
    caller.receive()
    assert gate.wants_room(), "its window is full until rows settle"


def receives(caller: Caller, now: float) -> None:
    caller.ask(2_000, now=now)
    caller.receive(now)


@LAW
def test_a_session_whose_window_is_full_is_blocked_as_long_as_it_has_rows_of_the_stream() -> None:
    gate = make_gate()
    caller, other = Caller(gate), Caller(gate)
    gate.window(caller.member, 1.0, is_full=True)
    receives(other, 2.0)
    assert (gate.blocked_callers, gate.active_seconds(3.0)) == (0, 0.0), "its window holds rows of another stream"
    receives(caller, 4.0)
    receives(caller, 5.0)
    assert (gate.blocked_callers, gate.active_seconds(6.0)) == (1, 2.0)
    caller.settle(7.0)
    assert (gate.blocked_callers, gate.active_seconds(8.0)) == (1, 4.0)
    caller.settle(9.0)
    assert (gate.blocked_callers, gate.active_seconds(20.0)) == (0, 5.0)
    receives(caller, 30.0)
    gate.window(caller.member, 31.0, is_full=False)
    assert (gate.blocked_callers, gate.active_seconds(40.0)) == (0, 6.0)
    assert sum(gate.wait_seconds.counts) == 0, "nobody waited for room"


@LAW
def test_a_session_with_a_full_window_that_leaves_or_cancels_is_blocked_no_more() -> None:
    gate = make_gate()
    caller, other = Caller(gate), Caller(gate)
    for each in (caller, other):
        receives(each, 0.0)
        gate.window(each.member, 1.0, is_full=True)
    assert gate.blocked_callers == 2
    caller.vanish(3.0)
    assert list(gate.withholding) == [other]
    assert (gate.blocked_callers, gate.active_seconds(4.0)) == (1, 3.0)
    other.settle(5.0)
    frame_id = other.ask(2_000, now=6.0)
    assert (gate.blocked_callers, gate.active_seconds(7.0)) == (1, 5.0)
    other.cancel(frame_id, 8.0)
    assert (gate.blocked_callers, gate.active_seconds(9.0)) == (0, 6.0)


# ---- the law, at random


class World:
    """Random callers on one gate.  Each grant is compared with the order of walk 4, computed here independently."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.now = 0.0
        self.limit_bytes = self.random.choice([3_000, 20_000, 100_000])
        self.limit_records = self.random.choice([1, 3, 10_000])
        self.gate = make_gate(self.limit_bytes, self.limit_records)
        self.callers: list[Witness] = []
        self.orphans: list[Ticket] = []  # held, though their callers have gone
        self.arrivals = 0
        self.shrunk = False

    def check(self) -> None:
        gate, budget = self.gate, self.gate.budget
        held = [ticket for caller in self.callers for ticket in caller.holds]
        on_their_way = [caller.incomplete for caller in self.callers if caller.incomplete is not None]
        taken = held + on_their_way + self.orphans
        assert budget.used_bytes == sum(ticket.layout.charge_bytes for ticket in taken)
        assert budget.used_records == sum(ticket.layout.records for ticket in taken)
        assert gate._unreceived_bytes == sum(ticket.layout.charge_bytes for ticket in on_their_way)
        assert gate._unreceived_bytes <= budget.limit_bytes / 4 or len(on_their_way) == 1 or self.shrunk
        if not self.shrunk:
            assert budget.used_bytes <= budget.limit_bytes
            assert budget.used_records <= budget.limit_records
        assert gate._waiting == sum(len(caller.open) for caller in self.callers)
        head = self.head()
        assert head is None or not self.has_room(*head), f"seed {self.seed}: room, and the head waits"

    def head(self) -> tuple[Witness, Ticket] | None:
        """Walk 4: whose turn it is."""
        candidates = []
        for caller in self.callers:
            waiting = caller.waiting()
            if waiting is not None and caller.may_receive(waiting.layout.charge_bytes):
                candidates.append((caller.taken_bytes(), caller.arrived[waiting.frame_id], caller, waiting))
        if not candidates:
            return None
        _, _, caller, ticket = min(candidates, key=lambda candidate: candidate[:2])
        return caller, ticket

    def has_room(self, caller: Witness, ticket: Ticket) -> bool:
        budget, charge = self.gate.budget, ticket.layout.charge_bytes
        unreceived = [other.incomplete for other in self.callers if other.incomplete is not None]
        on_the_way = sum(one.layout.charge_bytes for one in unreceived)
        if on_the_way and on_the_way + charge > budget.limit_bytes / 4:
            return False
        share = 7 / 8 if caller.taken_bytes() and self.has_its_share(caller, ticket) else 1
        return (
            budget.used_bytes + charge <= budget.limit_bytes * share
            and budget.used_records + ticket.layout.records <= budget.limit_records * share
        )

    def has_its_share(self, caller: Witness, ticket: Ticket) -> bool:
        """Whether others could not hold as much in seven eighths of a limit."""
        frames = [*caller.holds, ticket, *([caller.incomplete] if caller.incomplete is not None else [])]
        budget, sessions = self.gate.budget, len(self.callers)
        return sessions > 1 and (
            sum(frame.layout.charge_bytes for frame in frames) * sessions > budget.limit_bytes * 7 / 8
            or sum(frame.layout.records for frame in frames) * sessions > budget.limit_records * 7 / 8
        )

    def step(self, *, ending: bool) -> None:
        random, now = self.random, self.now
        self.now += random.uniform(0, 0.1)
        actions: list[Callable[[], object]] = []
        for caller in self.callers:
            if caller.incomplete is not None:
                actions += [partial(caller.receive, now)] * 3
            if caller.holds:
                actions += [partial(caller.settle, now)] * 2
            if not ending:
                actions.append(partial(caller.ask_something, now))
                if caller.open or caller.incomplete is not None:
                    ids = [*caller.open, *([caller.incomplete.frame_id] if caller.incomplete else [])]
                    actions.append(partial(caller.cancel, random.choice(ids), now))
        if not ending:
            if len(self.callers) < 5:
                actions.append(lambda: self.callers.append(Witness(self)))
            if self.callers and random.random() < 0.3:
                actions.append(lambda: self.vanish(random.choice(self.callers)))
            if random.random() < 0.1:
                actions.append(self.change_limits)
        if self.orphans:
            actions.append(self.settle_orphan)
        if actions:
            random.choice(actions)()
        self.check()

    def vanish(self, caller: Witness) -> None:
        self.orphans += caller.holds
        self.callers.remove(caller)
        caller.vanish(self.now)

    def settle_orphan(self) -> None:
        ticket = self.orphans.pop(0)
        self.gate.budget.release(ticket.layout.records, ticket.layout.charge_bytes)
        self.gate.pump(self.now)

    def change_limits(self) -> None:
        self.shrunk = True
        factor = self.random.choice([0.3, 0.6, 1.5])
        records = max(1, int(self.gate.budget.limit_records * factor))
        bytes_ = max(1_100, int(self.gate.budget.limit_bytes * factor))
        self.gate.set_limits(records, bytes_, self.now)
        for caller in self.callers:
            for ticket in caller.open.values():
                assert ticket is not None
                assert ticket.layout.charge_bytes <= bytes_, "it can never fit, and was not told"
                assert ticket.layout.records <= records


class Witness(Caller):
    """A caller that holds each grant against what the world says."""

    def __init__(self, world: World) -> None:
        super().__init__(world.gate, window_bytes=world.random.choice([3_000, 2**40]))
        self.world = world
        self.arrived: dict[int, int] = {}
        self.asking: Ticket | None = None

    def waiting(self) -> Ticket | None:
        return next(iter(self.member.line), None)

    def taken_bytes(self) -> int:
        own = [*self.holds, *([self.incomplete] if self.incomplete is not None else [])]
        return sum(ticket.layout.charge_bytes for ticket in own)

    def granted(self, ticket: Ticket) -> None:
        """The gate has taken the room already: put it back to see what it saw."""
        world, budget = self.world, self.gate.budget
        assert ticket.frame_id == min(self.open), "first come first served within a session"
        budget.used_bytes -= ticket.layout.charge_bytes
        budget.used_records -= ticket.layout.records
        self.member.line.appendleft(ticket)
        head = world.head()
        assert head is not None
        assert head[1] is ticket, f"seed {world.seed}: overtaken"
        assert world.has_room(self, ticket), f"seed {world.seed}: no room"
        self.member.line.popleft()
        budget.used_bytes += ticket.layout.charge_bytes
        budget.used_records += ticket.layout.records
        super().granted(ticket)

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        max_bytes, max_records = self.gate.largest_frame
        limit = self.gate.budget.limit_bytes
        charge, records = ticket.layout.charge_bytes, ticket.layout.records
        if refusal.code == Code.TOO_LARGE:
            assert records > 1
            assert charge > max_bytes or records > max_records
            assert (refusal.max_frame_bytes, refusal.max_frame_records) == (max_bytes, max_records)
            assert max_records >= 1
        else:
            assert refusal.code == Code.CONFIGURATION
            assert records == 1
            assert charge > limit
        super().refused(ticket, refusal)

    def ask_something(self, now: float) -> None:
        if len(self.open) >= 3:
            return
        random = self.world.random
        records = random.choice([1, 1, 2, 5])
        charge = random.randint(0, random.choice([100, 5_000, 30_000])) + 1_024 + 32 * records
        self.world.arrivals += 1
        self.arrived[self.ids + 1] = self.world.arrivals
        self.ask(charge, records, now)


@LAW
@pytest.mark.parametrize("block", range(10))
def test_thousands_of_random_worlds_keep_the_order_and_the_limits_and_nobody_waits_for_ever(block: int) -> None:
    grants = 0
    for seed in range(block * 300, block * 300 + 300):
        world = World(seed)
        for _ in range(50):
            world.step(ending=False)
        # Bodies arrive, rows settle, and no caller asks for more: the gate admits every one.
        for _ in range(500):
            if not any(caller.open or caller.incomplete or caller.holds for caller in world.callers):
                break
            world.step(ending=True)
        assert not any(caller.open for caller in world.callers), f"seed {seed}: a caller waits forever"
        while world.orphans:
            world.settle_orphan()
        assert is_empty(world.gate), f"seed {seed}"
        for caller in world.callers:
            assert (caller.member.taken_bytes, caller.member.taken_records) == (0, 0)
            assert set(caller.grants) | set(caller.refusals) <= set(range(1, caller.ids + 1))
            assert not set(caller.grants) & set(caller.refusals)
        grants += sum(len(caller.grants) for caller in world.callers)
    assert grants > 1_000


# ---- several streams on one node


def node_gates(limit_bytes: int, floor_bytes: int, count: int = 2) -> tuple[NodeBudget, list[AdmissionGate]]:
    node = NodeBudget(limit_bytes, floor_bytes)
    budgets = [QueueBudget(10_000, 64 << 20, node) for _ in range(count)]
    return node, [
        AdmissionGate(
            budget, lambda _, patient, probes=True, owner=None: None, max_frame_bytes=1 << 20, max_frame_records=10_000
        )
        for budget in budgets
    ]


@LAW
def test_a_full_node_makes_callers_wait_and_names_who_does() -> None:
    node, (hot, cold) = node_gates(20_000, 5_000)
    greedy, modest = Caller(hot), Caller(cold)
    for _ in range(4):
        greedy.ask(5_000)
        if greedy.incomplete:
            greedy.receive()
    assert greedy.grants == [1, 2, 3], "the other stream's floor stays free"
    assert node.wanted_by == {hot.budget: 5_000}
    assert hot.wants_room()
    modest.ask(5_000)
    assert modest.grants == [1]
    assert node.used_bytes == 20_000
    greedy.settle()
    assert greedy.grants == [1, 2, 3, 4]
    assert node.wanted_by == {}


@LAW
def test_a_stream_that_nobody_has_open_any_more_leaves_its_floor_to_others() -> None:
    node, (hot, cold) = node_gates(20_000, 5_000)
    greedy, modest = Caller(hot), [Caller(cold), Caller(cold)]
    greedy.ask(15_000)
    greedy.receive()
    greedy.ask(5_000)
    for caller in modest:
        assert greedy.grants == [1]
        caller.vanish()
        assert node.take_freed() is (caller is modest[-1])
        hot.pump(0.0)
    assert greedy.grants == [1, 2]


@LAW
def test_room_that_comes_free_in_one_stream_is_there_for_another() -> None:
    node, (first, second) = node_gates(20_000, 1_000)
    one, other = Caller(first), Caller(second)
    for _ in range(3):
        one.ask(6_000)
        one.receive()
    other.ask(6_000)
    assert (other.grants, node.wanted_by) == ([], {second.budget: 6_000})
    node.has_freed = False
    one.settle()
    assert node.has_freed
    second.pump(1.0)
    assert (other.grants, node.wanted_by) == ([1], {})


@LAW
def test_who_is_gone_or_refused_wants_nothing_of_the_node_any_more() -> None:
    for end in ("vanish", "close", "cancel"):
        node, (first, second) = node_gates(20_000, 1_000)
        one, other = Caller(first), Caller(second)
        one.ask(19_000)
        other.ask(6_000)
        assert node.wanted_by == {second.budget: 6_000}
        node.take_freed()
        if end == "vanish":
            other.vanish()
        elif end == "close":
            second.close(Refusal(Code.DRAINING, "stops"), 1.0)
        else:
            other.cancel(1)
        assert node.wanted_by == {}, end
        assert node.take_freed(), "others left room free for it"


@LAW
def test_a_record_that_the_node_can_never_hold_names_the_nodes_setting() -> None:
    _, (gate, _) = node_gates(20_000, 1_000)
    caller = Caller(gate)
    frame_id = caller.ask(20_001)
    assert (caller.refusals[frame_id].code, caller.refusals[frame_id].judged) == (Code.CONFIGURATION, False)
    assert "node_queue_limit_bytes = 20000" in caller.refusals[frame_id].message


@LAW
@pytest.mark.parametrize("more", [1, 2])
def test_who_holds_exactly_an_equal_share_may_take_of_the_last_eighth_and_who_holds_more_not(more: int) -> None:
    """Of 32 records 4 are kept free, and each of two sessions has a share of 14."""
    gate = make_gate(limit_records=32)
    other, caller = Caller(gate), Caller(gate)
    for who, records in ((other, 8), (other, 7), (caller, 8), (caller, 5)):
        who.ask(10_000, records)
        who.receive()
    caller.ask(10_000, more)
    assert bool(caller.incomplete) is (more == 1)


# ---- users share what is on its way


@pytest.mark.promise("record-larger-stream")
@LAW
def test_a_record_larger_than_any_stream_takes_is_refused_before_it_has_any_room() -> None:
    gate = make_gate()
    caller = Caller(gate)
    slack = RECORD_SLACK_BYTES + FRAME_CHARGE_BYTES + RECORD_CHARGE_BYTES
    caller.ask(MAX_RECORD_BYTES + slack + 1)
    assert (caller.refusals[1].code, caller.grants) == (Code.RECORD_TOO_LARGE, [])
    assert "passes Kinesis's 10485760 bytes a record" in caller.refusals[1].message
    assert caller.refusals[1].judged
    caller.ask(MAX_RECORD_BYTES + slack)
    assert caller.grants == [2]
    caller.receive()
    caller.settle()
    assert is_empty(gate)


@pytest.mark.promise("record-larger-stream")
@LAW
def test_a_user_whose_bodies_do_not_come_holds_an_equal_part_of_what_may_be_on_its_way() -> None:
    """A quarter of 80,000 is 20,000, and 10,000 for each of two users."""
    gate = make_gate(limit_bytes=80_000)
    mute = [Caller(gate, uid=1) for _ in range(20)]
    for caller in mute:
        caller.ask(2_000)
    assert sum(len(caller.grants) for caller in mute) == 10, "the whole quarter, as long as nobody else is there"
    assert gate.users == [1]
    honest = Caller(gate, uid=2)
    assert gate.users == [1, 2]
    honest.ask(2_000)
    assert not honest.grants
    for caller in mute[:5]:
        caller.cancel(1)
    assert honest.grants == [1]
    honest.receive()
    for number in range(2, 30):
        honest.ask(2_000)
        assert honest.grants[-1] == number, "it never waits for them again"
        honest.receive()
        honest.settle()
    assert sum(len(caller.grants) for caller in mute) == 10
    honest.vanish()
    assert sum(len(caller.grants) for caller in mute) == 15, "the whole quarter again"


@LAW
def test_one_frame_of_a_user_may_always_be_on_its_way() -> None:
    gate = make_gate(limit_bytes=80_000)
    first, _ = Caller(gate, uid=1), Caller(gate, uid=2)
    first.ask(15_000)
    assert first.grants == [1], "more than an equal part of the quarter"


@pytest.mark.promise("record-larger-stream")
@LAW
def test_a_frame_larger_than_the_quarter_is_a_users_at_most_once_in_four_grants() -> None:
    """While it is on its way nobody else's may be, and a user who sends nothing could ask for the next at once."""
    gate = make_gate(limit_bytes=80_000)
    order: list[int] = []

    class Noted(Caller):
        def granted(self, ticket: Ticket) -> None:
            super().granted(ticket)
            order.append(ticket.member.uid or 0)

    greedy, honest = [Noted(gate, uid=1) for _ in range(3)], [Noted(gate, uid=2) for _ in range(2)]
    for caller in greedy:
        caller.ask(30_000)
    for caller in honest:
        caller.ask(12_000)
    while len(order) < 21:
        for caller in (*greedy, *honest):
            if caller.incomplete is None:
                continue
            if caller in greedy:
                caller.cancel(caller.incomplete.frame_id)
                caller.ask(30_000)
            else:
                caller.receive()
                caller.settle()
                caller.ask(12_000)
    assert order[:9] == [1, 2, 2, 2, 1, 2, 2, 2, 1]


@LAW
def test_a_lone_user_may_have_such_frames_one_after_the_other() -> None:
    gate = make_gate(limit_bytes=80_000)
    first, second = Caller(gate, uid=1), Caller(gate, uid=1)
    for number in range(1, 4):
        first.ask(30_000)
        second.ask(30_000)
        assert first.grants == [*range(1, number + 1)]
        first.receive()
        first.settle()
        second.receive()
        second.settle()
    assert second.grants == [1, 2, 3]


@LAW
def test_while_no_other_user_waits_such_frames_follow_each_other_too() -> None:
    gate = make_gate(limit_bytes=80_000)
    caller, _ = Caller(gate, uid=1), Caller(gate, uid=2)
    for number in range(1, 4):
        caller.ask(30_000)
        assert caller.grants[-1:] == [number]
        caller.receive()
        caller.settle()


@LAW
def test_a_user_s_own_small_frames_do_not_pass_for_others() -> None:
    gate = make_gate(limit_bytes=80_000)
    greedy, small = Caller(gate, uid=1), Caller(gate, uid=1)
    honest = [Caller(gate, uid=2) for _ in range(2)]
    greedy.ask(30_000)
    greedy.receive()
    greedy.settle()
    for _ in range(3):
        small.ask(1_100)
        small.receive()
        small.settle()
    blocker = Caller(gate, uid=1)
    blocker.ask(20_000)
    greedy.ask(30_000)
    for caller in honest:
        caller.ask(12_000)
    blocker.receive()
    assert [len(caller.grants) for caller in (greedy, *honest)] == [1, 1, 0]
    honest[0].receive()
    gate.pump(0.0)
    assert [len(caller.grants) for caller in (greedy, *honest)] == [1, 1, 1]
