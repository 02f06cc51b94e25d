"""Checks whether a cluster is ready to write: a small Spark job asks every executor, and one error names all problems.

The job has one task for each slot, which is Spark's default.  Each task holds its slot for a moment, so that every
executor that is there now gets one.  No task fails, and none needs more than Python.  A plain UDF does not use Arrow,
which may be missing.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import json
import os
import platform
import re
import socket as sockets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from producerd import __version__
from producerd.errors import Code, ProducerdError, Refused
from producerd.wire import messages
from producerd.wire.messages import Service
from spark_client.channel import SERVICE_SECONDS, Channel, ask, dial, socket_paths
from spark_client.configuration import configured, functions_of
from spark_client.costs import Traffic, monthly
from spark_client.options import WriterOptions, refuse
from spark_client.own_daemon import OwnDaemon, jvm_pid
from spark_client.results import ERRORS, SAME_CLIENT, counted, marked, names_of
from spark_client.task import SPECULATION, Plan, speculates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_SLOTS: Final = 1 << 20
FIRST_OF_ITS_PARTITION: Final = "monotonically_increasing_id() % 8589934592 = 0"
"""True for the first row of each partition, as Spark numbers a partition's rows from a multiple of 2^33 on."""
HOLD_SECONDS: Final = 0.3
MOST_RECORD_BYTES: Final = 10 * 1024 * 1024
"""The largest record that any stream in Kinesis can take."""
ANSWER_SECONDS: Final = 2.0
LEAST_OVERHEAD_BYTES: Final = 384 << 20
NO_LIMIT_BYTES: Final = 1 << 62
READY: Final = "ready"
WORST_FIRST: Final = (Code.CONFIGURATION, Code.VERSION_MISMATCH, Code.ARROW_MISSING)
"""Codes of problems that prevent every batch.  They come before problems of one daemon or stream."""
PYTHON_DIFFERS: Final = re.compile(r"\[PYTHON_VERSION_MISMATCH\] ([^\n]*)")


class Installed(NamedTuple):
    """The versions in a process.  None means that a library cannot be imported, or is too old for this Spark."""

    python: str = ""
    spark: str = ""
    client: str = ""
    client_path: str = ""
    pyarrow: str | None = None
    pandas: str | None = None


class ExecutorCheck(NamedTuple):
    """What one executor's tasks found.  ``pid`` is its JVM's process; ``socket`` is where ``daemon`` answered.

    The limits are the daemon's: a session's window, and the largest frame in charge and records.

    With a stream, the largest frame is the stream's.  Then there are also the queue's limits and filling, the stream's
    last error, if it has one, and the fields of the daemon's `Traffic`.  ``service`` begins with "ready" and says how
    the daemon asked the service, or with "not verified" and says why.

    ``memory`` is what a daemon that tasks start needs of the executor's.  ``place`` is the same for executors that
    found the same daemon, because on Kubernetes each executor has a host of its own.
    """

    host: str
    pid: int
    user: str
    installed: Installed
    socket: str = ""
    daemon: str = ""
    window_bytes: int = 0
    window_frames: int = 0
    max_frame_bytes: int = 0
    max_frame_records: int = 0
    max_record_bytes: int = 0
    queue_records: int = 0
    queue_limit_records: int = 0
    queue_bytes: int = 0
    queue_limit_bytes: int = 0
    last_error: str = ""
    service: str = ""
    memory: str = ""
    traffic: Traffic = Traffic()
    place: str = ""


class Problem(NamedTuple):
    code: str
    text: str


