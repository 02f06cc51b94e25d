"""An honest client's puts before, under and after each attack.

The median counts, as the machine's other work lengthens some puts.  Attackers and the honest client also compete for
the machine's processors: the case `BUSY` shows how much of a figure that alone is.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.request import urlopen

from benchmarks.abuse import attackers
from benchmarks.abuse.attackers import BUSY, HTTP_ATTACKS, OWN, STREAM
from benchmarks.harness import START_SECONDS, STOP_SECONDS, serve_with, started
from benchmarks.machine import machine
from benchmarks.processes import forget_peak, peak_rss_bytes
from producerd.demo.children import Child, ChildFailed, Children
from producerd.demo.ports import free_port
from producerd.demo.scenario import environment, folder
from producerd.errors import ConnectionFailed
from producerd.wire.columns import lay_out
from producerd.wire.messages import Hello
from spark_client.connection import Connection

CONNECTIONS: Final = (1, 20)
IDLE_CONNECTIONS: Final = 600
"""Of the attacks that do nothing but connect: more than the table has places."""
ONLY_CONNECT: Final = ("idle connections", "mute connections", "HTTP: idle connections", "HTTP: incomplete requests")
NOBODY_UID: Final = 65_534
RECORDS: Final = 10
WARM: Final = 50
LEAST_PUTS: Final = 30
PUT_SECONDS: Final = 60.0
SCRAPES: Final = 5
SCRAPE_SECONDS: Final = 10.0
"""Prometheus's default time-out."""
SETTLE_SECONDS: Final = 1.0
"""Time for an attack to have its effect before the honest client is measured."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the results.

    ``honest_p50_before``, ``honest_p50_under`` and ``honest_p50_after`` are the median seconds from an honest put to
    its acknowledgement.  ``ratio`` is the second divided by the first.  ``peak_rss_bytes`` is the daemon's, during the
    attack.  ``failed_scrapes`` is how many of `SCRAPES` had no answer during an attack on the HTTP endpoint.
    """

    attack: str
    connections: int
    same_uid: bool
    honest_p50_before: float
    honest_p50_under: float
    honest_p50_after: float
    ratio: float
    peak_rss_bytes: int
    failed_scrapes: int | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark's processes, with ``seconds`` for each measurement.  ``say`` reports the progress."""

    children: Children
    daemon: Child
    socket: str
    http: str
    seconds: float
    say: Callable[[str], None]

    @property
    def conditions(self) -> str:
        who = (
            f"attackers of uid {NOBODY_UID} and of uid 0" if os.getuid() == 0 else "attackers of the same uid: not root"
        )
        return (
            f"{machine()}; Python {platform.python_version()}; {who}; an honest client puts frames of {RECORDS} "
            f"records one after the other, {self.seconds:g} s each before, under and after an attack; linger 0"
        )

    def figures(self, names: Sequence[str], passes: int) -> Iterator[Figures]:
        """Measure all attacks, then all of them again.  Yield each one's figures with the median ratio.

        The passes of an attack are minutes apart, so what else the machine does rarely meets most of them.  Raise
        `ChildFailed`.
        """
        for same in zip(*[list(self._once(names)) for _ in range(passes)], strict=True):
            yield sorted(same, key=lambda figures: figures.ratio)[passes // 2]

    def _once(self, names: Sequence[str]) -> Iterator[Figures]:
        for name in (BUSY, *names):
            counts = (IDLE_CONNECTIONS,) if name in ONLY_CONNECT else CONNECTIONS[-1:] if name == BUSY else CONNECTIONS
            for connections in counts:
                uids = dict.fromkeys((NOBODY_UID, os.getuid()) if os.getuid() == 0 else (os.getuid(),))
                for uid in list(uids)[:1] if name in HTTP_ATTACKS else uids:
                    yield self._measured(name, connections, uid)

    def _measured(self, name: str, connections: int, uid: int) -> Figures:
        self.say(f"{name}, {connections} connections of uid {uid} ...")
        before = self._honest_p50()
        forget_peak(self.daemon.process.pid)
        with self.attackers(name, connections, uid):
            time.sleep(SETTLE_SECONDS)
            under = self._honest_p50()
            peak = peak_rss_bytes(self.daemon.process.pid)
            failed_scrapes = self._failed_scrapes() if name in HTTP_ATTACKS else None
        time.sleep(SETTLE_SECONDS)
        after = self._honest_p50()
        ratio = round(under / before, 2)
        self.say(f"  {1_000 * before:.1f} ms before, {1_000 * under:.1f} under it ({ratio:g} times)")
        if failed_scrapes is not None:
            self.say(f"  {failed_scrapes} of {SCRAPES} scrapes failed")
        return Figures(name, connections, uid == os.getuid(), before, under, after, ratio, peak, failed_scrapes)

    def _failed_scrapes(self) -> int:
        """Return how many of `SCRAPES` failed."""
        failed = 0
        for _ in range(SCRAPES):
            try:
                with urlopen(f"http://{self.http}/metrics", timeout=SCRAPE_SECONDS) as answer:
                    answer.read()
            except OSError:
                failed += 1
        return failed

    def _honest_p50(self) -> float:
        """Return the median seconds of a put and its acknowledgement, on a new connection."""
        frame = lay_out([b"key"] * RECORDS, [b"x" * 100] * RECORDS)
        hello = Hello(1, 1, client="honest", pid=os.getpid())
        taken: list[float] = []
        with Connection(hello, [self.socket], connect_timeout_seconds=PUT_SECONDS) as session:
            until = time.monotonic() + self.seconds
            while len(taken) < LEAST_PUTS + WARM or time.monotonic() < until:
                began = time.perf_counter()
                with contextlib.suppress(ConnectionFailed):  # there was no place for it in all this time
                    session.put(STREAM, frame, PUT_SECONDS)
                    session.flush(PUT_SECONDS)
                taken.append(time.perf_counter() - began)
                if time.monotonic() > until + PUT_SECONDS:
                    break
        measured = taken[WARM:] or taken
        return round(statistics.median(measured), 6)

    @contextlib.contextmanager
    def attackers(self, name: str, connections: int, uid: int) -> Iterator[None]:
        """Attack during the block."""
        arguments = [name, self.http if name in HTTP_ATTACKS else self.socket, str(connections), str(uid)]
        child = self.children.start("attackers", ["-m", attackers.__name__, *arguments])
        child.line(START_SECONDS)
        yield
        child.tell("end")
        if child.ended(STOP_SECONDS) is None:
            raise ChildFailed("the attackers did not end", child.log)


@contextlib.contextmanager
def bench(seconds: float, say: Callable[[str], None]) -> Iterator[Bench]:
    """Start a Kinesis and a daemon that every user may connect to, and end both after the block."""
    with folder() as work, Children(work, environment(work)) as children:
        work.chmod(0o755)
        streams = [f"--stream={name}" for name in (STREAM, OWN)]
        kinesis = children.start(
            "kinesis", ["-m", "producerd.testing.fake_kinesis", "--port=0", "--shards=4", *streams]
        )
        path, http = str(work / "daemon.sock"), f"127.0.0.1:{free_port()}"
        settings = {
            "socket": path,
            "socket_mode": "0666",
            "endpoint_url": kinesis.line(START_SECONDS),
            "metrics_listen": http,
            "linger_seconds": 0,
            f'streams."{STREAM}".shard_rate_fraction': 1_000,
            f'streams."{STREAM}".aggregation': "none",  # a table of its own, as the shipped settings have it
        }
        with started(children, serve_with(settings)) as daemon:
            yield Bench(children, daemon, path, http, seconds, say)
