"""A streaming query of real Spark in a process of its own, which runs a micro-batch at each order.

The parent is `SparkQuery`.  The child obeys one word a line on stdin: ``batch`` runs the next micro-batch, ``restart``
stops the query and starts it again from its checkpoint, and ``figures`` asks what the process holds.  It answers
each with a line of JSON::

    python -m tests.soak.spark_job WORK SOCKET WRITERS
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from producerd.demo.children import Child, Children, take_stdout
from tests.faults.spark_job import environment
from tests.faults.watch import look
from tests.spark.processes import descendants

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_OF_A_BATCH: Final = 2_000
PY4J_THREAD: Final = "(run)"
"""End of the names of Py4J's threads, of which PySpark keeps one, with its socket, for each query that was started."""
KEPT_BATCHES: Final = 10
"""Micro-batches that Spark's checkpoint keeps; with its usual hundred the checkpoint levels off only later."""
PATIENCE_SECONDS: Final = 300.0
COLUMNS: Final = (
    "elt(value % 3 + 1, 'plain', 'packed', 'ordered') AS stream",
    "CAST(value AS STRING) AS partition_key",
    "'thirty bytes of some payload..' AS data",
)


class SparkQuery:
    """The query's process, from outside."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._child.line(PATIENCE_SECONDS)

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path, socket: Path, writers: int) -> Iterator[SparkQuery]:
        """Return a query whose micro-batches this many tasks write, until the end of the block."""
        work = folder / "spark"
        work.mkdir()
        with Children(work, environment()) as children:
            arguments = ["-m", "tests.soak.spark_job", str(work), str(socket), str(writers)]
            yield cls(children.start("spark", arguments))

    def run_batch(self) -> None:
        """Return when the next micro-batch is stored."""
        self.begin_batch(PATIENCE_SECONDS)

    def begin_batch(self, seconds: float) -> None:
        """Wait for this long at most until the next micro-batch is stored."""
        self._child.tell("batch")
        answer = self._child.poll_line(seconds)
        assert answer == "stored" or seconds < PATIENCE_SECONDS, answer

    def restart(self) -> None:
        """Stop the query, also in the middle of a batch, and start it again."""
        self._child.tell("restart")
        while self._child.line(PATIENCE_SECONDS) != "started":
            pass

    def figures(self) -> dict[str, float]:
        """Return what the driver, its JVM and its workers hold, and the size of the checkpoint."""
        self._child.tell("figures")
        found: dict[str, float] = json.loads(self._child.line(PATIENCE_SECONDS))
        return found


# ---- the child


class Query:
    """The query.  A micro-batch waits until it is allowed."""

    def __init__(self, work: Path, socket: str, writers: int) -> None:
        from producerd.demo.spark_job import session
        from spark_client import KinesisBatchWriter

        self._told = take_stdout()
        self._checkpoint = work / "checkpoint"
        self._spark = session(work, writers)
        self._spark.sparkContext.setLogLevel("OFF")
        self._spark.conf.set("spark.sql.streaming.minBatchesToRetain", KEPT_BATCHES)
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_OF_A_BATCH)
        self._rows = source.option("numPartitions", writers).load().selectExpr(*COLUMNS)
        self._writer = KinesisBatchWriter(socket=socket, data="data")
        self._stopping = threading.Event()
        self._allowed = threading.Semaphore(0)
        self._query = self._start()

    def _start(self) -> StreamingQuery:
        self._stopping.clear()
        self._allowed = threading.Semaphore(0)
        return (
            self._rows.writeStream.foreachBatch(self._write).option("checkpointLocation", str(self._checkpoint)).start()
        )

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        while not self._allowed.acquire(timeout=0.05):
            if self._stopping.is_set():
                raise InterruptedError("the query is stopped")
        result = self._writer.write(rows, batch_id)
        assert result.records == ROWS_OF_A_BATCH, result
        self._say("stored")

    def _say(self, word: str) -> None:
        print(word, file=self._told, flush=True)

    def obey(self, word: str) -> None:
        if word == "batch":
            self._allowed.release()
        elif word == "restart":
            self._stopping.set()
            self._query.stop()
            self._query = self._start()
            self._say("started")
        else:
            self._say(json.dumps(self._figures()))

    def _figures(self) -> dict[str, float]:
        files = [path.stat() for path in self._checkpoint.rglob("*") if path.is_file()]
        ours = descendants(os.getpid())
        (jvm,) = [found for process in ours if "/java " in process.command and (found := look(process.pid))]
        return {
            "Spark checkpoint_bytes": sum(file.st_size for file in files),
            "Spark checkpoint files": len(files),
            "Spark JVM threads": jvm.threads,
            "Spark JVM descriptors": jvm.descriptors,
            "Spark driver threads": sum(not thread.name.endswith(PY4J_THREAD) for thread in threading.enumerate()),
            "Spark processes": len(ours),
        }

    def run(self) -> None:
        self._say("ready")
        for line in sys.stdin:
            self.obey(line.strip())
        self._stopping.set()
        self._query.stop()
        self._spark.stop()


if __name__ == "__main__":
    Query(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])).run()