@dataclass(frozen=True, repr=False)
class ClusterCheck:
    """A cluster that is ready to write, shown as one line for each executor: a table in a notebook, otherwise text."""

    stream: str | None
    driver: Installed
    executors: tuple[ExecutorCheck, ...]

    def __str__(self) -> str:
        alike, header, rows = self._table()
        width = max((len(name) for name, _ in alike), default=0)
        widths = [max(map(len, column)) for column in zip(header, *rows)]
        lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, widths)).rstrip() for row in (header, *rows)]
        return "\n".join([self._title(), *(f"{name:{width}}  {cell}" for name, cell in alike), "", *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        alike, header, rows = self._table()

        def line(cells: Sequence[str], tag: str) -> str:
            shown = "".join(f'<{tag} style="text-align: left">{html.escape(cell)}</{tag}>' for cell in cells)
            return f"<tr>{shown}</tr>"

        return (
            f"<p><b>{html.escape(self._title())}</b></p>"
            f"<table>{''.join(line(pair, 'td') for pair in alike)}</table>"
            f"<table>{line(header, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"
        )

    def _title(self) -> str:
        ready = f"ready to write to stream {self.stream}"
        if self.stream is None:
            ready = "every daemon answers; with stream= each asks Kinesis, too"
        elif not all(executor.service.startswith(READY) for executor in self.executors):
            ready = f"every daemon answers, but whether it can write to stream {self.stream} is not verified"
        elif any(executor.last_error for executor in self.executors):
            ready = f"ready to write to stream {self.stream}, which has had errors"
        daemons = len({executor.place for executor in self.executors})
        return f"{ready}: {counted(len(self.executors), 'executor')}, {counted(daemons, 'daemon')}"

    def _table(self) -> tuple[list[tuple[str, str]], list[str], list[list[str]]]:
        """Return what is the same on all executors as pairs, then the header and the rows of what differs."""
        cells = [_cells(executor) for executor in self.executors]
        differ = [n for n in cells[0] if n in ("host", "executor") or len({row[n] for row in cells}) > 1]
        driver = ", ".join(f"{name} {cell}" for name, cell in _software(self.driver).items())
        alike = [(name, cell) for name, cell in cells[0].items() if name not in differ and cell]
        daemons = {executor.place: executor.traffic for executor in self.executors}
        traffic = monthly(daemons.values())
        if traffic:
            alike.append(("traffic", traffic))
        return [("driver", driver), *alike], differ, [[row[name] for name in differ] for row in cells]


def check(
    spark: SparkSession,
    *,
    stream: str | None = None,
    socket: str | None = None,
    connect_timeout_seconds: float = 10,
    allow_speculation: bool = False,
    daemon: Mapping[str, Any] | None = None,
    daemon_start_timeout_seconds: float = 60,
) -> ClusterCheck:
    """Run one job over all executors, and return what they have.  It does not see executors that come later.

    Args:
        spark: The session.
        stream: A stream of which each daemon asks the service whether it could store records.  It stores none.  At AWS
            it asks by a dry run of PutRecords, elsewhere by ListShards.  If it may not list shards, the stream counts
            as not verified.
        socket: As for `KinesisBatchWriter`, like the arguments below.
        connect_timeout_seconds: How long a task looks for a daemon.
        allow_speculation: Do not count ``spark.speculation`` as a problem.
        daemon: Settings of a daemon that tasks start.
        daemon_start_timeout_seconds: How long a task waits for such a daemon.

    Returns:
        A table with one line for each executor.

    Raises:
        ProducerdError: With the code of the worst problem.  Each problem is a line that begins with
            ``PRODUCERD[CODE]:`` and names the hosts that have it.
    """
    # The constructor raises for values that are not valid.
    options = WriterOptions(
        stream,
        socket=socket,
        connect_timeout_seconds=connect_timeout_seconds,
        daemon=daemon,
        daemon_start_timeout_seconds=daemon_start_timeout_seconds,
    )
    if not hasattr(spark, "conf"):
        refuse([f"spark is a {type(spark).__name__}: give the SparkSession"])
    ask = Plan.of(options, **configured(spark), application_id=spark.conf.get("spark.app.id", "")).plain()
    driver, missing = installed()
    executors, found = _merged(_run(spark, _on_executor(ask)))
    problems = {problem: ["the driver"] for problem in missing}
    if speculates(spark.conf.get("spark.speculation", None)) and not allow_speculation:
        problems[Problem(Code.SPECULATION_ENABLED, SPECULATION)] = ["the driver"]
    for executor in executors:
        theirs = executor.installed
        if theirs.client not in ("", driver.client):
            text = f"client {theirs.client} ({theirs.client_path}), but {driver.client} on the driver: {SAME_CLIENT}"
            found.setdefault(Problem(Code.VERSION_MISMATCH, text), []).append(executor)
    for problem, having in found.items():
        problems.setdefault(problem, []).append(_where(having, len(executors)))
    if problems:
        raise _error(problems)
    return ClusterCheck(stream, driver, executors)


# -------------------------------------------------------------------------------------------------------- on the driver


def _run(spark: SparkSession, task: Callable[[int], str]) -> list[Mapping[str, Any]]:
    """Return each task's report."""
    functions = functions_of(spark)
    try:
        slots = spark.range(MOST_SLOTS).where(FIRST_OF_ITS_PARTITION)
        rows = slots.select(functions.udf(task, "string", useArrow=False)("id")).collect()
    except Exception as error:  # Spark's errors share no base class; only one becomes ours
        differs = PYTHON_DIFFERS.search(str(error))
        if differs is None:
            raise
    else:
        return [json.loads(row[0]) for row in rows]
    text = f"{differs[1]} Set PYSPARK_PYTHON to the same Python on all nodes"
    raise ProducerdError(marked(Code.VERSION_MISMATCH, text), code=Code.VERSION_MISMATCH)


def _on_executor(ask: Mapping[str, Any]) -> Callable[[int], str]:
    """Return the task.  It is pickled by value, so that it also runs where our modules are not found."""
    version, cure, code = __version__, SAME_CLIENT, Code.CONFIGURATION

    def task(_: int) -> str:
        import json
        import os
        import socket
        import sys

        try:
            from spark_client.checks import probe
        except Exception as error:
            text = f"no client {version} in {sys.executable} ({type(error).__name__}: {error}): {cure}"
            return json.dumps({"executor": [socket.gethostname(), os.getppid(), ""], "problems": [[code, text]]})
        return probe(**ask)

    return task


def _merged(
    reports: Sequence[Mapping[str, Any]],
) -> tuple[tuple[ExecutorCheck, ...], dict[Problem, list[ExecutorCheck]]]:
    """Return one `ExecutorCheck` for each executor, and the executors that have each problem."""
    executors: dict[tuple[str, int], ExecutorCheck] = {}
    having: dict[Problem, dict[tuple[str, int], ExecutorCheck]] = {}
    for report in reports:
        host, pid, user, *rest = report["executor"]
        theirs = Installed(*rest[0][: len(Installed._fields)]) if rest else Installed()
        checked = ExecutorCheck(host, pid, user, theirs, *rest[1 : len(ExecutorCheck._fields) - 3])
        checked = checked._replace(traffic=Traffic._make(checked.traffic[: len(Traffic._fields)]))
        one = executors.setdefault((host, pid), checked)
        for problem in report["problems"]:
            having.setdefault(Problem(*problem), {})[host, pid] = one
    ordered = tuple(executors[key] for key in sorted(executors))
    return ordered, {problem: list(those.values()) for problem, those in having.items()}


def _where(having: Sequence[ExecutorCheck], total: int) -> str:
    return f"{len(having)} of {counted(total, 'executor')}, on {names_of(executor.host for executor in having)}"


def _error(problems: Mapping[Problem, Sequence[str]]) -> ProducerdError:
    """Return the worst problem's error, with a line for each problem that says where it is."""

    def rank(problem: Problem) -> int:
        if problem.code == Code.SPECULATION_ENABLED:  # last, because an option allows it
            return len(WORST_FIRST) + 1
        return WORST_FIRST.index(problem.code) if problem.code in WORST_FIRST else len(WORST_FIRST)

    ordered = sorted(problems, key=rank)
    code = ordered[0].code
    kind = ERRORS.get(code, Refused)
    lines = [marked(problem.code, f"{' and '.join(problems[problem])}: {problem.text}") for problem in ordered]
    return kind("\n".join(lines), code=code)


# ------------------------------------------------------------------------------------------------------- on an executor


def probe(**plan_fields: Any) -> str:
    """Return what this executor has and which problems, as JSON.  `Plan.plain` has the fields."""
    plan = Plan.of_plain(plan_fields)
    has, problems = installed()
    executor = ExecutorCheck(sockets.gethostname(), jvm_pid() or os.getppid(), _user(), has)
    try:
        executor = _ask_daemon(executor, plan)
    except ProducerdError as error:
        # The driver names the hosts, once.
        problems.append(Problem(error.code, str(error).replace(f" on host {executor.host}", "")))
    time.sleep(HOLD_SECONDS)
    return json.dumps({"executor": executor, "problems": problems})


def installed() -> tuple[Installed, list[Problem]]:
    """Return the versions in this process, and a problem for each library that Spark lacks for Arrow."""
    problems: list[Problem] = []

    def version(module: str) -> str | None:
        try:
            # Spark's own check raises an ImportError also for too old a version.
            getattr(importlib.import_module("pyspark.sql.pandas.utils"), f"require_minimum_{module}_version")()
            return str(importlib.import_module(module).__version__)
        except Exception as error:  # a broken installation may raise anything
            text = f"{module} cannot be used ({error}): pip install --upgrade {module} there"
            problems.append(Problem(Code.ARROW_MISSING, text))
            return None

    spark = str(importlib.import_module("pyspark").__version__)
    where = str(Path(__file__).absolute().parent)
    libraries = version("pyarrow"), version("pandas")
    return Installed(platform.python_version(), spark, __version__, where, *libraries), problems


def _user() -> str:
    import pwd  # not on Windows, from where a Connect client may call check()

    uid = os.getuid()
    try:
        return f"{uid}/{pwd.getpwuid(uid).pw_name}"
    except KeyError:  # as in containers
        return str(uid)


def _ask_daemon(executor: ExecutorCheck, plan: Plan) -> ExecutorCheck:
    client = f"spark_client {__version__}, Python {platform.python_version()}, check"
    hello = messages.Hello(
        messages.VERSION, messages.VERSION, client=client, application_id=plan.application_id, pid=os.getpid()
    )
    own, stream = plan.own_daemon(), plan.stream
    if own is None:
        channel, welcome = dial(hello, socket_paths(plan.socket, plan.configured_socket), plan.connect_timeout_seconds)
    else:
        executor = executor._replace(memory=memory_of(own))
        channel, welcome = dial(hello, own.paths, plan.connect_timeout_seconds, own.start)
    try:
        executor = executor._replace(
            socket=channel.path,
            place=_place_of(channel.path, executor.host),
            daemon=welcome.daemon,
            window_bytes=welcome.window_bytes,
            window_frames=welcome.window_frames,
            max_frame_bytes=welcome.max_frame_bytes,
            max_frame_records=welcome.max_frame_records,
        )
        return executor if stream is None else _ask_stream(executor, channel, stream)
    finally:
        channel.close()


def _place_of(socket_path: str, host: str) -> str:
    """Return what only executors of one node share that found the same socket, or for an abstract socket its host."""
    try:
        found, boot = os.stat(socket_path), Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{host} {socket_path}"
    return f"{boot} {found.st_dev} {found.st_ino}"


def memory_of(own: OwnDaemon) -> str:
    """Return what a daemon that tasks start needs of the executor's memory, and whether its container has that.

    Spark's default of ``spark.executor.memoryOverhead`` is 384 MiB, or 10 % of the heap if that is more.
    """
    daemon_bytes, heap_bytes, container_bytes = own.memory_bytes, own.heap_bytes(), container_limit_bytes()
    overhead_bytes = max(LEAST_OVERHEAD_BYTES, heap_bytes // 10) + daemon_bytes
    needs = f"spark.executor.memoryOverhead={overhead_bytes >> 20}m, {_size(daemon_bytes)} of it for the daemon"
    if container_bytes and heap_bytes + overhead_bytes > container_bytes:
        has = f"the container has {_size(container_bytes)}, of which {_size(heap_bytes)} are the heap's"
        return f"TOO LITTLE: {has}; give {needs}"
    return needs


def container_limit_bytes(system: str = "/sys/fs/cgroup") -> int:
    """Return the memory limit of this process's container, by cgroups of version 2 or 1; 0 if there is none."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = Path(system, name).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() and int(text) < NO_LIMIT_BYTES else 0
    return 0


def _ask_stream(executor: ExecutorCheck, channel: Channel, stream: str) -> ExecutorCheck:
    opened = ask(channel, messages.Open(1, stream), messages.Opened, ANSWER_SECONDS)
    status = ask(channel, messages.Status(1, asks_service=1), messages.Blocked, SERVICE_SECONDS)
    if status.service == Service.NOT_ASKED:
        status = _ask_old_daemon(channel)
    if status.service == Service.FAILED:
        raise Refused(f"stream {stream}: {status.service_message}", code=status.service_code)
    return executor._replace(
        max_frame_bytes=min(executor.max_frame_bytes, opened.max_frame_bytes),
        max_frame_records=min(executor.max_frame_records, opened.max_frame_records),
        max_record_bytes=opened.max_record_bytes,
        queue_records=status.queue_records,
        queue_limit_records=status.queue_limit_records,
        queue_bytes=status.queue_bytes,
        queue_limit_bytes=status.queue_limit_bytes,
        last_error=status.last_error,
        traffic=Traffic(
            status.capacity_mode,
            bool(status.aggregates),
            status.delivered_records,
            status.delivered_bytes,
            status.kinesis_records,
            status.delivering_seconds,
        ),
        service=f"{READY if status.service == Service.READY else 'not verified'}: {status.service_message}",
    )


def _ask_old_daemon(channel: Channel) -> messages.Blocked:
    """Return what a daemon of version 0.1 knows: it reads a stream's shards when it opens it, and keeps the error."""
    time.sleep(HOLD_SECONDS)
    status = ask(channel, messages.Status(1), messages.Blocked, ANSWER_SECONDS)
    code, _, message = status.last_error.partition(": ")
    if code == Code.STREAM_NOT_FOUND:  # other errors may pass, or concern a right that plain records do not need
        return dataclasses.replace(status, service=Service.FAILED, service_code=code, service_message=message)
    return dataclasses.replace(status, service_message="this daemon is of a version that cannot ask the service")


# ------------------------------------------------------------------------------------------------------------- as text


def _software(has: Installed) -> dict[str, str]:
    return {
        "Python": has.python,
        "Spark": has.spark,
        "client": f"{has.client} ({has.client_path})",
        "pyarrow": has.pyarrow or "missing",
        "pandas": has.pandas or "missing",
    }


def _cells(executor: ExecutorCheck) -> dict[str, str]:
    records, most = executor.queue_records, executor.queue_limit_records
    queue = f"{records:,} of {most:,} records, {_size(executor.queue_bytes)} of {_size(executor.queue_limit_bytes)}"
    return {
        "host": executor.host,
        "executor": f"pid {executor.pid}",
        "user": executor.user,
        **_software(executor.installed),
        "socket": executor.socket,
        "daemon": executor.daemon,
        "window": f"{_size(executor.window_bytes)}, {executor.window_frames:,} frames",
        "largest frame": f"{_size(executor.max_frame_bytes)}, {executor.max_frame_records:,} records",
        "largest record": _largest_record(executor.max_record_bytes),
        "queue": queue if most else "",
        "memory": executor.memory,
        "last error": executor.last_error,
        "Kinesis": executor.service,
    }


def _largest_record(size_bytes: int) -> str:
    if size_bytes == MOST_RECORD_BYTES:  # what a daemon reports while it does not know
        return f"{_size(size_bytes)}, or not known yet"
    return _size(size_bytes) if size_bytes else ""


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.4g} MiB" if size_bytes >= 1 << 20 else f"{size_bytes / 1024:.4g} KiB"
