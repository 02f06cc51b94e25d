"""The callers of a story, with the frames that they send and the answers that they get."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from producerd.core.gate import MAX_RECORD_BYTES, Refusal, Ticket
from producerd.core.rows import intake
from producerd.core.rows.frame import Frame, FrameResult, RowEnd
from producerd.wire import columns
from tests.simulation.rows import Row
from tests.simulation.setting import make_body

if TYPE_CHECKING:
    from tests.simulation.world import Simulation


class Sent:
    """One frame, as its caller knows it."""

    __slots__ = ("columns", "frame", "frame_id", "result", "rows", "session", "ticket")

    def __init__(self, session: Session, frame_id: int, rows: list[Row]) -> None:
        self.session = session
        self.frame_id = frame_id
        self.rows = rows
        hash_keys = [row.hash_key for row in rows] if any(row.hash_key for row in rows) else None
        self.columns = columns.lay_out([row.key for row in rows], [row.data for row in rows], hash_keys)
        self.ticket: Ticket | None = None  # while it waits for room, or is on its way
        self.frame: WatchedFrame | None = None  # since it was accepted
        self.result: FrameResult | None = None  # its acknowledgement

    def ends(self) -> list[RowEnd | None] | None:
        """Return how each row ended, None for STORED, or None in all if no acknowledgement can come."""
        frame = self.frame
        if frame is None or not frame.finished or frame.dropped:
            return None
        result = self.result or frame.result()
        if not result.bitmap:
            return [None] * result.records
        failed = np.unpackbits(np.frombuffer(result.bitmap, np.uint8), count=result.records, bitorder="little")
        ends: list[RowEnd | None] = [None] * result.records
        places = np.frombuffer(result.code_rows, "<u2").tolist() if result.code_rows else [0] * result.records
        for row, place in zip(np.flatnonzero(failed).tolist(), places, strict=False):
            ends[row] = result.codes[place]
        return ends


class WatchedFrame(Frame):
    """A frame whose rows are looked at when they end."""

    __slots__ = ("accepted", "dropped", "laws", "sent")

    def __init__(self, sent: Sent, rows: intake.CheckedRows, charge_bytes: int) -> None:
        super().__init__(sent.session, sent.frame_id, rows, charge_bytes, takes_good=sent.session.take_good)
        self.sent = sent
        self.laws = sent.session.sim.laws
        self.accepted = False
        self.dropped = 0

    def note_end(self, rows: Any, end: RowEnd) -> None:
        self.laws.rows_are_judged(self, rows.tolist(), end)
        if self.accepted:
            self.laws.row_ends(self, int(rows.min()), end)
        super().note_end(rows, end)
        self.laws.row_settles(self)

    def drop(self, records: int) -> None:
        self.dropped += records
        super().drop(records)
        self.laws.row_settles(self)

    def store(self, records: int) -> None:
        super().store(records)
        self.laws.row_settles(self)


class Session:
    """A caller that sends frames, waits for room, flushes, cancels, vanishes, and keeps every answer.

    ``deliver``: what it leaves behind is still to be delivered.  ``take_good``: bad rows do not refuse their frame.
    """

    def __init__(
        self, sim: Simulation, *, deliver: bool = False, take_good: bool = False, window_bytes: int = 8 << 20
    ) -> None:
        self.sim = sim
        self.deliver = deliver
        self.take_good = take_good
        self.window_bytes = window_bytes
        self.member = sim.gate.join(self)
        self.gone = False
        self.granted_ticket: Ticket | None = None  # the one body on its way
        self.sent: dict[int, Sent] = {}
        self.unacked: dict[WatchedFrame, None] = {}
        self.unacked_bytes = 0  # of frames that were granted
        self.refusals: dict[int, Refusal] = {}
        self.flushes: list[set[WatchedFrame]] = []  # that have not returned: what each waits for
        self.first_failed: tuple[int, int] | None = None  # frame and row, where the order is kept
        self._ids = count(1)

    # ---- the answers that it got

    @property
    def waiting(self) -> list[Sent]:
        """Frames that wait for room, or are on their way."""
        return [sent for sent in self.sent.values() if sent.ticket is not None]

    @property
    def frames(self) -> list[WatchedFrame]:
        """Those whose bodies came."""
        return [sent.frame for sent in self.sent.values() if sent.frame is not None]

    @property
    def acked(self) -> dict[int, FrameResult]:
        return {sent.frame_id: sent.result for sent in self.sent.values() if sent.result is not None}

    # ---- what it does

    def send(self, rows: Iterable[Row | tuple[bytes, bytes]]) -> int:
        """Ask for room for a frame; it follows when there is."""
        frame_id = next(self._ids)
        sent = Sent(self, frame_id, [row if isinstance(row, Row) else Row.plain(*row) for row in rows])
        self.sent[frame_id] = sent
        sent.ticket = ticket = self.sim.gate.ask(self.member, frame_id, sent.columns.layout, self.sim.now)
        if not ticket.waiting and not ticket.granted:
            sent.ticket = None
        return frame_id

    def flush(self) -> None:
        """Wait for what was sent, and for nothing that is sent from now on."""
        self.sim.pipeline.flush(self)
        if self.unacked:
            self.flushes.append(set(self.unacked))

    def cancel(self, frame_id: int) -> None:
        """Cancel a frame, as a caller does at its time-out."""
        sent = self.sent[frame_id]
        ticket, sent.ticket = sent.ticket, None
        if ticket is not None:
            if ticket is self.granted_ticket:
                self.granted_ticket = None
                self.unacked_bytes -= ticket.layout.charge_bytes
            self.sim.gate.cancel(ticket, self.sim.now)

    def vanish(self) -> None:
        """The connection ends."""
        self.gone = True
        self.flushes.clear()
        self.unacked.clear()
        ticket, self.granted_ticket = self.granted_ticket, None
        if ticket is not None:
            self.sim.gate.cancel(ticket, self.sim.now)
        for sent in self.waiting:
            sent.ticket = None
        if self.deliver:
            self.sim.pipeline.disown(self)
        else:
            self.sim.pipeline.discard(self)
        self.sim.gate.leave(self.member, self.sim.now)

    # ---- what the gate and the pipeline tell it

    def may_receive(self, charge_bytes: int) -> bool:
        if self.gone or self.granted_ticket is not None:
            return False
        return not self.unacked_bytes or self.unacked_bytes + charge_bytes <= self.window_bytes

    def granted(self, ticket: Ticket) -> None:
        self.sim.laws.room_is_granted(self)
        self.granted_ticket = ticket
        self.unacked_bytes += ticket.layout.charge_bytes
        self.sim.after(self.sim.random.uniform(0, self.sim.body_seconds), lambda: self.body_arrives(ticket))

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        self.sent[ticket.frame_id].ticket = None
        self.refusals[ticket.frame_id] = refusal

    def finished(self, frame: Frame) -> None:
        """Its acknowledgement."""
        assert isinstance(frame, WatchedFrame)
        self.sim.laws.frame_is_acknowledged(self, frame)
        frame.sent.result = frame.result()
        self.unacked.pop(frame, None)
        self.unacked_bytes -= frame.charge_bytes
        self.sim.gate.settled(self.member, frame.records, frame.charge_bytes)
        self.sim.laws.acknowledgement_is_true(frame.sent)
        for waits_for in self.flushes:
            waits_for.discard(frame)
        self.flushes = [waits_for for waits_for in self.flushes if waits_for]

    def body_arrives(self, ticket: Ticket) -> None:
        """As `producerd.runtime.client_frames` submits it."""
        if self.granted_ticket is not ticket:
            return
        sim, sent = self.sim, self.sent[ticket.frame_id]
        self.granted_ticket = sent.ticket = None
        entries = sim.pipeline.rules.entries
        takes_aggregates = entries.aggregate and not entries.per_key
        body = make_body(sent.columns, ticket.frame_id)
        rows = intake.check(body, MAX_RECORD_BYTES, takes_aggregates=takes_aggregates)
        frame = sent.frame = WatchedFrame(sent, rows, ticket.layout.charge_bytes)
        sim.gate.received(ticket)
        if rows.bad:
            frame.end_bad_rows(keeps_order=entries.per_key)
        if not frame.finished:
            frame.accepted = True
            self.unacked[frame] = None
            sim.pipeline.submit(frame, sim.now)
            return
        if not frame.takes_rest(keeps_order=entries.per_key):
            sim.pipeline.frame_refused(self)
            if entries.per_key:
                self.first_failed = self.first_failed or (sent.frame_id, 0)
        sim.budget.release(frame.records, frame.charge_bytes)
        self.finished(frame)
