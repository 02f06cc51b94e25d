"""check() asks every executor once and says all that keeps this cluster from writing, or shows what it found."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from producerd.errors import Code, ConfigurationError, ProducerdError
from producerd.wire import messages
from spark_client import __version__, checks
from spark_client.checks import ClusterCheck, ExecutorCheck, Installed, Problem, check, probe
from spark_client.costs import Traffic, monthly
from spark_client.options import WriterOptions
from spark_client.own_daemon import jvm_pid
from spark_client.task import Plan
from tests.snapshots import Snapshot
from tests.spark_client.fake_daemon import (
    FakeDaemon,
    Script,
    Session,
    close_with,
    ends,
    expects,
    in_turn,
    refuses_stream,
    says,
)
from tests.spark_client.fake_spark import AnyConf, fake_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACE = "/opt/producerd/spark_client"
HAS = Installed("3.11.7", "4.3.0", __version__, PLACE, "26.0.1", "2.3.3")
GOOD = ExecutorCheck(
    *("h1", 7, "185", HAS, "/run/producerd/producerd.sock", "producerd 1", 8 << 20, 64, 1 << 20, 10_000)
)
ABSENT = Problem(Code.DAEMON_ABSENT, "no daemon to talk to")


def report(executor: ExecutorCheck, *problems: Problem) -> Any:
    return json.loads(json.dumps({"executor": executor, "problems": problems}))


def told_by(path: str, stream: str | None = None, seconds: float = 1) -> Any:
    """What an executor's part of the check says, of the daemon at this path."""
    return json.loads(probe(**Plan(stream, path, application_id="app", connect_timeout_seconds=seconds).plain()))


def check_of(reports: Sequence[Any], monkeypatch: pytest.MonkeyPatch, **conf: str) -> ClusterCheck:
    monkeypatch.setattr(checks, "_run", lambda spark, task: reports)
    return check(fake_spark(**conf))


def status(session: Session) -> None:
    """Opens a stream and tells of its queue."""
    session.welcome(daemon="producerd 9")
    session.opened(max_frame_bytes=1 << 19, max_frame_records=9_000, max_record_bytes=1 << 20)
    asked = session.expect(messages.Status)
    assert (session.streams, asked) == ({1: "flights"}, messages.Status(1, asks_service=1))
    session.send(messages.Draining(60.0))  # without a question
    queue = (12, 1_000_000, 2_048, 64 << 20)
    service: Any = (messages.Service.READY, "", "a dry run")
    traffic: Any = ("ON_DEMAND", 1, 7, 70, 2, 3.5)
    session.send(messages.Blocked(1, 0.0, "", *queue, 0, "AccessDenied", "", 0.0, *service, *traffic))
    session.await_end()


# -------------------------------------------------------------------------------------------------------- through Spark


@pytest.mark.spark
def test_every_slot_opens_the_stream_and_each_executor_is_one_line(daemon: FakeDaemon, spark: SparkSession) -> None:
    daemon.runs(status)
    told = check(spark, stream="flights", socket=daemon.path)
    (executor,) = told.executors
    assert len(daemon.sessions) == 2
    assert (executor.socket, executor.daemon, executor.window_frames) == (daemon.path, "producerd 9", 64)
    assert (executor.max_frame_bytes, executor.max_frame_records) == (1 << 19, 9_000)
    assert (executor.queue_records, executor.service) == (12, "ready: a dry run")
    assert executor.installed == told.driver
    assert told.driver.client == __version__
    assert told.driver.client_path == str(Path(checks.__file__).parent)
    assert executor.user.split("/")[0] == str(os.getuid())
    assert {hello.application_id for hello in daemon.hellos} == {spark.conf.get("spark.app.id")}
    java = Path(f"/proc/{executor.pid}/comm")
    assert not java.exists() or java.read_text() == "java\n"


