"""Both sides allow exactly what the page's table allows, and crossing messages never make them disagree."""

from __future__ import annotations

import re
from collections import deque
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.errors import ProtocolError
from producerd.wire import messages
from producerd.wire.machine import SENDER, FrameState, Machine, SessionState, Side, frame_id_of
from producerd.wire.messages import MessageType as M

pytestmark = pytest.mark.law("wire")

F, S = FrameState, SessionState
PROTOCOL = Path(__file__).resolve().parents[2] / "docs/build/protocol.md"
OF_A_FRAME = (M.RESERVE, M.GRANT, M.REFUSED, M.CANCEL, M.BODY, M.ACK)

HOW_TO_REACH: dict[Side, dict[FrameState, tuple[M, ...]]] = {
    side: {
        F.IDLE: (),
        F.RESERVED: (M.RESERVE,),
        F.CANCELLING: (M.RESERVE, M.CANCEL),
        F.GRANTED: (M.RESERVE, M.GRANT),
        F.SENT: (M.RESERVE, M.GRANT, M.BODY),
    }
    for side in Side
}


def open_machine(side: Side, window_frames: int = 4) -> Machine:
    machine = Machine(side, window_frames)
    tell(machine, side, M.HELLO)
    tell(machine, side, M.WELCOME)
    return machine


def tell(machine: Machine, side: Side, type_: M, frame_id: int = 0) -> None:
    """A message of the table, sent or received according to whose it is."""
    if SENDER.get(type_, side) is side:
        machine.sent(type_, frame_id)
    else:
        machine.received(type_, frame_id)


def page_tables() -> dict[Side, set[tuple[str, str, str]]]:
    """(state, message, state) for each side, from the diagram of docs/build/protocol.md."""
    diagram = PROTOCOL.read_text("utf-8").split("## A frame's life")[1].split("```")[1]
    found: dict[Side, set[tuple[str, str, str]]] = {Side.CLIENT: set(), Side.DAEMON: set()}
    for line in diagram.splitlines()[2:]:
        for side, half in ((Side.CLIENT, line[:44]), (Side.DAEMON, line[44:])):
            words = re.sub(r"\(.*\)", "", half)
            parts = re.split(r" --([A-Za-z ]+)--> ", words.strip())
            for old, names, new in zip(parts[::2], parts[1::2], parts[2::2], strict=False):
                found[side] |= {(old.strip(), name, new.strip()) for name in names.split(" or ")}
    return found


@pytest.mark.parametrize("side", Side)
def test_a_frame_takes_exactly_the_steps_of_the_page(side: Side) -> None:
    table = page_tables()[side]
    assert len(table) == 8 + (side is Side.DAEMON)
    taken = set()
    for old, path in HOW_TO_REACH[side].items():
        for type_ in OF_A_FRAME:
            machine = open_machine(side)
            tell(machine, side, M.RESERVE, 1)  # a frame before it, so that 2 is not the first
            for step in path:
                tell(machine, side, step, 2)
            assert machine.frame_state(2) is old
            before = machine.outstanding
            try:
                tell(machine, side, type_, 2)
            except ProtocolError:
                assert machine.frame_state(2) is old
                assert machine.outstanding == before
            else:
                taken.add((old.name, type_.name, machine.frame_state(2).name))
    # An IDLE frame that was never reserved cannot be cancelled; one that is IDLE again can, by the page.
    assert taken == table - {("IDLE", "CANCEL", "IDLE")}


def test_a_cancel_that_a_refusal_crossed_is_no_error_and_one_of_a_frame_that_never_was_is() -> None:
    machine = open_machine(Side.DAEMON)
    machine.received(M.RESERVE, 3)
    machine.sent(M.REFUSED, 3)
    machine.received(M.CANCEL, 3)
    assert machine.outstanding == 0
    with pytest.raises(ProtocolError, match="never reserved"):
        machine.received(M.CANCEL, 4)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("state", SessionState)
def test_a_session_takes_exactly_what_its_state_allows(side: Side, state: SessionState) -> None:
    for type_ in M:
        machine = Machine(side, 4)
        for step in {S.CONNECTED: (), S.GREETED: (M.HELLO,), S.OPEN: (M.HELLO, M.WELCOME), S.CLOSED: (M.CLOSE,)}[state]:
            tell(machine, side, step)
        assert machine.state is state
        if type_ in OF_A_FRAME and type_ is not M.REFUSED:
            continue  # the table of frames
        allowed = {
            S.CONNECTED: {M.HELLO, M.CLOSE},
            S.GREETED: {M.WELCOME, M.CLOSE},
            S.OPEN: set(M) - {M.HELLO, M.WELCOME},
            S.CLOSED: {M.CLOSE},
        }[state]
        if type_ in allowed:
            tell(machine, side, type_)
        else:
            with pytest.raises(ProtocolError):
                tell(machine, side, type_)
            assert machine.state is state


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("state", [S.CONNECTED, S.GREETED, S.CLOSED])
def test_no_frame_is_named_in_a_session_that_is_not_open(side: Side, state: SessionState) -> None:
    for type_ in OF_A_FRAME:
        machine = Machine(side, 4)
        for step in {S.CONNECTED: (), S.GREETED: (M.HELLO,), S.CLOSED: (M.CLOSE,)}[state]:
            tell(machine, side, step)
        with pytest.raises(ProtocolError):
            tell(machine, side, type_, 1)
        assert machine.outstanding == 0


@pytest.mark.parametrize("side", Side)
def test_a_message_from_the_wrong_side_is_a_protocol_error(side: Side) -> None:
    for type_, sender in SENDER.items():
        machine = open_machine(side)
        with pytest.raises(ProtocolError, match=f"from the {'daemon' if sender is Side.CLIENT else 'client'}"):
            (machine.received if sender is side else machine.sent)(type_, 1)
    assert set(M) - set(SENDER) == {M.CLOSE}


