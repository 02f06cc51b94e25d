"""Streams: the node's streams by name.  A client opens them, and the daemon forgets those that nothing uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from math import inf
from operator import itemgetter
from typing import Final

from producerd.config import STREAM_NAME, Config
from producerd.config.tuning import TUNING, Tuning
from producerd.core.budget import NodeBudget, NodeInFlight
from producerd.core.sending.health import HealthState
from producerd.errors import Code, Refused
from producerd.runtime.asking import Asking, ServiceAnswer
from producerd.runtime.aws.clients import AwsClients, access_of
from producerd.runtime.aws.kinesis import AioKinesis
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.dry_run import DryRun
from producerd.runtime.kinesis import StreamSummary
from producerd.runtime.logs import get_logger
from producerd.runtime.shard_watch import ShardWatch
from producerd.runtime.stream import Stream
from producerd.runtime.users.connection_table import ConnectionTable
from producerd.runtime.users.unknown_names import CallAllowance, SparingCalls
from producerd.runtime.users.user_lists import UserLists
from producerd.runtime.whereabouts import Pace, Whereabouts

log = get_logger("producerd.streams")

FORGET_SECONDS: Final = 24 * 3_600.0
"""Idle time after which the daemon forgets a stream that has no settings of its own.

Some jobs put the date in the stream's name.
"""
FORGET_BROKEN_SECONDS: Final = 600.0
"""Idle time after which the daemon forgets a stream that does not work, and the refusal of a stream with settings.

