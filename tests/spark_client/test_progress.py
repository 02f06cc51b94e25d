"""For a write that takes long the driver logs how many tasks still run, where, for how long, and why they wait."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from producerd.wire import messages
from spark_client import progress, write_batch
from spark_client.daemon_settings import DaemonSettings
from spark_client.progress import DriversDaemon, Progress, Running, described, rows_by_write, running_tasks
from spark_client.task import Plan
from tests.daemon import until
from tests.spark_client.fake_daemon import FakeDaemon, Session, expects, lasts, says

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HELD = Running(3, 12, 16, 34.4, ("h2", "h1"))
OWN = DaemonSettings.of({})


REASON = "the queue is at its limit: the service cannot be reached"
told_why = lasts(
    expects(messages.Status), says(messages.Blocked(1, 0.0, REASON, 12, 100, 2_048, 4_096, last_error="no"))
)


class ScalaSequence:
    """Scala's, of Python's values."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def size(self) -> int:
        return len(self._values)

    def apply(self, place: int) -> Any:
        return self._values[place]

    def contains(self, value: Any) -> bool:
        return value in self._values


def stage(active: int, done: int, tasks: int, attempt: int, status: str = "ACTIVE") -> Any:
    return SimpleNamespace(
        status=lambda: SimpleNamespace(name=lambda: status),
        numActiveTasks=lambda: active,
        numCompleteTasks=lambda: done,
        numTasks=lambda: tasks,
        attemptId=lambda: attempt,
    )


def job(tag: str, *stages: int) -> Any:
    return SimpleNamespace(jobTags=lambda: ScalaSequence("other", tag), stageIds=lambda: ScalaSequence(*stages))


def task(host: str, launched_ms: int) -> Any:
    return SimpleNamespace(host=lambda: host, launchTime=lambda: SimpleNamespace(getTime=lambda: launched_ms))


def test_the_tasks_of_all_stages_of_a_write_are_looked_up_and_of_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "time", SimpleNamespace(time=lambda: 1_000.0))
    jobs = {1: job("theirs", 10), 2: job("ours", 20, 21, 22)}
    stages = {10: stage(5, 0, 5, 0), 20: stage(2, 1, 3, 1), 21: stage(1, 3, 4, 0), 22: stage(0, 0, 9, 0, "PENDING")}
    tasks = {20: ScalaSequence(task("h2", 990_000), task("h1", 985_500)), 21: ScalaSequence(task("h2", 999_000))}
    asked = []

    def listed(stage_id: int, attempt: int, first: int, most: int, by: str, status: list[str]) -> ScalaSequence:
        asked.append((stage_id, attempt, first, most, by, status))
        return tasks[stage_id]

    store = SimpleNamespace(job=jobs.get, lastStageAttempt=stages.get, taskList=listed)
    v1 = SimpleNamespace(TaskStatus=SimpleNamespace(RUNNING="running"), TaskSorting=SimpleNamespace(ID="by id"))
    spark_of_jvm = SimpleNamespace(status=SimpleNamespace(api=SimpleNamespace(v1=v1)))
    context = SimpleNamespace(
        statusTracker=lambda: SimpleNamespace(getActiveJobsIds=lambda: [*jobs]),
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: store)),
        _jvm=SimpleNamespace(
            java=SimpleNamespace(util=SimpleNamespace(Collections=SimpleNamespace(singletonList=lambda one: [one]))),
            org=SimpleNamespace(apache=SimpleNamespace(spark=spark_of_jvm)),
        ),
    )
    spark: Any = SimpleNamespace(sparkContext=context)
    assert running_tasks(spark, "ours") == Running(3, 4, 7, 14.5, ["h1", "h2"])
    assert asked == [(20, 1, 0, 200, "by id", ["running"]), (21, 0, 0, 200, "by id", ["running"])]
    assert running_tasks(spark, "nobody's") == Running(0, 0, 0, 0.0, [])


def connected() -> Any:
    """A session of Spark Connect, which has no context."""
    return type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()


@pytest.mark.parametrize(
    ("stream", "batch_id", "name"),
    [
        ("s", 4, "producerd: batch 4 to stream s"),
        ("s", None, "producerd: the write to stream s"),
        (None, 0, "producerd: batch 0 to the streams of its rows"),
    ],
)
def test_a_write_has_its_name_in_sparks_ui_until_it_ends(stream: str | None, batch_id: int | None, name: str) -> None:
    properties = {"spark.job.description": "the user's own"}
    context = SimpleNamespace(getLocalProperty=properties.get, setLocalProperty=properties.__setitem__)
    spark: Any = SimpleNamespace(sparkContext=context)
    with described(spark, Plan(stream, batch_id=batch_id)):
        assert properties == {"spark.job.description": name}
    assert properties == {"spark.job.description": "the user's own"}


def test_under_spark_connect_nothing_is_named_and_no_task_is_seen() -> None:
    with described(connected(), Plan("s")):
        pass
    assert running_tasks(connected(), "ours") is None


