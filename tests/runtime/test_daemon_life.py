"""A daemon goes through its states in order, and each step of its end lasts no longer than it may.

It runs on the loop of its test, whose time passes when nothing is left to do, with stand-ins for Kinesis and systemd.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from structlog.testing import capture_logs

import producerd.runtime.daemon as module
from producerd import __version__
from producerd.config import Config, NodeSettings, StreamSettings
from producerd.config.cgroup import MemoryLimit
from producerd.core.sending.answers import RequestFailed
from producerd.errors import Code, ConfigurationError, Refused
from producerd.runtime import allocator, logs, rendering
from producerd.runtime import streams as streams_module
from producerd.runtime.acceptor import Acceptor
from producerd.runtime.asking import ServiceAnswer
from producerd.runtime.daemon import Daemon, State
from producerd.runtime.listener import Listener
from producerd.runtime.session import Session
from producerd.runtime.shutdown import Drained
from producerd.runtime.stream import Stream
from producerd.runtime.users.shares import LoopShares
from producerd.wire import messages
from tests.daemon import directory, one, rows, until_on_loop
from tests.runtime.stand_ins import StandInKinesis, StandInTransport, body, reserve, tell
from tests.runtime.virtual_time import VirtualLoop

CONFIG: Final = Config(
    node=NodeSettings(region="us-east-1", drain_timeout_seconds=30, max_streams=8),
    defaults=StreamSettings(linger_seconds=0, max_in_flight_requests=1),
)

LINGERING: Final = Config(node=CONFIG.node, defaults=StreamSettings(linger_seconds=3_600))


class Watch:
    """Of a service whose shards may not be listed, so that no row waits for them."""

    def __init__(self, stream: Stream, kinesis: object) -> None:
        stream.shards_not_read("AccessDeniedException", "no", 0.0)

    async def run(self) -> None:
        pass


class Systemd:
    """Notes what the daemon reports."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.status: Callable[[], str] = str

    def ready(self, status: Callable[[], str]) -> None:
        self.told.append("ready")
        self.status = status

    def stopping(self) -> None:
        self.told.append("stopping")


class AdminSocket:
    """Notes how often the daemon looked after the operator's socket."""

    def __init__(self) -> None:
        self.runs = 0
        self.looks = 0

    async def run(self) -> None:
        self.runs += 1
        await asyncio.Event().wait()

    async def look(self) -> None:
        self.looks += 1


class Owner:
    """A process that ends when the test says so."""

    pid = 77

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def ends(self) -> None:
        await self.ended.wait()


