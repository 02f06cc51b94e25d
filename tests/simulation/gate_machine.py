"""Random callers of one gate, and a neighbour that shares its node.  Each grant is compared with the rules of the gate.

The rules are computed here again, from what the callers did and heard, and not from what the gate remembers.
"""

from __future__ import annotations

from math import isclose
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from producerd.core.budget import NodeBudget, QueueBudget
from producerd.core.gate import OTHERS_BETWEEN, Refusal, Ticket
from producerd.errors import Code
from tests.core.gates import GateCaller, make_gate

NO_NODE_LIMIT: Final = 2**50
PICK = st.integers(0, 59)
"""The number of a caller, modulo how many there are to choose from."""
CHARGES = st.tuples(
    st.sampled_from([1, 1, 2, 5]), st.one_of(st.integers(0, 100), st.integers(0, 5_000), st.integers(0, 30_000))
)


class Witness(GateCaller):
    """A caller that compares each answer with the rules."""

    def __init__(self, world: GateMachine, window_bytes: int, uid: int | None) -> None:
        self.world = world
        self.uid = uid
        self.arrived: dict[int, int] = {}
        self.asked_at: dict[int, float] = {}
        self.is_full = False
        super().__init__(world.gate, window_bytes=window_bytes, uid=uid)

    def own(self) -> list[Ticket]:
        return [*self.held, *([self.body] if self.body is not None else [])]

    def taken_bytes(self) -> int:
        return sum(ticket.layout.charge_bytes for ticket in self.own())

    def granted(self, ticket: Ticket) -> None:
        self.world.is_right_to_grant(self, ticket)
        super().granted(ticket)

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        charge, records = ticket.layout.charge_bytes, ticket.layout.records
        max_bytes, max_records = self.gate.largest_frame
        if refusal.code == Code.TOO_LARGE:
            assert records > 1
            assert charge > max_bytes or records > max_records
            assert (refusal.max_frame_bytes, refusal.max_frame_records) == (max_bytes, max_records)
        else:
            assert refusal.code == Code.CONFIGURATION
            assert records == 1
            assert charge > min(self.gate.budget.limit_bytes, self.world.node.limit_bytes)
        super().refused(ticket, refusal)