class Here:
    """A Spark of one slot, which runs a check's task in this process."""

    def __init__(self) -> None:
        self.conf = AnyConf()
        self._task: Callable[[int], str] = lambda _: ""

    def range(self, _: int) -> Here:
        return self

    def where(self, _: str) -> Here:
        return self

    def select(self, task: Callable[[int], str]) -> Here:
        self._task = task
        return self

    def collect(self) -> list[tuple[str]]:
        return [(self._task(0),)]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("kind", "other"), [("sql", "sql.connect"), ("sql.connect", "sql")])
def test_the_task_is_a_plain_udf_of_the_session_s_own_kind(
    daemon: FakeDaemon, kind: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def udf(task: Callable[[int], str], returns: str, *, useArrow: bool) -> Any:  # noqa: N803 - Spark's name
        assert (returns, useArrow) == ("string", False), "Arrow may be missing"
        return lambda column: task

    checks.installed()  # it imports the modules that these stand in for
    monkeypatch.setitem(sys.modules, f"pyspark.{kind}.functions", SimpleNamespace(udf=udf))
    monkeypatch.setitem(sys.modules, f"pyspark.{other}.functions", SimpleNamespace())
    session: Any = type("Session", (Here,), {"__module__": f"pyspark.{kind}.session"})()
    (executor,) = check(session, socket=daemon.path).executors
    assert executor.socket == daemon.path


# ------------------------------------------------------------------------------------------------------- on an executor


def answers(last_error: str = "", **service: Any) -> Script:
    """Return a script: the daemon answers so whenever it is asked for a stream's status."""

    def answers_each(session: Session) -> None:
        with contextlib.suppress(EOFError):
            while True:
                assert session.expect(messages.Status).stream_id in session.streams
                session.send(messages.Blocked(1, 0.0, "", last_error=last_error, **service))

    return ends(answers_each)


@pytest.mark.usefixtures("quick")
def test_what_the_service_said_is_the_problem_and_names_the_stream(daemon: FakeDaemon) -> None:
    daemon.runs(answers(service=messages.Service.FAILED, service_code=Code.UNREACHABLE, service_message="no such host"))
    assert problems_of(daemon, "s") == [[Code.UNREACHABLE, "stream s: no such host"]]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("number", [messages.Service.NOT_VERIFIED, 200], ids=["denied", "of a later version"])
def test_what_the_service_may_not_be_asked_is_not_verified(daemon: FakeDaemon, number: int) -> None:
    daemon.runs(answers(service=number, service_message="may not list"))
    told = told_by(daemon.path, "s")
    assert told["problems"] == []
    assert ExecutorCheck(*told["executor"]).service == "not verified: may not list"


@pytest.mark.usefixtures("quick")
def test_a_daemon_of_version_0_1_tells_its_last_error_alone(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(checks, "time", SimpleNamespace(sleep=waited.append))
    daemon.runs(answers("ResourceNotFoundException: of another sort"))
    told = told_by(daemon.path, "s")
    assert told["problems"] == []
    assert ExecutorCheck(*told["executor"]).service.startswith("not verified: this daemon is of a version that cannot")
    assert len(waited) == 2, "for the stream's shards, and for the other tasks"
    daemon.runs(answers("STREAM_NOT_FOUND: no such stream"))
    assert problems_of(daemon, "s") == [[Code.STREAM_NOT_FOUND, "stream s: no such stream"]]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "HOLD_SECONDS", 0)


def problems_of(daemon: FakeDaemon, stream: str | None = None) -> list[list[str]]:
    problems: list[list[str]] = told_by(daemon.path, stream)["problems"]
    return problems


@pytest.mark.usefixtures("quick")
def test_what_a_daemon_says_of_itself_and_of_a_stream_is_reported_whole(daemon: FakeDaemon) -> None:
    daemon.runs(status)
    told = told_by(daemon.path, "flights")
    assert told["problems"] == []
    assert [hello.application_id for hello in daemon.hellos] == ["app"]
    assert told["executor"][4:-1] == [
        *(daemon.path, "producerd 9", 8 << 20, 64),
        *(1 << 19, 9_000, 1 << 20),
        *(12, 1_000_000, 2_048, 64 << 20),
        *("AccessDenied", "ready: a dry run", ""),
        ["ON_DEMAND", True, 7, 70, 2, 3.5],
    ]


def test_a_task_holds_its_slot_and_reports_its_jvm_even_without_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[float] = []
    monkeypatch.setattr(checks, "time", SimpleNamespace(sleep=held.append))
    monkeypatch.setattr(checks, "jvm_pid", lambda: 4711)
    told = told_by(str(tmp_path / "nobody.sock"), seconds=0)
    assert held == [checks.HOLD_SECONDS]
    has = [*checks.installed()[0]]
    host, pid, user, *rest = told["executor"]
    assert (host, pid, user.split("/")[0]) == (os.uname().nodename, 4711, str(os.getuid()))
    assert rest == [has, "", "", *[0] * 9, "", "", "", [*Traffic()], ""]
    assert [code for code, _ in told["problems"]] == [Code.DAEMON_ABSENT]


def test_the_versions_are_those_of_this_process() -> None:
    pyspark, pyarrow, pandas = map(importlib.import_module, ("pyspark", "pyarrow", "pandas"))
    ours = __version__, str(Path(checks.__file__).parent)
    versions = (platform.python_version(), pyspark.__version__, *ours, pyarrow.__version__, pandas.__version__)
    assert checks.installed() == (versions, [])


def test_a_library_that_is_too_old_for_spark_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pandas.__version__", "0.1")
    has, (problem,) = checks.installed()
    assert (has.pandas, problem.code) == (None, Code.ARROW_MISSING)
    assert has.pyarrow is not None
    assert problem.text.startswith("pandas cannot be used (")


@pytest.mark.parametrize(
    ("heap_bytes", "container_bytes", "said"),
    [
        (1 << 30, 0, "spark.executor.memoryOverhead=768m, 384 MiB of it for the daemon"),
        # A tenth of the heap is more.
        (8 << 30, 0, "spark.executor.memoryOverhead=1203m, 384 MiB of it for the daemon"),
        (1 << 30, 1_792 << 20, "spark.executor.memoryOverhead=768m, 384 MiB of it for the daemon"),
        (
            1 << 30,
            (1_792 << 20) - 1,
            (
                "TOO LITTLE: the container has 1792 MiB, of which 1024 MiB are the heap's; "
                "give spark.executor.memoryOverhead=768m, 384 MiB of it for the daemon"
            ),
        ),
    ],
)
def test_what_a_daemon_that_tasks_start_needs_of_the_executor_s_memory(
    heap_bytes: int, container_bytes: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "container_limit_bytes", lambda: container_bytes)
    own: Any = SimpleNamespace(memory_bytes=384 << 20, heap_bytes=lambda: heap_bytes)
    assert checks.memory_of(own) == said


@pytest.mark.parametrize(
    ("files", "limit_bytes"),
    [
        ({"memory.max": "1073741824\n"}, 1 << 30),
        ({"memory.max": "max\n"}, 0),
        ({"memory.max": "5", "memory/memory.limit_in_bytes": "6"}, 5),
        ({"memory/memory.limit_in_bytes": "6\n"}, 6),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0),
        ({"memory.max": str(1 << 62)}, 0),
        ({"memory.max": str((1 << 62) - 1)}, (1 << 62) - 1),
        ({}, 0),
    ],
)
def test_the_limit_of_a_container_is_read_of_either_version_of_cgroups(
    files: dict[str, str], limit_bytes: int, tmp_path: Path
) -> None:
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert checks.container_limit_bytes(str(tmp_path)) == limit_bytes


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("stream", "script", "code", "text"),
    [
        (
            None,
            close_with(Code.VERSION_MISMATCH),
            Code.VERSION_MISMATCH,
            "the daemon closed the session: because of VERSION_MISMATCH",
        ),
        (
            "s",
            in_turn(Session.welcome, expects(messages.Open), says(messages.Close(Code.INTERNAL, "a bug"))),
            Code.INTERNAL,
            "the daemon closed the session: a bug",
        ),
        (
            "s",
            in_turn(Session.welcome, refuses_stream(Code.STREAM_NOT_FOUND, "s: no legal name"), Session.await_end),
            Code.STREAM_NOT_FOUND,
            "s: no legal name",
        ),
        (
            "s",
            in_turn(Session.welcome, expects(messages.Open)),
            Code.DAEMON_LOST,
            "the daemon greeted, and then had no answer to OPEN",
        ),
    ],
    ids=["closes", "closes instead of opening", "refuses the stream", "dies"],
)
def test_a_daemon_that_does_not_open_the_stream_is_quoted(
    stream: str | None, script: Script, code: str, text: str, daemon: FakeDaemon
) -> None:
    daemon.runs(script)
    assert problems_of(daemon, stream) == [[code, text]]