class Transport(StandInTransport):
    """Its connection ends soon after the daemon has closed it, unless its client reads nothing."""

    def __init__(self, protocol: Session, *, reads: bool) -> None:
        self.reads = reads
        super().__init__(protocol)

    def close(self) -> None:
        super().close()
        if self.reads:
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Life:
    """A daemon at work, and what is around it."""

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        path: Path,
        executor: ThreadPoolExecutor,
        log: list[Any],
        *,
        owned: bool,
    ) -> None:
        self.log = log
        self.loop = asyncio.get_running_loop()
        self.service = StandInKinesis()
        self.systemd = Systemd()
        self.admin = AdminSocket()
        self.owner = Owner()
        self.listener = Listener(path, 0o600)
        self.acceptor: Acceptor
        self.make_session: Callable[[], asyncio.BaseProtocol]
        self.streams: list[Stream] = []
        self.handlers: dict[int, Callable[[], None]] = {}
        self.new_certificates: list[str] = []
        self.while_certificates_are_read: Callable[[], object] = lambda: None
        self.serving: asyncio.Task[int]
        clients: Any = SimpleNamespace(
            of=lambda access: SimpleNamespace(credentials=None),
            clock_offset_seconds=0.0,
            troubles=[],
            credential_refreshes={},
            read_certificates=self.read_certificates,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "Acceptor", self.accept)
            self.daemon = Daemon(
                config,
                load,
                clients=clients,
                executor=executor,
                notifier=cast("Any", self.systemd),
                listener=self.listener,
                owner=cast("Any", self.owner) if owned else None,
            )
        self.daemon.shares = LoopShares(lambda: 0.0)  # the time that a loaded machine takes changes nothing

    def accept(self, listener: Listener, make_session: Callable[[], asyncio.BaseProtocol]) -> Acceptor:
        """Keep the way on which the daemon's sessions begin."""
        self.make_session = make_session
        self.acceptor = Acceptor(listener, make_session)
        return self.acceptor

    def watch_shards(self, stream: Stream, kinesis: object) -> Watch:
        self.streams.append(stream)
        return Watch(stream, kinesis)

    async def read_certificates(self) -> list[str]:
        self.while_certificates_are_read()
        read, self.new_certificates = self.new_certificates, []
        return read

    def client(self, stream: str = "flights", *, deliver: bool = False, reads: bool = True) -> Transport:
        """Connect a client that opens a stream, unless its name is empty."""
        session = cast("Session", self.make_session())
        transport = Transport(session, reads=reads)
        if not transport.closed:
            tell(session, messages.encode(messages.Hello(1, 1, int(deliver), client="test", comes_back=1)))
            tell(session, messages.encode(messages.Open(1, stream)) if stream else b"")
        return transport

    def put(self, client: Transport, number: int = 1, records: int = 5) -> None:
        frame = rows(records)
        tell(client.protocol, reserve(number, frame) + body(number, frame))

    async def hang(self) -> Transport:
        """Connect a client whose five rows Kinesis does not answer, and forget what it has received until then."""
        self.service.answers.clear()
        client = self.client()
        self.put(client)
        await turns()
        client.drain()
        return client

    def lose_records(self) -> None:
        """A client wants its five rows delivered, and leaves; Kinesis does not answer."""
        self.service.answers.clear()
        client = self.client(deliver=True)
        self.put(client)
        client.protocol.connection_lost(None)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.handlers[number]()

    async def shows(self, series: str) -> str:
        """Return what a scrape shows after the beginning of a series."""
        text = (await self.daemon.render_metrics(everything=False)).decode()
        found = re.search(rf"^producerd_{re.escape(series)}(.*)$", text, re.MULTILINE)
        assert found is not None, series
        return found[1].strip()

    async def ends(self) -> tuple[int, float]:
        """Return the exit code, and when the daemon ended."""
        return await self.serving, round(self.loop.time(), 6)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