class Telling(logging.Handler):
    """Sets an event at the first line that counts the rows of the finished one of two tasks and has the daemon's cause.

    On a busy machine the daemon does not answer the driver at the first time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line = ""
        self.told = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if ": 3 rows stored by finished tasks, 1 of 2 tasks still run" in line and "; the daemon at " in line:
            self.line = line
            self.told.set()


@pytest.mark.spark
def test_a_batch_that_waits_is_told_of_on_the_driver_with_the_daemon_s_cause(
    daemon: FakeDaemon, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Telling()

    def script(session: Session) -> None:
        with contextlib.suppress(ConnectionError, EOFError):  # on a busy machine the driver may not have waited
            hello = session.welcome()
            if hello.client.endswith(", driver"):
                session.opened()
                session.expect(messages.Status)
                session.send(messages.Blocked(1, 0.0, "the service cannot be reached"))
                session.await_end()
            elif hello.partition == 0:
                session.serve(lambda _: None)
            else:  # until the driver has said it
                session.serve(lambda _: None if log.told.wait(60) else messages.RowCode(1, "LATE"))

    daemon.runs(script)
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.5)
    monkeypatch.setattr(progress, "AGAIN_SECONDS", 0.5)
    progress.LOG.addHandler(log)
    try:
        rows = spark.range(6, numPartitions=2).selectExpr("cast(id as string) as partition_key", "'x' as data")
        assert write_batch(rows, stream="flights", socket=daemon.path).records == 6
    finally:
        progress.LOG.removeHandler(log)
    assert re.match(
        r"producerd: the write to stream flights has run for \d+ s: 3 rows stored by finished tasks, "
        r"1 of 2 tasks still run, the longest for \d+ s; the daemon at \S+: "
        "the service cannot be reached; queue 0 of 0 records",
        log.line,
    )
    rows_stored = rows_by_write(spark)
    assert rows_stored is not None
    assert rows_stored.value == {}, "nothing is kept of a write that has ended"


def local(pid_of_jvm: int = 1) -> Any:
    """A session in local mode."""
    name = SimpleNamespace(getName=lambda: f"{pid_of_jvm}@host")
    factory = SimpleNamespace(getRuntimeMXBean=lambda: name)
    lang = SimpleNamespace(management=SimpleNamespace(ManagementFactory=factory))
    jvm = SimpleNamespace(java=SimpleNamespace(lang=lang))
    return SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]", _jvm=jvm))


class Context:
    """Spark's, which keeps accumulators."""

    master = "yarn"

    def accumulator(self, value: Any, _: object) -> Any:
        return SimpleNamespace(value=value)


CLUSTER: Any = SimpleNamespace(sparkContext=Context())


def test_a_daemon_at_the_driver_s_own_path_is_asked(daemon: FakeDaemon) -> None:
    def told_late(session: Session) -> None:
        time.sleep(0.2)  # its node is busy
        told_why(session)

    daemon.runs(told_late)
    plan = Plan("flights", daemon.path)
    found = DriversDaemon(CLUSTER, plan)
    blocked = found.status()
    assert blocked is not None
    assert found.says(blocked).startswith(
        f"the daemon at {daemon.path}: the queue is at its limit: the service cannot be reached; queue 12 of 100"
    )
    assert found.stored(blocked) is None, "there are daemons of other nodes"
    assert DriversDaemon(CLUSTER, plan._replace(stream=None)).status() is None, "no stream to ask for"
    for own in (plan._replace(daemon=OWN), plan._replace(configured_daemon=OWN, socket=None)):
        assert DriversDaemon(CLUSTER, own).status() is None, "the tasks have another one"


def test_in_local_mode_it_has_stored_what_all_tasks_sent_since_the_write_began(daemon: FakeDaemon) -> None:
    delivered = iter((1_000, 1_500))

    def slow(session: Session) -> None:
        session.send(messages.Blocked(1, 0.0, "slow", delivered_records=next(delivered)))

    daemon.runs(lasts(expects(messages.Status), slow))
    found = DriversDaemon(local(), Plan("flights", daemon.path))
    assert found.stored(found.status()) == 500


def test_in_local_mode_a_daemon_of_the_tasks_is_found_at_the_driver_s_own_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = []

    def own(_: DaemonSettings, __: float, owner_pid: int | None) -> Any:
        owners.append(owner_pid)
        return SimpleNamespace(paths=(), log="/logs/of/it")

    monkeypatch.setattr("spark_client.task.OwnDaemon", own)
    assert DriversDaemon(local(17), Plan("flights", daemon=OWN)).log == "/logs/of/it"
    assert owners == [17]


