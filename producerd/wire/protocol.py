"""One side of a session on the wire: bytes come in, and events come out in their order.

    get_buffer -> [the socket reads into it] -> received -> next_event, until it returns None

A `Protocol` checks each message by the tables of `machine`, and the head of each body by the RESERVE that was granted,
before the body has any memory.  It uses no socket and never waits.  Its owner may stop between two events, and go on
with the bytes that are left.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Union

from producerd.errors import ProtocolError
from producerd.wire import messages
from producerd.wire.columns import FLAG_RESENT, Body, Layout, parse_body
from producerd.wire.machine import Machine, Side, frame_id_of
from producerd.wire.messages import HEADER, Message, MessageType

CONTROL_BUFFER_BYTES: Final = 2 * messages.MAX_CONTROL_BYTES
"""Size of the buffer for everything except bodies.  A client's grows for a longer acknowledgement."""
_BODY: Final = MessageType.BODY
"""Python 3.11 and 3.12 find a member of an enumeration in five times the time that they need for a global name."""


class BodyBegins(NamedTuple):
    """The head of a granted frame's body has come, and not all of it.

    Its bytes go to the buffer that `Protocol.read_body` is given.
    """

    frame_id: int
    layout: Layout


Event = Union[Message, BodyBegins, Body]


class Protocol:
    """One side's view of a session.  Raises ProtocolError for what the other side may not send, and then reads no more.

    ``machine`` knows the states of the session and of its frames.
    """

    def __init__(self, side: Side, window_frames: int) -> None:
        self.machine = Machine(side, window_frames)
        self._control = bytearray(CONTROL_BUFFER_BYTES)
        self._at = self._end = 0  # where the unread bytes of the control buffer begin and end
        self._layouts: dict[int, Layout] = {}  # of the frames that wait for their GRANT
        self._granted: BodyBegins | None = None  # the one frame whose body may come
        self._body: memoryview | None = None
        self._body_end = 0
        self._body_flags = 0

    @property
    def reads_body(self) -> bool:
        """Whether a body has begun and is not whole."""
        return self._body is not None

    @property
    def has_more(self) -> bool:
        """Whether the header of a message is here that is in no event yet."""
        return self._body is None and self._end - self._at >= HEADER.size

    @property
    def unread(self) -> memoryview:
        """The bytes that have come and are in no event yet, except a body's."""
        return memoryview(self._control)[self._at : self._end]

    def send(self, message: Message) -> bytes:
        """Return the bytes of a message that this side sends now."""
        data = messages.encode(message)
        frame_id = frame_id_of(message)
        self.machine.sent(messages.number_of(message), frame_id)
        if isinstance(message, messages.Grant):
            self._granted = BodyBegins(frame_id, self._layouts.pop(frame_id))
        elif isinstance(message, messages.Refused):
            self._layouts.pop(frame_id, None)
        return data

    def send_body(self, frame_id: int, layout: Layout) -> bytes:
        """Return the header of a body that this side sends now.  The prefix and the columns follow it."""
        self.machine.sent(MessageType.BODY, frame_id)
        return messages.body_header(layout)

    def get_buffer(self) -> memoryview:
        """Return where the next bytes go."""
        if self._body is not None:
            return self._body[self._body_end :]
        left = self._end - self._at
        if left and self._at:
            self._control[:left] = self._control[self._at : self._end]
        self._at, self._end = 0, left
        if left == len(self._control) and self.machine.side is Side.CLIENT:  # an ACK may be long
            self._control = self._control + bytes(left)
        elif not left and len(self._control) > CONTROL_BUFFER_BYTES:
            self._control = bytearray(CONTROL_BUFFER_BYTES)
        return memoryview(self._control)[self._end :]

    def received(self, nbytes: int) -> None:
        """Note that ``nbytes`` have come into the buffer."""
        if self._body is not None:
            self._body_end += nbytes
        else:
            self._end += nbytes

    def next_event(self) -> Event | None:
        """Return the next message, or the begin or the end of a body, or None if no more is here.

        A small body that is here at once has no begin.
        """
        if self._body is not None:
            return self._whole_body(self._body) if self._body_end == len(self._body) else None
        at = self._at + HEADER.size
        if at > self._end:
            return None
        header = messages.parse_header(self._control, self._at)
        if header.type is _BODY:
            return self._begin_body(header)
        end = at + header.payload_bytes
        if end > self._end:
            self.machine.check_receives(header.type)  # before it is whole: an ACK may be long
            return None
        message = messages.decode(header, bytes(self._control[at:end]))
        frame_id = frame_id_of(message)
        self.machine.received(header.type, frame_id)
        self._at = end
        if isinstance(message, messages.Reserve):
            self._layouts[frame_id] = message.layout
        elif isinstance(message, messages.Cancel):
            self._layouts.pop(frame_id, None)
            if self._granted is not None and self._granted.frame_id == frame_id:
                self._granted = None
        return message

    def _begin_body(self, header: messages.Header) -> BodyBegins | Body:
        begins = self._granted
        if begins is None:
            self.machine.check_receives(header.type)
            raise ProtocolError("a BODY that was not granted")
        layout = begins.layout
        if header.payload_bytes != layout.body_bytes or (header.flags ^ layout.flags) & ~FLAG_RESENT:
            raise ProtocolError(f"a BODY of {header.payload_bytes} bytes where {layout.body_bytes} were granted")
        self._body_flags = header.flags
        begin = self._at + HEADER.size
        end = begin + layout.body_bytes
        if end > self._end:
            return begins
        self._at = end
        return self._whole_body(memoryview(self._control[begin:end]))

    def read_body(self, buffer: memoryview) -> None:
        """Read the body that begins into ``buffer``, which has its size, first of all what is already here."""
        at = self._at + HEADER.size
        here = min(self._end - at, len(buffer))
        buffer[:here] = memoryview(self._control)[at : at + here]
        self._at = at + here
        self._body, self._body_end = buffer, here

    def _whole_body(self, payload: memoryview) -> Body:
        assert self._granted is not None
        self._body = None
        (frame_id, layout), self._granted = self._granted, None
        body = parse_body(payload, self._body_flags, layout)
        if body.frame_id != frame_id or body.layout.charge_bytes != layout.charge_bytes:
            raise ProtocolError(f"the BODY of frame {body.frame_id} is not the one that was granted")
        if body.layout.records != layout.records:
            raise ProtocolError(f"a BODY of {body.layout.records} records where {layout.records} were granted")
        self.machine.received(_BODY, frame_id)
        return body

    def stop(self) -> None:
        """Release the buffers, because no more is read."""
        self._control, self._body, self._granted = bytearray(HEADER.size), None, None
        self._at = self._end = 0