Story = Callable[[Life], Awaitable[None]]
Live = Callable[..., list[Any]]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Live:
    """Live through a story, in its own time.  Returns what was logged of the daemon and is not for debugging.

    A daemon that still serves at the end of the story gets a signal.
    """
    garbage = SimpleNamespace(**dict.fromkeys(("collect", "freeze", "enable"), lambda: None))
    monkeypatch.setattr(module, "gc", garbage)
    monkeypatch.setattr(module, "memory_limit", MemoryLimit)
    monkeypatch.setattr(module, "check_accesses", lambda _accesses: None)

    async def at_once(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return work(*arguments, **named)

    monkeypatch.setattr(module, "aside", at_once)
    monkeypatch.setattr(allocator, "aside", at_once)
    monkeypatch.setattr(asyncio, "to_thread", at_once)

    async def whole(story: Story, config: Config, load: Callable[[], Config], log: list[Any], owned: bool) -> None:
        with directory() as folder, ThreadPoolExecutor(1) as executor:
            life = Life(config, load, folder / "daemon.sock", executor, log, owned=owned)

            def handle(number: int, call: Callable[..., None], *arguments: Any) -> None:
                life.handlers[number] = lambda: call(*arguments)

            monkeypatch.setattr(life.loop, "add_signal_handler", handle)
            monkeypatch.setattr(rendering, "time", SimpleNamespace(monotonic=life.loop.time))
            monkeypatch.setattr(streams_module, "AioKinesis", lambda client, executor: life.service)
            monkeypatch.setattr(streams_module, "ShardWatch", life.watch_shards)
            life.daemon.watch()
            try:
                async with asyncio.TaskGroup() as group:
                    life.serving = group.create_task(life.daemon.serve(cast("Any", life.admin)))
                    await turns()
                    assert life.daemon.state is State.SERVING
                    await story(life)
                    if not life.serving.done():
                        life.signal()
            finally:
                life.acceptor.close()
                life.daemon.stop_watching()
                life.listener.close()

    def run(
        story: Story, config: Config = CONFIG, *, load: Callable[[], Config] | None = None, owned: bool = False
    ) -> list[Any]:
        with capture_logs() as log, asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(whole(story, config, load or (lambda: config), log, owned))
        return [line for line in log if line["log_level"] != "debug" and "stream" not in line]

    return run


def with_node(**settings: Any) -> Config:
    return Config(node=CONFIG.node.model_copy(update=settings), defaults=CONFIG.defaults)


def events(log: list[Any], *wanted: str) -> list[Any]:
    """Return the lines with these events."""
    return [line for line in log if line["event"] in wanted]


def stopped(returned: int = 0, lost: int = 0) -> dict[str, Any]:
    """The last line of a daemon."""
    counts = {"records_returned": returned, "records_without_a_caller_undelivered": lost}
    return {"event": "stopped", "log_level": "info", **counts}


def codes_of(client: Transport) -> list[tuple[str, int, str]]:
    """What the daemon told a client at its end."""
    told = []
    for message in client.drain():
        match message:
            case messages.Draining(seconds):
                told.append(("draining", int(seconds), ""))
            case messages.Ack():
                told.append(("returned" if message.returned else "stored", message.records, ""))
            case messages.Refused():
                told.append(("refused", message.frame_id, message.code))
            case messages.Close():
                told.append(("close", 0, message.code))
    return told


# ---- from the start to a signal


@pytest.mark.parametrize("region", ["us-east-1", None])
def test_a_daemon_serves_until_a_signal_and_reports_each_step(
    live: Live, monkeypatch: pytest.MonkeyPatch, region: str | None
) -> None:
    steps: list[str] = []
    garbage = {name: lambda name=name: steps.append(name) for name in ("collect", "freeze", "enable")}
    monkeypatch.setattr(module, "gc", SimpleNamespace(**garbage))
    path = ""

    async def story(life: Life) -> None:
        nonlocal path
        path = str(life.listener.path)
        assert set(life.handlers) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
        assert (life.daemon.state_name, life.daemon.unready) == ("serving", None)
        assert (life.systemd.told, life.admin.runs) == (["ready"], 1)
        assert steps == ["collect", "freeze", "enable"]
        assert life.systemd.status() == "serving: 0 streams, 0 records queued"
        await asyncio.sleep(7.0)
        looks = await life.shows("event_loop_lag_seconds_count")
        assert float(looks) > 0
        life.signal()
        assert await life.ends() == (0, 7.0)
        assert life.daemon.unready == "stopped"
        assert life.systemd.told == ["ready", "stopping"]
        life.daemon.stop_watching()
        await asyncio.sleep(10.0)
        assert await life.shows("event_loop_lag_seconds_count") == looks

    log = live(story, with_node(region=region))
    serving = {"version": __version__, "socket": path, "region": region or "-"}
    assert log == [
        {"event": "serving", "log_level": "info", **serving},
        {"event": "draining", "log_level": "info", "signal": "SIGTERM", "seconds": 30.0},
        stopped(),
    ]


def test_clients_connect_at_the_socket_until_the_daemon_drains(live: Live) -> None:
    async def story(life: Life) -> None:
        _, writer = await asyncio.open_unix_connection(life.listener.path)
        await until_on_loop(lambda: life.daemon.connections == 1)
        assert life.loop.time() < 1.0, "it need not look after its socket first"
        writer.close()
        await until_on_loop(lambda: life.daemon.connections == 0)
        await life.hang()
        life.signal()
        await turns()
        assert life.daemon.state is State.DRAINING
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(life.listener.path)
        life.service.answers.set()

    live(story)


def test_a_session_has_the_next_number_and_its_end_is_counted_and_makes_place(live: Live) -> None:
    async def story(life: Life) -> None:
        life.service.answers.clear()
        first = life.client()
        life.put(first)
        await turns()
        second = life.client()
        (close,) = second.drain()
        assert isinstance(close, messages.Close)
        why = "max_connections = 1 clients are connected, and none of them makes place now"
        assert (close.code, close.message) == (Code.CONNECTION_LIMIT, why)
        await turns()
        assert life.daemon.connections == 1
        first.protocol.connection_lost(None)
        assert life.daemon.connections == 0
        third = life.client()
        welcomes = [message for client in (first, third) for message in client.drain()]
        assert [each.session_id for each in welcomes if isinstance(each, messages.Welcome)] == [1, 3]
        for reason in ("connection_limit", "lost"):
            assert await life.shows(f'client_disconnects_total{{reason="{reason}"}}') == "1.0"
        life.service.answers.set()

    live(story, with_node(max_connections=1))


def test_the_service_is_asked_while_the_daemon_serves(live: Live) -> None:
    async def story(life: Life) -> None:
        heard: list[ServiceAnswer] = []
        client = life.client()
        (stream,) = life.streams
        life.daemon.ask_service(stream, heard.append)
        await turns()
        ready = ServiceAnswer(messages.Service.READY, message="a dry run of PutRecords is allowed, at there")
        assert heard == [ready]
        life.service.answers.clear()
        life.put(client)
        await turns()
        life.signal()
        await turns()
        life.daemon.ask_service(stream, heard.append)
        assert heard == [ready, ServiceAnswer(messages.Service.FAILED, Code.DRAINING, "the daemon stops")]
        with pytest.raises(Refused, match="the daemon stops") as refused:
            life.daemon.open_stream("flights", None)
        assert refused.value.code == Code.DRAINING
        life.service.answers.set()

    live(story)


def test_an_owner_of_state_that_fails_ends_the_daemon(live: Live) -> None:
    async def story(life: Life) -> None:
        life.daemon.end_loudly(ZeroDivisionError("a bug"))
        await asyncio.sleep(60.0)

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True, allow_unwrapped=True):
        live(story)


