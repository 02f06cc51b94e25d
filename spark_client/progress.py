"""The driver logs of a write that takes long how many tasks still run, where, for how long, and what holds them.

A task that waits writes its reason to an executor's log, where few users look first.  So the driver counts the tasks in
Spark's own status store.  If a daemon answers at the driver's own paths, the driver asks it for the cause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from producerd import __version__
from producerd.errors import ProducerdError
from producerd.wire import frames
from spark_client.channel import LEAST_SECONDS, ask, dial, socket_paths
from spark_client.interrupts import insist
from spark_client.results import counted, names_of
from spark_client.session import describe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_client.task import Plan

LOG: Final = logging.getLogger("producerd.client")
FIRST_SECONDS: Final = 30.0
AGAIN_SECONDS: Final = 300.0
"""The daemon reports to a blocked caller as often."""
ANSWER_SECONDS: Final = 2.0
DESCRIPTION: Final = "spark.job.description"
"""The property of a thread that Spark's UI shows for its jobs and stages."""
MOST_TASKS: Final = 200
"""Tasks whose hosts are looked up at most, as each takes several calls of the JVM."""


def _name_of(plan: Plan) -> str:
    stream = f"stream {plan.stream}" if plan.stream is not None else "the streams of its rows"
    batch = "the write" if plan.batch_id is None else f"batch {plan.batch_id}"
    return f"{batch} to {stream}"


@contextmanager
def described(spark: SparkSession, plan: Plan) -> Iterator[None]:
    """In the block, name this thread's jobs and stages in Spark's UI after the batch and its stream.

    Under Spark Connect nothing can name them.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
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
    of: int
    longest_seconds: float
    hosts: Sequence[str]


class Progress:
    """Logs a line after 30 s, and then every 5 minutes, until the block ends.

    ``tag`` is the job tag of the write.  Under Spark Connect the driver cannot see tasks.
    """

    def __init__(self, spark: SparkSession, plan: Plan, tag: str) -> None:
        self._spark = spark
        self._plan = plan
        self._tag = tag
        self._write = _name_of(plan)
        self._began = time.monotonic()
        self._over = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._run, name="producerd-progress", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        seconds = FIRST_SECONDS
        while not self._over.wait(seconds):
            seconds = AGAIN_SECONDS
            try:
                line = self._line()
            except (
                Exception
            ) as error:  # Spark may be stopping, and its errors share no base class; the write must go on
                line = f"nothing is known of its tasks ({type(error).__name__})"
            if not self._over.is_set():
                ran_seconds = time.monotonic() - self._began
                LOG.warning("producerd: %s has run for %.0f s: %s", self._write, ran_seconds, line)

    def _line(self) -> str:
        running = running_tasks(self._spark, self._tag)
        tasks = "its tasks are not visible under Spark Connect"
        if running is not None:
            tasks = (
                f"{running.tasks} of {counted(running.of, 'task')} still run, "
                f"the longest for {running.longest_seconds:.0f} s"
            )
        cause = cause_of_wait(self._plan)
        if cause:
            return f"{tasks}; {cause}"
        hosts = names_of(running.hosts) if running is not None and running.hosts else "the executors' hosts"
        starts = self._plan.daemon or self._plan.configured_daemon
        told_by = "the log of the tasks' daemon" if starts else "`producerctl status`"
        return f"{tasks}; {told_by} says what holds them, on {hosts}"


def running_tasks(spark: SparkSession, tag: str) -> Running | None:
    """Return the running tasks of jobs with this tag, from Spark's status store; None under Spark Connect."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return None
    jvm: Any = spark.sparkContext._jvm
    store = spark.sparkContext._jsc.sc().statusStore()
    now_ms = time.time() * 1000
    tasks = of = 0
    longest_seconds = 0.0
    hosts: set[str] = set()
    for job_id in spark.sparkContext.statusTracker().getActiveJobsIds():
        job = store.job(job_id)
        if not job.jobTags().contains(tag):
            continue
        stages = job.stageIds()
        for stage_id in (stages.apply(place) for place in range(stages.size())):
            stage = store.lastStageAttempt(stage_id)
            tasks += stage.numActiveTasks()
            of += stage.numTasks()
            status = jvm.java.util.Collections.singletonList(jvm.org.apache.spark.status.api.v1.TaskStatus.RUNNING)
            by_id = jvm.org.apache.spark.status.api.v1.TaskSorting.ID
            listed = store.taskList(stage_id, stage.attemptId(), 0, MOST_TASKS, by_id, status)
            for task in (listed.apply(place) for place in range(listed.size())):
                hosts.add(task.host())
                longest_seconds = max(longest_seconds, (now_ms - task.launchTime().getTime()) / 1000)
    return Running(tasks, of, longest_seconds, sorted(hosts))


def cause_of_wait(plan: Plan) -> str:
    """Return why rows of the plan's stream wait, as a daemon on the driver's host says; "" if none answers.

    A daemon that is there anyway knows nothing of tasks that start their own.
    """
    if plan.stream is None or plan.daemon or plan.configured_daemon:
        return ""
    hello = frames.Hello(frames.VERSION, frames.VERSION, client=f"spark_client {__version__}, driver")
    try:
        channel, _ = dial(hello, socket_paths(plan.socket, plan.configured_socket), LEAST_SECONDS)
        with closing(channel):
            ask(channel, frames.Open(1, plan.stream), frames.Opened, ANSWER_SECONDS)
            blocked = ask(channel, frames.Status(1), frames.Blocked, ANSWER_SECONDS)
    except ProducerdError:
        return ""
    return f"the daemon at {channel.path}: {describe(blocked)}"
