"""Guarded batches that are run again and again, under daemons that fail, lose no row: random runs, and counts."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pytest

from producerd.errors import Code, Outcome, ProducerdError
from producerd.wire import messages
from producerd.wire.columns import Body
from spark_client.replay import chunks, store
from spark_client.replay.guard import GuardPlan
from spark_client.results import PartitionResult
from spark_client.task import Plan, send_partition
from tests.spark_client.fake_daemon import INVALID, FakeDaemon, Session, rows_of

pytestmark = pytest.mark.law("TaskGuard")

CHUNK_ROWS: Final = 7
FOLDER: Final = "query=q/batch=1/0"
BACK: Final = messages.RowCode(Outcome.RETURNED, Code.DRAINING, "the daemon stops")
Given = tuple[str, str, str]
"""A row's stream, key and data."""


class Daemons:
    """Daemons, one after the other, that give rows back and end at any time.  Some serve another endpoint."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.made_again = 0  # how often the streams were made again
        self.hosts: set[str] = set()  # that served the present run
        self.stored: Counter[tuple[str, int, Given]] = Counter()  # by host and made_again
        self._per_key = int(chance.random() < 0.3)
        self._most_records = chance.choice([2, 5, 10_000])
        self._lock = threading.Lock()

    def serve(self, session: Session) -> None:
        session.welcome(max_frame_records=self._most_records)
        host = "there" if self.chance.random() < 0.12 else "here"
        self.hosts.add(host)
        says_where = self.chance.random() < 0.9
        frames_left = self.chance.randrange(1, 12) if self.chance.random() < 0.4 else 1_000
        with contextlib.suppress(EOFError, ConnectionError):
            while frames_left:
                message = session.read()
                if isinstance(message, messages.Open):
                    place: dict[str, Any] = {"endpoint_host": host, "created_milliseconds": self.made_again + 1}
                    arn = message.stream if says_where else ""
                    most = (1 << 20, self._most_records)
                    session.send(
                        messages.Opened(message.stream_id, *most, per_key=self._per_key, stream_arn=arn, **place)
                    )
                elif isinstance(message, messages.Reserve):
                    session.send(messages.Grant(message.frame_id))
                elif isinstance(message, Body):
                    frames_left -= 1
                    if not self._take(session, message, host, dies=not frames_left):
                        break
        session.socket.close()

    def _take(self, session: Session, body: Body, host: str, *, dies: bool) -> bool:
        """Store a frame's rows or not, acknowledge them or not, and return whether the daemon goes on."""
        if dies and self.chance.random() < 0.5:
            return False
        failed: dict[int, messages.RowCode] = {}
        for place, (_, data, _) in enumerate(rows_of(body)):
            if data == b"bad":
                failed[place] = INVALID
            elif self.chance.random() < 0.02:
                failed[place] = BACK
        named = session.rows[-body.layout.records :]
        with self._lock:
            for place, (stream, (key, data, _)) in enumerate(named):
                if place not in failed:
                    self.stored[host, self.made_again, (stream, key.decode(), (data or b"").decode())] += 1
        if dies:
            return False
        session.fail(body, failed)
        if BACK not in failed.values():
            return True
        session.send(messages.Draining(1.0, "the daemon stops"), messages.Close(Code.DRAINING, "the daemon stops"))
        return False


class Batch:
    """A micro-batch, whose runs may order and part its rows otherwise, and of which each may be cut short."""

    def __init__(self, daemon: FakeDaemon, daemons: Daemons, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        chance = self._chance = daemons.chance
        self._daemon, self._folder, self._monkeypatch = daemon, folder, monkeypatch
        self._mark = store.Store(folder.as_uri()).mark()
        values = [f"v{i}" for i in range(chance.choice([1, 1, 2, 50, 10_000]))]
        values += ["bad"] if chance.random() < 0.3 else []
        streams, keys = ["s1", "s2"][: chance.choice([1, 2])], ["a", "b", "c"][: chance.choice([1, 3])]
        count = chance.randrange(1, 120)
        self._rows = [(chance.choice(streams), chance.choice(keys), chance.choice(values)) for _ in range(count)]

    def run(self) -> tuple[Counter[Given], int] | None:
        """Return the rows of a run that ended well, and how many were left out; None if it was cut short."""
        chance, rows, left_out = self._chance, [*self._rows], 0
        if chance.random() < 0.3:
            chance.shuffle(rows)
        if chance.random() < 0.2:
            rows = rows[chance.randrange(5) :] + [("s1", "z", "new")] * chance.randrange(3)
        parts = chance.choice([1, 1, 2, 3])
        for partition in range(parts):
            own = rows[len(rows) * partition // parts : len(rows) * (partition + 1) // parts]
            left = next(
                (left for attempt in range(4) if (left := self._task(own, partition, attempt)) is not None), None
            )
            if left is None or chance.random() < 0.15:
                return None
            left_out += left
        return Counter(row for row in rows if row[2] != "bad"), left_out

    def _task(self, rows: list[Given], partition: int, attempt: int) -> int | None:
        """Return how many rows a task has left out, or None if it failed."""
        chance = self._chance
        task: Any = SimpleNamespace(
            stageId=int, partitionId=lambda: partition, attemptNumber=lambda: attempt, getLocalProperty=lambda _: None
        )
        self._monkeypatch.setattr("pyspark.TaskContext.get", lambda: task)
        found = tuple(int(path.name) for path in (self._folder / FOLDER).glob("*")) if chance.random() < 0.9 else None
        guard = GuardPlan(
            self._folder.as_uri(), FOLDER, self._mark, "t", chance.choice([0.001, 10.0]), found, time.time()
        )
        plan = Plan(None, self._daemon.path, guard=guard, skip_bad_records=True)
        plan = plan._replace(reconnect_timeout_seconds=chance.choice([0.0, 20.0]))
        try:
            results = [
                PartitionResult.from_line(made["result"][0].as_py())
                for made in send_partition(plan, self._in_arrow(rows))
            ]
        except ProducerdError:
            return None
        assert sum(result.records for result in results) == len(rows)
        failed = any(result.failed(skip_bad_records=True) for result in results)
        return None if failed else sum(result.left_out for result in results)

    def _in_arrow(self, rows: list[Given]) -> Iterator[pa.RecordBatch]:
        while rows:
            count = self._chance.randrange(1, 40)
            streams, keys, data = zip(*rows[:count])
            yield pa.RecordBatch.from_pydict({"stream": streams, "partition_key": keys, "data": data})
            rows = rows[count:]


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(2))
def test_whatever_a_run_leaves_out_the_streams_have(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hundred: int
) -> None:
    monkeypatch.setattr(chunks.Cutter.__init__, "__defaults__", (600, CHUNK_ROWS))
    left_out = 0
    for seed in range(100 * hundred, 100 * hundred + 100):
        daemons = Daemons(random.Random(seed))
        daemon.runs(daemons.serve)
        batch, chance = Batch(daemon, daemons, tmp_path / str(seed), monkeypatch), daemons.chance
        ended = 0
        for _ in range(60):
            daemons.made_again += chance.random() < 0.1
            daemons.hosts.clear()
            found = batch.run()
            if found is None or daemons.hosts != {"here"}:
                continue
            wanted, left = found
            present = ("here", daemons.made_again)
            stored = Counter({row: count for (*place, row), count in daemons.stored.items() if (*place,) == present})
            assert not wanted - stored, f"seed {seed}"
            left_out, ended = left_out + left, ended + 1
            if ended == 3:
                break
    assert left_out > 1_000