# ---- draining


ENDS: Final[dict[str, tuple[str, float, list[str], int]]] = {
    "the deadline returns rows that hang": ("0 SIGTERM", 30.0, ["SIGTERM 30", "deadline 30"], 5),
    "the last answer ends it sooner": ("0 SIGTERM, 12 answers", 12.0, ["SIGTERM 30"], 0),
    "a second signal ends it at once": ("0 SIGTERM, 1 SIGINT", 1.0, ["SIGTERM 30", "SIGINT at once"], 5),
    "an operator's drain without a time empties the queues for as long as it drains": (
        *("0 drain", 60.0, ["producerctl 30", "deadline 30"], 5),
    ),
    "a second drain shortens the first": (
        *("0 drain 10, 2 drain 3, 2 drain", 35.0, ["producerctl 10", "producerctl 3", "deadline 30"], 5),
    ),
    "a second drain does not lengthen the first": (
        *("0 drain 10, 2 drain 8, 2 drain", 40.0, ["producerctl 10", "deadline 30"], 5),
    ),
    "a signal ends the emptying, and then a drain shortens nothing": (
        *("0 drain 10, 2 SIGTERM, 3 drain 3", 32.0, ["producerctl 10", "SIGTERM 30", "deadline 30"], 5),
    ),
    "a signal leaves what comes after the emptying its time": (
        *("0 drain 2, 4 SIGTERM", 32.0, ["producerctl 2", "SIGTERM 30", "deadline 30"], 5),
    ),
    "a reload gives it another time": ("0 SIGTERM, 20 reload", 40.0, ["SIGTERM 30", "deadline 40"], 5),
    "two signals in one turn of the loop end the emptying and what comes after it": (
        *("0 drain 10, 2 SIGTERM, 2 SIGINT", 2.0, ["producerctl 10", "SIGTERM 30", "SIGINT at once"], 5),
    ),
    "it outlives its owner by three seconds": ("4 owner", 7.0, ["owner 3"], 5),
    "a signal's drain ends three seconds after its owner": ("0 SIGTERM, 4 owner", 7.0, ["SIGTERM 30", "owner 3"], 5),
    "it outlives its owner no longer while it empties its queues": (
        *("0 drain 20, 0 owner", 3.1, ["producerctl 20", "owner 3"], 5),
    ),
    "a signal drains a daemon whose owner lives": ("0 SIGTERM", 30.0, ["SIGTERM 30", "deadline 30"], 5),
}
"""What happens at which second while rows hang, when the daemon ends, what it logs and how many rows it returns."""


