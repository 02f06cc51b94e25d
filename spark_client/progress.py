"""The driver shows of a write that takes long how many rows are stored, which tasks still run, and what holds them.

A task that waits writes its reason to an executor's log, where few users look first.  The driver therefore counts the
tasks in Spark's own status store, and their rows in an accumulator.  If a daemon answers at the driver's own paths, the
driver asks it for the cause.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Callable, Final, NamedTuple

from producerd import __version__
from producerd.errors import ProducerdError
from producerd.wire import messages
from spark_client.channel import ask, dial, socket_paths
from spark_client.configuration import is_connect
from spark_client.interrupts import insist
from spark_client.results import counted, names_of
from spark_client.session import describe
from spark_client.task import RowsByWrite

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

    from spark_client.task import Plan

LOG: Final = logging.getLogger("producerd.client")
FIRST_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 10.0
DRAW_SECONDS: Final = 1.0
"""How often the line of a terminal or a notebook is drawn again."""
FIRST_WARNING_SECONDS: Final = 30.0
NEXT_WARNING_SECONDS: Final = 300.0
"""Some writes take hours, so that most lines are of level INFO."""
ANSWER_SECONDS: Final = 2.0
"""How long a daemon that listens may take for an answer: its node may be busy, which is when a write takes long."""
DESCRIPTION: Final = "spark.job.description"
"""The property of a thread that Spark's UI shows for its jobs and stages."""
FULL: Final = "the queue is at its limit: "
"""How the reason begins where the queue is full.  A line of a terminal has no room to say it twice."""
MOST_TASKS: Final = 200
"""Tasks whose hosts are looked up at most, because each takes several calls of the JVM."""


def _name_of(plan: Plan) -> str:
    stream = f"stream {plan.stream}" if plan.stream is not None else "the streams of its rows"
    batch = f"the {'dry run' if plan.dry_run else 'write'}" if plan.batch_id is None else f"batch {plan.batch_id}"
    return f"{batch} to {stream}"


@contextmanager
def described(spark: SparkSession, plan: Plan) -> Iterator[None]:
    """In the block, name this thread's jobs and stages in Spark's UI after the batch and its stream.

    Under Spark Connect nothing can name them.
    """
    if is_connect(spark):
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(DESCRIPTION)
    context.setLocalProperty(DESCRIPTION, f"producerd: {_name_of(plan)}")
    try:
        yield
    finally:
        insist(context.setLocalProperty, DESCRIPTION, before)


class Running(NamedTuple):
    """The tasks of a job that run now.  ``longest_seconds`` is how long the oldest has run."""

    tasks: int
    done: int
    of: int
    longest_seconds: float
    hosts: Sequence[str]

    def __str__(self) -> str:
        if self.tasks == 0:
            return "no task runs yet" if self.done == 0 else f"{self.done} of {counted(self.of, 'task')} are done"
        return f"{self.tasks} of {counted(self.of, 'task')} still run, the longest for {self.longest_seconds:.0f} s"

    @property
    def in_short(self) -> str:
        return f"{self.done}/{counted(self.of, 'task')}" if self.tasks or self.done else str(self)


_ROWS: Final[weakref.WeakKeyDictionary[Any, Any]] = weakref.WeakKeyDictionary()


def rows_by_write(spark: SparkSession) -> Accumulator[dict[str, int]] | None:
    """Return the accumulator of what finished tasks have stored, or None under Spark Connect, which has none.

    There is one for each context, as PySpark keeps each forever.
    """
    if is_connect(spark):
        return None
    context: Any = spark.sparkContext
    if context not in _ROWS:
        _ROWS[context] = context.accumulator({}, RowsByWrite())
    rows: Accumulator[dict[str, int]] = _ROWS[context]
    return rows