class GateMachine(RuleBasedStateMachine):
    """Admission is fair, keeps the limits, makes no caller wait forever, and a caller that leaves holds nothing."""

    @initialize(
        limit_bytes=st.sampled_from([3_000, 20_000, 100_000]),
        limit_records=st.sampled_from([1, 3, 10_000]),
        node_share=st.sampled_from([None, None, 0.8, 1.5]),
    )
    def begin(self, limit_bytes: int, limit_records: int, node_share: float | None) -> None:
        node_bytes = NO_NODE_LIMIT if node_share is None else int(limit_bytes * node_share)
        self.node = NodeBudget(node_bytes, 0 if node_share is None else node_bytes // 4)
        self.gate = make_gate(limit_bytes, limit_records, node=self.node)
        self.neighbour = QueueBudget(10_000, 10**9, self.node)
        self.node.join(self.neighbour)
        self.theirs: list[int] = []
        self.callers: list[Witness] = []
        self.orphans: list[Ticket] = []  # held, though their callers have gone
        self.arrivals = 0
        self.now = self.active_seconds = 0.0
        self.waits: list[float] = []
        self.exempt_uid: int | None = None
        self.others_since = OTHERS_BETWEEN
        self.shrunk = False

    # ---- the rules of the gate

    def bodies(self) -> list[tuple[Witness, int]]:
        return [(caller, caller.body.layout.charge_bytes) for caller in self.callers if caller.body is not None]

    def used(self) -> tuple[int, int]:
        """The rows and bytes that the queue holds."""
        layouts = [ticket.layout for caller in self.callers for ticket in caller.own()]
        layouts += [ticket.layout for ticket in self.orphans]
        return sum(layout.records for layout in layouts), sum(layout.charge_bytes for layout in layouts)

    def turn(self) -> list[tuple[Witness, int]]:
        """The caller whose turn it is, with its frame; or several that had their turn just now, if none else waits."""
        ready, had_theirs = [], []
        users = {caller.uid for caller in self.callers}
        for caller in self.callers:
            frame_id = next(iter(caller.open), None)
            if frame_id is None or not caller.may_receive(charge := caller.open[frame_id].charge_bytes):
                continue
            quarter, on_the_way = self.gate.budget.limit_bytes / 4, self.bodies()
            own_way = sum(size for other, size in on_the_way if other.uid == caller.uid)
            exempt = charge > quarter and caller.uid == self.exempt_uid and self.others_since < OTHERS_BETWEEN
            if exempt and len(users) > 1:
                had_theirs.append((caller, frame_id))
            elif not (len(users) > 1 and own_way and own_way + charge > quarter / len(users)):
                ready.append((caller, frame_id))
        ready.sort(key=lambda each: (each[0].taken_bytes(), each[0].arrived[each[1]]))
        return ready[:1] or had_theirs

    def stream_has_room(self, caller: Witness, frame_id: int) -> bool:
        layout, budget = caller.open[frame_id], self.gate.budget
        on_the_way = sum(size for _, size in self.bodies())
        if on_the_way and on_the_way + layout.charge_bytes > budget.limit_bytes / 4:
            return False
        own = [ticket.layout for ticket in caller.own()]
        bytes_ = layout.charge_bytes + sum(each.charge_bytes for each in own)
        records = layout.records + sum(each.records for each in own)
        sessions = len(self.callers)
        beyond_bytes = bytes_ * sessions > budget.limit_bytes * 7 / 8
        beyond_share = beyond_bytes or records * sessions > budget.limit_records * 7 / 8
        share = 7 / 8 if own and sessions > 1 and beyond_share else 1
        used_records, used_bytes = self.used()
        return (
            used_bytes + layout.charge_bytes <= budget.limit_bytes * share
            and used_records + layout.records <= budget.limit_records * share
        )

    def node_has_room(self, caller: Witness, frame_id: int) -> bool:
        charge, own, others = caller.open[frame_id].charge_bytes, self.used()[1], sum(self.theirs)
        left = self.node.limit_bytes - own - others - charge
        floor = self.node.floor_bytes
        return left >= 0 and (not own or own + charge <= floor or left >= max(0, floor - others))

    def is_right_to_grant(self, caller: Witness, ticket: Ticket) -> None:
        place, charge = (caller, ticket.frame_id), ticket.layout.charge_bytes
        assert place in self.turn(), "overtaken"
        assert self.stream_has_room(*place), "past the stream's limits"
        assert self.node_has_room(*place), "past the node's limit"
        if self.now > caller.asked_at[ticket.frame_id]:
            self.waits.append(self.now - caller.asked_at[ticket.frame_id])
        if charge > self.gate.budget.limit_bytes / 4:
            self.exempt_uid, self.others_since = caller.uid, 0
        elif caller.uid != self.exempt_uid:
            self.others_since += 1

    def blocked(self) -> int:
        return sum(bool(caller.open) or (caller.is_full and bool(caller.own())) for caller in self.callers)

    @invariant()
    def limits_are_kept_and_no_caller_waits_while_there_is_room(self) -> None:
        gate, budget = self.gate, self.gate.budget
        used_records, used_bytes = self.used()
        assert (budget.used_records, budget.used_bytes) == (used_records, used_bytes)
        assert self.node.used_bytes == used_bytes + sum(self.theirs) <= self.node.limit_bytes
        if not self.shrunk:
            assert used_bytes <= budget.limit_bytes
            assert used_records <= budget.limit_records
            assert sum(size for _, size in self.bodies()) <= budget.limit_bytes / 4 or len(self.bodies()) == 1
        turn = self.turn()
        wanted = 0
        for place in turn[-1:]:
            assert not (self.stream_has_room(*place) and self.node_has_room(*place)), "there is room"
            if self.stream_has_room(*place):
                wanted = place[0].open[place[1]].charge_bytes
        assert self.node.wanted_by == ({budget: wanted} if wanted else {})
        waits = any(caller.open for caller in self.callers)
        assert gate.wants_room() == (waits and (bool(turn) or not self.bodies()))
        assert gate.blocked_callers == self.blocked()
        assert {*gate.withholding} == {caller for caller in self.callers if caller.is_full}, "nothing is kept of others"
        assert {*gate.users} == {caller.uid for caller in self.callers}
        assert isclose(gate.active_seconds(self.now), self.active_seconds, abs_tol=1e-9)

    # ---- what happens

    def pass_time(self) -> None:
        self.active_seconds += 0.125 * bool(self.blocked())
        self.now += 0.125

    @precondition(lambda self: len(self.callers) < 5)
    @rule(window_bytes=st.sampled_from([3_000, 2**40]), uid=st.sampled_from([None, None, None, 1, 2]))
    def join(self, window_bytes: int, uid: int | None) -> None:
        self.pass_time()
        self.callers.append(Witness(self, window_bytes, uid))

    @precondition(lambda self: self.callers)
    @rule(pick=PICK, size=CHARGES)
    def ask(self, pick: int, size: tuple[int, int]) -> None:
        self.pass_time()
        caller = self.callers[pick % len(self.callers)]
        if len(caller.open) < 3:
            self.arrivals += 1
            caller.arrived[caller.ids + 1] = self.arrivals
            caller.asked_at[caller.ids + 1] = self.now
            caller.ask(1_024 + 32 * size[0] + size[1], size[0], self.now)

    @precondition(lambda self: self.bodies())
    @rule(pick=PICK)
    def receive(self, pick: int) -> None:
        self.pass_time()
        self.bodies()[pick % len(self.bodies())][0].receive(self.now)

    @precondition(lambda self: any(caller.held for caller in self.callers))
    @rule(pick=PICK)
    def settle(self, pick: int) -> None:
        self.pass_time()
        holders = [caller for caller in self.callers if caller.held]
        holders[pick % len(holders)].settle(self.now)

    @precondition(lambda self: any(caller.open or caller.body for caller in self.callers))
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        self.pass_time()
        frames = [(caller, frame_id) for caller in self.callers for frame_id in caller.open]
        frames += [(caller, caller.body.frame_id) for caller in self.callers if caller.body is not None]
        caller, frame_id = frames[pick % len(frames)]
        caller.cancel(frame_id, self.now)

    @precondition(lambda self: self.callers)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        self.pass_time()
        caller = self.callers[pick % len(self.callers)]
        caller.gone = True
        if caller.body is not None:
            caller.cancel(caller.body.frame_id, self.now)
        self.callers.remove(caller)
        self.orphans += caller.held
        caller.vanish(self.now)

    @precondition(lambda self: self.orphans)
    @rule()
    def settle_orphan(self) -> None:
        self.pass_time()
        ticket = self.orphans.pop(0)
        self.gate.budget.release(ticket.layout.records, ticket.layout.charge_bytes)
        self.gate.pump(self.now)

    @precondition(lambda self: self.callers)
    @rule(pick=PICK)
    def window_fills_or_empties(self, pick: int) -> None:
        self.pass_time()
        caller = self.callers[pick % len(self.callers)]
        caller.is_full = not caller.is_full
        self.gate.window(caller.member, self.now, is_full=caller.is_full)

    @rule(factor=st.sampled_from([0.3, 0.6, 1.5]))
    def set_limits(self, factor: float) -> None:
        self.pass_time()
        self.shrunk = True
        records = max(1, int(self.gate.budget.limit_records * factor))
        bytes_ = max(1_100, int(self.gate.budget.limit_bytes * factor))
        self.gate.set_limits(records, bytes_, self.now)
        for caller in self.callers:
            for layout in caller.open.values():
                assert layout.charge_bytes <= bytes_, "it can never fit, and was not told"
                assert layout.records <= records

    @rule(charge=st.integers(1, 30_000))
    def neighbour_takes(self, charge: int) -> None:
        self.pass_time()
        if self.node.fits(self.neighbour, charge):
            self.neighbour.charge(1, charge)
            self.theirs.append(charge)

    @precondition(lambda self: self.theirs)
    @rule()
    def neighbour_releases(self) -> None:
        self.pass_time()
        self.neighbour.release(1, self.theirs.pop())
        assert self.node.take_freed()
        self.gate.pump(self.now)

    # ---- the end

    def teardown(self) -> None:
        """Bodies arrive and rows settle, and no caller asks for more: the gate admits every frame."""
        if not hasattr(self, "gate"):
            return
        while self.theirs:
            self.neighbour_releases()
        while self.orphans:
            self.settle_orphan()
        while any(caller.own() for caller in self.callers):
            for caller in self.callers:
                if caller.body is not None:
                    caller.receive(self.now)
                if caller.held:
                    caller.settle(self.now)
        assert not any(caller.open for caller in self.callers), "a caller waits forever"
        assert (self.gate.budget.used_records, self.gate.budget.used_bytes, self.node.used_bytes) == (0, 0, 0)
        assert not self.gate.wants_room()
        for caller in self.callers:
            assert (caller.member.taken_bytes, caller.member.taken_records) == (0, 0)
            assert not set(caller.grants) & set(caller.refusals)
        waited = self.gate.wait_seconds
        assert (sum(waited.counts), waited.sum) == (len(self.waits), sum(self.waits))