@pytest.mark.parametrize("case", ENDS)
def test_a_drain_ends_with_its_rows_or_at_its_deadline_or_when_it_is_hurried(live: Live, case: str) -> None:
    steps, ends_at, logged, returned = ENDS[case]
    asked: list[asyncio.Task[Drained]] = []

    async def story(life: Life) -> None:
        await life.hang()
        for step in steps.split(", "):
            at, what, *seconds = step.split()
            if float(at) > life.loop.time():
                await asyncio.sleep(float(at) - life.loop.time())
            match what:
                case "answers":
                    life.service.answers.set()
                case "owner":
                    life.owner.ended.set()
                case "drain":
                    given = float(seconds[0]) if seconds else None
                    asked.append(asyncio.create_task(life.daemon.drain_and_stop(given)))
                    await turns()
                case "reload":
                    await life.daemon.reload()
                case _:
                    life.signal(signal.Signals[what])
        assert await life.ends() == (0, ends_at)
        assert [drained.returned_records for drained in await asyncio.gather(*asked)] == [returned] * len(asked)

    config = with_node(drain_timeout_seconds=40)
    _, *log, last = live(story, owned="owner" in case, load=lambda: config if "reload" in steps else CONFIG)
    assert [in_words(line) for line in log if line["event"] != "settings read again"] == logged
    assert last == stopped(returned)


def in_words(line: dict[str, Any]) -> str:
    """A line about draining: why, and for how long."""
    match line:
        case {"event": "stopping at once", "signal": name, "log_level": "warning"}:
            return f"{name} at once"
        case {"event": "the deadline of draining has passed", "seconds": seconds, "log_level": "warning"}:
            return f"deadline {seconds:g}"
        case {"event": "draining", "owner_ended": 77, "seconds": seconds}:
            return f"owner {seconds:g}"
    assert line["event"] == "draining"
    return f"{line.get('by') or line['signal']} {line['seconds']:g}"


def test_rows_that_hang_are_returned_at_the_deadline_and_those_that_wait_at_once(live: Live) -> None:
    async def story(life: Life) -> None:
        client = await life.hang()
        life.put(client, 2)
        await turns()
        life.signal()
        await asyncio.sleep(1.0)
        assert life.daemon.unready == "draining"
        assert life.systemd.status() == "draining: 5 records left, at most 30 s"
        tell(client.protocol, reserve(3, one()))
        told = [("draining", 30, ""), ("returned", 5, ""), ("refused", 3, Code.DRAINING)]
        assert codes_of(client) == told
        assert await life.ends() == (0, 30.0)
        assert codes_of(client) == [("returned", 5, ""), ("close", 0, Code.DRAINING)]

    assert live(story)[-1] == stopped(returned=10)


@pytest.mark.parametrize(("reads", "ends_at"), [(True, 5.0), (False, 6.0)])
def test_a_client_that_does_not_read_the_last_words_has_a_second(live: Live, reads: bool, ends_at: float) -> None:
    async def story(life: Life) -> None:
        life.client().protocol.connection_lost(None)
        assert life.daemon.connections == 0
        client = life.client(reads=reads)
        await asyncio.sleep(5.0)
        life.signal()
        assert await life.ends() == (0, ends_at)
        if not reads:
            client.protocol.connection_lost(None)

    live(story)