def line_of(
    plan: Plan, look: Callable[[], Running | None], monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> str:
    """The first line of a write that takes long."""
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(progress, "running_tasks", lambda spark, tag: look())
    with log.at_level(logging.WARNING, "producerd.client"), Progress(CLUSTER, plan, "ours"):
        deadline = time.monotonic() + 20
        while not log.messages:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    (line,) = log.messages
    return line


def test_the_line_has_the_numbers_and_the_cause(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.runs(told_why)
    threads = []

    def look() -> Running:
        threads.append(threading.current_thread())
        return HELD

    line = line_of(Plan("flights", daemon.path), look, monkeypatch, caplog)
    assert [thread.daemon for thread in threads] == [True], "it does not keep the driver from ending"
    assert line.startswith("producerd: the write to stream flights has run for 0 s: 3 of 16 tasks still run")
    assert ", the longest for 34 s; the daemon at " in line
    assert "the service cannot be reached" in line


@pytest.mark.parametrize(
    ("found", "plan", "tells"),
    [
        (
            HELD,
            Plan("flights"),
            "3 of 16 tasks still run, the longest for 34 s; `producerctl status` says what holds them, on h1, h2",
        ),
        (
            Running(0, 0, 4, 0.0, ()),
            Plan("flights"),
            "no task runs yet",
        ),
        (
            None,
            Plan("flights"),
            ("`producerctl status` says what holds them, on the executors' hosts"),
        ),
        *(
            (
                None,
                plan,
                ("the log of the tasks' daemon says what holds them, on the executors' hosts"),
            )
            for plan in (Plan("flights", daemon=OWN), Plan("flights", configured_daemon=OWN))
        ),
    ],
)
def test_without_a_daemon_at_hand_it_names_the_hosts_and_the_command(
    found: Running | None,
    plan: Plan,
    tells: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan = plan._replace(socket=str(tmp_path / "nobody.sock"))
    line = line_of(plan, lambda: found, monkeypatch, caplog)
    assert re.fullmatch(rf"producerd: the write to stream flights has run for \d+ s: {re.escape(tells)}", line)


def test_a_write_that_ends_in_time_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(progress, "running_tasks", lambda spark, tag: asked.append(tag))
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    before = threading.active_count()
    with Progress(CLUSTER, Plan("flights"), "ours"):
        pass
    deadline = time.monotonic() + 20
    while threading.active_count() > before:
        assert time.monotonic() < deadline, "its thread goes on"
        time.sleep(0.01)
    assert (asked, caplog.messages, terminal.getvalue()) == ([], [], "")


def test_a_terminal_that_is_closed_does_not_fail_what_is_stored(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())

    def drawn() -> int:
        times = terminal.getvalue().count("producerd: ")
        if times >= 2:
            terminal.close()
        return times

    shown(daemon, monkeypatch, drawn)
    assert terminal.closed


def test_a_spark_that_is_being_stopped_costs_the_write_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stopped() -> Running:
        raise RuntimeError("SparkContext was shut down")

    line = line_of(Plan("flights"), stopped, monkeypatch, caplog)
    assert "nothing is known of its tasks (RuntimeError); " in line


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def shown(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, times: Callable[[], int]) -> None:
    """Show a write's progress until it was drawn twice."""
    daemon.runs(told_why)
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(progress, "DRAW_SECONDS", 0.01)
    monkeypatch.setattr(progress, "running_tasks", lambda spark, tag: HELD)
    with Progress(CLUSTER, Plan("flights", daemon.path), "ours"):
        until(lambda: times() >= 2)


DRAWN = "producerd: flights: 0 s, 12/16 tasks, queue 50% full: the service cannot be reached"


def test_in_a_terminal_it_is_one_line_that_is_drawn_again_and_disappears(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    shown(daemon, monkeypatch, lambda: terminal.getvalue().count("producerd: "))
    first, *_, last = terminal.getvalue().split("\r")[1:]
    assert first == DRAWN[:59] + "\x1b[K", "a longer one would begin a second line"
    assert last == "\x1b[K", "the line is still there"
    assert caplog.messages == []


def test_in_a_notebook_it_is_one_output_that_changes_and_ends_empty(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outputs = []

    def display(output: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        outputs.append(output["text/plain"])
        assert (raw, display_id) == (True, True)
        return SimpleNamespace(update=lambda output, raw: outputs.append(output["text/plain"]))

    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    shown(daemon, monkeypatch, lambda: len(outputs))
    assert (outputs[0], outputs[-1]) == (DRAWN, "")
    assert caplog.messages == []


@pytest.mark.parametrize(("batch_id", "levels"), [(None, "WIWIIW"), (3, "IIWIIW")])
def test_most_lines_of_the_log_are_no_warnings(
    batch_id: int | None, levels: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = iter((0, 5, 15, 30, 40, 329, 330))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    told = Progress(CLUSTER, Plan("flights", batch_id=batch_id), "ours")
    with caplog.at_level(logging.INFO, "producerd.client"):
        for _ in levels:
            told._log(["slow"], "")
    assert "".join(record.levelname[0] for record in caplog.records) == levels