@pytest.mark.usefixtures("quick")
def test_a_daemon_that_is_mute_after_its_welcome_is_told(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ANSWER_SECONDS", 0)
    daemon.runs(in_turn(Session.welcome, expects(messages.Open), Session.await_end))
    assert problems_of(daemon, "s") == [[Code.DAEMON_LOST, "the daemon greeted, and then had no answer to OPEN"]]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("module", ["pyarrow", "pandas"])
def test_a_missing_library_is_reported_beside_what_the_daemon_says(
    daemon: FakeDaemon, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.runs(in_turn(Session.welcome, Session.await_end))
    monkeypatch.setitem(sys.modules, module, None)
    told = told_by(daemon.path)
    ((code, text),) = told["problems"]
    assert code == Code.ARROW_MISSING
    assert text.startswith(f"{module} cannot be used (")
    assert text.endswith(f"pip install --upgrade {module} there")
    assert ExecutorCheck(*told["executor"]).socket == daemon.path


@pytest.mark.usefixtures("quick")
def test_executors_with_the_same_socket_have_the_same_daemon(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever path and whatever name of a host they find it."""
    daemon.runs(*[in_turn(Session.welcome, Session.await_end)] * 2)
    (other := tmp_path / "other.sock").symlink_to(daemon.path)
    first = ExecutorCheck(*told_by(daemon.path)["executor"])
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-2")
    second = ExecutorCheck(*told_by(str(other))["executor"])
    assert (first.place, first.host != second.host) == (second.place, True)


def test_where_the_client_is_missing_the_task_says_so_and_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task travels by value: nothing of it needs our modules to be unpickled."""
    from pyspark import cloudpickle

    tasks: list[bytes] = []

    def udf(task: Callable[[int], str], *_: object, **__: object) -> Any:
        tasks.append(cloudpickle.dumps(task))  # type: ignore[no-untyped-call]
        return lambda column: lambda _: json.dumps(report(GOOD))

    monkeypatch.setattr("pyspark.sql.functions.udf", udf)
    session: Any = type("Session", (Here,), {"__module__": "pyspark.sql.session"})()
    with contextlib.suppress(ProducerdError):  # the client is this one
        check(session, stream="s", daemon={"region": "eu-west-1"})
    (task,) = tasks
    script = (
        "import sys\n"
        "sys.modules['spark_client'] = sys.modules['producerd'] = None\n"
        "from pyspark import cloudpickle\n"
        "print(cloudpickle.loads(bytes.fromhex(sys.stdin.read()))(0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=task.hex(), capture_output=True, text=True, check=True, timeout=60
    )
    told = json.loads(done.stdout)
    assert told["executor"] == [os.uname().nodename, os.getpid(), ""]
    ((code, text),) = told["problems"]
    assert code == Code.CONFIGURATION
    assert text.startswith(
        f"no client {__version__} in {sys.executable} (ModuleNotFoundError: No module named 'spark_client"
    )
    assert "--py-files" in text


def proc_of(folder: Path, *processes: tuple[int, str, int]) -> Path:
    for pid, name, parent in processes:
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1 4194304")
    return folder


def test_an_executor_is_known_by_its_jvm(tmp_path: Path) -> None:
    proc = proc_of(tmp_path, (os.getppid(), "odd) (name", 31), (31, "python3", 30), (30, "java", 1), (1, "java", 0))
    assert jvm_pid(proc) == 30


def test_a_jvm_may_be_the_first_process_of_its_container(tmp_path: Path) -> None:
    assert jvm_pid(proc_of(tmp_path, (os.getppid(), "python3", 1), (1, "java", 0))) == 1


def test_where_proc_does_not_say_an_executor_is_known_by_what_forks_its_workers(tmp_path: Path) -> None:
    assert jvm_pid(tmp_path / "none") is None
    assert jvm_pid(proc_of(tmp_path, (os.getppid(), "python3", 1), (1, "init", 0))) is None
    assert told_by(str(tmp_path / "nobody.sock"), seconds=0)["executor"][1] == os.getppid()


# -------------------------------------------------------------------------------------------------------- on the driver


def test_executors_are_told_apart_by_host_and_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    others = GOOD._replace(pid=8), GOOD._replace(host="h0")
    told = check_of([report(executor) for executor in (GOOD, GOOD, *others, GOOD)], monkeypatch)
    assert told.executors == (others[1], GOOD, others[0])


MISSING = Problem(Code.ARROW_MISSING, "pyarrow cannot be used")
OLDER, NEWER = report(GOOD), report(GOOD)
OLDER["executor"] = ["h2", 7, "185", ["3.11.7", "4.3.0", "0.0.9", PLACE]]
NEWER["executor"] = [*GOOD._replace(host="h3"), "more", "and more"]
NEWER["executor"][3] = [*HAS._replace(client="7"), "a version more"]
DRIVER: dict[str, list[Any]] = {
    "the worst problem comes first, and each names its hosts": [
        report(GOOD),
        *(report(GOOD._replace(host=host), ABSENT) for host in ("h3", "h2", "h2")),
        report(GOOD._replace(host="h4"), ABSENT, MISSING),
        *(report(GOOD._replace(pid=pid), MISSING) for pid in (8, 9)),
    ],
    "one task with a problem is enough": [report(GOOD), report(GOOD, ABSENT)],
    "many hosts are not all named": [report(GOOD._replace(host=f"h{i}"), ABSENT) for i in range(100, 200)],
    "an older client may report less than this one asks for, a newer one more": [report(GOOD), OLDER, NEWER],
}


def test_what_keeps_a_cluster_from_writing_is_a_line_for_each_problem(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    texts = []
    for what, reports in DRIVER.items():
        with pytest.raises(ProducerdError) as caught:
            check_of(reports, monkeypatch)
        texts.append(f"# {what}: {type(caught.value).__name__}, {caught.value.code}\n{caught.value}\n")
    snapshot("cluster_problems", "".join(texts).replace(f"but {__version__} on", "but VERSION on"))


def test_speculation_and_what_the_driver_lacks_are_told_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ProducerdError) as caught:
        check_of([report(GOOD, ABSENT)], monkeypatch, speculation="true")
    arrow, absent, speculation = str(caught.value).splitlines()
    assert arrow.startswith("PRODUCERD[ARROW_MISSING]: the driver: pandas cannot be used")
    assert speculation.startswith("PRODUCERD[SPECULATION_ENABLED]: the driver: spark.speculation=true")
    assert absent.startswith("PRODUCERD[DAEMON_ABSENT]: 1 of 1 executor")


def test_who_accepts_duplicates_of_speculation_is_not_kept_from_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_run", lambda spark, task: [report(GOOD)])
    with pytest.raises(ProducerdError, match="allow_speculation=True"):
        check(fake_spark(speculation="true"))
    assert check(fake_spark(speculation="true"), allow_speculation=True).executors == (GOOD,)


def test_what_driver_and_executors_lack_alike_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ProducerdError, match=r"ING\]: the driver and 1 of 2 executors, on h1: pandas") as caught:
        check_of([report(GOOD, *checks.installed()[1]), report(GOOD._replace(pid=8))], monkeypatch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": ""}, "stream=''"),
        ({"connect_timeout_seconds": "5s"}, "connect_timeout_seconds='5s'"),
        ({}, "spark is a NoneType: give the SparkSession"),
    ],
)
def test_an_option_that_does_not_hold_is_told_before_any_job(options: dict[str, Any], message: str) -> None:
    spark: Any = None
    with pytest.raises(ConfigurationError, match=message):
        check(spark, **options)


def test_its_options_have_the_defaults_of_a_writer_s() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(WriterOptions)}
    asked = {name: its.default for name, its in inspect.signature(check).parameters.items() if name != "spark"}
    assert asked == {name: defaults[name] for name in asked}


