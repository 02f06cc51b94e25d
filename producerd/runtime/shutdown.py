"""Shutdown: how the daemon ends, from the first cause to the last words.

SIGTERM or SIGINT makes the daemon drain.  It accepts no more clients, finishes its requests, delivers rows that have no
caller, and returns every other row to its caller.  It ends when all that is done, or after ``drain_timeout_seconds``.
A second signal ends it at once.

A daemon that belongs to another process drains when that process has ended, within `OWNERLESS_SECONDS`.  With
``exit_when_idle_seconds`` it ends when it had no client and no record for that long.

`producerctl drain` lets the daemon deliver its queues first, so that only the rest is returned.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final

from producerd.config import NodeSettings
from producerd.core.gate import Refusal
from producerd.errors import Code
from producerd.runtime.dispatcher import Dispatcher
from producerd.runtime.leaving import IdleTime, OwnerProcess
from producerd.runtime.logs import get_logger
from producerd.runtime.streams import Streams
from producerd.runtime.users.connection_table import ConnectionTable

log = get_logger("producerd")

OWNERLESS_SECONDS: Final = 3.0
"""The longest time that a daemon drains whose owner has ended.  With `LAST_WORDS_SECONDS` it ends within 5 s."""
LAST_WORDS_SECONDS: Final = 1.0
"""Time that the last acknowledgements have to leave before the daemon cuts the connections."""
LAST_SCRAPE_SECONDS: Final = 20.0
"""Time that a daemon which has lost records stays for the scrapes that show them.

