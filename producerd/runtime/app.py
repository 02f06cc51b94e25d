"""The daemon: builds everything, owns every task, and walks STARTING -> SERVING -> DRAINING -> STOPPED.

SIGTERM or SIGINT drains: nobody is let in any more, what is in a request is finished, rows that have no caller are
still delivered, and every other row is given back to its caller.  It ends when all that is done, or at
``drain_timeout_seconds``; a second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from enum import Enum
from typing import Final

import uvloop

from producerd import __version__
from producerd.config import STREAM_NAME, Config
from producerd.core import intake
from producerd.core.budget import NodeBudget
from producerd.core.retry import HealthState
from producerd.core.shards import one_lane
from producerd.core.spans import sort_rows
from producerd.errors import Code, ConfigurationError, Refused
from producerd.runtime import admin, allocator, logs, metrics, systemd
from producerd.runtime.aws.clients import access_of, accesses_of, open_clients
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.gate import Refusal
from producerd.runtime.kinesis import AioKinesis, Kinesis
from producerd.runtime.listener import BACKLOG, Listener, Passed
from producerd.runtime.session import Session, SessionRules
from producerd.runtime.shard_watch import ShardWatch
from producerd.runtime.stream import Stream
from producerd.wire.columns import lay_out, parse_body

log = logs.get_logger("producerd")

LAST_WORDS_SECONDS: Final = 1.0
"""How long the last acknowledgements may take to leave before the connections are cut."""
SWITCH_INTERVAL_SECONDS: Final = 0.0005
"""A worker lets go of the interpreter sooner: the loop is late by 0.8 ms instead of 2.1."""


class State(Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


def run(config: Config) -> int:
    """Run the daemon until a signal ends it; returns the exit code.  Raises ConfigurationError before SERVING."""
    logs.configure(config.node.log_level, config.node.log_format)
    allocator.configure()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Daemon(config).run())
    except* ConfigurationError as group:
        problems = [problem for error in _leaves(group) for problem in error.problems]
        raise ConfigurationError(problems) from None


def _leaves(group: BaseExceptionGroup[ConfigurationError]) -> list[ConfigurationError]:
    leaves: list[ConfigurationError] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


def _sort_one_row() -> None:
    """Has Arrow's compute functions loaded: 0.3 s and 49 MiB, which are part of an idle daemon's memory."""
    columns = lay_out([b"key"], [b"data"])
    body = parse_body(columns.body_prefix(1) + b"".join(map(bytes, columns.parts)), columns.layout.flags)
    sort_rows([intake.check(body, 1024)], one_lane(), 0)


class Daemon:
    """One node's daemon.  `run` is its whole life."""

    def __init__(self, config: Config) -> None:
        node = config.node
        self.config = config
        self.state = State.STARTING
        self.rules = SessionRules(
            window_bytes=node.session_window_bytes,
            window_frames=node.session_window_frames,
            max_frame_bytes=node.max_frame_bytes,
            max_frame_records=node.max_frame_records,
            max_connections=node.max_connections,
            body_timeout_seconds=node.body_timeout_seconds,
        )
        self._budget = NodeBudget(node.node_queue_limit_bytes, node.floor_bytes)
        self._streams: dict[str, Stream] = {}
        self._services: dict[Stream, Kinesis] = {}
        self._watches: dict[Stream, asyncio.Task[None]] = {}
        self._sessions: dict[Session, None] = {}
        self._session_numbers = 0
        self._metrics = metrics.Metrics(config)
        self._signals = 0

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._drain_asked = asyncio.Event()
        self._quiet = asyncio.Event()
        self._all_gone = asyncio.Event()
        node = self.config.node
        passed = systemd.take_sockets()
        async with AsyncExitStack() as stack:
            self._notifier = systemd.Notifier()
            stack.callback(self._notifier.close)
            executor = ThreadPoolExecutor(node.worker_threads, thread_name_prefix="producerd-worker")
            stack.callback(executor.shutdown, wait=False, cancel_futures=True)
            self._metrics.loop_lag.watch(self._loop)
            stack.callback(self._metrics.loop_lag.stop)
            await self._loop.run_in_executor(executor, _sort_one_row)
            self._executor = executor
            self._clients = await stack.enter_async_context(open_clients(accesses_of(self.config)))
            self._dispatcher = Dispatcher(
                self._services.__getitem__, executor, node.worker_threads, self._streams_settled
            )
            listener = (
                Passed(passed.records)
                if passed.records is not None
                else Listener(node.socket, node.socket_mode, node.socket_group)
            )
            stack.callback(listener.close)
            for signal_number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(signal_number, self._on_signal, signal_number)
            if node.metrics_address is not None:
                bound = await stack.enter_async_context(
                    admin.serve(
                        node.metrics_address,
                        render_metrics=self._render_metrics,
                        is_ready=lambda: self.state is State.SERVING,
                    )
                )
                log.info("metrics", address=f"http://{bound[0]}:{bound[1]}/metrics")
            admin_listener = (
                Passed(passed.admin)
                if passed.admin is not None
                else Listener(node.admin_path, 0o600, setting="admin_socket")
            )
            stack.callback(admin_listener.close)
            await stack.enter_async_context(
                admin.serve_socket(admin_listener, status=self._status, shards=self._shards_of)
            )
            return await self._serve(listener)

    async def _serve(self, listener: Listener) -> int:
        stopped = asyncio.Event()
        orphans = 0
        async with asyncio.TaskGroup() as self._tasks:
            carrying = self._tasks.create_task(self._dispatcher.run(stopped))
            # uvloop listens once more, with its own backlog of 100 if it is given none.
            server = await self._loop.create_unix_server(self._make_session, sock=listener.socket, backlog=BACKLOG)
            self.state = State.SERVING
            gc.collect()
            gc.freeze()  # what exists now stays: the collector need not look at it again
            log.info("serving", version=__version__, socket=str(listener.path), region=self.config.node.region or "-")
            self._notifier.ready(self._status_line)
            await self._drain_asked.wait()
            self.state = State.DRAINING
            self._notifier.stopping()
            server.close()
            orphans = await self._drain()
            stopped.set()
            await carrying
            for task in self._watches.values():
                task.cancel()
            await self._say_last_words()
        self.state = State.STOPPED
        returned = sum(stream.pipeline.stats.discarded_records["returned"] for stream in self._streams.values())
        log.info("stopped", records_returned=returned, records_without_a_caller_undelivered=orphans)
        return 1 if orphans else 0

    # ---- what sessions need

    def open_stream(self, name: str) -> Stream:
        if self.state is not State.SERVING:
            raise Refused("the daemon stops", code=Code.DRAINING)
        stream = self._streams.get(name)
        if stream is None:
            self._check_new_stream(name)
            node = self.config.node
            settings = self.config.stream(name)
            stream = Stream(name, settings, node.max_frame_bytes, node.max_frame_records, self._budget)
            self._streams[name] = stream
            kinesis = AioKinesis(self._clients.of(access_of(node, stream.settings)), self._executor)
            self._services[stream] = kinesis
            watch = ShardWatch(stream, kinesis, self._dispatcher)
            stream.wants_map = watch.look
            self._watches[stream] = self._tasks.create_task(watch.run())
        self.poke(stream)
        return stream

    def poke(self, stream: Stream) -> None:
        if stream in self._watches:
            self._dispatcher.poke(stream)

    def failed(self, error: Exception) -> None:
        self._dispatcher.failed(error)

    def ended(self, session: Session) -> None:
        self._sessions.pop(session, None)
        self._metrics.disconnects[session.ended_as] += 1
        if not self._sessions:
            self._all_gone.set()

    def _check_new_stream(self, name: str) -> None:
        node = self.config.node
        if not STREAM_NAME.fullmatch(name):
            message = f"{name!r} cannot be a stream's name: 1 to 128 of a-z A-Z 0-9 _ . -"
            raise Refused(message, code=Code.STREAM_NOT_FOUND)
        if node.streams_allowed == "listed" and name not in self.config.streams:
            message = f'the daemon takes listed streams only, and {name} is not: add [streams."{name}"]'
            raise Refused(message, code=Code.NOT_AUTHORIZED)
        if len(self._streams) >= node.max_streams:
            self._evict()
        if len(self._streams) >= node.max_streams:
            raise Refused(f"max_streams = {node.max_streams} streams are in use", code=Code.STREAM_LIMIT)

    def _evict(self) -> None:
        """Make place for a new stream by a name that never worked and that nobody has open: a typing error, mostly."""
        for name, stream in list(self._streams.items()):
            unproven = stream.pipeline.health.state in (HealthState.UNPROVEN, HealthState.BROKEN)
            if unproven and not stream.gate.sessions and stream.pipeline.idle and name not in self.config.streams:
                self._watches.pop(stream).cancel()
                self._dispatcher.forget(stream)
                del self._streams[name], self._services[stream]
                return

    def _make_session(self) -> asyncio.BaseProtocol:
        self._session_numbers += 1
        session = Session(self, self._session_numbers)
        self._sessions[session] = None
        return session

    @property
    def full(self) -> bool:
        """Whether one client more than allowed is connected."""
        return len(self._sessions) > self.config.node.max_connections

    # ---- the end

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        if self._signals == 1:
            log.info("draining", signal=signal.Signals(number).name, seconds=self.config.node.drain_timeout_seconds)
            self._drain_asked.set()
        else:
            log.warning("stopping at once", signal=signal.Signals(number).name)
            self._quiet.set()

    async def _drain(self) -> int:
        """Give back and finish, until all is done or the deadline.  Returns rows lost for want of a caller."""
        seconds = self.config.node.drain_timeout_seconds
        for session in list(self._sessions):
            session.drain(seconds)
        for stream in self._streams.values():
            stream.gate.close(Refusal(Code.DRAINING, "the daemon stops"), self._loop.time())
            stream.pipeline.drain()
            self.poke(stream)
        if not self._is_quiet():
            try:
                async with asyncio.timeout(seconds):
                    await self._quiet.wait()
            except TimeoutError:
                log.warning("the deadline of draining has passed", seconds=seconds)
        await self._dispatcher.give_up()
        orphans = sum(stream.pipeline.abandon() for stream in self._streams.values())
        for stream in self._streams.values():
            stream.settle(self._loop.time())
        return orphans

    def _streams_settled(self) -> None:
        """By a session's word or by an answer: the node may have room again, and the end of draining may have come."""
        if self._budget.wanted_by:
            self._hand_room_on()
        if self.state is State.DRAINING and self._is_quiet():
            self._quiet.set()

    def _hand_room_on(self) -> None:
        """Room of the node that came free goes to who waits for it, who holds least first; all send what they hold."""
        now, freed, self._budget.has_freed = self._loop.time(), self._budget.has_freed, False
        for stream in sorted(self._streams.values(), key=lambda stream: stream.budget.used_bytes):
            if (freed and stream.budget in self._budget.wanted_by) or stream.pipeline.press(now):
                self.poke(stream)

    def _is_quiet(self) -> bool:
        return all(stream.budget.used_records == 0 for stream in self._streams.values())

    async def _say_last_words(self) -> None:
        """The last acknowledgements leave; then the connections end."""
        for session in list(self._sessions):
            session.close(Code.DRAINING, "the daemon has stopped")
        if self._sessions:
            self._all_gone.clear()  # it is set since the first time that nobody was connected
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self._all_gone.wait()

    # ---- what is asked of it

    def _status(self) -> admin.NodeStatus:
        now = self._loop.time()
        return {
            "version": __version__,
            "state": self.state.value,
            "connections": len(self._sessions),
            "streams": [stream.status(now) for stream in self._streams.values()],
        }

    def _status_line(self) -> str:
        records = sum(stream.budget.used_records for stream in self._streams.values())
        if self.state is State.SERVING:
            return f"serving: {len(self._streams):,} streams, {records:,} records queued"
        return f"{self.state.value}: {records:,} records left, at most {self.config.node.drain_timeout_seconds:g} s"

    def _shards_of(self, name: str) -> admin.StreamShards | None:
        stream = self._streams.get(name)
        return stream.shards(self._loop.time()) if stream is not None else None

    async def _render_metrics(self) -> bytes:
        snapshot = self._metrics.snapshot(
            self._streams.values(),
            state=self.state.value,
            connections=len(self._sessions),
            now=self._loop.time(),
        )
        return await asyncio.to_thread(metrics.text, snapshot)
