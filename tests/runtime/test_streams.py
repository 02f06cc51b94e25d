"""A node makes a stream when a client asks for it, and forgets it when no client wants it any more."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from producerd.config import Config, NodeSettings, StreamSettings
from producerd.config.tuning import TUNING, Tuning
from producerd.core.gate import Member
from producerd.core.rows.frame import Frame
from producerd.core.sending.health import HealthState
from producerd.errors import Code, Refused
from producerd.runtime import streams as module
from producerd.runtime.asking import ServiceAnswer
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.session import Session
from producerd.runtime.stream import Stream
from producerd.runtime.streams import Streams
from producerd.runtime.users.connection_table import ConnectionTable
from producerd.runtime.users.peers import Peer
from producerd.wire import messages
from tests.daemon import one, until_on_loop
from tests.runtime.stand_ins import StandInHost, StandInKinesis, StandInTransport, connected, put, reserve, tell
from tests.runtime.virtual_time import live
from tests.simulation.setting import make_body


class Watch:
    """Of a service that is never asked."""

    ended: list[str]

    def __init__(self, stream: Stream, kinesis: Any) -> None:
        self.stream = stream

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            Watch.ended.append(self.stream.name)


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    Watch.ended = []
    monkeypatch.setattr(module, "ShardWatch", Watch)


@asynccontextmanager
async def streams_of(
    config: Config, table: ConnectionTable | None = None, tuning: Tuning = TUNING
) -> AsyncIterator[Streams]:
    stopped = asyncio.Event()
    clients: Any = SimpleNamespace(of=lambda access: SimpleNamespace(credentials=None))
    with ThreadPoolExecutor(1) as executor:
        dispatcher = Dispatcher(executor, 1)
        table = ConnectionTable() if table is None else table
        streams = Streams(config, dispatcher, clients, executor, table, tuning)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(dispatcher.run(stopped))
            tasks.create_task(streams.run(stopped))
            await asyncio.sleep(0)
            yield streams
            stopped.set()


def join(stream: Stream, uid: int | None = None) -> Member:
    """Let a session of this user have the stream open."""
    caller: Any = SimpleNamespace()
    return stream.join(caller, patient=False, uid=uid)


def opens(streams: Streams, name: str, uid: int | None = None) -> Member:
    return join(streams.open(name, uid), uid)


def submit(stream: Stream) -> None:
    """Let a stream have a record, of which nobody waits for the end."""
    frame = Frame(None, 1, stream.check(make_body(one())), one().layout.charge_bytes)
    stream.budget.charge(1, frame.charge_bytes)
    stream.pipeline.submit(frame, 0.0)


def names_of(streams: Streams) -> list[str]:
    return [stream.name for stream in streams]


@pytest.mark.promise("user-streams-listed")
async def test_of_unused_streams_one_that_never_worked_makes_place_first_and_then_the_longest_idle() -> None:
    async with streams_of(Config(node=NodeSettings(max_streams=3))) as streams:
        paused, first, second = streams.open("paused"), streams.open("first"), streams.open("second")
        paused.pause(0.0)
        for stream, now in ((second, 1.0), (first, 2.0)):
            stream.pipeline.health.found_working()
            stream.settle(now)
        streams.open("one-more")
        assert names_of(streams) == ["paused", "first", "one-more"]
        paused.resume(0.0)
        assert paused.pipeline.health.state is HealthState.UNPROVEN
        streams.open("two-more")
        assert names_of(streams) == ["first", "one-more", "two-more"]


@pytest.mark.promise("user-streams-listed")
async def test_where_all_streams_are_open_idle_ones_of_the_user_with_most_make_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clients that have them open come back when they have rows.  No two users take a place in turns."""
    config = Config(node=NodeSettings(max_streams=9), streams={"listed": StreamSettings()})
    table, host = ConnectionTable(), StandInHost()
    async with streams_of(config, table) as streams:
        monkeypatch.setattr(host, "admit", lambda session: table.admit(session, config.node))
        monkeypatch.setattr(host, "open_stream", lambda name, uid, **_: streams.open(name, uid))
        monkeypatch.setattr(host, "session_ended", table.forget)
        sessions: list[tuple[Session, StandInTransport]] = []

        def come(uid: int, name: str) -> list[messages.Message]:
            monkeypatch.setattr("producerd.runtime.session.peer_of", lambda _: Peer(1, uid, 1))
            session = Session(host, len(sessions))
            table.add_connection(session)
            sessions.append((session, StandInTransport(session)))
            tell(session, messages.Hello(1, 1, comes_back=1), messages.Open(1, name))
            return sessions[-1][1].drain()[1:]

        for number in range(7):
            come(7, f"of-7-{number}")
        for number in range(2):
            come(9, f"of-9-{number}")
        tell(sessions[0][0], reserve(1, one()))
        assert sessions[0][0].idle_since is None
        for number in range(3):
            (opened,) = come(8, f"of-8-{number}")
            assert isinstance(opened, messages.Opened)
        (refused,) = come(8, "one-more")
        assert isinstance(refused, messages.Refused)
        assert refused.code == Code.STREAM_LIMIT
        (opened,) = come(8, "listed")
        assert isinstance(opened, messages.Opened), "of which nobody has too many"
        names = ["of-7-0", "of-7-5", "of-7-6", "of-9-0", "of-9-1", *(f"of-8-{number}" for number in range(3)), "listed"]
        assert names_of(streams) == names
        went = [number for number, (_, transport) in enumerate(sessions) if transport.closed]
        assert went == [1, 2, 3, 4]
        for number in went:
            close = sessions[number][1].drain()[-1]
            assert isinstance(close, messages.Close)
            assert close.code == Code.TABLE_FULL
        assert host.failures == []


