"""The frames that no daemon has acknowledged: the present daemon has them, or they must be sent again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from producerd.errors import ProtocolError
from producerd.wire import messages
from producerd.wire.columns import FLAG_RESENT, Columns, Layout
from spark_client.results import counted
from spark_client.tally import Tally


@dataclass(frozen=True)
class UnackedFrame:
    """A frame that no daemon has acknowledged.

    ``tally`` counts its rows, and names them by their numbers in ``rows``.  ``first`` counts the rows that were put
    before it, and so gives the order in which frames are sent again.
    """

    stream: str
    columns: Columns
    rows: Sequence[int]
    tally: Tally
    first: int

    def resent(self) -> UnackedFrame:
        """Return this frame marked as sent again."""
        return dataclasses.replace(self, columns=_marked(self.columns))

    def part(self, places: Sequence[int]) -> UnackedFrame:
        """Return some rows of this frame as a frame of their own, marked as sent again."""
        rows = [self.rows[place] for place in places]
        columns = _marked(self.columns.take(places))
        return dataclasses.replace(self, columns=columns, rows=rows, first=self.first + places[0])


class Backlog:
    """All frames of a client that no daemon has acknowledged.

    - ``sent``: the frames whose body went to the present daemon, by id.  The session's `Machine` knows their states.
    - ``again``: frames to be sent again, because their daemon was lost or gave them back.
    - ``given_up_records``: how many records came back without ``sends_again``.  They have ended as failures.

    ``acknowledged`` is called after each acknowledgement.
    """

    def __init__(self, *, sends_again: bool, acknowledged: Callable[[], object]) -> None:
        self.sent: dict[int, UnackedFrame] = {}
        self.sent_bytes = 0
        self.again: list[UnackedFrame] = []
        self.given_up_records = 0
        self._sends_again = sends_again
        self._acknowledged = acknowledged
        self._has_stored = False

    def __str__(self) -> str:
        owed = [*self.sent.values(), *self.again]
        if not owed:
            return "every record that was sent is acknowledged"
        records = counted(sum(len(frame.rows) for frame in owed), "record")
        return f"{counted(len(owed), 'frame')} with {records} {'is' if len(owed) == 1 else 'are'} not acknowledged"

    @property
    def returned_records(self) -> int:
        """How many records are to be sent again, or came back and have ended."""
        return self.given_up_records + sum(len(frame.rows) for frame in self.again)

    @property
    def is_resumed(self) -> bool:
        """Whether a session that begins now goes on with an earlier one, which stored rows or left some."""
        return self._has_stored or bool(self.again)

    def send_no_more(self) -> None:
        """Let rows that come back from now on end as failures.  Any thread may call this."""
        self._sends_again = False

    def keep(self, frame_id: int, frame: UnackedFrame) -> None:
        """Keep a frame whose body is being sent."""
        self.sent[frame_id] = frame
        self.sent_bytes += frame.columns.layout.charge_bytes

    def end_frame(self, ack: messages.Ack) -> None:
        """End a frame as its ACK says, and keep the rows that the daemon gave back to be sent again."""
        frame = self.sent.pop(ack.frame_id)
        columns, layout, tally = frame.columns, frame.columns.layout, frame.tally
        if ack.records != layout.records:
            raise ProtocolError(f"ACK of {ack.records} records for a frame of {layout.records}")
        self.sent_bytes -= layout.charge_bytes
        not_stored = [place for place, _ in ack.failed_rows()]
        tally.add_payload(
            _payload_bytes(layout) - (_payload_bytes(columns.take(not_stored).layout) if not_stored else 0)
        )
        self._has_stored |= ack.stored > 0
        back = tally.add_ack(ack, frame.rows, frame.stream, columns, sends_again=self._sends_again)
        if back:
            self.again.append(frame.part(back))
        else:
            self.given_up_records += ack.returned
        self._acknowledged()

    def lose(self) -> None:
        """Keep what a lost daemon did not acknowledge to be sent again, in order.  It may be stored twice."""
        for frame in self.sent.values():
            frame.tally.add_lost(len(frame.rows))
            self.again.append(frame.resent())
        self.again.sort(key=lambda frame: frame.first)
        self.sent.clear()
        self.sent_bytes = 0

    def split_first(self) -> None:
        """Halve the first frame to be sent again, as it is larger than the daemon takes."""
        frame = self.again[0]
        places, middle = range(len(frame.rows)), len(frame.rows) // 2
        self.again[:1] = [frame.part(places[:middle]), frame.part(places[middle:])]

    def pop_first(self) -> UnackedFrame:
        """Take out the first frame to be sent again, and count it as resent."""
        frame = self.again.pop(0)
        frame.tally.add_resent(len(frame.rows))
        return frame


def _marked(columns: Columns) -> Columns:
    return Columns(dataclasses.replace(columns.layout, flags=columns.layout.flags | FLAG_RESENT), columns.parts)


def _payload_bytes(layout: Layout) -> int:
    return layout.key_bytes + layout.data_bytes + layout.hash_key_bytes
