"""The admission gate of one stream, where sessions wait for room in the stream's queue.

The gate never grants room past a limit, and in the end grants every frame that fits an empty queue:

- Within a session, frames are granted in their order.  Among the sessions that could receive a body now, the one with
  the fewest bytes in the queue is next, then the longest waiting.  No session overtakes the next one.
- While other sessions have the stream open, the last eighth of a limit is reserved.  Only sessions that hold less than
  an equal share of the rest may use it.  A session that returns after a pause therefore finds room for more than one
  frame.
- If the node is full, a stream still gets its floor (`NodeBudget`).
- Granted frames whose bodies have not arrived hold up to a quarter of the limit, or are exactly one frame.
- Users share this quarter: the sessions of one user id hold an equal part of it, or exactly one frame.  A user has the
  single frame that is larger than the quarter at most once in four grants, while others wait or send theirs.
- No frame of one record is larger than the largest record of any stream, and a little more.

No function waits: `ask` and `pump` call the session back, at once or later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import count
from typing import Final, Protocol

from producerd.core.budget import QueueBudget
from producerd.core.rows.frame import RowEnd
from producerd.core.stats import Histogram
from producerd.errors import Code
from producerd.wire.columns import FLAG_RESENT, FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, Layout

RESERVED_SHARE: Final = 1 / 8
"""Share of each limit that is reserved for sessions that hold little.

Without it, 60 callers of a hot shard halve the rate of 4 callers of cold shards.
"""
UNRECEIVED_SHARE: Final = 1 / 4
"""Largest share of the byte limit for granted bodies on their way, which hold room before their rows can be sent."""
OTHERS_BETWEEN: Final = 3
"""Grants to other users between two frames of a user that are each larger than this share."""

MAX_RECORD_BYTES: Final = 10 * 1024 * 1024
"""Largest record that any stream takes (Kinesis quotas).  Only Kinesis itself judges by the stream's own limit, because
an operator may raise it at any time."""
RECORD_SLACK_BYTES: Final = 4096
"""How much larger than that a reserved record may be.

