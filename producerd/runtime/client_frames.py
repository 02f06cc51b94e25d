"""The frames of one client, from RESERVE to ACK, and the streams that it sends them to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from producerd.config.tuning import Tuning
from producerd.core.gate import Refusal, Ticket
from producerd.core.rows.frame import Frame, RowEnd
from producerd.errors import Code, ProtocolError
from producerd.runtime.client_socket import ClientDeadline, ClientSocket, unreadable
from producerd.runtime.stream import Stream
from producerd.wire import messages
from producerd.wire.columns import Body

BODY_BEGINS_SECONDS: Final = 2.0
"""Time after a GRANT in which the body must begin: a client sends it at once.

Until then its room is held for nothing, and other callers may be waiting for it.
"""
FIRST_BLOCKED_SECONDS: Final = 30.0
"""Time after which a waiting RESERVE is reported to the log and the client."""
NEXT_BLOCKED_SECONDS: Final = 300.0
"""Time between further reports of a waiting RESERVE."""


class SessionStream:
    """A stream that one session has open, as its gate and its pipeline call it: they name the stream of a frame."""

    __slots__ = ("_frames", "_takes_good", "member", "stream", "stream_id")

    def __init__(
        self,
        frames: ClientFrames,
        stream_id: int,
        stream: Stream,
        *,
        uid: int | None,
        resumed: bool,
        takes_good: bool,
    ) -> None:
        self._frames = frames
        self._takes_good = takes_good
        self.stream_id = stream_id
        self.stream = stream
        self.member = stream.join(self, patient=resumed, uid=uid)

    def may_receive(self, charge_bytes: int) -> bool:
        """Return whether the client may be granted a body of this charge now."""
        return self._frames.may_receive(charge_bytes)

    def granted(self, ticket: Ticket) -> None:
        """Send the GRANT of a ticket."""
        self._frames.grant(self, ticket)

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        """Send the refusal of a ticket.  If it is the end of its row, that fails later ones as at intake."""
        ends_row = ticket.layout.records == 1 and refusal.code in (Code.RECORD_TOO_LARGE, Code.CONFIGURATION)
        if ends_row and not (refusal.judged and self._takes_good):
            self.stream.pipeline.frame_refused(self)
        if refusal.judged:
            self.stream.count_rejected(refusal.code)
        elif refusal.code not in (Code.TOO_LARGE, Code.DRAINING):  # after which the client sends it otherwise
            self.stream.count_refused(ticket.layout.records)
        self._frames.refuse(self, ticket.frame_id, refusal)

    def finished(self, frame: Frame) -> None:
        """Send the acknowledgement of a frame."""
        self._frames.acknowledge(self, frame)


class ClientFrames:
    """What a client has reserved, was granted and has unacknowledged, within the window that WELCOME names.

    Each RESERVE and each frame is answered, or the session ends.  One body comes at a time.  ``report_blocked`` is
    called with a stream and the seconds for which a RESERVE has waited for it.
    """

    def __init__(
        self,
        tuning: Tuning,
        socket: ClientSocket,
        deadline: ClientDeadline,
        report_blocked: Callable[[SessionStream, float], None],
    ) -> None:
        self._tuning = tuning
        self._body_begins_seconds = min(BODY_BEGINS_SECONDS, tuning.body_timeout_seconds)
        self._socket, self._deadline, self._report_blocked = socket, deadline, report_blocked
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[SessionStream, Ticket, asyncio.TimerHandle]] = {}
        self._granted: tuple[SessionStream, Ticket] | None = None  # the one body that the client may send
        self._unacked: dict[int, tuple[SessionStream, int]] = {}  # by frame id, with the charge in bytes
        self._unacked_bytes = 0
        self._withheld: dict[SessionStream, None] = {}  # streams that know that the window is full
        self.answered_at = -inf  # when the client last received an ACK

    def __repr__(self) -> str:
        bytes_ = f"{len(self._unacked)} frames with {self._unacked_bytes} bytes"
        return f"{bytes_} not acknowledged, {len(self._waiting)} waiting"

    @property
    def are_awaited(self) -> bool:
        """Whether the client waits for a GRANT or an ACK."""
        return bool(self._unacked or self._waiting)

    def streams(self) -> list[SessionStream]:
        """Return the streams that have unacknowledged frames.  The client may have hundreds of others open."""
        return list(dict.fromkeys([opened for opened, _ in self._unacked.values()]))

    # ---- from RESERVE to GRANT

    def reserve(self, opened: SessionStream, message: messages.Reserve) -> None:
        """Ask the stream for room."""
        ticket = opened.stream.reserve(opened.member, message.frame_id, message.layout, self._loop.time())
        if ticket.waiting:
            self._report_after(FIRST_BLOCKED_SECONDS, opened, ticket)

    def may_receive(self, charge_bytes: int) -> bool:
        """Return whether a body of ``charge_bytes`` may be granted now.

        One body comes at a time, within the window, and only from a client that reads its answers.
        """
        if self._granted is not None or self._socket.is_choked or not self._socket.is_connected:
            return False
        return not self._unacked or self._unacked_bytes + charge_bytes <= self._tuning.session_window_bytes

    def look_again(self) -> None:
        """Have streams look whether their frames that wait may be received now."""
        if self._waiting:
            for opened in {opened: None for opened, _, _ in self._waiting.values()}:
                opened.stream.listen_again()

    def grant(self, opened: SessionStream, ticket: Ticket) -> None:
        """Send the GRANT of a ticket, and wait for its body."""
        self._wait_no_more(ticket.frame_id)
        self._granted = opened, ticket
        self._unacked[ticket.frame_id] = opened, ticket.layout.charge_bytes
        self._unacked_bytes += ticket.layout.charge_bytes
        self._deadline.expect("a body", "had not begun", self._body_begins_seconds)
        self._socket.send(messages.Grant(ticket.frame_id))

    def refuse(self, opened: SessionStream, frame_id: int, refusal: Refusal) -> None:
        """Send the refusal of a frame that the client reserved."""
        self._wait_no_more(frame_id)
        size = refusal.max_frame_bytes, refusal.max_frame_records
        why = opened.stream_id, refusal.code, refusal.message
        self._socket.send(messages.Refused(frame_id, *why, *size, judged=int(refusal.judged)))

    def cancel(self, frame_id: int) -> None:
        """Give up a RESERVE whose body has not begun."""
        now = self._loop.time()
        if self._granted is not None and self._granted[1].frame_id == frame_id:
            opened, ticket = self._take_granted()
            self._release(frame_id)
            opened.stream.cancel(ticket, now)
        elif frame_id in self._waiting:
            opened, ticket, _ = self._waiting[frame_id]
            why = opened.stream.report.describe(now)
            opened.stream.cancel(ticket, now)
            self.refuse(opened, frame_id, Refusal(Code.CANCELLED, why))

    def give_up(self, now: float) -> None:
        """Give up every RESERVE, because the session ends."""
        if self._granted is not None:
            opened, ticket = self._take_granted()
            opened.stream.cancel(ticket, now)
        for frame_id in list(self._waiting):
            self._wait_no_more(frame_id)

    # ---- from the body to ACK

    def submit(self, body: Body, *, takes_good: bool) -> bool:
        """Hand a whole frame to the pipeline.  Return False if its bad rows refuse it, which is answered at once."""
        assert self._granted is not None
        try:
            rows = self._granted[0].stream.check(body)
        except ProtocolError:
            raise
        except Exception as error:
            raise unreadable() from error
        opened, ticket = self._take_granted()
        charge_bytes = ticket.layout.charge_bytes
        frame = Frame(opened, ticket.frame_id, rows, charge_bytes, patient=ticket.patient, takes_good=takes_good)
        accepted = opened.stream.accept(frame, ticket, self._loop.time())
        if not accepted:
            self.acknowledge(opened, frame)
        else:
            if self._withheld:
                self._withhold([opened])
            self._look_at_window()
        return accepted

    def acknowledge(self, opened: SessionStream, frame: Frame) -> None:
        """Send the result of a frame that is settled, and make room in the window."""
        self.answered_at = self._loop.time()
        self._release(frame.frame_id)
        self.look_again()
        opened.stream.gate.settled(opened.member, frame.records, frame.charge_bytes)
        end = frame.result()
        codes = tuple(map(_row_code, end.codes))
        self._socket.send(messages.Ack(frame.frame_id, *end[:9], end.bitmap, end.code_rows, codes, end.judged))

    # ---- inside

    def _report_after(self, seconds: float, opened: SessionStream, ticket: Ticket) -> None:
        timer = self._loop.call_later(seconds, self._report, opened, ticket)
        self._waiting[ticket.frame_id] = opened, ticket, timer

    def _report(self, opened: SessionStream, ticket: Ticket) -> None:
        self._report_blocked(opened, self._loop.time() - ticket.since)
        self._report_after(NEXT_BLOCKED_SECONDS, opened, ticket)

    def _wait_no_more(self, frame_id: int) -> None:
        if frame_id in self._waiting:
            self._waiting.pop(frame_id)[-1].cancel()

    def _take_granted(self) -> tuple[SessionStream, Ticket]:
        granted, self._granted = self._granted, None
        self._deadline.stop()
        assert granted is not None
        self.look_again()
        return granted

    def _release(self, frame_id: int) -> None:
        """Make room in the window."""
        _, charge_bytes = self._unacked.pop(frame_id)
        self._unacked_bytes -= charge_bytes
        self._look_at_window()

    def _look_at_window(self) -> None:
        """Tell the streams of unacknowledged frames whether the client's window has room for another full frame.

        If it has not, the client may be waiting for acknowledgements, and the streams send at once what it already gave
        them.  A client that sends a single record larger than a full frame asks for a flush itself.
        """
        tuning = self._tuning
        is_full = (
            len(self._unacked) >= tuning.session_window_frames
            or self._unacked_bytes + tuning.max_frame_bytes > tuning.session_window_bytes
        )
        if is_full and not self._withheld:
            self._withhold(self.streams())
        elif not is_full:
            for opened in self._withheld:
                opened.stream.set_window(opened.member, self._loop.time(), is_full=False)
            self._withheld.clear()

    def _withhold(self, streams: Iterable[SessionStream]) -> None:
        for opened in streams:
            self._withheld[opened] = None
            opened.stream.set_window(opened.member, self._loop.time(), is_full=True)


def _row_code(end: RowEnd) -> messages.RowCode:
    return messages.RowCode(end.outcome, end.code, end.message, end.maybe_stored)
