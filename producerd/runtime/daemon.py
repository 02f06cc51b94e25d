"""Daemon: owns every task, and goes through STARTING -> SERVING -> DRAINING -> STOPPED.

SIGTERM or SIGINT makes the daemon drain.  It accepts no more clients, finishes its requests, delivers rows that have no
caller, and returns every other row to its caller.  It ends when all that is done, or after ``drain_timeout_seconds``.
A second signal ends it at once.

A daemon that belongs to another process drains when that process has ended, within `OWNERLESS_SECONDS`.  With
``exit_when_idle_seconds`` it ends when it had no client and no record for that long.

`producerctl drain` lets the daemon deliver its queues first, so that only the rest is returned.  SIGHUP makes it read
the settings again.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from math import inf
from typing import Final

from producerd import __version__
from producerd.config import Config, NodeSettings
from producerd.config.cgroup import MemoryLimit, memory_limit
from producerd.config.dangers import check_possible, dangers
from producerd.config.memory import check_fits
from producerd.config.process_limits import check_limits
from producerd.config.reload import reload
from producerd.config.tuning import TUNING, Tuning
from producerd.core.gate import Refusal
from producerd.errors import Code, ConfigurationError, Refused
from producerd.runtime import allocator, logs, metrics, systemd
from producerd.runtime.acceptor import Acceptor
from producerd.runtime.aside import aside
from producerd.runtime.asking import ServiceAnswer
from producerd.runtime.aws.clients import AwsClients, accesses_of, check_accesses
from producerd.runtime.client_frames import SessionRules
from producerd.runtime.commands import Commands, Drained, JsonObject
from producerd.runtime.connection_table import ConnectionTable
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.leaving import IdleTime, OwnerProcess
from producerd.runtime.listener import Listener
from producerd.runtime.session import Session
from producerd.runtime.shares import LoopShares
from producerd.runtime.stream import Stream
from producerd.runtime.streams import Streams
from producerd.wire.messages import Service

log = logs.get_logger("producerd")

OWNERLESS_SECONDS: Final = 3.0
"""The longest time that a daemon drains whose owner has ended.  With `LAST_WORDS_SECONDS` it ends within 5 s."""
LAST_WORDS_SECONDS: Final = 1.0
"""Time that the last acknowledgements have to leave before the daemon cuts the connections."""
RENDERING_SECONDS: Final = 1.0
"""Least time between the beginnings of two renderings of the metrics."""
SCRAPED_LATELY_SECONDS: Final = 120.0
"""Time for which a daemon whose metrics were read counts as one that Prometheus scrapes."""
LAST_SCRAPE_SECONDS: Final = 20.0
"""Time that a daemon which has lost records stays for the scrapes that show them.

