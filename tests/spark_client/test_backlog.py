"""What no daemon has acknowledged is sent again in the order in which it was put, marked as resent, and counted."""

from __future__ import annotations

from producerd.wire import messages
from producerd.wire.columns import FLAG_RESENT, lay_out
from spark_client.backlog import Backlog, UnackedFrame
from spark_client.tally import Tally
from tests.spark_client.fake_daemon import RETURNED


def backlog_of(*sizes: int) -> tuple[Backlog, Tally]:
    """A backlog whose frames have ids from 1 on, as they were sent."""
    backlog, tally, first = Backlog(sends_again=True, acknowledged=lambda: None), Tally(), 0
    for frame_id, size in enumerate(sizes, 1):
        columns = lay_out([b"k"] * size, [b"row %d" % (first + place) for place in range(size)])
        backlog.keep(frame_id, UnackedFrame("s", columns, range(first, first + size), tally, first))
        first += size
    return backlog, tally


def returned(frame_id: int, records: int, *places: int) -> messages.Ack:
    """Return the ACK of a frame whose rows the daemon stored, except some that it gives back."""
    bitmap = sum(1 << place for place in places).to_bytes((records + 7) // 8, "little")
    return messages.Ack(frame_id, records, records - len(places), 0, 0, len(places), bitmap=bitmap, codes=(RETURNED,))


def test_what_came_back_and_what_was_lost_is_sent_again_in_the_order_of_put() -> None:
    backlog, tally = backlog_of(2, 4, 3)
    backlog.end_frame(returned(3, 3, 0, 2))
    backlog.end_frame(returned(1, 2, 1))
    assert str(backlog) == "3 frames with 7 records are not acknowledged"
    assert backlog.returned_records == 3
    backlog.lose()
    assert [list(frame.rows) for frame in backlog.again] == [[1], [2, 3, 4, 5], [6, 8]]
    assert all(frame.columns.layout.flags & FLAG_RESENT for frame in backlog.again)
    assert (backlog.sent, backlog.sent_bytes) == ({}, 0)
    assert (tally.records, tally.stored, tally.possible_duplicates, tally.resent) == (2, 2, 4, 0)
    assert [list(backlog.pop_first().rows) for _ in range(2)] == [[1], [2, 3, 4, 5]]
    assert tally.resent == 5


def test_a_frame_that_is_split_keeps_its_place_and_its_rows() -> None:
    backlog, _ = backlog_of(5, 1)
    backlog.lose()
    backlog.split_first()
    assert [list(frame.rows) for frame in backlog.again] == [[0, 1], [2, 3, 4], [5]]
    assert [frame.first for frame in backlog.again] == [0, 2, 5]
    assert [bytes(frame.columns.parts[-1]) for frame in backlog.again] == [b"row 0row 1", b"row 2row 3row 4", b"row 5"]
    assert all(frame.columns.layout.flags & FLAG_RESENT for frame in backlog.again)