def broken_spark(text: str) -> Any:
    def range_(_: int) -> Any:
        raise RuntimeError(text)

    return SimpleNamespace(conf=AnyConf(), range=range_)


def test_another_python_on_the_executors_is_one_line() -> None:
    spark_says = (
        "Job aborted\n  [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9.\nPlease check\n\tat"
    )
    with pytest.raises(ProducerdError) as caught:
        check(broken_spark(spark_says))
    assert str(caught.value) == (
        "PRODUCERD[VERSION_MISMATCH]: Python in worker has different version: 3.9. "
        "Set PYSPARK_PYTHON to the same Python on all nodes"
    )
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_what_else_spark_raises_is_left_as_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^Job 3 cancelled$"):
        check(broken_spark("Job 3 cancelled"))


# -------------------------------------------------------------------------------------------------------------- as text


READY = GOOD._replace(service="ready: so")
UNSURE = GOOD._replace(host="h2", place="h2", service="not verified: AccessDeniedException: no")
QUEUE = GOOD._replace(
    max_record_bytes=1 << 20,
    queue_records=12,
    queue_limit_records=1_000_000,
    queue_bytes=2_048,
    queue_limit_bytes=64 << 20,
    last_error="AccessDenied",
    service="ready: so",
)
SHOWN: dict[str, ClusterCheck] = {
    "what two hosts have in common stands once, and what differs in a table": ClusterCheck(
        "flights", HAS, (READY, READY._replace(host="host-2", place="2", daemon="producerd 2"))
    ),
    "a stream's queue and its last error": ClusterCheck("s", HAS, (QUEUE,)),
    "the largest record of each host": ClusterCheck(
        "s",
        HAS,
        tuple(
            GOOD._replace(host=f"h{number}", place=f"h{number}", max_record_bytes=size)
            for number, size in enumerate((1 << 10, (1 << 20) - 1_024, 3 << 19, 10 << 20, 11 << 20))
        ),
    ),
    "no stream, and a driver without libraries": ClusterCheck(None, HAS._replace(pyarrow=None, pandas=None), (GOOD,)),
    "one daemon that could not ask is enough not to say ready": ClusterCheck("s", HAS, (READY, UNSURE)),
}