async def test_with_fewer_streams_allowed_than_there_are_their_parts_still_fit() -> None:
    """Of what is in flight, else the bound on memory would be none; of the queues, else who comes last has none."""

    def parts() -> set[int]:
        queues, in_flight = streams.budget, streams.in_flight
        return {limits.limit_bytes // limits.floor_bytes for limits in (queues, in_flight)}

    async with streams_of(Config(node=NodeSettings(max_streams=8))) as streams:
        for number in range(8):
            streams.open(f"stream-{number}")
        assert parts() == {16}
        streams.reload(Config(node=NodeSettings(max_streams=32)), 0.0)
        assert parts() == {64}
        settings = StreamSettings(linger_seconds=7)
        streams.reload(Config(node=NodeSettings(max_streams=2), defaults=settings), 0.0)
        assert parts() == {16}
        assert {stream.settings for stream in streams} == {settings}
        with pytest.raises(Refused):
            streams.open("one-more")
        assert (len(streams), parts()) == (7, {14})


@pytest.mark.promise("user-streams-listed")
async def test_one_user_does_not_have_all_streams_and_listed_ones_do_not_count() -> None:
    config = Config(NodeSettings(max_streams=6), streams={"listed": StreamSettings(), "too": StreamSettings()})
    async with streams_of(config, tuning=Tuning(others_fraction=2 / 3)) as streams:
        for name in ("listed", "a", "b", "a", "too"):
            opens(streams, name, 7)
        with pytest.raises(Refused, match="part of max_streams = 6: 2 streams are open for user id 7") as refused:
            streams.open("c", 7)
        assert refused.value.code == Code.STREAM_LIMIT
        assert streams.get("c") is None
        opens(streams, "c", 8)
        with pytest.raises(Refused, match="part of max_streams"):
            streams.open("c", 7)
        opens(streams, "listed", 8)
        opens(streams, "b", 8)
        with pytest.raises(Refused, match="part of max_streams"):
            streams.open("a", 8)


@pytest.mark.promise("listed-users-send")
async def test_a_stream_takes_records_of_its_users_alone() -> None:
    """The settings of all streams hold for one without a table."""
    config = Config(
        defaults=StreamSettings(allowed_uids=frozenset({1})),
        streams={"hers": StreamSettings(allowed_uids=frozenset({7}), stream_name="one"), "theirs": StreamSettings()},
    )
    async with streams_of(config) as streams:
        opens(streams, "hers", 7)
        opens(streams, "theirs", 8)
        for name, uid in (("hers", 8), ("hers", None), ("hers", 0), ("other", 7), ("one", 1)):
            with pytest.raises(Refused, match=f"user id {uid} may not write to {name}") as refused:
                streams.open(name, uid)
            assert refused.value.code == Code.NOT_AUTHORIZED
        opens(streams, "other", 1)
        assert len(streams) == 3
        streams.reload(Config(), 0.0)
        opens(streams, "hers", 8)


@pytest.mark.promise("open-stream-table-gone")
async def test_an_open_stream_that_is_not_listed_any_more_takes_no_new_client() -> None:
    listed = Config(streams={"orders": StreamSettings(), "other": StreamSettings()})
    async with streams_of(listed) as streams:
        opens(streams, "orders", 7)
        node = NodeSettings(streams_allowed="listed")
        streams.reload(Config(node=node, streams={"other": StreamSettings()}), 0.0)
        with pytest.raises(Refused, match="listed streams only"):
            streams.open("orders", 8)


@pytest.mark.promise("user-streams-listed")
async def test_names_that_a_user_left_behind_still_count_while_they_have_records_and_never_worked() -> None:
    """Records that nobody waits for would keep each of them, and one user would have all streams."""
    async with streams_of(Config(NodeSettings(max_streams=6)), tuning=Tuning(others_fraction=2 / 3)) as streams:
        left, stream = streams.open("a", 7), streams.open("b", 7)
        for each in (left, stream):
            submit(each)
            each.leave(join(each, 7), 0.0, deliver=True)
        with pytest.raises(Refused, match="part of max_streams"):
            streams.open("c", 7)
        opens(streams, "c", 8)
        stream.pipeline.health.found_working()
        opens(streams, "d", 7)
        left.pipeline.abandon()
        opens(streams, "e", 7)
        assert names_of(streams) == ["b", "c", "d", "e"]
        stream.pipeline.abandon()


@pytest.mark.promise("refusal-nobody-met-long")
def test_streams_and_refusals_are_forgotten_that_nobody_uses_for_long() -> None:
    """The daemon looks once a minute.

    Names that jobs make up by day must not pile up, and a misspelt one must not be an alert for a day.  No row of an
    idle stream shows that the cause of a refusal was fixed, and an alert must not wait for one.
    """
    listed = {name: StreamSettings() for name in ("listed", "new", "old", "used")}

    async def story() -> None:
        async with streams_of(Config(streams=listed)) as streams:

            async def names_at(now: float) -> list[str]:
                await asyncio.sleep(now - asyncio.get_running_loop().time())
                return [name for name in names_of(streams) if name not in ("paused", *listed)]

            for name in ("listed", "old", "works", "open", "paused"):
                streams.open(name).pipeline.health.found_working()
            member = opens(streams, "open")
            streams.open("paused").pause(0.0)
            new, old, used = (streams.open(name) for name in ("new", "old", "used"))
            opens(streams, "used")
            for stream in (new, old, used):
                stream.pipeline.health.looks_permanent("ACCESS_DENIED", "not allowed", 0.0)
            streams.open("typo").pipeline.health.looks_permanent("STREAM_NOT_FOUND", "", 0.0)

            assert await names_at(61.0) == ["works", "open", "typo"]
            streams.open("late")
            assert await names_at(599.0) == ["works", "open", "typo", "late"]
            assert [new.report.is_up, old.report.is_up, used.report.is_up] == [False] * 3
            assert Watch.ended == []
            assert await names_at(601.0) == ["works", "open", "late"]
            assert Watch.ended == ["typo"]
            assert (new.pipeline.health.state, old.pipeline.health.state) == (HealthState.UNPROVEN, HealthState.WORKING)
            assert (used.pipeline.health.state, used.pipeline.health.code) == (HealthState.BROKEN, "ACCESS_DENIED")
            new.pipeline.health.looks_permanent("ACCESS_DENIED", "not allowed", 601.0)
            assert not new.report.is_up, "the next row finds it refused once more"
            assert await names_at(719.0) == ["works", "open", "late"]
            assert await names_at(721.0) == ["works", "open"]
            assert await names_at(86_399.0) == ["works", "open"]
            assert await names_at(86_401.0) == ["open"]
            streams.open("open").leave(member, 86_401.0, deliver=False)
            assert await names_at(2 * 86_400.0 - 1) == ["open"]
            assert await names_at(2 * 86_400.0 + 61) == []
            assert streams.open("works") is not None, "it may come again"
            assert len(streams) == len(listed) + 2

    with capture_logs() as log:
        live(story())
    forgotten = [(line["stream"], line["idle_seconds"]) for line in log if line["event"] == "stream forgotten"]
    assert forgotten == [("typo", 600), ("late", 659), ("works", 86_400), ("open", 86_459)]
    refusals = [line["stream"] for line in log if line["event"].startswith("a refusal is forgotten")]
    assert refusals == ["old", "new", "new"]


@pytest.mark.parametrize("kind", ["open", "with rows", "paused", "listed"])
async def test_a_stream_that_is_used_makes_no_place(kind: str) -> None:
    config = Config(node=NodeSettings(max_streams=1), streams={"listed": StreamSettings()})
    async with streams_of(config) as streams:
        stream = streams.open(kind if kind == "listed" else "used")
        match kind:
            case "open":
                join(stream)
            case "with rows":
                submit(stream)
            case "paused":
                stream.pause(0.0)
        with pytest.raises(Refused) as refused:
            streams.open("one-more")
        assert refused.value.code == Code.STREAM_LIMIT
        assert list(streams) == [stream]
        stream.pipeline.abandon()


@pytest.mark.parametrize("name", ["", "a b", "x" * 129])
async def test_a_name_that_no_stream_can_have_is_refused(name: str) -> None:
    async with streams_of(Config()) as streams:
        with pytest.raises(Refused) as refused:
            streams.open(name)
        assert len(streams) == 0
    assert (refused.value.code, str(refused.value)) == (
        Code.STREAM_NOT_FOUND,
        f"{name!r} cannot be a stream's name: 1 to 128 of a-z A-Z 0-9 _ . -",
    )


async def test_nothing_is_left_of_a_stream_that_is_forgotten_and_its_question_is_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does a question keep the daemon from its end."""
    kinesis = StandInKinesis()
    kinesis.answers.clear()
    monkeypatch.setattr(module, "AioKinesis", lambda *_: kinesis)
    heard: list[ServiceAnswer] = []
    async with streams_of(Config(node=NodeSettings(max_streams=1))) as streams:
        stream = streams.open("typo")
        streams.ask_service(stream, heard.append)
        await until_on_loop(lambda: kinesis.asked == [({"StreamName": "typo"}, False)])
        last = streams.open("last")
        await until_on_loop(lambda: Watch.ended == ["typo"])
        streams.ask_service(stream, heard.append)
        left = weakref.ref(stream)
        del stream
        gc.collect()
        assert left() is None
        streams.ask_service(last, heard.append)
        await until_on_loop(lambda: len(kinesis.asked) == 2)
    assert (heard, kinesis.asked[1:]) == ([], [({"StreamName": "last"}, False)])


async def test_the_records_of_streams_are_counted_while_none_is_left() -> None:
    """Memory is given back when this number has changed and nothing is queued."""
    async with streams_of(Config()) as streams:
        one_, other = streams.open("one"), streams.open("other")
        assert (streams.are_quiet, streams.taken_records()) == (True, 0)
        one_.pipeline.stats.ingest_records, other.pipeline.stats.ingest_records = 3, 4
        other.budget.charge(1, 100)
        assert (streams.are_quiet, streams.taken_records()) == (False, None)
        other.budget.release(1, 100)
        assert (streams.are_quiet, streams.taken_records()) == (True, 7)


async def test_room_that_came_free_is_offered_to_those_that_wait_and_others_send_what_lingers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that hold least come first."""
    told: list[tuple[str, str]] = []
    async with streams_of(Config()) as streams:
        holds, waits = streams.open("holds"), streams.open("waits")
        holds.budget.charge(1, 100)
        for stream in streams:
            monkeypatch.setattr(stream, "take_room", lambda name=stream.name: told.append(("room", name)))
            monkeypatch.setattr(stream, "press", lambda _, name=stream.name: told.append(("press", name)))

        def handed_on() -> list[tuple[str, str]]:
            told.clear()
            streams.hand_room_on(0.0)
            return told

        budget = streams.budget
        budget.has_freed = True
        assert (handed_on(), budget.has_freed) == ([], True)
        budget.want(waits.budget, 10)
        assert (handed_on(), budget.has_freed) == ([("room", "waits"), ("press", "holds")], False)
        assert handed_on() == [("press", "waits"), ("press", "holds")]
        budget.want(waits.budget, 0)


async def test_calls_about_a_stream_are_spared_until_it_is_listed_or_has_worked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They take from the allowance of who has it open, and of who opened it first."""
    made: list[tuple[Any, Any]] = []

    def sparing(calls: object, allowance: object, users: object, is_known: object) -> object:
        made.append((users, is_known))
        return calls

    monkeypatch.setattr(module, "SparingCalls", sparing)
    async with streams_of(Config(streams={"listed": StreamSettings()})) as streams:
        streams.open("listed", 7)
        new = streams.open("new", 7)
        opens(streams, "new", 8)
        assert [is_known() for _, is_known in made] == [True, False]
        assert [users() for users, _ in made] == [{7}, {7, 8}]
        new.pipeline.health.found_working()
        assert [is_known() for _, is_known in made] == [True, True]
        streams.reload(Config(), 0.0)
        assert [is_known() for _, is_known in made] == [False, True]


async def test_a_dry_run_ends_with_its_session_and_takes_no_place_of_a_stream() -> None:
    """Its rows are at work when the client leaves; the parts of the node are then as before.

    Meanwhile the stream stays.  There are at most as many dry runs as connections.
    """
    async with streams_of(Config(node=NodeSettings(max_streams=1, max_connections=2))) as streams:
        floor_bytes, host = streams.budget.floor_bytes, StandInHost()
        sessions = []
        for _ in range(2):
            dry_run = streams.open_dry("flights", None)
            host.streams["flights"] = dry_run
            session, transport = connected(host, messages.Hello(1, 1), messages.Open(1, "flights", dry_run=1))
            tell(session, put(1, one()))
            assert isinstance(transport.drain()[-1], messages.Grant)
            sessions.append(session)
        assert len(streams) == 1
        assert streams.budget.floor_bytes < floor_bytes
        assert len(dry_run.of.followers) == 2
        with pytest.raises(Refused, match="2 dry runs are open, 2 of them for user id None"):
            streams.open_dry("flights", None)
        with pytest.raises(Refused, match="max_streams = 1 streams are in use"):
            streams.open("other", 7)
        assert dry_run.of.idle_since is None
        for session in sessions:
            session.connection_lost(None)
        await until_on_loop(lambda: streams.budget.floor_bytes == floor_bytes)
        assert not dry_run.of.followers