def test_ids_rise_from_1_and_are_never_used_again() -> None:
    machine = open_machine(Side.DAEMON)
    machine.received(M.RESERVE, 5)
    machine.sent(M.REFUSED, 5)
    for used in (5, 4, 1):
        with pytest.raises(ProtocolError, match="after frame 5"):
            machine.received(M.RESERVE, used)
    machine.received(M.RESERVE, 6)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("type_", [type_ for type_ in OF_A_FRAME if type_ is not M.REFUSED])
def test_frame_0_is_no_frame(side: Side, type_: M) -> None:
    """0 names the refusal of an OPEN: a RESERVE of it would pass every check of the window."""
    machine = open_machine(side)
    with pytest.raises(ProtocolError):
        tell(machine, side, type_, 0)
    tell(machine, side, M.REFUSED, 0)
    assert machine.outstanding == 0


def test_the_window_is_the_one_that_welcome_says() -> None:
    machine = open_machine(Side.CLIENT, window_frames=4)
    machine.set_window(1)
    tell(machine, Side.CLIENT, M.RESERVE, 1)
    with pytest.raises(ProtocolError, match="window of 1"):
        tell(machine, Side.CLIENT, M.RESERVE, 2)


@pytest.mark.parametrize("side", Side)
def test_the_window_bounds_the_frames_in_any_state_but_idle(side: Side) -> None:
    machine = open_machine(side, window_frames=3)
    for frame_id in (1, 2, 3):
        tell(machine, side, M.RESERVE, frame_id)
    tell(machine, side, M.GRANT, 1)
    tell(machine, side, M.BODY, 1)
    tell(machine, side, M.CANCEL, 2)
    with pytest.raises(ProtocolError, match="window of 3"):
        tell(machine, side, M.RESERVE, 4)
    tell(machine, side, M.ACK, 1)
    tell(machine, side, M.RESERVE, 4)
    assert machine.outstanding == 3


def test_frame_id_of_reads_the_frame_that_a_message_names() -> None:
    assert frame_id_of(messages.Grant(7)) == 7
    assert frame_id_of(messages.Flush(7)) == 0


class Pair:
    """Two machines joined by queues, driven by a client and a daemon that keep the rules."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.sides = {side: open_machine(side, window) for side in Side}
        self.queues: dict[Side, deque[tuple[M, int]]] = {side: deque() for side in Side}  # on their way to a side
        self.next_id = 1
        self.answers: dict[int, list[M]] = {}  # what the daemon sent for each frame
        self.got: dict[int, list[M]] = {}  # what the client made of it

    def send(self, side: Side, type_: M, frame_id: int) -> None:
        self.sides[side].sent(type_, frame_id)
        self.queues[Side.DAEMON if side is Side.CLIENT else Side.CLIENT].append((type_, frame_id))
        if side is Side.DAEMON:
            self.answers.setdefault(frame_id, []).append(type_)

    def deliver(self, side: Side, _: int = 0) -> None:
        type_, frame_id = self.queues[side].popleft()
        before = self.sides[side].frame_state(frame_id)
        self.sides[side].received(type_, frame_id)
        if side is Side.CLIENT:
            self.got.setdefault(frame_id, []).append(type_)
            if type_ is M.GRANT and before is F.RESERVED:
                self.send(Side.CLIENT, M.BODY, frame_id)  # at once
        elif type_ is M.CANCEL and before is F.RESERVED:
            self.send(Side.DAEMON, M.REFUSED, frame_id)

    def step(self, choice: int, *, new: bool) -> None:
        client, daemon, ids = self.sides[Side.CLIENT], self.sides[Side.DAEMON], range(1, self.next_id)
        choices: list[partial[None]] = [partial(self.deliver, side) for side in Side if self.queues[side]]
        for frame_id in ids:
            if client.frame_state(frame_id) is F.RESERVED:
                choices.append(partial(self.send, Side.CLIENT, M.CANCEL, frame_id))
            if daemon.frame_state(frame_id) is F.RESERVED:
                choices += [partial(self.send, Side.DAEMON, answer, frame_id) for answer in (M.GRANT, M.REFUSED)]
            if daemon.frame_state(frame_id) is F.SENT:
                choices.append(partial(self.send, Side.DAEMON, M.ACK, frame_id))
        if new and client.outstanding < self.window:
            choices.append(partial(self.send, Side.CLIENT, M.RESERVE, self.next_id))
        if choices:
            chosen = choices[choice % len(choices)]
            chosen()
            self.next_id += 2 * (chosen.args[1:2] == (M.RESERVE,))
        assert daemon.outstanding <= self.window, "though the client frees its place later than the daemon"


@settings(max_examples=150)
@given(window=st.integers(1, 4), choices=st.lists(st.integers(0, 59), min_size=20, max_size=60))
def test_crossing_messages_never_make_the_two_sides_disagree(window: int, choices: list[int]) -> None:
    """Any ProtocolError fails here: both sides keep the rules, and neither may accuse the other."""
    pair = Pair(window)
    for choice in choices:
        pair.step(choice, new=True)
    while any(pair.queues.values()) or any(machine.outstanding for machine in pair.sides.values()):
        pair.step(choices[0], new=False)
    assert pair.got == pair.answers
    for answers in pair.answers.values():
        # Each RESERVE is answered by exactly one GRANT or REFUSED, each body by exactly one ACK.
        assert answers in ([M.REFUSED], [M.GRANT], [M.GRANT, M.ACK])
