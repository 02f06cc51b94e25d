"""Which message may follow which, for each side, as tables.

A session is connected, greeted by HELLO, open from WELCOME on, and closed by either side's CLOSE or the end of the
socket.  Within it each frame lives on its own::

    client                                      daemon
    IDLE --RESERVE--> RESERVED                  IDLE --RESERVE--> RESERVED
    RESERVED --GRANT--> GRANTED --BODY--> SENT  RESERVED --GRANT--> GRANTED --BODY--> SENT
    RESERVED --REFUSED--> IDLE                  RESERVED --REFUSED--> IDLE
    RESERVED --CANCEL--> CANCELLING             RESERVED --CANCEL--> CANCELLING --REFUSED--> IDLE
    CANCELLING --GRANT or REFUSED--> IDLE       GRANTED --CANCEL--> IDLE     (a GRANT that crossed it)
    SENT --ACK--> IDLE                          IDLE --CANCEL--> IDLE        (a REFUSED that crossed it)
                                                SENT --ACK--> IDLE

Each RESERVE is answered by exactly one GRANT or REFUSED, each body by exactly one ACK.  At most ``window_frames``
frames are in any state but IDLE, so that neither RESERVEs nor acknowledgements can pile up.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from producerd.errors import ProtocolError
from producerd.wire import frames
from producerd.wire.frames import MessageType as M


class Side(Enum):
    CLIENT = "client"
    DAEMON = "daemon"


class SessionState(Enum):
    CONNECTED = "connected"
    GREETED = "greeted"
    OPEN = "open"
    CLOSED = "closed"


class FrameState(Enum):
    IDLE = "idle"
    RESERVED = "reserved"
    CANCELLING = "cancelling"
    GRANTED = "granted"
    SENT = "sent"


_S, _F = SessionState, FrameState

SESSION: Final[dict[tuple[SessionState, M], SessionState]] = {
    (_S.CONNECTED, M.HELLO): _S.GREETED,
    (_S.GREETED, M.WELCOME): _S.OPEN,
    **{(_S.OPEN, type_): _S.OPEN for type_ in M if type_ not in (M.HELLO, M.WELCOME)},
    **{(state, M.CLOSE): _S.CLOSED for state in SessionState},  # CLOSED too: two of them may cross
}
"""(state, message of either side) -> state; what is missing is forbidden."""

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
"""(state, message) -> state of one frame, as each side sees it; what is missing is forbidden."""

SENDER: Final = {
    **dict.fromkeys((M.HELLO, M.OPEN, M.RESERVE, M.CANCEL, M.BODY, M.FLUSH, M.STATUS), Side.CLIENT),
    **dict.fromkeys((M.WELCOME, M.OPENED, M.GRANT, M.REFUSED, M.ACK, M.BLOCKED, M.DRAINING), Side.DAEMON),
}
"""Who may send what; CLOSE is anybody's."""
_NAMES_A_FRAME: Final = frozenset({M.RESERVE, M.GRANT, M.CANCEL, M.BODY, M.ACK})
"""Always; REFUSED does with an id, and without one (0) it answers an OPEN."""


class Machine:
    """One side's view of one session: each message sent or received is told to it, in order.

    Raises ProtocolError for what the tables forbid, before any state changes.
    """

    def __init__(self, side: Side, window_frames: int) -> None:
        self._side = side
        self._peer = Side.DAEMON if side is Side.CLIENT else Side.CLIENT
        self.window_frames = window_frames
        self.state = SessionState.CONNECTED
        self._frames: dict[int, FrameState] = {}
        self.last_frame_id = 0

    @property
    def outstanding(self) -> int:
        """Frames in any state but IDLE."""
        return len(self._frames)

    def set_window(self, window_frames: int) -> None:
        """Allow as many open frames as WELCOME says."""
        self.window_frames = window_frames

    def frame_state(self, frame_id: int) -> FrameState:
        return self._frames.get(frame_id, FrameState.IDLE)

    def sent(self, type_: M, frame_id: int = 0) -> None:
        """This side sends a message; ``frame_id`` for those that name a frame (REFUSED of an OPEN has 0)."""
        self._step(self._side, type_, frame_id)

    def received(self, type_: M, frame_id: int = 0) -> None:
        """The other side's message arrived."""
        self._step(self._peer, type_, frame_id)

    def _step(self, sender: Side, type_: M, frame_id: int) -> None:
        if SENDER.get(type_, sender) is not sender:
            raise ProtocolError(f"{type_.name} from the {sender.value}")
        state = SESSION.get((self.state, type_))
        if state is None:
            raise ProtocolError(f"{type_.name} while the session is {self.state.value}")
        if frame_id or type_ in _NAMES_A_FRAME:
            self._step_frame(type_, frame_id)
        self.state = state

    def _step_frame(self, type_: M, frame_id: int) -> None:
        old = self.frame_state(frame_id)
        new = FRAME[self._side].get((old, type_))
        if new is None:
            raise ProtocolError(f"{type_.name} of frame {frame_id}, which is {old.value}")
        if type_ is M.RESERVE:
            if frame_id <= self.last_frame_id:
                raise ProtocolError(f"RESERVE of frame {frame_id} after frame {self.last_frame_id}")
            if len(self._frames) >= self.window_frames:
                raise ProtocolError(f"RESERVE of frame {frame_id} passes the window of {self.window_frames} frames")
            self.last_frame_id = frame_id
        elif not 0 < frame_id <= self.last_frame_id:
            raise ProtocolError(f"{type_.name} of frame {frame_id}, which was never reserved")
        if new is FrameState.IDLE:
            self._frames.pop(frame_id, None)
        else:
            self._frames[frame_id] = new


def frame_id_of(message: frames.Message) -> int:
    """The frame that a message names, or 0."""
    return getattr(message, "frame_id", 0)
