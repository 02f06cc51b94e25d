"""No user's clients take more of a turn of the loop than their share, which honest ones never reach."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from producerd.runtime import shares as module
from producerd.runtime.peers import Peer
from producerd.runtime.shares import COSTLY_UNITS, FLOOD_TURNS, UNITS_OF_A_TURN, TurnShares
from producerd.wire import frames
from producerd.wire.frames import MessageType
from tests.runtime.stand_ins import StandInHost, opened, tell

CORES, SESSIONS_OF_A_TASK = 192, 2
PEER, OTHER = Peer(os.getpid(), 1, 1), Peer(2, 2, 2)


def taken(shares: TurnShares, peer: Peer | None, message: MessageType, tries: int = 2 * UNITS_OF_A_TURN) -> int:
    return sum(shares.take(peer, message) for _ in range(tries))


async def test_the_tasks_of_the_largest_machine_never_reach_a_share() -> None:
    """Each with two sessions, and all with a message in the same turn."""
    sessions = CORES * SESSIONS_OF_A_TASK
    for message in (MessageType.HELLO, MessageType.RESERVE, MessageType.BODY, MessageType.FLUSH, MessageType.CLOSE):
        assert taken(TurnShares(), PEER, message, sessions) == sessions


@pytest.mark.parametrize("peer", [PEER, None])
async def test_what_exceeds_a_share_waits_for_the_next_turn_and_other_users_do_not(peer: Peer | None) -> None:
    shares = TurnShares()
    assert taken(shares, peer, MessageType.RESERVE) == UNITS_OF_A_TURN
    assert taken(shares, OTHER, MessageType.STATUS) == UNITS_OF_A_TURN / COSTLY_UNITS
    await asyncio.sleep(0)
    assert taken(shares, peer, MessageType.CANCEL) == UNITS_OF_A_TURN


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


async def test_a_flood_is_reported_once_a_minute_with_its_process(
    log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = TurnShares()
    taken(shares, PEER, MessageType.RESERVE, UNITS_OF_A_TURN + FLOOD_TURNS - 1)
    assert not log
    taken(shares, PEER, MessageType.RESERVE, 10 * FLOOD_TURNS)
    (line,) = log
    assert line["event"] == "clients flood the daemon"
    assert (line["uid"], line["pid"], line["log_level"]) == (1, os.getpid(), "warning")
    assert line["command"]
    monkeypatch.setattr(module, "FLOOD_SECONDS", 0.0)
    taken(shares, PEER, MessageType.RESERVE, FLOOD_TURNS)
    assert len(log) == 1, "each refusal begins a new minute"


async def test_a_session_that_exceeds_it_reads_on_in_the_next_turn() -> None:
    host = StandInHost()
    sessions = [opened(host) for _ in range(4)]
    taken(host.shares, None, MessageType.RESERVE)
    for session, transport in sessions:
        tell(session, frames.encode(frames.Status(1)))
        assert not transport.drain()
        assert not transport.reading
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for session, transport in sessions:
        assert len(transport.drain()) == 1
        assert transport.reading
        session.connection_lost(None)