The check of a body's rows names a record that is a little too large, or whose key is, more exactly than the gate.
"""

WAIT_SECONDS_BOUNDS: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Caller(Protocol):
    """A session as the gate sees it."""

    def may_receive(self, charge_bytes: int) -> bool:
        """Return whether a body of this charge could come now: none is on its way, and the window has room."""

    def granted(self, ticket: Ticket) -> None:
        """Receive the grant of room for a frame.

        The session answers with `AdmissionGate.received` and later `settled`, or with `cancel`.
        """

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        """Receive the refusal of a frame, which is final."""


class Refuses(Protocol):
    """A function that returns why a stream accepts no frame of ``owner`` now, or None if it does.

    With ``probes`` a stream that fails may accept one frame as a probe.  Without it the call changes nothing.
    """

    def __call__(self, now: float, *, patient: bool, probes: bool = True, owner: object = None) -> RowEnd | None: ...


class Refusal:
    """The reason why a frame is refused.  With TOO_LARGE it also has the size of the largest frame to send.

    ``judged``: the frame's only row can never be stored.
    """

    __slots__ = ("code", "judged", "max_frame_bytes", "max_frame_records", "message")

    def __init__(
        self, code: str, message: str, max_frame_bytes: int = 0, max_frame_records: int = 0, *, judged: bool = False
    ) -> None:
        self.code = code
        self.message = message
        self.judged = judged
        self.max_frame_bytes = max_frame_bytes
        self.max_frame_records = max_frame_records


class Member:
    """One session in one stream: its waiting tickets, and the room that its frames hold.

    ``patient``: all its frames are patient, as `Frame` defines it.  ``uid`` is the client's user id, or None if it is
    not known.
    """

    __slots__ = ("caller", "line", "patient", "taken_bytes", "taken_records", "uid")

    def __init__(self, caller: Caller, *, patient: bool = False, uid: int | None = None) -> None:
        self.caller = caller
        self.patient = patient
        self.uid = uid
        self.line: deque[Ticket] = deque()
        self.taken_bytes = 0
        self.taken_records = 0


class Ticket:
    """One RESERVE of a session, which waits, then is granted, then is received."""

    __slots__ = ("frame_id", "granted", "layout", "member", "number", "since", "waiting")

    def __init__(self, member: Member, frame_id: int, layout: Layout, number: int, since: float) -> None:
        self.member = member
        self.frame_id = frame_id
        self.layout = layout
        self.number = number
        self.since = since
        self.granted = False
        self.waiting = False

    @property
    def patient(self) -> bool:
        """Whether its rows wait without a limit for a service that cannot be reached (`Frame`)."""
        return self.member.patient or bool(self.layout.flags & FLAG_RESENT)


class AdmissionGate:
    """The gate of one stream, with the guarantees in the module's text.

    ``refuses``: called once before each grant for the reason why the stream accepts nothing now.
    """

    def __init__(
        self,
        budget: QueueBudget,
        refuses: Refuses,
        *,
        max_frame_bytes: int,
        max_frame_records: int,
    ) -> None:
        self.budget = budget
        self.wait_seconds = Histogram(WAIT_SECONDS_BOUNDS)  # without grants that came at once
        self._refuses = refuses
        self._max_frame_bytes = max_frame_bytes
        self._max_frame_records = max_frame_records
        self._members: dict[Member, None] = {}
        self._waiting = 0
        self._unreceived_bytes = 0
        self._unreceived_of: Counter[int | None] = Counter()  # the same by user id
        self._sessions_of: Counter[int | None] = Counter()
        self._exempt_uid: int | None = None  # who had the last frame that is larger than the unreceived share
        self._others_since = OTHERS_BETWEEN  # grants to others since then
        self.withholding: dict[Caller, None] = {}  # sessions whose window is full, so that they send nothing
        self._numbers = count()
        self._closed: Refusal | None = None
        self._active_seconds = 0.0
        self._active_since: float | None = None
        self._pumping = False

    # ---- questions

    @property
    def blocked_callers(self) -> int:
        """The number of sessions that cannot send: they wait for a grant, or their window is full of unsettled rows."""
        return sum(1 for member in self._members if member.line or self._withholds(member))

    def _withholds(self, member: Member) -> bool:
        return member.caller in self.withholding and member.taken_records > 0

    @property
    def sessions(self) -> int:
        """The number of sessions that have the stream open."""
        return len(self._members)

    @property
    def users(self) -> list[int | None]:
        """The users whose sessions have the stream open."""
        return list(self._sessions_of)

    def active_seconds(self, now: float) -> float:
        """Return for how many seconds in total at least one session has been blocked."""
        return self._active_seconds + (now - self._active_since if self._active_since is not None else 0.0)

    @property
    def largest_frame(self) -> tuple[int, int]:
        """The largest frame (charged bytes, rows) that may be granted now.  A single row may be larger."""
        share = 2 * max(1, len(self._members))
        return (
            max(1, min(self._max_frame_bytes, self.budget.limit_bytes // share)),
            max(1, min(self._max_frame_records, self.budget.limit_records // share)),
        )

    def wants_room(self) -> bool:
        """Return whether a session waits until rows settle, and not only until a body has arrived."""
        if not self._waiting:
            return False
        head = self._head()
        return not self._has_room(head) if head is not None else not self._unreceived_bytes

    # ---- events

    def join(self, caller: Caller, *, patient: bool = False, uid: int | None = None) -> Member:
        """Add a session that opens the stream."""
        member = Member(caller, patient=patient, uid=uid)
        self._members[member] = None
        self._sessions_of[uid] += 1
        self.budget.node.join(self.budget)
        return member

    def leave(self, member: Member, now: float) -> None:
        """Remove a session that is gone, with its waiting tickets.  The session itself cancels its granted ones."""
        for ticket in list(member.line):
            self._take_out(ticket)
        if member in self._members:
            del self._members[member]
            _subtract(self._sessions_of, member.uid, 1)
        self.withholding.pop(member.caller, None)
        if not self._members:
            self.budget.node.leave(self.budget)
        self.pump(now)

    def window(self, member: Member, now: float, *, is_full: bool) -> None:
        """Note whether a session's window is full.  While it is, the session counts as blocked."""
        if is_full:
            self.withholding[member.caller] = None
        else:
            self.withholding.pop(member.caller, None)
        self._clock(now)

    def ask(self, member: Member, frame_id: int, layout: Layout, now: float) -> Ticket:
        """Queue a RESERVE.  `Caller.granted` or `Caller.refused` answers it, perhaps before this returns."""
        ticket = Ticket(member, frame_id, layout, next(self._numbers), now)
        refusal = self._closed or self._too_large(ticket)
        if refusal is not None:
            member.caller.refused(ticket, refusal)
            return ticket
        member.line.append(ticket)
        ticket.waiting = True
        self._waiting += 1
        self.pump(now)
        return ticket

    def cancel(self, ticket: Ticket, now: float) -> None:
        """Withdraw a waiting or granted ticket and release its room."""
        if ticket.granted:
            self.received(ticket)
            self.settled(ticket.member, ticket.layout.records, ticket.layout.charge_bytes)
            self.budget.release(ticket.layout.records, ticket.layout.charge_bytes)
        elif ticket.waiting:
            self._take_out(ticket)
        self.pump(now)

    def received(self, ticket: Ticket) -> None:
        """Note that a granted body has arrived.  From now on the pipeline releases its room."""
        self._unreceived_bytes -= ticket.layout.charge_bytes
        _subtract(self._unreceived_of, ticket.member.uid, ticket.layout.charge_bytes)

    def settled(self, member: Member, records: int, charge_bytes: int) -> None:
        """Note that a received frame is finished or was not accepted."""
        member.taken_records -= records
        member.taken_bytes -= charge_bytes

    def refuse_all(self, refusal: Refusal, now: float) -> None:
        """Refuse every waiting and every later ticket."""
        self._closed = refusal
        for ticket in self._all_waiting():
            self._refuse(ticket, refusal)
        self.pump(now)

    def set_limits(self, limit_records: int, limit_bytes: int, now: float) -> None:
        """Follow new limits.  Waiting frames that can no longer fit are refused with the new maximum."""
        self.budget.set_limits(limit_records, limit_bytes)
        for ticket in self._all_waiting():
            if (refusal := self._too_large(ticket)) is not None:
                self._refuse(ticket, refusal)
        self.pump(now)

    def pump(self, now: float) -> None:
        """Grant tickets in their turn while there is room."""
        if self._pumping:
            return  # a session asks again from within its callback: the loop below goes on with its ticket
        if self._waiting:
            self._grant_waiting(now)
        self.budget.node.want(self.budget, self._wanted_of_node())
        self._clock(now)

    # ---- inside

    def _grant_waiting(self, now: float) -> None:
        self._pumping = True
        try:
            while self._waiting and (ticket := self._head()) is not None and self._has_room(ticket):
                end = self._refuses(now, patient=ticket.patient, owner=ticket.member.caller)
                if end is not None:
                    self._refuse(ticket, Refusal(end.code, end.message))
                else:
                    self._grant(ticket, now)
            self._refuse_those_without_room(now)
        finally:
            self._pumping = False

    def _refuse_those_without_room(self, now: float) -> None:
        """Refuse waiting tickets of a stream that accepts nothing, also those for which the queue has no room.

        The rows in the queue may be patient and stay there, so that the tickets would wait behind them without a limit.
        """
        if not self._waiting:
            return
        for patient in (False, True):
            end = self._refuses(now, patient=patient, probes=False)
            if end is None:
                continue
            for ticket in self._all_waiting():
                if ticket.patient is patient and not self._has_room(ticket):
                    self._refuse(ticket, Refusal(end.code, end.message))

    def _wanted_of_node(self) -> int:
        """Return the charge of the frame that waits only because the node is full, or 0."""
        ticket = self._head() if self._waiting else None
        if ticket is None or not self._stream_has_room(ticket) or self._node_has_room(ticket):
            return 0
        return ticket.layout.charge_bytes

    def _node_has_room(self, ticket: Ticket) -> bool:
        return self.budget.node.fits(self.budget, ticket.layout.charge_bytes)

    def _all_waiting(self) -> Iterator[Ticket]:
        """Yield each waiting ticket that still waits when its turn comes: a refused session may cancel another one."""
        for ticket in [ticket for member in self._members for ticket in member.line]:
            if ticket in ticket.member.line:
                yield ticket

    def _head(self) -> Ticket | None:
        """Return the ticket that is next, or None."""
        best: Ticket | None = None
        last: Ticket | None = None
        for member in self._members:
            if not member.line:
                continue
            ticket = member.line[0]
            if best is not None and (best.member.taken_bytes, best.number) < (member.taken_bytes, ticket.number):
                continue
            if not member.caller.may_receive(ticket.layout.charge_bytes):  # asked late: it needs the most CPU
                continue
            if self._lets_others_pass(ticket):
                last = ticket
            elif not self._users_part_is_full(ticket):
                best = ticket
        return last if best is None else best

    def _users_part_is_full(self, ticket: Ticket) -> bool:
        """Return whether this frame would take its user past an equal part of what bodies on their way may hold."""
        if len(self._sessions_of) <= 1:
            return False
        on_their_way = self._unreceived_of[ticket.member.uid]
        part_bytes = self.budget.limit_bytes * UNRECEIVED_SHARE / len(self._sessions_of)
        return on_their_way > 0 and on_their_way + ticket.layout.charge_bytes > part_bytes

    def _lets_others_pass(self, ticket: Ticket) -> bool:
        """Return whether this frame takes more than all bodies on their way may, and its user just had such a frame."""
        return (
            self._others_since < OTHERS_BETWEEN
            and ticket.member.uid == self._exempt_uid
            and self._is_exempt(ticket)
            and len(self._sessions_of) > 1
        )

    def _is_exempt(self, ticket: Ticket) -> bool:
        return ticket.layout.charge_bytes > self.budget.limit_bytes * UNRECEIVED_SHARE

    def _has_room(self, ticket: Ticket) -> bool:
        return self._stream_has_room(ticket) and self._node_has_room(ticket)

    def _stream_has_room(self, ticket: Ticket) -> bool:
        charge = ticket.layout.charge_bytes
        if self._unreceived_bytes and self._unreceived_bytes + charge > self.budget.limit_bytes * UNRECEIVED_SHARE:
            return False
        keep_free_share = RESERVED_SHARE if self._has_its_share(ticket) else 0.0
        return self.budget.fits(ticket.layout.records, charge, keep_free_share=keep_free_share)

    def _has_its_share(self, ticket: Ticket) -> bool:
        """Return whether this frame would take its session past an equal share of the unreserved room."""
        member, layout, members = ticket.member, ticket.layout, len(self._members)
        if members == 1 or not member.taken_bytes:
            return False
        share = (1 - RESERVED_SHARE) / members
        return (
            member.taken_bytes + layout.charge_bytes > self.budget.limit_bytes * share
            or member.taken_records + layout.records > self.budget.limit_records * share
        )

    def _too_large(self, ticket: Ticket) -> Refusal | None:
        layout = ticket.layout
        if layout.records > 1:
            max_bytes, max_records = self.largest_frame
            if layout.charge_bytes > max_bytes or layout.records > max_records:
                message = f"a frame of {layout.records} records and {layout.charge_bytes} bytes; cut it"
                return Refusal(Code.TOO_LARGE, message, max_bytes, max_records)
        else:
            record_bytes = layout.charge_bytes - FRAME_CHARGE_BYTES - RECORD_CHARGE_BYTES
            if record_bytes > MAX_RECORD_BYTES + RECORD_SLACK_BYTES:
                return Refusal(
                    Code.RECORD_TOO_LARGE,
                    f"one record of {record_bytes} bytes passes Kinesis's {MAX_RECORD_BYTES} bytes a record",
                    judged=True,
                )
        if layout.charge_bytes > self.budget.limit_bytes:
            return Refusal(
                Code.CONFIGURATION,
                f"one record of {layout.charge_bytes} bytes with its overhead passes the whole queue: "
                f"queue_limit_bytes = {self.budget.limit_bytes}",
            )
        if layout.charge_bytes > self.budget.node.limit_bytes:
            return Refusal(
                Code.CONFIGURATION,
                f"one record of {layout.charge_bytes} bytes with its overhead passes what all queues of the node may "
                f"hold: node_queue_limit_bytes = {self.budget.node.limit_bytes}",
            )
        return None

    def _grant(self, ticket: Ticket, now: float) -> None:
        charge = ticket.layout.charge_bytes
        self.budget.charge(ticket.layout.records, charge)
        self._unreceived_bytes += charge
        uid = ticket.member.uid
        self._unreceived_of[uid] += charge
        if self._is_exempt(ticket):
            self._exempt_uid, self._others_since = uid, 0
        elif uid != self._exempt_uid:
            self._others_since += 1
        ticket.member.taken_bytes += charge
        ticket.member.taken_records += ticket.layout.records
        self._take_out(ticket)
        ticket.granted = True
        if now > ticket.since:
            self.wait_seconds.observe(now - ticket.since)
        ticket.member.caller.granted(ticket)

    def _refuse(self, ticket: Ticket, refusal: Refusal) -> None:
        self._take_out(ticket)
        ticket.member.caller.refused(ticket, refusal)

    def _take_out(self, ticket: Ticket) -> None:
        ticket.member.line.remove(ticket)
        ticket.waiting = False
        self._waiting -= 1

    def _clock(self, now: float) -> None:
        blocked = self._waiting or (self.withholding and any(map(self._withholds, self._members)))
        if blocked and self._active_since is None:
            self._active_since = now
        elif not blocked and self._active_since is not None:
            self._active_seconds += now - self._active_since
            self._active_since = None


def _subtract(counts: Counter[int | None], uid: int | None, amount: int) -> None:
    """Subtract from a user's count, and forget a user who has none."""
    counts[uid] -= amount
    if not counts[uid]:
        del counts[uid]
