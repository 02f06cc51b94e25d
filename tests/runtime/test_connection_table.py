"""A full table of connections lets an idle client go, and no user has all of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from producerd.config import NodeSettings
from producerd.config.tuning import Tuning
from producerd.errors import Code
from producerd.runtime.session import Session
from producerd.runtime.users.connection_table import ConnectionTable
from producerd.runtime.users.peers import Peer
from producerd.wire import messages
from producerd.wire.columns import Layout
from tests.runtime.stand_ins import StandInHost, StandInTransport, tell

LAYOUT = Layout(1, 1, 1)


@dataclass
class Table:
    """A table, and the clients that came to it, by name."""

    node: NodeSettings
    tuning: Tuning
    monkeypatch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        self.connections = ConnectionTable(self.tuning)
        self.host = StandInHost(queue_limit=10_000)
        self.monkeypatch.setattr(self.host, "admit", lambda session: self.connections.admit(session, self.node))
        self.monkeypatch.setattr(self.host, "session_ended", self.connections.forget)
        self.clients: dict[str, tuple[Session, StandInTransport]] = {}
        self.ended: dict[str, messages.Close] = {}
        self.seconds = 0.0
        self.monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.seconds)

    def come(self, name: str, uid: int | None, *, greets: bool = True, opens: bool = True, old: bool = False) -> None:
        """Let a client connect a second after the last one, and greet or open a stream."""
        self.seconds += 1.0
        peer = None if uid is None else Peer(1, uid, 1)
        self.monkeypatch.setattr("producerd.runtime.session.peer_of", lambda _: peer)
        session = Session(self.host, len(self.clients))
        self.connections.add_connection(session)
        transport = StandInTransport(session)
        self.clients[name] = session, transport
        if greets and name not in self.gone():
            tell(session, messages.Hello(1, 1, comes_back=int(not old)))
            if opens:
                tell(session, messages.Open(1, "flights"))

    def speak(self, name: str, message: messages.Message) -> None:
        self.seconds += 1.0
        tell(self.clients[name][0], message)

    def closes(self) -> dict[str, messages.Close]:
        """Return the CLOSE of each client that was sent away."""
        for name, (_, transport) in self.clients.items():
            if transport.closed and name not in self.ended:
                self.ended[name] = next(each for each in transport.drain() if isinstance(each, messages.Close))
        return {name: self.ended[name] for name in self.clients if name in self.ended}

    def gone(self) -> dict[str, str]:
        return {name: close.code for name, close in self.closes().items()}

    def message_to(self, name: str) -> str:
        return self.closes()[name].message

    def stay(self) -> list[str]:
        return [name for name in self.clients if name not in self.gone()]


@pytest.fixture
async def table(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    made: list[Table] = []

    def make(max_connections: int, **tuning: Any) -> Table:
        made.append(Table(NodeSettings(max_connections=max_connections), Tuning(**tuning), monkeypatch))
        return made[-1]

    yield make
    for one in made:
        for session, _ in one.clients.values():
            session.connection_lost(None)
        assert len(one.connections) == one.connections.users == 0


@pytest.mark.promise("first-stream-longest")
async def test_first_goes_who_has_no_stream_then_the_longest_idle_of_the_user_with_most(table: Any) -> None:
    table = table(max_connections=5, others_fraction=1 / 5)
    table.come("lone", 7)
    for name in ("a", "b", "c"):
        table.come(name, 8)
    table.come("silent", 9, greets=False)
    table.speak("a", messages.Status(1))
    assert len(table.connections) == 5
    assert list(table.connections) == [session for session, _ in table.clients.values()]
    table.come("first", 10)
    assert table.gone() == {"silent": Code.TABLE_FULL}
    table.come("second", 10)
    assert table.gone() == {"silent": Code.TABLE_FULL, "b": Code.TABLE_FULL}, "lone is idle for longer, but alone"
    assert table.connections.users == 3
    assert table.clients["b"][0].ended_as == "table_full"


async def test_who_is_owed_something_stays_and_a_newcomer_is_turned_away(table: Any) -> None:
    table = table(max_connections=2)
    table.come("granted", 7)
    table.speak("granted", messages.Reserve(1, 1, LAYOUT))
    table.come("waiting", 7)
    table.host.stream.gate.set_limits(1, 4096, 0.0)
    table.speak("waiting", messages.Reserve(1, 1, LAYOUT))
    table.come("new", 8)
    assert table.gone() == {"new": Code.CONNECTION_LIMIT}
    assert table.message_to("new") == "max_connections = 2 clients are connected, and none of them makes place now"
    table.speak("granted", messages.Cancel(1))
    table.come("newer", 8)
    assert table.gone() == {"new": Code.CONNECTION_LIMIT, "granted": Code.TABLE_FULL}


async def test_who_has_asked_about_the_service_stays_until_the_answer(table: Any) -> None:
    """Else a check of a stream would fail on a node with many clients."""
    table = table(max_connections=2)
    table.host.answers_late = True
    table.come("asks", 7)
    table.come("too", 7)
    for name in ("asks", "too"):
        table.speak(name, messages.Status(1, asks_service=1))
    table.come("new", 8)
    assert table.gone() == {"new": Code.CONNECTION_LIMIT}
    table.host.questions[1](table.host.word)
    table.seconds += 1.0
    table.host.questions[0](table.host.word)
    table.come("newer", 8)
    assert table.gone() == {"new": Code.CONNECTION_LIMIT, "too": Code.TABLE_FULL}, "the other was answered later"


@pytest.mark.promise("limits-reload-lowers")
async def test_limits_that_a_reload_lowers_hold_for_who_is_there_and_idle(table: Any) -> None:
    table = table(max_connections=16, others_fraction=5 / 8)
    table.come("silent", 7, greets=False)
    table.come("busy", 7)
    table.speak("busy", messages.Reserve(1, 1, LAYOUT))
    for name in ("x", "y"):
        table.come(name, 9)
    for name in ("a", "b", "c", "d"):
        table.come(name, 8)
    table.node = NodeSettings(max_connections=8)
    table.connections.fit(table.node)
    assert list(table.gone()) == ["a"]
    table.node = NodeSettings(max_connections=4)
    table.connections.fit(table.node)
    assert list(table.gone()) == ["silent", "x", "a", "b"], (
        "after b no user has more than another, and x is idle longer"
    )
    table.node = NodeSettings(max_connections=1)
    table.connections.fit(table.node)
    assert table.stay() == ["busy"]


@pytest.mark.promise("limits-reload-lowers")
async def test_a_table_above_its_limit_comes_down_to_it_with_the_next_client(table: Any) -> None:
    """Clients that are owed something stay when a reload lowers the limit, and go once they are idle."""
    table = table(max_connections=8)
    for number in range(6):
        table.come(f"{number}", 7)
        table.speak(f"{number}", messages.Reserve(1, 1, LAYOUT))
    table.node = NodeSettings(max_connections=3)
    table.connections.fit(table.node)
    assert not table.gone()
    table.speak("0", messages.Cancel(1))
    table.come("too early", 8)
    assert list(table.gone()) == ["0", "too early"]
    assert table.message_to("too early").startswith("max_connections = 3 clients are connected")
    for number in range(1, 6):
        table.speak(f"{number}", messages.Cancel(1))
    table.come("new", 8)
    assert table.stay() == ["4", "5", "new"]


async def test_a_client_of_an_old_release_goes_last(table: Any) -> None:
    table = table(max_connections=3)
    table.come("old", 7, old=True)
    table.come("new", 7)
    table.come("old without a stream", 7, old=True, opens=False)
    table.come("next", 7)
    assert list(table.gone()) == ["new"]
    table.come("another", 7)
    assert list(table.gone()) == ["new", "next"]
    table.speak("another", messages.Reserve(1, 1, LAYOUT))
    table.come("last", 7)
    assert sorted(table.gone()) == ["new", "next", "old without a stream"]


@pytest.mark.promise("first-stream-longest")
async def test_a_user_with_all_that_one_may_have_lets_go_of_an_own_one(table: Any) -> None:
    table = table(max_connections=8, others_fraction=3 / 4)
    table.come("other", 7)
    table.come("first", 8)
    table.come("second", 8)
    table.come("third", 8)
    assert table.gone() == {"first": Code.TABLE_FULL}
    for name in ("second", "third"):
        table.speak(name, messages.Reserve(1, 1, LAYOUT))
    table.come("fourth", 8)
    assert table.gone() == {"first": Code.TABLE_FULL, "fourth": Code.CONNECTION_LIMIT}
    assert table.message_to("fourth") == (
        "a user's part of max_connections = 8: 2 clients of user id 8 are connected, and none of them makes place now"
    )


async def test_who_has_no_time_left_has_nobody_looked_for(table: Any) -> None:
    """Else a user who connects all the time would have the daemon look all the time."""
    table = table(max_connections=1)
    table.come("idle", 7)
    table.monkeypatch.setattr(table.host, "admit", lambda one: table.connections.admit(one, table.node, looks=False))
    table.come("new", 8)
    assert table.gone() == {"new": Code.CONNECTION_LIMIT}


async def test_clients_of_users_that_the_kernel_does_not_name_share_a_part(table: Any) -> None:
    table = table(max_connections=8, others_fraction=7 / 8)
    table.come("one", None)
    table.come("two", None)
    assert table.gone() == {"one": Code.TABLE_FULL}


@pytest.mark.parametrize(("seconds", "goes"), [(0.75, "old"), (1.0, "new")])
async def test_a_client_without_a_stream_has_just_come_for_one_second(table: Any, seconds: float, goes: str) -> None:
    table = table(max_connections=2)
    table.come("old", 7)
    table.come("new", 7, opens=False)
    table.seconds += seconds - 1.0
    table.come("next", 7)
    assert list(table.gone()) == [goes]
