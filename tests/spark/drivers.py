"""Spark drivers as processes that a test may kill, and that do what it orders (`tests.spark.orders`)."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.daemon import CREDENTIALS, ROOT
from tests.spark.jvm import short_jvm
from tests.spark.processes import of_session

READY_SECONDS = 90
ANSWER_SECONDS = 280
PLAIN_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Xss16m",  # as in tests/conftest.py
    "spark.sql.shuffle.partitions": "2",
}


def spark_environ(folder: Path, **more: str) -> dict[str, str]:
    """What processes of Spark are given: this Python, the source tree, and a folder for whatever they leave behind."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    own = {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "TMPDIR": str(folder),
        **CREDENTIALS,  # which a daemon that tasks start would have from here
        "AWS_EC2_METADATA_DISABLED": "true",
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={folder} {short_jvm()}",
    }
    return {**kept, **own, **more}


class Driver:
    """A driver at work.  One order at a time; ``version`` is its Spark's."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.version = ""
        self._log = log
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put("")  # the end, which a test may have brought about

    def tell(self, order: str, **arguments: Any) -> None:
        """Have it do something; the answer is asked for later, if ever."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": order, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = ANSWER_SECONDS) -> Any:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"the driver did not answer in {seconds} s:\n{self.log}") from None
        assert line, f"the driver ended:\n{self.log}"
        return json.loads(line)

    def ask(self, order: str, **arguments: Any) -> Any:
        self.tell(order, **arguments)
        return self.answer()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-8000:]

    @property
    def logged_bytes(self) -> int:
        """How much it has printed, and its JVM."""
        return self._log.stat().st_size

    @property
    def answered(self) -> bool:
        return not self._answers.empty()

    def kill(self) -> None:
        """The driver, its JVM and all that they started, at once, as when a node ends."""
        for process in of_session(self.process.pid):
            process.kill()

    def kill_jvm(self) -> None:
        """The JVM alone: its Python workers are left to find out."""
        (jvm,) = of_session(self.process.pid, "org.apache.spark.deploy.SparkSubmit")
        jvm.kill()

    def close(self) -> None:
        """End it in peace, or not: nothing of it is left."""
        assert self.process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                self.process.stdin.close()
                self.process.wait(20)
        finally:
            self.kill()
            self.process.wait()
            self._reader.join()
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextlib.contextmanager
def driver(folder: Path, master: str, conf: Mapping[str, str] | None = None, **environ: str) -> Iterator[Driver]:
    """A driver that is ready; ``master``: of Spark, or the URL of a server of Spark Connect."""
    settings = {"spark.remote": master} if master.startswith("sc:") else {"spark.master": master, **PLAIN_CONF}
    log = folder / "driver.log"
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.orders", json.dumps({**settings, **(conf or {})})],
            cwd=ROOT,
            env=spark_environ(folder, **environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    running = Driver(process, log)
    try:
        running.version = running.answer(READY_SECONDS)["ready"]
        yield running
    finally:
        running.close()