def test_a_check_is_shown_as_text(snapshot: Snapshot) -> None:
    texts = [f"# {what}\n{shown}\n" for what, shown in SHOWN.items()]
    snapshot("cluster_checks", "\n".join(texts).replace(f"{__version__} ({PLACE})", f"VERSION ({PLACE})"))
    assert [repr(shown) for shown in SHOWN.values()] == [str(shown) for shown in SHOWN.values()]


def test_the_traffic_of_each_daemon_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = GOOD._replace(traffic=Traffic("PROVISIONED", False, 86_400, 8_640_000, 86_400, 86_400.0))
    pod, elsewhere = busy._replace(host="pod-2"), busy._replace(host="pod-3", place="another node")
    told = check_of([report(busy), report(pod), report(elsewhere)], monkeypatch)
    assert told.executors == (busy, pod, elsewhere)
    said = monthly([busy.traffic] * 2)
    assert said.startswith("2 records/s of 100 bytes until now are ")
    assert f"traffic        {said}" in str(told).splitlines()
    assert str(told).partition("\n")[0].endswith(": 3 executors, 2 daemons")


def test_the_html_is_escaped() -> None:
    evil = GOOD._replace(host="<script>h</script>", daemon='"<b>"')
    told = ClusterCheck("<i>s", HAS, (evil, GOOD._replace(host="<u>")))
    shown = told._repr_html_()
    assert not any(tag in shown for tag in ("<script>", '"<b>"', "<i>", "<u>"))
    assert "<th" in shown
    assert "&lt;script&gt;h&lt;/script&gt;" in shown