def test_what_the_deadline_ends_is_acknowledged_before_anything_else_happens(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    async def story(life: Life) -> None:
        life.client().protocol.connection_lost(None)
        await turns()
        (stream,) = life.streams
        abandon, settle = stream.pipeline.abandon, stream.settle

        def note_abandon() -> None:
            calls.append("abandon")
            abandon()

        def note_settle(now: float) -> bool:
            calls.append("settle")
            return settle(now)

        monkeypatch.setattr(stream.pipeline, "abandon", note_abandon)
        monkeypatch.setattr(stream, "settle", note_settle)
        life.signal()
        await life.ends()

    live(story)
    assert calls[-2:] == ["abandon", "settle"]


@pytest.mark.parametrize(
    ("asked", "comes", "told"),
    [("SIGTERM", True, ("returned", 20, "")), ("drain", True, ("stored", 20, "")), ("SIGTERM", False, None)],
)
def test_a_body_on_its_way_is_waited_for_as_long_as_it_may_take(
    live: Live, asked: str, comes: bool, told: tuple[str, int, str] | None
) -> None:
    """An operator's drain still delivers what comes meanwhile, and it lingers no more."""
    frame = rows(20)

    async def story(life: Life) -> None:
        client = life.client()
        whole = body(1, frame)
        tell(client.protocol, reserve(1, frame) + whole[:100])
        await asyncio.sleep(1.0)
        if asked == "drain":
            drained = asyncio.create_task(life.daemon.drain_and_stop(10.0))
        else:
            life.signal()
        await asyncio.sleep(1.0)
        assert not life.serving.done()
        if comes:
            tell(client.protocol, whole[100:])
        code, at = await life.ends()
        assert (code, int(at)) == (0, 2 if comes else 10), "a body has ten seconds, and some more for its bytes"
        ended = codes_of(client)
        assert ended[-1][0] == "close"
        assert [each for each in ended if each[0] in ("returned", "stored")] == ([told] if told else [])
        if asked == "drain":
            assert await drained == Drained(10.0, 0, 0)

    live(story, LINGERING)


def test_the_operator_has_the_queues_emptied_first_and_then_the_rest_returned(live: Live) -> None:
    drained: list[Drained] = []

    async def story(life: Life) -> None:
        client = await life.hang()
        life.lose_records()
        await turns()
        asked = asyncio.create_task(life.daemon.drain_and_stop(10.0))
        await turns()
        assert codes_of(client) == [("draining", 40, "")]
        assert life.systemd.status() == "draining: 10 records left, at most 40 s"
        assert not asked.done()
        assert await life.ends() == (1, 40.0)
        drained.append(await asked)

    log = live(story)
    assert drained == [Drained(10.0, returned_records=5, undelivered_records=5)]
    assert log[-1] == stopped(returned=5, lost=5)


def test_what_lingers_is_delivered_when_the_queues_are_emptied(live: Live) -> None:
    async def story(life: Life) -> None:
        client = life.client()
        life.put(client)
        await turns()
        client.drain()
        assert await life.daemon.drain_and_stop(10.0) == Drained(10.0, 0, 0)
        assert await life.ends() == (0, 0.0)
        assert codes_of(client) == [("draining", 40, ""), ("stored", 5, ""), ("close", 0, Code.DRAINING)]

    live(story, LINGERING)


# ---- lost records


LOST: Final[dict[str, Any]] = {
    "event": "records were lost: their callers had gone",
    "log_level": "error",
    "stream": "flights",
    "records": 5,
    "code": Code.DRAINING,
}


def test_records_that_expire_without_a_caller_are_lost_whether_the_daemon_stops_or_not(live: Live) -> None:
    async def story(life: Life) -> None:
        life.service.fails = RequestFailed(Code.UNREACHABLE, "down", maybe_stored=False)
        for stops in (False, True):
            client = life.client(deliver=True)
            life.put(client)
            client.protocol.connection_lost(None)
            await turns()
            if stops:
                life.signal()
            await asyncio.sleep(11.0)
            assert events(life.log, LOST["event"]) == [{**LOST, "code": Code.EXPIRED}] * (1 + stops)
        assert await life.ends() == (1, 22.0)

    config = Config(node=CONFIG.node, defaults=StreamSettings(record_ttl_seconds=10))
    assert live(story, config)[-1] == stopped(lost=5)


@pytest.mark.parametrize(
    ("age", "owned", "ends_at"), [(119.0, False, 170.0), (120.0, False, 150.0), (119.0, True, 150.0)]
)
def test_a_daemon_that_is_scraped_and_loses_records_waits_for_a_last_scrape(
    live: Live, age: float, owned: bool, ends_at: float
) -> None:
    """It is scraped if that happened within two minutes.  A daemon that belongs to a task is not waited for."""

    async def story(life: Life) -> None:
        await asyncio.sleep(150.0 - age)
        assert await life.shows("ready") == "1.0"
        await asyncio.sleep(120.0 - life.loop.time())
        life.lose_records()
        await turns()
        life.signal()
        assert await life.ends() == (1, ends_at)

    assert live(story, owned=owned)[-1] == stopped(lost=5)


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_another_signal_ends_the_wait_for_the_last_scrape(live: Live, seconds: float) -> None:
    async def story(life: Life) -> None:
        await life.daemon.render_metrics(everything=False)
        life.lose_records()
        await turns()
        life.signal()
        await asyncio.sleep(30.0)
        await turns()
        await asyncio.sleep(seconds)
        assert not life.serving.done()
        life.signal()
        assert await life.ends() == (1, 30.0 + seconds)

    live(story)


@pytest.mark.promise("rows-nobody-given-back")
def test_each_prometheus_reads_how_many_records_were_lost(live: Live) -> None:
    """The first of two scrapes the daemon soon after the loss, and the other one 15 seconds later."""

    async def story(life: Life) -> None:
        await life.daemon.render_metrics(everything=False)
        life.lose_records()
        await turns()
        life.signal()
        for seconds in (31.0, 15.0):
            await asyncio.sleep(seconds)
            assert not life.serving.done()
            assert life.log[-1] == LOST, "it is logged before the wait"
            await life.daemon.render_metrics(everything=False)
        assert await life.ends() == (1, 50.0)

    live(story)


# ---- the end by itself


def test_a_daemon_that_nobody_uses_ends_when_its_time_is_over(live: Live) -> None:
    async def story(life: Life) -> None:
        assert await life.ends() == (0, 30.0)

    idle = {"event": "draining", "log_level": "info", "idle_for_seconds": 30.0}
    assert live(story, with_node(exit_when_idle_seconds=30.0))[1:] == [idle, stopped()]


def test_a_client_or_its_records_keep_a_daemon_that_ends_when_it_is_idle(live: Live) -> None:
    """Also a client without a stream."""

    async def story(life: Life) -> None:
        for stream in ("", "flights"):
            await asyncio.sleep(10.0)
            client = life.client(stream)
            await asyncio.sleep(90.0)
            client.protocol.connection_lost(None)
        await asyncio.sleep(20.0)
        life.lose_records()
        await asyncio.sleep(100.0)
        life.service.answers.set()
        assert await life.ends() == (0, 350.0)

    live(story, with_node(exit_when_idle_seconds=30.0))


# ---- other settings


REGION: Final = 'region: "us-east-1" -> "us-west-2"'


def reloaded(**changes: Any) -> Config:
    node = CONFIG.node.model_copy(update={"max_connections": 1, "log_level": "debug", **changes})
    return Config(node=node, defaults=StreamSettings(linger_seconds=7, max_in_flight_requests=1))


def test_a_reload_takes_other_settings_into_effect_everywhere(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str] = []
    monkeypatch.setattr(logs, "reconfigure", levels.append)
    monkeypatch.setattr(module, "dangers", lambda config: ["a danger"])
    loads = 0

    def load() -> Config:
        nonlocal loads
        loads += 1
        return reloaded(allowed_uids=frozenset({7}), region="us-west-2")

    async def story(life: Life) -> None:
        clients = [life.client(), life.client()]
        await turns()
        life.new_certificates = ["certificates: ca.pem has others"]
        hash_before = await life.shows("config_info")
        life.listener.path.unlink()
        await asyncio.sleep(1.0)  # the next scrape has another text
        answer = await life.daemon.reload()
        assert life.listener.path.exists()
        assert life.admin.looks == 1
        assert [client.closed for client in clients] == [True, False]
        assert (answer["needs_restart"], answer["unready"]) == ((REGION,), None)
        assert life.daemon.config.node.max_connections == 1
        assert life.daemon.allowed_uids == {7}
        assert [stream.settings.linger_seconds for stream in life.streams] == [7]
        assert await life.shows("config_info") != hash_before
        assert levels == ["debug"]
        for times in (2, 3):
            life.signal(signal.SIGHUP)
            await turns()
            assert loads == times

    log = live(story, load=load)
    danger = {"event": "a setting exposes something to others", "log_level": "warning", "what": "a danger"}
    read: dict[str, Any] = {
        "event": "settings read again",
        "log_level": "info",
        "changed": [
            "allowed_uids: [] -> [7]",
            "max_connections: 512 -> 1",
            'log_level: "info" -> "debug"',
            "defaults.linger_seconds: 0 -> 7",
            "certificates: ca.pem has others",
        ],
        "needs_restart": [REGION],
    }
    told = events(log, "a setting exposes something to others", "settings read again")
    assert told[:2] == [danger, read]
    assert told[2:] == [danger, {**read, "changed": []}] * 2


def test_a_stream_that_is_opened_while_a_reload_reads_certificates_keeps_what_needs_a_restart(live: Live) -> None:
    async def story(life: Life) -> None:
        life.while_certificates_are_read = life.client
        answer = await life.daemon.reload()
        assert [stream.settings.aggregation for stream in life.streams] == ["none"]
        assert answer["needs_restart"] == ('defaults.aggregation: "none" -> "kpl"',)

    live(story, load=lambda: Config(node=CONFIG.node, defaults=StreamSettings(aggregation="kpl")))


def test_while_nobody_can_connect_a_reload_says_so(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(life: Life) -> None:
        async def look() -> None:
            life.acceptor.problem = "nobody can connect"

        monkeypatch.setattr(life.acceptor, "look", look)
        assert await life.daemon.reload() == {"changed": [], "needs_restart": (), "unready": "nobody can connect"}
        assert life.systemd.status() == life.daemon.unready == "nobody can connect"

    (line,) = events(live(story), "settings read again")
    read = {"event": "settings read again", "log_level": "info", "changed": [], "needs_restart": []}
    assert line == {**read, "unready": "nobody can connect"}


@pytest.mark.parametrize("fails", ["load", "check_possible", "check_accesses", "check_fits", "something else"])
def test_settings_that_do_not_hold_change_nothing_and_are_named(
    live: Live, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def refuse(*_: object) -> Any:
        raise ConfigurationError(["one is wrong", "another one, too"])

    def load() -> Config:
        if fails == "load":
            refuse()
        if fails == "something else":
            raise RecursionError("too deep")
        return reloaded()

    async def story(life: Life) -> None:
        if fails.startswith("check"):
            monkeypatch.setattr(module, fails, refuse)
        with pytest.raises(ConfigurationError) as refused:
            await life.daemon.reload()
        assert list(refused.value.problems) == problems
        assert life.daemon.config is CONFIG
        assert await life.shows("config_last_reload_successful") == "0.0"
        life.signal(signal.SIGHUP)
        await turns()

    problems = ["one is wrong", "another one, too"]
    if fails == "something else":
        problems = ["settings cannot be read: RecursionError: too deep"]
    told = {"event": "settings are refused, the old ones stay", "log_level": "error", "problems": problems}
    assert live(story, load=load)[1:-2] == [told, told]


# ---- metrics


@pytest.mark.promise("answered-connection-stays-idle")
def test_the_metrics_are_rendered_once_a_second_for_all_that_wait(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[bytes] = []
    may_end = asyncio.Event()

    async def text(_render: object, _snapshot: object, *, everything: bool) -> bytes:
        texts.append(b"text %d" % len(texts))
        text_of_this = texts[-1]
        await may_end.wait()
        return text_of_this

    async def story(life: Life) -> None:
        life.client()
        rendered = (await life.daemon.render_metrics(everything=False)).decode()
        assert "\nproducerd_ready 1.0\n" in rendered
        assert "\nproducerd_client_connections 1.0\n" in rendered
        monkeypatch.setattr(asyncio, "to_thread", text)
        began = life.loop.time()
        await asyncio.sleep(0.25)
        first = [asyncio.create_task(life.daemon.render_metrics(everything=False))]
        await asyncio.sleep(0.5)
        first.append(asyncio.create_task(life.daemon.render_metrics(everything=False)))
        await asyncio.sleep(0.125)
        assert not texts
        await asyncio.sleep(0.5)
        assert texts == [b"text 0"]
        others = [asyncio.create_task(life.daemon.render_metrics(everything=False)) for _ in range(3)]
        whole = asyncio.create_task(life.daemon.render_metrics(everything=True))
        await asyncio.sleep(0.5)
        may_end.set()
        assert await asyncio.gather(*first) == [b"text 0"] * 2
        assert await asyncio.gather(*others) == [b"text 1"] * 3, "of a moment after they asked"
        assert life.loop.time() - began == 2.0
        assert (await whole, life.loop.time() - began) == (b"text 2", 3.0)
        assert len(texts) == 3

    live(story)
