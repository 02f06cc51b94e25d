"""A gate with nothing behind it, and sessions that ask it for room."""

from __future__ import annotations

from collections.abc import Callable

from producerd.core.budget import NodeBudget, QueueBudget
from producerd.core.gate import AdmissionGate, Refusal, Refuses, Ticket
from producerd.core.rows.frame import RowEnd
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, Layout


def takes_all(now: float, *, patient: bool, probes: bool = True, owner: object = None) -> RowEnd | None:
    """Refuse nothing: the stream works."""
    return None


def make_gate(
    limit_bytes: int = 64 << 20,
    limit_records: int = 10_000,
    refuses: Refuses = takes_all,
    *,
    max_frame_bytes: int = 1 << 20,
    node: NodeBudget | None = None,
) -> AdmissionGate:
    budget = QueueBudget(limit_records, limit_bytes, node)
    return AdmissionGate(budget, refuses, max_frame_bytes=max_frame_bytes, max_frame_records=10_000)


def layout_of(charge_bytes: int, records: int = 1) -> Layout:
    """The layout of a frame with this charge against the limits."""
    return Layout(records, 0, charge_bytes - FRAME_CHARGE_BYTES - RECORD_CHARGE_BYTES * records)


class GateCaller:
    """A session that remembers what the gate reported.  Its bodies arrive when the test says so."""

    def __init__(self, gate: AdmissionGate, *, window_bytes: int = 2**40, uid: int | None = None) -> None:
        self.gate = gate
        self.window_bytes = window_bytes
        self.body: Ticket | None = None  # granted, and on its way
        self.held: list[Ticket] = []  # received and not settled
        self.open: dict[int, Layout] = {}  # asked and not answered
        self.tickets: dict[int, Ticket] = {}
        self.grants: list[int] = []
        self.refusals: dict[int, Refusal] = {}
        self.when_told: Callable[[], object] | None = None
        self.ids = 0
        self.gone = False
        self.member = gate.join(self, uid=uid)

    # ---- what the gate asks and reports

    def may_receive(self, charge_bytes: int) -> bool:
        used = sum(ticket.layout.charge_bytes for ticket in self.held)
        return not self.gone and self.body is None and (not used or used + charge_bytes <= self.window_bytes)

    def granted(self, ticket: Ticket) -> None:
        assert not self.gone, "granted to a caller that is gone"
        assert self.body is None, "a grant before the body before it is whole"
        assert ticket.frame_id == min(self.open), "a session's frames are granted in their order"
        del self.open[ticket.frame_id]
        self.body = ticket
        self.grants.append(ticket.frame_id)
        self._told()

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        assert not self.gone, "refused to a caller that is gone"
        del self.open[ticket.frame_id]
        self.refusals[ticket.frame_id] = refusal
        self._told()

    def _told(self) -> None:
        action, self.when_told = self.when_told, None
        if action is not None:
            action()

    # ---- what it does

    def ask(self, charge_bytes: int, records: int = 1, now: float = 0.0) -> int:
        self.ids = frame_id = self.ids + 1
        self.open[frame_id] = layout_of(charge_bytes, records)
        self.tickets[frame_id] = self.gate.ask(self.member, frame_id, self.open[frame_id], now)
        return frame_id

    def receive(self, now: float = 0.0) -> None:
        assert self.body is not None
        ticket, self.body = self.body, None
        self.held.append(ticket)
        self.gate.received(ticket)
        self.gate.pump(now)

    def take(self, charge_bytes: int, records: int = 1, now: float = 0.0) -> None:
        """Ask for a frame, and send its body if it is granted."""
        self.ask(charge_bytes, records, now)
        if self.body is not None:
            self.receive(now)

    def settle(self, now: float = 0.0) -> None:
        ticket = self.held.pop(0)
        self.gate.budget.release(ticket.layout.records, ticket.layout.charge_bytes)
        self.gate.settled(self.member, ticket.layout.records, ticket.layout.charge_bytes)
        self.gate.pump(now)

    def cancel(self, frame_id: int, now: float = 0.0) -> None:
        if self.body is not None and self.body.frame_id == frame_id:
            ticket, self.body = self.body, None
            self.gate.cancel(ticket, now)
        elif self.open.pop(frame_id, None) is not None:
            self.gate.cancel(self.tickets[frame_id], now)

    def vanish(self, now: float = 0.0) -> None:
        self.gone = True
        self.open.clear()
        if self.body is not None:
            self.cancel(self.body.frame_id, now)
        self.gate.leave(self.member, now)