class Progress:
    """Shows the progress of a write that takes longer than 5 s, until the block ends.

    In a terminal or a notebook it is one line that is drawn again each second.  Elsewhere it is a line in the log every
    10 s.  ``tag`` is the job tag of the write.
    """

    def __init__(self, spark: SparkSession, plan: Plan, tag: str) -> None:
        self._spark = spark
        self._plan = plan
        self._tag = tag
        self._rows = rows_by_write(spark)
        self._line = _line()
        self._began = time.monotonic()
        self._warns_after_seconds = 0.0 if plan.batch_id is None else FIRST_WARNING_SECONDS
        self._over = threading.Event()
        self._showing = threading.Lock()

    def __enter__(self) -> Accumulator[dict[str, int]] | None:
        """Return where the tasks add the rows that they have stored."""
        threading.Thread(target=self._run, name="producerd-progress", daemon=True).start()
        return self._rows

    def __exit__(self, *_: object) -> None:
        with self._showing:  # so that the line is gone when the caller goes on
            self._over.set()
            if self._line is not None:
                with contextlib.suppress(Exception):  # a closed terminal must not fail what is stored
                    self._line.close()
        if self._rows is not None:
            self._rows.value.pop(self._tag, None)

    def _run(self) -> None:
        daemon = DriversDaemon(self._spark, self._plan)
        self._over.wait(FIRST_SECONDS)
        while not self._over.is_set():
            running, problem = None, ""
            try:
                running = running_tasks(self._spark, self._tag)
            except Exception as error:  # Spark may be stopping, and its errors share no base class
                problem = f"nothing is known of its tasks ({type(error).__name__})"
            blocked = daemon.status()
            with self._showing:
                if self._over.is_set():
                    return
                stored, advice = self._stored(daemon.stored(blocked)), self._advice(running, daemon)
                if self._line is None:
                    tasks = problem if running is None else str(running)
                    self._log([stored, tasks], advice if blocked is None else daemon.says(blocked))
                else:
                    tasks = problem if running is None else running.in_short
                    self._draw([stored, tasks], advice if blocked is None else _in_short(blocked))
            self._over.wait(AGAIN_SECONDS if self._line is None else DRAW_SECONDS)

    def _log(self, known: Iterable[str], cause: str) -> None:
        seconds = time.monotonic() - self._began
        level = logging.WARNING if seconds >= self._warns_after_seconds else logging.INFO
        if level == logging.WARNING:
            is_first = seconds < FIRST_WARNING_SECONDS
            self._warns_after_seconds = FIRST_WARNING_SECONDS if is_first else seconds + NEXT_WARNING_SECONDS
        words = "; ".join(filter(None, (", ".join(filter(None, known)), cause)))
        LOG.log(level, "producerd: %s has run for %.0f s: %s", _name_of(self._plan), seconds, words)

    def _draw(self, known: Iterable[str], cause: str) -> None:
        assert self._line is not None
        to = self._plan.stream or "streams"
        batch = to if self._plan.batch_id is None else f"{to}, batch {self._plan.batch_id}"
        words = ", ".join(filter(None, (f"{time.monotonic() - self._began:.0f} s", *known, cause)))
        self._line.draw(f"producerd: {batch}: {words}")

    def _stored(self, by_daemon: int | None) -> str:
        """Return how many rows are stored, or "" if none is known to be."""
        if by_daemon is not None and not self._plan.dry_run:
            return f"{by_daemon:,} rows stored"
        rows = self._rows.value.get(self._tag, 0) if self._rows is not None else 0
        done = "tried" if self._plan.dry_run else "stored"
        return f"{rows:,} rows {done} by finished tasks" if rows else ""

    def _advice(self, running: Running | None, daemon: DriversDaemon) -> str:
        """Return who knows what holds the write, if tasks run, or if nothing is known of them."""
        if running is not None and running.tasks == 0:
            return ""
        hosts = names_of(running.hosts) if running is not None and running.hosts else "the executors' hosts"
        if daemon.log:
            return f"their daemon does not answer yet; its log is {daemon.log}"
        starts = self._plan.daemon or self._plan.configured_daemon
        told_by = "the log of the tasks' daemon" if starts else "`producerctl status`"
        return f"{told_by} says what holds them, on {hosts}"