A daemon ends within `drain_timeout_seconds` and 25 s: this time, `LAST_WORDS_SECONDS`, and the end of the process.
"""
TURNED_AWAY_SECONDS: Final = 900.0
"""How long the status shows that a stream was not opened for a client: as long as the alerts count it."""


class State(Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


def _session_rules(node: NodeSettings, tuning: Tuning) -> SessionRules:
    return SessionRules(
        allowed_uids=node.allowed_uids,
        window_bytes=tuning.session_window_bytes,
        window_frames=tuning.session_window_frames,
        max_frame_bytes=tuning.max_frame_bytes,
        max_frame_records=tuning.max_frame_records,
        body_timeout_seconds=tuning.body_timeout_seconds,
    )


class Daemon:
    """One node's daemon, made on the event loop that it runs on.  `serve` runs it from start to end.

    The caller opens and closes its arguments: the services' ``clients``, the worker threads, the way to systemd, and
    the ``listener`` on whose sockets the daemon accepts clients.  ``load`` reads the settings again.  ``owner`` is the
    process with which the daemon ends, if there is one.
    """

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        *,
        clients: AwsClients,
        executor: Executor,
        notifier: systemd.Notifier,
        listener: Listener,
        owner: OwnerProcess | None = None,
        tuning: Tuning = TUNING,
    ) -> None:
        node = config.node
        self.config = config
        self.state = State.STARTING
        self.rules = _session_rules(node, tuning)
        self._connections = ConnectionTable(tuning)
        self.shares = LoopShares()
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._notifier = notifier
        self._acceptor = Acceptor(listener, self._make_session)
        self._acceptors = [self._acceptor]
        self._dispatcher = Dispatcher(executor, tuning.worker_threads, self._streams_settled)
        self._clients = clients
        self._streams = Streams(config, self._dispatcher, clients, executor, self._connections, tuning)
        self.commands = Commands(self, self._streams)
        self._session_numbers = 0
        self._all_gone = asyncio.Event()
        self._metrics = metrics.Metrics(config, memory_limit().bytes, clients)
        self._rendering = asyncio.Lock()
        self._rendered_at = -inf  # when the last rendering began
        self._texts: dict[bool, tuple[float, bytes]] = {}  # by `everything`: when the rendering began, and its text
        self._drained = Drained()
        self._emptying: asyncio.Timeout | None = None
        self._signals = 0
        self._hurried = asyncio.Event()  # by a second signal
        self._drain_asked = asyncio.Event()
        self._quiet = asyncio.Event()
        self._settled = asyncio.Event()
        self._hang_up = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._owner = owner
        self._idle_time = IdleTime()
        self._turned_away = -inf, ""  # when a stream was last not opened for a client, and why

    def watch(self) -> None:
        """Handle signals, and measure how late the loop is, until `close`."""
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(signal_number, self._on_signal, signal_number)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up.set)
        self._metrics.loop_lag.watch(self._loop)

    def close(self) -> None:
        """Stop measuring the loop."""
        self._metrics.loop_lag.stop()

    async def serve(self, admin: Acceptor) -> int:
        """Serve clients until a signal or an order ends it.  Return the exit code.

        Keep the operator's socket, ``admin``, open meanwhile.
        """
        stopped = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            carrying = tasks.create_task(self._dispatcher.run(stopped))
            tasks.create_task(self._streams.run(stopped))
            reloading = tasks.create_task(self._reload_on_signal())
            leaving_with_owner = tasks.create_task(self._leave_with_owner())
            leaving_when_idle = tasks.create_task(self._leave_when_idle())
            giving_back = tasks.create_task(allocator.give_back_when_quiet(self._streams.taken_records))
            await self._acceptor.start()
            self._acceptors.append(admin)
            looking = [tasks.create_task(acceptor.run()) for acceptor in self._acceptors]
            self.state = State.SERVING
            gc.collect()
            gc.freeze()  # what exists now stays, so the collector need not look at it again
            gc.enable()  # `producerd serve` starts without it
            socket_path, region = str(self._acceptor.listener.path), self.config.node.region or "-"
            log.info("serving", version=__version__, socket=socket_path, region=region)
            self._notifier.ready(self._status_line)
            self._look_whether_idle()
            await self._drain_asked.wait()
            self.state = State.DRAINING
            self._notifier.stopping()
            self._acceptor.close()
            for task in (*looking, leaving_when_idle):
                task.cancel()
            await self._drain()
            stopped.set()
            leaving_with_owner.cancel()
            reloading.cancel()
            giving_back.cancel()
            await carrying
            await self._say_last_words()
            returned, undelivered = self._drained.returned_records, self._drained.undelivered_records
            if undelivered:
                log.error("records were lost: their callers had gone", records=undelivered)
                await self._show_losses()
        self.state = State.STOPPED
        log.info("stopped", records_returned=returned, records_without_a_caller_undelivered=undelivered)
        return 1 if undelivered else 0

    # ---- what sessions need

    def admit(self, session: Session) -> str | None:
        looks = self.shares.has_time(session.client.peer, self.shares.clock())
        return self._connections.admit(session, self.config.node, looks=looks)

    def open_stream(self, name: str, uid: int | None, *, dry_run: bool = False) -> Stream:
        if self.state is not State.SERVING:
            raise Refused("the daemon stops", code=Code.DRAINING)
        try:
            return self._streams.open_dry(name, uid) if dry_run else self._streams.open(name, uid)
        except Refused as error:
            self._metrics.refused_opens[error.code] += 1
            self._turned_away = self._loop.time(), str(error)
            raise

    def ask_service(self, stream: Stream, receive: Callable[[ServiceAnswer], None]) -> None:
        if self.state is State.SERVING:
            self._streams.ask_service(stream, receive)
        else:
            receive(ServiceAnswer(Service.FAILED, Code.DRAINING, "the daemon stops"))

    def failed(self, error: Exception) -> None:
        self._dispatcher.fail_loudly(error)

    def ended(self, session: Session) -> None:
        self._connections.forget(session)
        self._metrics.disconnects[session.ended_as] += 1
        if not self._connections:
            self._all_gone.set()
        self._look_whether_idle()

    def _make_session(self) -> asyncio.BaseProtocol:
        self._session_numbers += 1
        session = Session(self, self._session_numbers)
        self._connections.add(session)
        self._look_whether_idle()
        return session

    # ---- the end

    async def drain(self, seconds: float | None) -> Drained:
        """Deliver the queues for this long, or for `drain_timeout_seconds`.  Then stop as after SIGTERM.

        While the daemon does so already, a time of ``seconds`` from now on can only shorten that.

        Return when every row has ended, before the daemon does.
        """
        if not self._drain_asked.is_set():
            seconds = self.config.node.drain_timeout_seconds if seconds is None else seconds
            self._drained.empty_for(seconds)
            log.info("draining", by="producerctl", seconds=seconds)
            self._drain_asked.set()
        elif seconds is not None:
            self._empty_sooner(seconds)
        await self._settled.wait()
        return self._drained

    def _empty_sooner(self, seconds: float) -> None:
        """End the emptying of the queues after this long, if it is under way and would take longer."""
        ends_at = self._emptying.when() if self._emptying is not None else None
        sooner = self._loop.time() + seconds
        if self._emptying is not None and ends_at is not None and sooner < ends_at:
            log.info("draining", by="producerctl", seconds=seconds)
            self._emptying.reschedule(sooner)

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        name = signal.Signals(number).name
        if self._signals > 1:
            log.warning("stopping at once", signal=name)
            self._hurried.set()
        else:
            log.info("draining", signal=name, seconds=self.config.node.drain_timeout_seconds)
        if self._drain_asked.is_set():
            self._quiet.set()  # ends the present step of draining
        self._drain_asked.set()

    async def _leave_with_owner(self) -> None:
        """Drain when the process to which the daemon belongs has ended."""
        if self._owner is not None:
            await self._owner.ends()
            log.info("draining", owner_ended=self._owner.pid, seconds=OWNERLESS_SECONDS)
            self._drain_asked.set()
            await asyncio.sleep(OWNERLESS_SECONDS)
            while True:
                self._quiet.set()  # ends the present step of draining
                await asyncio.sleep(0.1)

    async def _leave_when_idle(self) -> None:
        """Drain when nothing has used the daemon for long."""
        seconds = self.config.node.exit_when_idle_seconds
        if seconds:
            await self._idle_time.lasts(seconds)
            log.info("draining", idle_for_seconds=seconds)
            self._drain_asked.set()

    def _look_whether_idle(self) -> None:
        self._idle_time.look(is_idle=not self._connections and self._streams.are_quiet, now=self._loop.time())

    # ---- other settings

    async def reload(self) -> JsonObject:
        """Read the settings again.  If they are wrong, keep the old ones and raise ConfigurationError."""
        async with self._reloading:
            for acceptor in self._acceptors:
                await acceptor.look()
            return await self._reload()

    async def _reload(self) -> JsonObject:
        def look() -> tuple[Config, MemoryLimit]:
            try:
                loaded = self._load()
                check_possible(loaded)
                check_accesses(accesses_of(loaded))
                return loaded, memory_limit()
            except ConfigurationError:
                raise
            except Exception as error:  # files of others may hold anything, and must not end a daemon that runs
                raise ConfigurationError([f"settings cannot be read: {type(error).__name__}: {error}"]) from error

        try:
            loaded, limit = await aside(look)
            read = reload(self.config, loaded, [stream.name for stream in self._streams])
            check_fits(read.config, limit)
            check_limits(read.config)
            changes = [*read.changes, *await self._clients.read_certificates()]
        except ConfigurationError as error:
            self._metrics.reload_failed()
            log.error("settings are refused, the old ones stay", problems=list(error.problems))
            raise
        self.config = read.config
        self.rules = replace(self.rules, allowed_uids=read.config.node.allowed_uids)
        self._connections.fit(read.config.node)
        self._streams.reload(read.config, self._loop.time())
        self._metrics.reload(read.config, limit.bytes)
        logs.reconfigure(read.config.node.log_level)
        for danger in dangers(read.config):
            log.warning("a setting exposes something to others", what=danger)
        ready = {} if self.unready is None else {"unready": self.unready}
        log.info("settings read again", changed=changes, needs_restart=list(read.needs_restart), **ready)
        return {"changed": changes, "needs_restart": read.needs_restart, "unready": self.unready}

    async def _reload_on_signal(self) -> None:
        while True:
            await self._hang_up.wait()
            self._hang_up.clear()
            with suppress(ConfigurationError):  # `_reload` has logged it
                await self.reload()

    async def _drain(self) -> None:
        """Finish requests and return rows, until all is done or the deadline has passed."""
        seconds = self.config.node.drain_timeout_seconds
        emptying_seconds = self._drained.empties_for_seconds or 0.0
        for session in list(self._connections):
            session.announce_drain(seconds + emptying_seconds)
        now = self._loop.time()
        for stream in self._streams:
            stream.gate.refuse_all(Refusal(Code.DRAINING, "the daemon stops"), now)
        if emptying_seconds:
            for stream in self._streams:
                stream.hasten(now)
            self._emptying = asyncio.timeout(emptying_seconds)
            await self._quiet_within(self._emptying)
            self._emptying = None
            if not self._hurried.is_set():  # a second signal, maybe in the loop's same turn, ends every step
                self._quiet.clear()
        for stream in self._streams:
            stream.return_rows()
        if not await self._quiet_within(asyncio.timeout(seconds)):
            log.warning("the deadline of draining has passed", seconds=seconds)
        await self._dispatcher.give_up()
        undelivered = sum([stream.pipeline.abandon() for stream in self._streams])
        for stream in self._streams:
            stream.settle(self._loop.time())
        stats = [stream.pipeline.stats for stream in self._streams]
        returned = sum([each.discarded_records["returned"] for each in stats])
        self._drained.end(returned_records=returned, undelivered_records=undelivered)
        self._settled.set()

    async def _quiet_within(self, time_left: asyncio.Timeout) -> bool:
        """Wait until no row is left, or until another signal ends the wait.

        Return False if the time runs out first.
        """
        if not self._streams.are_quiet:
            try:
                async with time_left:
                    await self._quiet.wait()
            except TimeoutError:
                return False
        return True

    def _streams_settled(self) -> None:
        """Hand on room of the node that came free, and notice when draining is done.  Streams have just settled."""
        self._streams.hand_room_on(self._loop.time())
        self._look_whether_idle()
        if self.state is State.DRAINING and self._streams.are_quiet:
            self._quiet.set()

    async def _say_last_words(self) -> None:
        """Let the last acknowledgements leave, and then end the connections."""
        for session in list(self._connections):
            session.end_session(Code.DRAINING, "the daemon has stopped")
        if self._connections:
            self._all_gone.clear()  # set since the first time that no client was connected
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self._all_gone.wait()

    async def _show_losses(self) -> None:
        """Let Prometheus read how many records were lost, if it scrapes this daemon: its counters end with it.

        No scrape ends the wait, because another Prometheus may scrape the daemon, too.
        """
        is_scraped = time.monotonic() < self._rendered_at + SCRAPED_LATELY_SECONDS
        if is_scraped and self._owner is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SCRAPE_SECONDS):
                    await self._hurried.wait()

    # ---- questions

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def unready(self) -> str | None:
        """The reason why the daemon does not serve clients, or None while it does."""
        return self._acceptor.problem if self.state is State.SERVING else self.state.value

    @property
    def troubles(self) -> list[str]:
        """What an operator must know of the node beyond its streams, in sentences."""
        at, why = self._turned_away
        ago = self._loop.time() - at
        turned_away = (
            [f"clients are turned away, the last {ago:,.0f} s ago: {why}"] if ago < TURNED_AWAY_SECONDS else []
        )
        return [*self._clients.troubles, *turned_away]

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _status_line(self) -> str:
        records = sum([stream.budget.used_records for stream in self._streams])
        if self.state is State.SERVING:
            if self._acceptor.problem is not None:
                return self._acceptor.problem
            return f"serving: {len(self._streams):,} streams, {records:,} records queued"
        seconds = self.config.node.drain_timeout_seconds + (self._drained.empties_for_seconds or 0.0)
        return f"{self.state.value}: {records:,} records left, at most {seconds:g} s"

    async def render_metrics(self, *, everything: bool) -> bytes:
        """Return the metrics as text, of a moment after the call: what a usual scrape has, or everything.

        Rendering the metrics of 64 streams takes 0.1 s of CPU.  Renderings therefore begin at least `RENDERING_SECONDS`
        apart, and all callers that wait for the same text share one.
        """
        asked_at = time.monotonic()
        async with self._rendering:
            began_at, text = self._texts.get(everything, (-inf, b""))
            if began_at < asked_at:
                await asyncio.sleep(max(0.0, self._rendered_at + RENDERING_SECONDS - time.monotonic()))
                began_at = self._rendered_at = time.monotonic()
                snapshot = self._metrics.snapshot(
                    self._streams,
                    state=self.state.value,
                    is_ready=self.unready is None,
                    connections=self.connections,
                    now=self._loop.time(),
                )
                text = await asyncio.to_thread(metrics.text, snapshot, everything=everything)
                self._texts[everything] = began_at, text
            return text
