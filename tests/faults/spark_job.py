"""A streaming query of real Spark in a process of its own, whose rows are records of a run's book.

The parent is `SparkJob`.  The child prints ``begins N`` before it writes batch N, and ``ended N`` when the writer has
returned, so that all of its rows are obligations::

    python -m tests.faults.spark_job WORK SOCKET SEED CORES [GUARD]
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from producerd.demo.children import Child, ChildFailed, Children, take_stdout
from tests.daemon import ROOT, until
from tests.faults.oracle import Sent
from tests.faults.records import Book, Id, Shape
from tests.spark.processes import of_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_OF_A_BATCH: Final = 2_000
STREAMS: Final = ("plain", "packed", "ordered")
SENDER: Final = 5_000
"""The number of the sender as whom the query's rows are made."""
SHAPE: Final = Shape()
HOLD: Final = "hold"
"""While the query's folder has a file of this name, the function that has written a batch does not return."""
START_SECONDS: Final = 300.0
END_SECONDS: Final = 300.0
"""How long a batch may take on a machine that runs all the tests at once."""


class SparkJob:
    """The query's process.  Its rows are one sender's records, in the order of batches."""

    def __init__(self, children: Children, work: Path, socket: Path, seed: int, guard: str = "") -> None:
        work.mkdir()
        self.failure = ""
        self.left_out = 0
        self._begun = 0
        self._ended: list[int] = []
        self._children, self._work, self._guard, self._hold = children, work, guard, work / HOLD
        self._arguments = ["-m", "tests.faults.spark_job", str(work), str(socket), str(seed)]
        self._child: Child = self._start(2)

    def _start(self, cores: int) -> Child:
        return self._children.start("spark", [*self._arguments, str(cores), *filter(None, [self._guard])])

    def kill_and_start_again(self, cores: int, *, forgets: Sequence[str] = ()) -> None:
        """Kill the driver's process, while its JVM and workers find that out, and go on from the checkpoint.

        ``forgets``: the logs of the checkpoint that lose their newest entry.
        """
        self._child.process.send_signal(signal.SIGKILL)
        self._child.process.wait()
        with contextlib.suppress(ChildFailed):
            while self.hear(1.0):
                pass
        self.failure = ""
        self._hold.unlink(missing_ok=True)
        if forgets:  # of which the JVM would add to them
            until(lambda: not [process.kill() for process in of_session(self._child.process.pid)])
        for log in forgets:
            entries = [path for path in (self._work / "checkpoint" / log).glob("*") if path.name.isdigit()]
            newest = max(entries, key=lambda path: int(path.name))
            newest.unlink()
            newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
        self._child = self._start(cores)

    @property
    def ended(self) -> int:
        """How many batches have ended."""
        return len(self._ended)

    @property
    def sent(self) -> Sent:
        """What the oracle must know.  Many tasks send a batch, each with a session of its own: no order is promised."""
        numbers = {number for batch in self._ended for number in numbers_of(batch)}
        return Sent(SENDER, self._begun * ROWS_OF_A_BATCH, numbers, ordered=False)

    def wait_for(self, batches: int) -> None:
        """Wait until this many have ended, or the query has failed."""
        deadline = time.monotonic() + START_SECONDS
        while self.ended < batches and not self.failure:
            self.hear(0.1)
            if time.monotonic() > deadline:
                self.failure = f"{self.ended} batches have ended after {START_SECONDS:g} s"

    def hear(self, seconds: float = 0.0) -> str | None:
        """Take in what it says, for this long at most; return its last word."""
        word = None
        try:
            while line := self._child.poll_line(0.0 if word else seconds):
                word, _, batch = line.partition(" ")
                if word == "begins":
                    self._begun = max(self._begun, int(batch) + 1)
                elif word == "ended":
                    batch, _, left_out = batch.partition(" ")
                    self._ended.append(int(batch))
                    self.left_out += int(left_out)
                elif word == "failed":
                    self.failure = batch
        except ChildFailed as error:
            self.failure = self.failure or f"{error}\n{error.tail}"
        return word

    def hold(self) -> None:
        """Have a batch end that Spark doesn't commit: the function that wrote it doesn't return."""
        self._hold.touch()
        self._hear_until("held")

    def stop(self) -> None:
        """Have it end its batch, and then itself."""
        self._child.tell("stop")
        self._hear_until("stopped")

    def _hear_until(self, word: str) -> None:
        deadline = time.monotonic() + END_SECONDS
        while not self.failure and self.hear(0.1) != word:
            if time.monotonic() > deadline:
                self.failure = f"batch {self._begun - 1} has not ended within {END_SECONDS:g} s"


def environment() -> dict[str, str]:
    """What Spark's processes need to find this tree and this Python."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def lacks() -> str:
    return "" if os.environ.get("JAVA_HOME") or shutil.which("java") else "no Java is found, which Spark needs"


# ---- the child


def numbers_of(batch: int) -> range:
    return range(batch * ROWS_OF_A_BATCH, (batch + 1) * ROWS_OF_A_BATCH)


def made_on_executors(seed: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Arrow batches of numbers become streams, keys and data."""
    import pyarrow

    book = Book(seed, {SENDER: SHAPE})
    for batch in batches:
        ids = [Id(SENDER, number) for number in batch.column(0).to_pylist()]
        streams = [STREAMS[identity.number % len(STREAMS)] for identity in ids]
        keys, data = [book.key_of(identity) for identity in ids], [book.data_of(identity) for identity in ids]
        yield pyarrow.RecordBatch.from_pydict({"stream": streams, "partition_key": keys, "data": data})


def main(work: Path, socket: str, seed: int, cores: int, guard: str | None = None) -> None:
    from producerd.demo.spark_job import session
    from spark_client import KinesisBatchWriter

    told = take_stdout()
    spark = session(work, cores)
    spark.sparkContext.setLogLevel("ERROR")
    writer = KinesisBatchWriter(
        data="data",
        socket=socket,
        reconnect_timeout_seconds=300,
        replay_guard=guard,
        replay_guard_interval_seconds=1,
    )
    writing, stopping = threading.Lock(), threading.Event()

    def fail(error: Exception) -> None:  # whatever it is, the parent must know
        print(f"failed {error!r}".replace("\n", " "), file=told)

    def watch(query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception as error:
            fail(error)

    def write(df: DataFrame, batch_id: int) -> None:
        with writing:
            if stopping.is_set():
                return
            print(f"begins {batch_id}", file=told)
            try:
                result = writer.write(df, batch_id)
                assert result.records == ROWS_OF_A_BATCH, result
            except Exception as error:
                fail(error)
                raise
            print(f"ended {batch_id} {result.left_out}", file=told)
            if (work / HOLD).exists():
                print("held", file=told)
                threading.Event().wait()

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_OF_A_BATCH)
    rows = numbers.load().select("value")
    made = rows.mapInArrow(
        lambda batches: made_on_executors(seed, batches), "stream string, partition_key string, data binary"
    )
    query = made.writeStream.foreachBatch(write).option("checkpointLocation", str(work / "checkpoint")).start()
    threading.Thread(target=watch, args=[query], daemon=True).start()
    sys.stdin.readline()
    stopping.set()
    with writing:
        query.stop()
    print("stopped", file=told)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