class _TerminalLine:
    """The last line of a terminal."""

    def __init__(self) -> None:
        self._is_drawn = False

    def draw(self, text: str) -> None:
        self._is_drawn = True
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{text[:width]}\x1b[K")  # control sequence EL: erase to the end of the line
        sys.stderr.flush()

    def close(self) -> None:
        if self._is_drawn:  # otherwise the caller's own text stands there
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class _NotebookLine:
    """An output of the notebook's cell, which IPython can change."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def draw(self, text: str) -> None:
        output = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)


def _line() -> _TerminalLine | _NotebookLine | None:
    """Return where a line can be drawn again: in the notebook whose kernel this is, or in a terminal."""
    ipython: Any = sys.modules.get("IPython")
    if ipython is not None and "IPKernelApp" in getattr(ipython.get_ipython(), "config", ()):
        return _NotebookLine(importlib.import_module("IPython.display").display)
    return _TerminalLine() if sys.stderr.isatty() else None


def _in_short(blocked: messages.Blocked) -> str:
    records = blocked.queue_records / max(1, blocked.queue_limit_records)
    share = max(records, blocked.queue_bytes / max(1, blocked.queue_limit_bytes))
    return f"queue {share:.0%} full: {blocked.reason.removeprefix(FULL)}"


def running_tasks(spark: SparkSession, tag: str) -> Running | None:
    """Return the running tasks of jobs with this tag, from Spark's status store; None under Spark Connect."""
    if is_connect(spark):
        return None
    jvm: Any = spark.sparkContext._jvm
    store = spark.sparkContext._jsc.sc().statusStore()
    now_ms = time.time() * 1000
    tasks = done = of = 0
    longest_seconds = 0.0
    hosts: set[str] = set()
    for job_id in spark.sparkContext.statusTracker().getActiveJobsIds():
        job = store.job(job_id)
        if not job.jobTags().contains(tag):
            continue
        stages = job.stageIds()
        for stage_id in (stages.apply(place) for place in range(stages.size())):
            stage = store.lastStageAttempt(stage_id)
            if stage.status().name() in ("PENDING", "SKIPPED"):  # Spark may find that it need not run
                continue
            done += stage.numCompleteTasks()
            of += stage.numTasks()
            status = jvm.java.util.Collections.singletonList(jvm.org.apache.spark.status.api.v1.TaskStatus.RUNNING)
            by_id = jvm.org.apache.spark.status.api.v1.TaskSorting.ID
            listed = store.taskList(stage_id, stage.attemptId(), 0, MOST_TASKS, by_id, status)
            tasks += max(stage.numActiveTasks(), listed.size())  # Spark counts a stage's tasks up to 100 ms late
            for task in (listed.apply(place) for place in range(listed.size())):
                hosts.add(task.host())
                longest_seconds = max(longest_seconds, (now_ms - task.launchTime().getTime()) / 1000)
    return Running(tasks, done, of, longest_seconds, sorted(hosts))


class DriversDaemon:
    """The daemon that answers on the driver's host, if one does.  In local mode it is the daemon of all tasks.

    Then it is asked at once what it has stored of the stream until now.  ``log`` is its log, if the tasks start it.
    """

    def __init__(self, spark: SparkSession, plan: Plan) -> None:
        self.log = ""
        self._path = ""
        self._stream = plan.stream
        self._paths: Sequence[str] = ()
        self._stored_before: int | None = None
        with contextlib.suppress(Exception):  # Spark may be stopping, and its errors share no base class
            local = is_local(spark)
            own = plan.own_daemon(_pid_of_jvm(spark) if local else None)
            if own is None:
                self._paths = socket_paths(plan.socket, plan.configured_socket)
            elif local:
                self._paths, self.log = own.paths, str(own.log)
            if local:
                before = self.status()
                self._stored_before = 0 if before is None else before.delivered_records

    def says(self, blocked: messages.Blocked) -> str:
        """Return why rows of the stream wait, with all numbers."""
        return f"the daemon at {self._path}: {describe(blocked)}"

    def stored(self, blocked: messages.Blocked | None) -> int | None:
        """Return what the daemon has stored of the stream since the write began, or None if it is not known."""
        if blocked is None or self._stored_before is None:
            return None
        return max(0, blocked.delivered_records - self._stored_before)

    def status(self) -> messages.Blocked | None:
        """Return why rows of the stream wait; None if no daemon answers, or if each row names its own stream."""
        if self._stream is None or not self._paths:
            return None
        hello = messages.Hello(messages.VERSION, messages.VERSION, client=f"spark_client {__version__}, driver")
        try:
            channel, _ = dial(hello, self._paths, ANSWER_SECONDS, gives_up=lambda: True)
            with closing(channel):
                ask(channel, messages.Open(1, self._stream), messages.Opened, ANSWER_SECONDS)
                blocked = ask(channel, messages.Status(1), messages.Blocked, ANSWER_SECONDS)
        except ProducerdError:
            return None
        self._path = channel.path
        return blocked


def is_local(spark: SparkSession) -> bool:
    """Return whether the driver's process is the only executor."""
    return not is_connect(spark) and str(spark.sparkContext.master).startswith("local")


def _pid_of_jvm(spark: SparkSession) -> int:
    """Return the id of the driver's JVM."""
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getName().partition("@")[0])
