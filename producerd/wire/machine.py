"""The order of messages in a session, as tables for each side.

A session is connected, greeted by HELLO, open from WELCOME on, and closed by a CLOSE of either side or the end of the
socket.  Within the session each frame has a state of its own::

    client                                      daemon
    IDLE --RESERVE--> RESERVED                  IDLE --RESERVE--> RESERVED
    RESERVED --GRANT--> GRANTED --BODY--> SENT  RESERVED --GRANT--> GRANTED --BODY--> SENT
    RESERVED --REFUSED--> IDLE                  RESERVED --REFUSED--> IDLE
    RESERVED --CANCEL--> CANCELLING             RESERVED --CANCEL--> CANCELLING --REFUSED--> IDLE
    CANCELLING --GRANT or REFUSED--> IDLE       GRANTED --CANCEL--> IDLE     (a GRANT that crossed it)
    SENT --ACK--> IDLE                          IDLE --CANCEL--> IDLE        (a REFUSED that crossed it)
                                                SENT --ACK--> IDLE

The daemon answers each RESERVE with exactly one GRANT or REFUSED, and each body with exactly one ACK.  At most
``window_frames`` frames are in a state other than IDLE, which bounds the waiting RESERVEs and acknowledgements.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from producerd.errors import ProtocolError
from producerd.wire import messages
from producerd.wire.messages import MessageType as M


class _State(Enum):
    """An enumeration whose members are found in tables by their identity: `Enum` hashes their names, in Python."""

    __hash__ = object.__hash__


class Side(_State):
    """The two sides of a session."""

    CLIENT = "client"
    DAEMON = "daemon"


class SessionState(_State):
    """The states of a session, in the order in which it passes through them."""

    CONNECTED = "connected"
    GREETED = "greeted"
    OPEN = "open"
    CLOSED = "closed"


class FrameState(_State):
    """The states of a frame.  A frame is IDLE before its RESERVE and after its end."""

    IDLE = "idle"
    RESERVED = "reserved"
    CANCELLING = "cancelling"
    GRANTED = "granted"
    SENT = "sent"


_S, _F = SessionState, FrameState
_IDLE: Final = FrameState.IDLE
_RESERVE: Final = M.RESERVE

SESSION: Final[dict[tuple[SessionState, M], SessionState]] = {
    (_S.CONNECTED, M.HELLO): _S.GREETED,
    (_S.GREETED, M.WELCOME): _S.OPEN,
    **{(_S.OPEN, type_): _S.OPEN for type_ in M if type_ not in (M.HELLO, M.WELCOME)},
    **{(state, M.CLOSE): _S.CLOSED for state in SessionState},  # CLOSED too: the CLOSEs of both sides may cross
}
"""The next state of a session, by its state and a message of either side.  A missing pair is forbidden."""

_BOTH: Final = {
    (_F.IDLE, M.RESERVE): _F.RESERVED,
    (_F.RESERVED, M.GRANT): _F.GRANTED,
    (_F.RESERVED, M.REFUSED): _F.IDLE,
    (_F.RESERVED, M.CANCEL): _F.CANCELLING,
    (_F.CANCELLING, M.REFUSED): _F.IDLE,
    (_F.GRANTED, M.BODY): _F.SENT,
    (_F.SENT, M.ACK): _F.IDLE,
}
FRAME: Final[dict[Side, dict[tuple[FrameState, M], FrameState]]] = {
    Side.CLIENT: {**_BOTH, (_F.CANCELLING, M.GRANT): _F.IDLE},
    Side.DAEMON: {**_BOTH, (_F.GRANTED, M.CANCEL): _F.IDLE, (_F.IDLE, M.CANCEL): _F.IDLE},
}
"""The next state of a frame, by its state and a message, as each side sees it.  A missing pair is forbidden."""

SENDER: Final = {
    **dict.fromkeys((M.HELLO, M.OPEN, M.RESERVE, M.CANCEL, M.BODY, M.FLUSH, M.STATUS), Side.CLIENT),
    **dict.fromkeys((M.WELCOME, M.OPENED, M.GRANT, M.REFUSED, M.ACK, M.BLOCKED, M.DRAINING, M.FIGURES), Side.DAEMON),
}
"""The side that may send each message.  Both sides may send CLOSE, which is missing here."""
_NAMES_A_FRAME: Final = frozenset({M.RESERVE, M.GRANT, M.CANCEL, M.BODY, M.ACK})
"""Messages that always name a frame.  A REFUSED names one too, unless its id is 0: then it answers an OPEN."""


class Machine:
    """One side's view of one session.  The side reports each message that it sends or receives, in order.

    A message that the tables forbid raises ProtocolError before any state changes.
    """

    def __init__(self, side: Side, window_frames: int) -> None:
        self.side = side
        self._peer = Side.DAEMON if side is Side.CLIENT else Side.CLIENT
        self._next_of_frame = FRAME[side]
        self.window_frames = window_frames
        self.state = SessionState.CONNECTED
        self._frames: dict[int, FrameState] = {}
        self.last_frame_id = 0

    @property
    def outstanding(self) -> int:
        """Number of frames in a state other than IDLE."""
        return len(self._frames)

    def set_window(self, window_frames: int) -> None:
        """Allow as many open frames as WELCOME says."""
        self.window_frames = window_frames

    def frame_state(self, frame_id: int) -> FrameState:
        """Return the state of a frame, which may not have been reserved yet."""
        return self._frames.get(frame_id, FrameState.IDLE)

    def sent(self, type_: M, frame_id: int = 0) -> None:
        """Note that this side sends a message.  ``frame_id`` is 0 if the message names no frame."""
        self._step(self.side, type_, frame_id)

    def received(self, type_: M, frame_id: int = 0) -> None:
        """Note that a message of the other side has arrived.  ``frame_id`` is 0 if the message names no frame."""
        self._step(self._peer, type_, frame_id)

    def check_receives(self, type_: M) -> None:
        """Raise ProtocolError if the other side never sends this type of message."""
        if SENDER.get(type_, self._peer) is not self._peer:
            raise _from_the_wrong_side(self._peer, type_)

    def _step(self, sender: Side, type_: M, frame_id: int) -> None:
        if SENDER.get(type_, sender) is not sender:
            raise _from_the_wrong_side(sender, type_)
        state = SESSION.get((self.state, type_))
        if state is None:
            raise ProtocolError(f"{type_.name} while the session is {self.state.value}")
        if frame_id or type_ in _NAMES_A_FRAME:
            self._step_frame(type_, frame_id)
        self.state = state

    def _step_frame(self, type_: M, frame_id: int) -> None:
        frames = self._frames
        old = frames.get(frame_id, _IDLE)
        new = self._next_of_frame.get((old, type_))
        if new is None:
            raise ProtocolError(f"{type_.name} of frame {frame_id}, which is {old.value}")
        if type_ is _RESERVE:
            if frame_id <= self.last_frame_id:
                raise ProtocolError(f"RESERVE of frame {frame_id} after frame {self.last_frame_id}")
            if len(frames) >= self.window_frames:
                raise ProtocolError(f"RESERVE of frame {frame_id} passes the window of {self.window_frames} frames")
            self.last_frame_id = frame_id
        elif not 0 < frame_id <= self.last_frame_id:
            raise ProtocolError(f"{type_.name} of frame {frame_id}, which was never reserved")
        if new is _IDLE:
            frames.pop(frame_id, None)
        else:
            frames[frame_id] = new


def _from_the_wrong_side(sender: Side, type_: M) -> ProtocolError:
    return ProtocolError(f"{type_.name} from the {sender.value}")


def frame_id_of(message: messages.Message) -> int:
    """Return the id of the frame that a message names, or 0."""
    return getattr(message, "frame_id", 0)
