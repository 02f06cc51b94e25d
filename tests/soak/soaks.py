"""What each soak repeats.

A soak is a context manager.  It starts a daemon on its ground, and returns a function that does the thing once more and
returns how often it did it.  Between two calls everything is idle, so that whatever is left has no reason to be there.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from producerd.ctl.daemon import AdminClient, Failed
from spark_client import KinesisClient
from tests.daemon import until
from tests.faults.credentials import NO_VARIABLES, KeysEndpoint
from tests.faults.scenarios.shards import Owner
from tests.faults.spark_job import lacks
from tests.soak.ground import STREAMS, Ground, keys_from
from tests.soak.spark_job import SparkQuery

Repeat = Callable[[], int]
KEYS: Final = 8_192
SOME: Final = keys_from(0, 200)
HANG: Final = {"kind": "hang", "action": "PutRecords"}
THROTTLE: Final = {"kind": "throttle"}
AT_ONCE: Final = 16
"""Clients that come and go side by side."""
STORM_SECONDS: Final = 1.5
UNEQUAL: Final = "state that grows where writers\nand shards differ in number"
DAY_SECONDS: Final = 0.3
"""Time between two streams: what is kept for the last minute is level only if their rate is."""
STEPS: Final = 5
"""Reshards of each stream before rows follow, for which the daemon must read the list of shards again."""


@dataclass(frozen=True, slots=True)
class Soak:
    """``what`` is repeated, in words, and ``unit`` is what is counted.

    ``report`` has the words of a report about another producer, for what grew there.  ``lacks`` says what this machine
    lacks.
    """

    what: str
    unit: str
    hold: Callable[[Ground], AbstractContextManager[Repeat]]
    shards: int
    report: str
    lacks: Callable[[], str]


SOAKS: Final[dict[str, Soak]] = {}


def soak(
    what: str, unit: str, *, shards: int = 4, report: str = "", lacks: Callable[[], str] = str
) -> Callable[[Callable[[Ground], Iterator[Repeat]]], None]:
    def register(hold: Callable[[Ground], Iterator[Repeat]]) -> None:
        SOAKS[hold.__name__] = Soak(what, unit, contextlib.contextmanager(hold), shards, report, lacks)

    return register


@soak(
    "rows with the same 8,192 keys, to a plain, an aggregated and a per_key stream",
    "rows",
    report="“this queue may grow indefinitely”\n(FLINK-9374)",
)
def fixed_keys(ground: Ground) -> Iterator[Repeat]:
    ground.start_daemon()
    keys = dict.fromkeys(STREAMS, keys_from(0, KEYS))

    def repeat() -> int:
        ground.write_at_once(keys)
        return len(STREAMS) * KEYS

    yield repeat


@soak(
    "rows that each have a key of their own",
    "rows",
    report="“expired events/keys not removed\nfrom state” (FLINK-19970)",
)
def rotating_keys(ground: Ground) -> Iterator[Repeat]:
    ground.start_daemon()
    counts, first = {"plain": 2_000, "packed": 40_000, "ordered": 8_000}, itertools.count(step=40_000)

    def repeat() -> int:
        begin = next(first)
        ground.write_at_once({stream: keys_from(begin, count) for stream, count in counts.items()})
        return sum(counts.values())

    yield repeat


@soak(
    "micro-batches of a Spark query that 4 tasks write to 2 shards",
    "micro-batches",
    shards=2,
    report=UNEQUAL,
    lacks=lacks,
)
def more_writers_than_shards(ground: Ground) -> Iterator[Repeat]:
    yield from _micro_batches(ground, 4)


@soak("micro-batches of a Spark query that 2 tasks write to 4 shards", "micro-batches", report=UNEQUAL, lacks=lacks)
def more_shards_than_writers(ground: Ground) -> Iterator[Repeat]:
    yield from _micro_batches(ground, 2)


def _micro_batches(ground: Ground, writers: int) -> Iterator[Repeat]:
    ground.start_daemon()
    with SparkQuery.running(ground.folder, ground.socket, writers) as query:
        ground.told = query.figures

        def repeat() -> int:
            query.run_batch()
            return 1

        yield repeat


@soak(
    "storms that throttle every record, in each of which a Spark query ends and starts again",
    "storms",
    report="“the more restarts we do, the more of these\nwe have hanging around” (KPL, issue 98)",
    lacks=lacks,
)
def throttling_storms(ground: Ground) -> Iterator[Repeat]:
    ground.start_daemon()
    with SparkQuery.running(ground.folder, ground.socket, 2) as query:
        ground.told = query.figures

        def repeat() -> int:
            ground.service.fails(THROTTLE)
            query.begin_batch(STORM_SECONDS)
            query.restart()
            ground.service.calm()
            query.run_batch()
            return 1

        yield repeat


@soak("clients that connect, put a record and leave", "clients")
def reconnects(ground: Ground) -> Iterator[Repeat]:
    ground.start_daemon()

    def come_and_go(stream: str) -> None:
        with KinesisClient(stream, socket=str(ground.socket)) as client:
            client.put(b"data", "key")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield lambda: sum(1 for _ in pool.map(come_and_go, [*STREAMS] * AT_ONCE))


@soak("reloads, of which every second one is refused", "reloads")
def reloads(ground: Ground) -> Iterator[Repeat]:
    file = ground.folder / "producerd.toml"
    bad = itertools.cycle(("queue_limit = -1", "queue_limit = ", 'aggregation = "zip"', "no_such_setting = 1"))
    file.write_text("")
    ground.start_daemon(f"--config={file}")
    daemon = AdminClient(str(ground.socket.with_name("daemon.admin.sock")))

    def repeat() -> int:
        for queue_limit in random.sample(range(1_000, 9_000), 2):
            file.write_text(f"[defaults]\nqueue_limit = {queue_limit}")
            daemon.post("/reload")
            file.write_text(next(bad))
            with contextlib.suppress(Failed):
                daemon.post("/reload")
                raise AssertionError(f"a bad file was taken: {file.read_text()}")
        ground.write_at_once(dict.fromkeys(STREAMS, SOME))
        return 4

    yield repeat


@soak("splits and merges of shards, with rows after each", "reshards")
def reshards(ground: Ground) -> Iterator[Repeat]:
    ground.start_daemon()
    owners, chance = [Owner(ground.service, stream) for stream in STREAMS], random.Random(1)

    def repeat() -> int:
        for owner in owners * STEPS:
            owner.step(chance)
        ground.write_at_once(dict.fromkeys(STREAMS, SOME))
        return len(owners) * STEPS

    yield repeat


@soak("streams that are made, written to once and deleted", "streams")
def streams_by_day(ground: Ground) -> Iterator[Repeat]:
    ground.start_daemon(max_streams=8)
    days = itertools.count()

    def repeat() -> int:
        time.sleep(DAY_SECONDS)
        name = f"day-{next(days)}"
        ground.service.control("streams", name=name, shards=2)
        ground.write(name, SOME)
        ground.service.client.delete_stream(StreamName=name)
        return 1

    yield repeat


@soak("credentials that expire after 8 s and are renewed", "renewals")
def rotating_credentials(ground: Ground) -> Iterator[Repeat]:
    with KeysEndpoint(8).running() as endpoint:
        ground.environ |= {**NO_VARIABLES, "AWS_CONTAINER_CREDENTIALS_FULL_URI": endpoint.url}
        ground.start_daemon()

        def repeat() -> int:
            handed = len(endpoint.ends)
            while len(endpoint.ends) == handed:  # a request begins the renewal
                ground.service.control("settings", expired_access_keys=endpoint.expired())
                ground.write_at_once(dict.fromkeys(STREAMS, SOME))
            return len(endpoint.ends) - handed

        yield repeat


@soak("stops of a daemon whose queue is full and whose callers are blocked", "stops")
def stops_while_blocked(ground: Ground) -> Iterator[Repeat]:
    def start() -> None:
        ground.start_daemon(queue_limit=100, drain_timeout_seconds=0.5)

    start()

    def repeat() -> int:
        ground.service.fails(HANG)
        with ground.writing(dict.fromkeys(STREAMS, keys_from(0, 1_000))):
            until(
                lambda: ground.daemon.metrics()["backpressure_blocked_clients"] >= len(STREAMS),
                "every caller is blocked",
            )
            ground.daemon.signal()
            ground.daemon.wait()
            start()
            ground.service.calm()
        return 1

    yield repeat
