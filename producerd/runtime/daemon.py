"""Daemon: owns every task, and goes through STARTING -> SERVING -> DRAINING -> STOPPED.

`Shutdown` says what ends it, and how.  SIGHUP makes it read the settings again.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from enum import Enum
from math import inf
from typing import Final

from producerd import __version__
from producerd.config import Config
from producerd.config.cgroup import MemoryLimit, memory_limit
from producerd.config.dangers import check_possible, dangers
from producerd.config.memory import check_fits
from producerd.config.process_limits import check_limits
from producerd.config.reload import reload
from producerd.config.tuning import TUNING, Tuning
from producerd.errors import Code, ConfigurationError, Refused
from producerd.runtime import allocator, logs, metrics, systemd
from producerd.runtime.acceptor import Acceptor
from producerd.runtime.aside import aside
from producerd.runtime.asking import ServiceAnswer
from producerd.runtime.aws.clients import AwsClients, accesses_of, check_accesses
from producerd.runtime.commands import JsonObject
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.kinesis import StreamSummary
from producerd.runtime.leaving import OwnerProcess
from producerd.runtime.listener import Listener
from producerd.runtime.rendering import RenderedMetrics
from producerd.runtime.session import Session
from producerd.runtime.shutdown import Drained, Shutdown
from producerd.runtime.stream import Stream
from producerd.runtime.streams import Streams
from producerd.runtime.users.connection_table import ConnectionTable
from producerd.runtime.users.shares import LoopShares
from producerd.wire.messages import Service

log = logs.get_logger("producerd")

TURNED_AWAY_SECONDS: Final = 900.0
"""How long the status shows that a stream was not opened for a client: as long as the alerts count it."""


class State(Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Daemon:
    """One node's daemon, made on the event loop that it runs on: its state, and its settings until a reload.

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
        self.config = config
        self.state = State.STARTING
        self.tuning = tuning
        self.shares = LoopShares()
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._notifier = notifier
        self._acceptor = Acceptor(listener, self._make_session)
        self._acceptors = [self._acceptor]
        self._clients = clients
        self._connections = ConnectionTable(tuning)
        self._dispatcher = Dispatcher(executor, tuning.worker_threads, self._streams_settled)
        self.streams = Streams(config, self._dispatcher, clients, executor, self._connections, tuning)
        self._shutdown = Shutdown(self.streams, self._connections, self._dispatcher, lambda: self.config.node)
        self._metrics = metrics.Metrics(config, memory_limit().bytes, clients)
        self._rendered = RenderedMetrics(self._snapshot)
        self._session_numbers = 0
        self._hang_up = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._owner = owner
        self._turned_away = -inf, ""  # when a stream was last not opened for a client, and why

    def watch(self) -> None:
        """Handle signals, and measure how late the loop is, until `stop_watching`."""
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(signal_number, self._shutdown.on_signal, signal_number)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up.set)
        self._metrics.loop_lag.watch(self._loop)

    def stop_watching(self) -> None:
        """Stop measuring the loop."""
        self._metrics.loop_lag.stop()

    async def serve(self, admin: Acceptor) -> int:
        """Serve clients until a signal or an order ends it.  Return the exit code.

        Keep the operator's socket, ``admin``, open meanwhile.
        """
        stopped = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            carrying = tasks.create_task(self._dispatcher.run(stopped))
            tasks.create_task(self.streams.run(stopped))
            reloading = tasks.create_task(self._reload_on_signal())
            leaving_with_owner = tasks.create_task(self._shutdown.leave_with(self._owner))
            leaving_when_idle = tasks.create_task(self._shutdown.leave_when_idle())
            giving_back = tasks.create_task(allocator.give_back_when_quiet(self.streams.taken_records))
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
            self._shutdown.look_whether_idle()
            await self._shutdown.asked.wait()
            self.state = State.DRAINING
            self._notifier.stopping()
            self._acceptor.close()
            for task in (*looking, leaving_when_idle):
                task.cancel()
            drained = await self._shutdown.drain_rows()
            stopped.set()
            for task in (leaving_with_owner, reloading, giving_back):
                task.cancel()
            await carrying
            await self._shutdown.say_last_words()
            returned, undelivered = drained.returned_records, drained.undelivered_records
            if undelivered and self._rendered.are_scraped and self._owner is None:
                await self._shutdown.show_losses()
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
            return self.streams.open_dry(name, uid) if dry_run else self.streams.open(name, uid)
        except Refused as error:
            self._metrics.refused_opens[error.code] += 1
            self._turned_away = self._loop.time(), str(error)
            raise

    def ask_service(self, stream: Stream, receive: Callable[[ServiceAnswer], None]) -> None:
        if self.state is State.SERVING:
            self.streams.ask_service(stream, receive)
        else:
            receive(ServiceAnswer(Service.FAILED, Code.DRAINING, "the daemon stops"))

    def ask_where(self, stream: Stream, receive: Callable[[StreamSummary | None], None]) -> None:
        self.streams.ask_where(stream, receive)

    def end_loudly(self, error: Exception) -> None:
        self._dispatcher.fail_loudly(error)

    def session_ended(self, session: Session) -> None:
        self._connections.forget(session)
        self._metrics.disconnects[session.ended_as] += 1
        self._shutdown.look_whether_idle()

    def _make_session(self) -> asyncio.BaseProtocol:
        self._session_numbers += 1
        session = Session(self, self._session_numbers)
        self._connections.add_connection(session)
        self._shutdown.look_whether_idle()
        return session

    def _streams_settled(self) -> None:
        """Hand on room of the node that came free.  Streams have just settled."""
        self.streams.hand_room_on(self._loop.time())
        self._shutdown.rows_settled()

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
            certificates = await self._clients.read_certificates()
            # No await from here on: a stream that is opened meanwhile would get what only a restart may change.
            read = reload(self.config, loaded, [stream.name for stream in self.streams])
            check_fits(read.config, limit)
            check_limits(read.config)
            changes = [*read.changes, *certificates]
        except ConfigurationError as error:
            self._metrics.reload_failed()
            log.error("settings are refused, the old ones stay", problems=list(error.problems))
            raise
        self.config = read.config
        self._connections.fit(read.config.node)
        self.streams.reload(read.config, self._loop.time())
        self._shutdown.settings_changed()
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
        turned_away = f"clients are turned away, the last {ago:,.0f} s ago: {why}"
        return [*self._clients.troubles, *([turned_away] if ago < TURNED_AWAY_SECONDS else [])]

    @property
    def allowed_uids(self) -> frozenset[int]:
        """The users that may connect."""
        return self.config.node.allowed_uids

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _status_line(self) -> str:
        records = sum([stream.budget.used_records for stream in self.streams])
        if self.state is not State.SERVING:
            return f"{self.state.value}: {records:,} records left, at most {self._shutdown.most_seconds:g} s"
        return self._acceptor.problem or f"serving: {len(self.streams):,} streams, {records:,} records queued"

    def _snapshot(self) -> metrics.Scrape:
        return self._metrics.snapshot(
            self.streams,
            state=self.state.value,
            is_ready=self.unready is None,
            connections=self.connections,
            now=self._loop.time(),
        )

    async def render_metrics(self, *, everything: bool) -> bytes:
        return await self._rendered.text(everything=everything)

    async def drain_and_stop(self, seconds: float | None) -> Drained:
        return await self._shutdown.drain_and_stop(seconds)