A misspelt name then raises an alert for minutes, not for a day.  And no row of an idle stream could show that the cause
of a refusal has been fixed.
"""
LOOK_SECONDS: Final = 60.0


class Streams:
    """The node's streams.  Iterating yields each stream that is known, and `run` encloses the tasks that watch them."""

    def __init__(
        self,
        config: Config,
        dispatcher: Dispatcher,
        clients: AwsClients,
        executor: Executor,
        connections: ConnectionTable,
        tuning: Tuning = TUNING,
    ) -> None:
        node = config.node
        self._tuning = tuning
        self.config, self._user_lists = config, UserLists(config)
        self._dispatcher, self._clients, self._executor = dispatcher, clients, executor
        self._connections = connections
        self._tasks = asyncio.TaskGroup()  # `run` enters it
        self.budget = NodeBudget(node.node_queue_limit_bytes, node.floor_bytes)
        self.in_flight = NodeInFlight(node.node_max_in_flight_bytes, node.in_flight_floor_bytes)
        self._known: dict[str, Stream] = {}
        self._watches: dict[Stream, asyncio.Task[None]] = {}
        self._askings: dict[Stream, Asking] = {}
        self._whereabouts: dict[Stream, Whereabouts] = {}
        self._pace = Pace()
        self._openers: dict[Stream, int | None] = {}  # the user who opened it first
        self._dry_runs: dict[DryRun, asyncio.Task[None]] = {}
        self._allowance = CallAllowance()

    async def run(self, stopped: asyncio.Event) -> None:
        """Own the watch of every stream until ``stopped``."""
        async with self._tasks:
            forgetting = self._tasks.create_task(self._forget_idle())
            await stopped.wait()
            for task in (forgetting, *self._watches.values(), *self._dry_runs.values()):
                task.cancel()
            for asking in self._askings.values():
                asking.close()
            for whereabouts in self._whereabouts.values():
                whereabouts.close()

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: str) -> Stream | None:
        return self._known.get(name)

    @property
    def are_quiet(self) -> bool:
        """Whether no stream has a row left."""
        return all(stream.budget.used_records == 0 for stream in self)

    def taken_records(self) -> int | None:
        """Return how many records the streams have accepted until now, or None while any row is left."""
        return sum([stream.stats.ingest_records for stream in self]) if self.are_quiet else None

    def open(self, name: str, uid: int | None = None) -> Stream:
        """Return the stream of this name for a client of this user, and make it at the first call.

        Raise Refused if the daemon may not take it, or not from this user.
        """
        stream = self._known.get(name)
        if (why := self._user_lists.why_not(name, uid)) is not None:
            raise Refused(why, code=Code.NOT_AUTHORIZED)
        if stream is None:
            _check_name(name)
            self._forget_unused(name, uid)
        self._check_share(name, stream, uid)
        return stream or self._make(name, uid)

    def open_dry(self, name: str, uid: int | None) -> DryRun:
        """Return a dry run of a stream for one session of this user.

        Raise Refused as `open` does, or if too many are open: each takes the memory of a stream.
        """
        stream, node = self.open(name, uid), self.config.node
        own = sum(uid in one.users for one in self._dry_runs)
        if len(self._dry_runs) >= node.max_connections or own >= self._tuning.most_of_a_user(node.max_connections):
            message = f"{len(self._dry_runs)} dry runs are open, {own} of them for user id {uid}"
            raise Refused(f"{message}: run fewer tasks at a time", code=Code.STREAM_LIMIT)
        dry_run = DryRun(stream, self.budget, self.in_flight, touched=self._dispatcher.look_at, tuning=self._tuning)
        self._dispatcher.carry(dry_run, dry_run)
        self._dry_runs[dry_run] = self._tasks.create_task(self._end(dry_run))
        self._share()
        dry_run.begin(asyncio.get_running_loop().time())
        return dry_run

    def open_listed(self, name: str) -> Stream | None:
        """Return a stream, also before its first client if it has settings of its own.

        Raise Refused if the daemon may not take one more.
        """
        stream = self._known.get(name)
        if stream is None and name in self.config.streams:
            self._forget_unused(name, None)
            stream = self._make(name, None)
        return stream

    def ask_service(self, stream: Stream, receive: Callable[[ServiceAnswer], None]) -> None:
        """Ask a stream's service whether it would store records.  ``receive`` is called with the answer."""
        if (asking := self._askings.get(stream.of)) is not None:
            asking.ask(receive)

    def ask_where(self, stream: Stream, receive: Callable[[StreamSummary | None], None]) -> None:
        """Call ``receive`` with the summary of a stream, read after this call, or with None if it cannot be read."""
        self._whereabouts[stream].ask(receive)

    def hand_room_on(self, now: float) -> None:
        """Offer room of the node that came free to the streams that wait for it.  All others send what lingers.

        Streams that hold least come first.
        """
        if not self.budget.wanted_by:
            return
        freed = self.budget.take_freed()
        for stream in sorted([*self, *self._dry_runs], key=lambda stream: stream.budget.used_bytes):
            if freed and stream.budget in self.budget.wanted_by:
                stream.take_room()
            else:
                stream.press(now)

    def reload(self, config: Config, now: float) -> None:
        """Follow new settings, which for an open stream differ only in what it can change."""
        self.config, self._user_lists = config, UserLists(config)
        self._share()
        for stream in self:
            stream.reload(config.stream(stream.name), now)

    # ---- inside

    def _make(self, name: str, uid: int | None) -> Stream:
        self._make_place(name, uid)
        settings = self.config.stream(name)
        client = self._clients.of(access_of(self.config.node, settings))
        stream = self._known[name] = Stream(
            name,
            settings,
            self.budget,
            self.in_flight,
            touched=self._dispatcher.look_at,
            credentials=client.credentials,
            tuning=self._tuning,
        )
        self._openers[stream] = uid
        kinesis = AioKinesis(client, self._executor)
        calls = SparingCalls(kinesis, self._allowance, lambda: {*stream.users, uid}, partial(self._is_known, stream))
        self._askings[stream] = Asking(stream, calls, self._tasks)
        self._whereabouts[stream] = Whereabouts(stream.address, calls, self._tasks, self._pace)
        self._watches[stream] = self._tasks.create_task(ShardWatch(stream, calls).run())
        self._dispatcher.carry(stream, kinesis)
        return stream

    async def _end(self, dry_run: DryRun) -> None:
        """Forget a dry run when it has ended."""
        await dry_run.ended()
        self._dispatcher.forget(dry_run)
        del self._dry_runs[dry_run]
        self._share()

    def _is_known(self, stream: Stream) -> bool:
        return stream.name in self.config.streams or _works(stream)

    def _check_share(self, name: str, stream: Stream | None, uid: int | None) -> None:
        """Raise Refused if the user's clients have all streams open that they may, and this would be one more."""
        if name in self.config.streams or (stream is not None and uid in stream.users):
            return
        if self._has_part(uid):
            max_streams = self.config.node.max_streams
            limit = f"a user's part of max_streams = {max_streams}: {self._tuning.most_of_a_user(max_streams)}"
            message = f"{limit} streams are open for user id {uid}, listed ones not counted"
            raise Refused(message, code=Code.STREAM_LIMIT)

    def _has_part(self, uid: int | None) -> bool:
        """Return whether a user has as many streams as one may, listed ones not counted."""
        return self._streams_of(uid) >= self._tuning.most_of_a_user(self.config.node.max_streams)

    def _is_of(self, stream: Stream, uid: int | None) -> bool:
        """Return whether a stream counts for a user: who has it open, or has opened one that never worked.

        Records whose callers have left keep such a stream, too.
        """
        return uid in stream.users or (self._openers[stream] == uid and not _works(stream))

    def _streams_of(self, uid: int | None) -> int:
        return sum(self._is_of(one, uid) for one in self if one.name not in self.config.streams)

    def _may_go(self) -> list[Stream]:
        """Return the streams that have no rows and no settings of their own."""
        return [
            stream
            for stream in self
            if stream.name not in self.config.streams and stream.pipeline.idle and not stream.pipeline.paused
        ]

    def _forget_unused(self, name: str, uid: int | None) -> None:
        """If the table, or the user's part of it, is full, forget a stream of it that no client has open.

        First goes one that never worked, because most such names are misspelt, and then the longest idle one.
        """

        def rank(stream: Stream) -> tuple[bool, float]:
            since = stream.idle_since
            return _works(stream), inf if since is None else since

        has_part = name not in self.config.streams and self._has_part(uid)
        if has_part or len(self) >= self.config.node.max_streams:
            unused = [one for one in self._may_go() if not one.is_open and (self._is_of(one, uid) or not has_part)]
            if unused:
                self._forget(min(unused, key=rank))

    def _make_place(self, name: str, uid: int | None) -> None:
        """If the table is still full, let a stream go for a user's new one.  Raise Refused if none may.

        It is the longest idle one of the user with the most streams, and only while that user keeps as many as this
        one then has.
        """
        most = self.config.node.max_streams
        if len(self) < most:
            return
        own = 0 if name in self.config.streams else self._streams_of(uid)
        idle = self._connections.idle_streams()
        ranked = []
        for stream in self._may_go():
            least = min((self._streams_of(user) for user in stream.users), default=0)
            if stream in idle and uid not in stream.users and least > own + 1:
                ranked.append((-least, idle[stream], stream))
        if ranked:
            _, _, going = min(ranked, key=itemgetter(0, 1))
            self._connections.let_go_of(going)
            self._forget(going)
        if len(self) >= most:
            raise Refused(f"max_streams = {most} streams are in use", code=Code.STREAM_LIMIT)

    async def _forget_idle(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            for stream in list(self):
                idle_since = stream.idle_since
                if idle_since is None:
                    continue
                idle_seconds = now - idle_since
                if stream.name in self.config.streams:
                    if not stream.report.is_up and idle_seconds >= FORGET_BROKEN_SECONDS:
                        stream.forget_refusal()
                elif idle_seconds >= (FORGET_SECONDS if _works(stream) else FORGET_BROKEN_SECONDS):
                    log.info("stream forgotten", stream=stream.name, idle_seconds=round(idle_seconds))
                    self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self._watches.pop(stream).cancel()
        self._askings.pop(stream).close()
        self._whereabouts.pop(stream).close()
        del self._openers[stream]
        self._dispatcher.forget(stream)
        del self._known[stream.name]
        self._share()

    def _share(self) -> None:
        """Give each stream its part of the node's limits.

        There may be more than ``max_streams``: with dry runs, or after a reload that allows fewer.
        """
        node = self.config.node
        parts = 2 * max(node.max_streams, len(self) + len(self._dry_runs))
        self.budget.set_limits(node.node_queue_limit_bytes, node.node_queue_limit_bytes // parts)
        self.in_flight.set_limits(node.node_max_in_flight_bytes, node.node_max_in_flight_bytes // parts)


def _check_name(name: str) -> None:
    if not STREAM_NAME.fullmatch(name):
        message = f"{name!r} cannot be a stream's name: 1 to 128 of a-z A-Z 0-9 _ . -"
        raise Refused(message, code=Code.STREAM_NOT_FOUND)


def _works(stream: Stream) -> bool:
    return stream.pipeline.health.state not in (HealthState.UNPROVEN, HealthState.BROKEN)