A daemon ends within `drain_timeout_seconds` and 25 s: this time, `LAST_WORDS_SECONDS`, and the end of the process.
"""


@dataclass(slots=True)
class Drained:
    """The result of draining, as far as it has come.

    ``empties_for_seconds``: how long the daemon delivers its queues first.
    """

    empties_for_seconds: float | None = None
    returned_records: int = 0
    undelivered_records: int = 0
    """Records that draining lost, because they had no caller to return to."""


class Shutdown:
    """Whether and why the daemon ends, how much time each step of its end has left, and what became of the rows.

    ``asked`` is set once the daemon is to end.  ``node`` returns the settings in effect.
    """

    def __init__(
        self, streams: Streams, connections: ConnectionTable, dispatcher: Dispatcher, node: Callable[[], NodeSettings]
    ) -> None:
        self.asked = asyncio.Event()
        self._drained = Drained()
        self._streams, self._connections, self._dispatcher, self._node = streams, connections, dispatcher, node
        self._loop = asyncio.get_running_loop()
        self._idle_time = IdleTime()
        self._signals = 0
        self._drains = False
        self._emptying: asyncio.Timeout | None = None
        self._returning: tuple[float, asyncio.Timeout] | None = None  # since when, and how long at most
        self._step_ends = asyncio.Event()  # the present step of draining
        self._settled = asyncio.Event()
        self._hurried = asyncio.Event()  # by a second signal

    @property
    def most_seconds(self) -> float:
        """The longest time that draining takes."""
        return self._node().drain_timeout_seconds + (self._drained.empties_for_seconds or 0.0)

    # ---- causes

    def on_signal(self, number: int) -> None:
        """Drain, or end at once if it is not the first signal."""
        self._signals += 1
        name = signal.Signals(number).name
        if self._signals > 1:
            log.warning("stopping at once", signal=name)
            self._hurried.set()
        else:
            log.info("draining", signal=name, seconds=self._node().drain_timeout_seconds)
        empties = self.asked.is_set() and self._returning is None
        if self._signals > 1 or empties:
            self._step_ends.set()
        self.asked.set()

    async def drain_and_stop(self, seconds: float | None) -> Drained:
        """Deliver the queues for this long, or for `drain_timeout_seconds`.  Then stop as after SIGTERM.

        While the daemon does so already, a time of ``seconds`` from now on can only shorten that.

        Return when every row has ended, before the daemon does.
        """
        if not self.asked.is_set():
            self._drained.empties_for_seconds = self._node().drain_timeout_seconds if seconds is None else seconds
            log.info("draining", by="producerctl", seconds=self._drained.empties_for_seconds)
            self.asked.set()
        elif seconds is not None and self._emptying is not None:
            sooner = self._loop.time() + seconds
            if sooner < (self._emptying.when() or inf):
                log.info("draining", by="producerctl", seconds=seconds)
                self._emptying.reschedule(sooner)
        await self._settled.wait()
        return self._drained

    async def leave_with(self, owner: OwnerProcess | None) -> None:
        """Drain when the process to which the daemon belongs has ended."""
        if owner is not None:
            await owner.ends()
            log.info("draining", owner_ended=owner.pid, seconds=OWNERLESS_SECONDS)
            self.asked.set()
            await asyncio.sleep(OWNERLESS_SECONDS)
            while True:
                self._step_ends.set()
                await asyncio.sleep(0.1)

    async def leave_when_idle(self) -> None:
        """Drain when nothing has used the daemon for long."""
        seconds = self._node().exit_when_idle_seconds
        if seconds:
            await self._idle_time.lasts(seconds)
            log.info("draining", idle_for_seconds=seconds)
            self.asked.set()

    def settings_changed(self) -> None:
        """Follow another `drain_timeout_seconds`, also while rows are returned."""
        if self._returning is not None:
            since, time_left = self._returning
            with suppress(RuntimeError):  # it has ended
                time_left.reschedule(since + self._node().drain_timeout_seconds)

    def look_whether_idle(self) -> None:
        """Notice whether nothing uses the daemon now."""
        self._idle_time.look(is_idle=not self._connections and self._streams.are_quiet, now=self._loop.time())

    def rows_settled(self) -> None:
        """Notice whether the daemon is idle, or a step of draining is done."""
        self.look_whether_idle()
        if self._drains and self._streams.are_quiet:
            self._step_ends.set()

    # ---- steps

    async def drain_rows(self) -> Drained:
        """Finish requests and return rows, until all is done or the deadline has passed."""
        self._drains = True
        lost_before = {stream: stream.stats.discarded_records["abandoned"] for stream in self._streams}
        emptying_seconds = self._drained.empties_for_seconds or 0.0
        for session in list(self._connections):
            session.announce_drain(self.most_seconds)
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
            self._step_ends.clear()
        for stream in self._streams:
            stream.return_rows()
        time_left = asyncio.timeout(self._node().drain_timeout_seconds)
        self._returning = self._loop.time(), time_left
        if not await self._quiet_within(time_left):
            log.warning("the deadline of draining has passed", seconds=self._node().drain_timeout_seconds)
        await self._dispatcher.give_up()
        for stream in self._streams:
            stream.pipeline.abandon()
            stream.settle(self._loop.time())
            ended = stream.stats.discarded_records
            self._drained.returned_records += ended["returned"]
            self._drained.undelivered_records += ended["abandoned"] - lost_before.get(stream, 0)
        self._settled.set()
        return self._drained

    async def _quiet_within(self, time_left: asyncio.Timeout) -> bool:
        """Wait until no row is left or a signal ends the step.  Return False if the time runs out first."""
        with suppress(TimeoutError):
            async with time_left:
                if not self._streams.are_quiet:
                    await self._step_ends.wait()
        return not time_left.expired()

    async def say_last_words(self) -> None:
        """Let the last acknowledgements leave, and then end the connections."""
        for session in list(self._connections):
            session.end_session(Code.DRAINING, "the daemon has stopped")
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._connections.all_end()

    async def show_losses(self) -> None:
        """Let Prometheus read how many records were lost: the counters end with the daemon.

        No scrape ends the wait, because another Prometheus may scrape the daemon, too.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SCRAPE_SECONDS):
                await self._hurried.wait()
