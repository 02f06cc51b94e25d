"""Bytes of a peer give messages or a ProtocolError, on the daemon's side and on the client's, however they are cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from producerd.errors import ProtocolError
from producerd.wire import messages
from producerd.wire.columns import Body, Layout, lay_out
from producerd.wire.machine import FrameState, Side
from producerd.wire.protocol import CONTROL_BUFFER_BYTES, BodyBegins, Event, Protocol
from tests.fuzz.targets import in_cuts

WINDOW_FRAMES: Final = 4
LARGEST_FRAME_BYTES: Final = 64 * 1024
ROW: Final = lay_out([b"key", b""], [b"data", None], [b"7", None])


def check(data: bytes) -> None:
    """The first byte chooses the side, and how the rest is cut."""
    choice, said = data[:1] or b"\0", data[1:]
    side = (Side.DAEMON, Side.CLIENT)[choice[0] & 1]
    whole = list(_heard(side, [said]))
    assert [*_heard(side, in_cuts(said, choice[0]))] == whole, "other events if the bytes are cut"
    for event in whole[:-1]:
        assert messages.encode(_decoded(event)) == event, "a message that encodes to another"


def _heard(side: Side, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the events as bytes, and answer as that side does.  The last one is how it ended."""
    peer = _Peer(side)
    try:
        for piece in pieces:
            unread = memoryview(piece)
            while unread:
                buffer = peer.protocol.get_buffer()
                size = min(len(buffer), len(unread))
                assert size, "no room for the next bytes"
                assert len(buffer) <= peer.most_bytes(), "more memory than a checked header allows"
                buffer[:size] = unread[:size]
                peer.protocol.received(size)
                unread = unread[size:]
                while (event := peer.protocol.next_event()) is not None:
                    if isinstance(event, BodyBegins):
                        peer.protocol.read_body(memoryview(peer.room_for(event.layout)))
                        continue
                    if not isinstance(event, Body):
                        yield messages.encode(event)
                    peer.answer(event)
    except ProtocolError:  # its text depends on the cuts: what the other side never sends ends before it is whole
        yield b"breach"
    else:
        yield b""


class _Peer:
    """The side that hears."""

    def __init__(self, side: Side) -> None:
        self.protocol = Protocol(side, WINDOW_FRAMES)
        self._granted: dict[int, Layout] = {}
        if side is Side.CLIENT:
            self.protocol.send(messages.Hello(1, 1))

    def most_bytes(self) -> int:
        if self.protocol.machine.side is Side.CLIENT:
            return 2 * (messages.MAX_ACK_BYTES + CONTROL_BUFFER_BYTES)
        return max(CONTROL_BUFFER_BYTES, LARGEST_FRAME_BYTES)

    def room_for(self, layout: Layout) -> bytearray:
        assert layout in self._granted.values(), "a body that was not granted begins"
        return bytearray(layout.body_bytes)

    def answer(self, event: Event) -> None:
        send, machine = self.protocol.send, self.protocol.machine
        match event:
            case messages.Hello():
                send(messages.Welcome(1, 1, 1 << 20, WINDOW_FRAMES, LARGEST_FRAME_BYTES, 100, 10.0))
            case messages.Open():
                send(messages.Opened(event.stream_id, LARGEST_FRAME_BYTES, 100))
            case messages.Reserve() if event.layout.charge_bytes > LARGEST_FRAME_BYTES or self._granted:
                send(messages.Refused(event.frame_id, event.stream_id, "TOO_LARGE", ""))
            case messages.Reserve():
                self._granted[event.frame_id] = event.layout
                send(messages.Grant(event.frame_id))
            case messages.Cancel():
                self._granted.pop(event.frame_id, None)
                if machine.frame_state(event.frame_id) is FrameState.CANCELLING:
                    send(messages.Refused(event.frame_id, 1, "CANCELLED", ""))
            case Body():
                granted, given = self._granted.pop(event.frame_id), event.layout
                assert given.records == granted.records, "another number of records than the granted one"
                assert given.charge_bytes == granted.charge_bytes, "another charge than the granted one"
                assert sum(len(part) for part in event[2:] if part is not None) < event.layout.body_bytes
                records = event.layout.records
                send(messages.Ack(event.frame_id, records, records, 0, 0, 0))
            case messages.Welcome():
                self.protocol.machine.set_window(min(event.window_frames, WINDOW_FRAMES))
                send(messages.Open(1, "flights"))
                for frame_id in range(1, 1 + self.protocol.machine.window_frames):
                    send(messages.Reserve(frame_id, 1, ROW.layout))
            case messages.Grant() if machine.frame_state(event.frame_id) is FrameState.GRANTED:
                self.protocol.send_body(event.frame_id, ROW.layout)
            case messages.Ack():
                assert all(row < event.records for row, _ in event.failed_rows())


def _decoded(encoded: bytes) -> messages.Message:
    return messages.decode(messages.parse_header(encoded), encoded[messages.HEADER.size :])
