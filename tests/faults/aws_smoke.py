"""The oracle against AWS itself: ``./dev aws-smoke [--region R] [--yes] [--json]``.

It makes a stream with a name of its own, and a real daemon sends to it with both aggregations.  Meanwhile it throttles
and splits the stream.  Then it reads everything back and judges, and deletes the stream in every case.  It prints the
cost before it makes anything.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from benchmarks.interrupts import interrupts
from benchmarks.table import say, table
from producerd.errors import ProducerdError
from spark_client import KinesisClient
from tests.daemon import DaemonProcess
from tests.faults import oracle
from tests.faults.oracle import Broken, Law
from tests.faults.reader import entries_of, handed_by_rule
from tests.faults.records import LARGEST_SEED, Book, Shape
from tests.faults.senders import Sender
from tests.faults.stage import Figures
from tests.faults.watch import Watch

SHARDS: Final = 2
SHARDS_PAID: Final = 4
"""Two of the beginning and two children, each for a begun hour at most."""
AGGREGATIONS: Final = ("none", "kpl")
"""Streams of the daemon by these names write to the one stream.  The stream ``kpl`` promises the order of each key."""
SENDERS: Final = 2
CALM_RATE, THROTTLED_RATE = 100.0, 600.0
"""Records a second of one sender.  At the second rate the senders bring the shards to their limit."""
CALM_SHAPE, THROTTLED_SHAPE = Shape(data_bytes=200), Shape(data_bytes=4_000)
CALM_SECONDS, THROTTLED_SECONDS, SPLIT_SECONDS = 5.0, 8.0, 10.0
END_SECONDS: Final = 180.0
STREAM_SECONDS: Final = 300.0
DAEMON_SECONDS: Final = 60.0
READINGS, BETWEEN_READINGS_SECONDS = 5, 5.0
"""The run reads several times, as an acknowledged record may become readable only a moment later."""
PRICES: Final = "2025-01, us-east-1, provisioned mode"
SHARD_HOUR_DOLLARS: Final = 0.015
MILLION_UNITS_DOLLARS: Final = 0.014
WRONG_KEY: Final = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wrong",
    "AWS_SESSION_TOKEN": "",
}
"""AWS's own example of a key, which no account has."""


class Refused(Exception):
    """The run cannot begin, or did not come to its end: one line for people."""


def cost() -> str:
    """What the run costs at most, in words."""
    seconds = CALM_SECONDS + THROTTLED_SECONDS + SPLIT_SECONDS
    per_second = SENDERS * (len(AGGREGATIONS) * CALM_RATE + THROTTLED_RATE)
    units = math.ceil(seconds * per_second / 1_000) * 1_000
    shards, puts = SHARDS_PAID * SHARD_HOUR_DOLLARS, units / 1e6 * MILLION_UNITS_DOLLARS
    return (
        f"at most about {shards + puts:.2f} US dollars: {SHARDS_PAID} shard hours ({shards:.3f}) and up to {units:,} "
        f"PUT payload units ({puts:.4f}), by the prices of {PRICES}; prices vary by region and time"
    )


class Run(NamedTuple):
    """One run's stream and folder.  ``environ`` is what the daemon is started with."""

    kinesis: Any
    region: str
    stream: str
    folder: Path
    environ: dict[str, str]

    def settings(self) -> dict[str, Any]:
        own = {f'streams."{name}".{key}': value for name in AGGREGATIONS for key, value in self._of(name).items()}
        # The settings allow a pace above the quota, so that AWS throttles.
        return {
            "region": self.region,
            "shard_rate_fraction": 4,
            "request_timeout_seconds": 6,
            "linger_seconds": 0.1,
        } | own

    def _of(self, aggregation: str) -> dict[str, str]:
        ordering = {"none": "none", "kpl": "per_key"}[aggregation]
        return {"stream_name": self.stream, "aggregation": aggregation, "ordering": ordering}

    @contextlib.contextmanager
    def daemon(self, name: str, **environ: str) -> Iterator[DaemonProcess]:
        """A daemon of this run, until the end of the block."""
        home = self.folder / name
        home.mkdir()
        running = DaemonProcess(home, self.settings(), self.environ | environ, socket_path=None)
        try:
            running.wait_ready()
            yield running
        finally:
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a law was broken, 2 where nothing was begun."""
    options = _parser().parse_args(arguments)
    region = options.region or boto3.Session().region_name
    if region is None:
        say("aws-smoke: no region: give --region, or set AWS_REGION")
        return 2
    say(f"This makes a Kinesis stream of {SHARDS} shards in {region}, sends to it for half a minute, and deletes it.")
    say(f"It costs {cost()}.")
    try:
        with interrupts():
            if not options.yes and not _agreed():
                say("aws-smoke: nothing was made")
                return 2
            figures, broken = _run(region)
    except Refused as error:
        say(f"aws-smoke: {error}")
        return 1
    for each in broken:
        say(f"  BROKEN: {each}")
    print(
        json.dumps([asdict(figures) | {"broken": list(map(str, broken))}])
        if options.json
        else table(Figures, [figures])
    )
    return int(bool(broken))


def _agreed() -> bool:
    if not sys.stdin.isatty():
        say("aws-smoke: nobody can be asked, as this is not a terminal: --yes agrees to the cost")
        return False
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _run(region: str) -> tuple[Figures, list[Broken]]:
    with tempfile.TemporaryDirectory(prefix="aws-") as folder:
        # It reads at five calls a second and shard, which AWS throttles beyond.
        config = Config(region_name=region, retries={"total_max_attempts": 20, "mode": "standard"})
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PRODUCERD_")}
        environ.setdefault("AWS_EC2_METADATA_DISABLED", "false")
        stream = f"producerd-smoke-{uuid.uuid4().hex[:12]}"
        run = Run(boto3.client("kinesis", config=config), region, stream, Path(folder), environ)
        try:
            with _stream(run):
                broken = _dry_run(run) + _wrong_key(run)
                figures, more = _under_load(run)
                return figures, broken + more
        except (BotoCoreError, ClientError) as error:
            raise Refused(str(error)) from None


@contextlib.contextmanager
def _stream(run: Run) -> Iterator[None]:
    """The run's stream, which is deleted also when it was about to be made."""
    say(f"making the stream {run.stream} ...")
    is_made = True
    try:
        try:
            run.kinesis.create_stream(StreamName=run.stream, ShardCount=SHARDS)
        except (BotoCoreError, ClientError) as error:
            is_made = not is_refusal(error)
            raise Refused(f"no stream can be made in {run.region}: {error}") from None
        _wait_until_active(run)
        yield
    finally:
        if is_made:
            _delete(run)


def is_refusal(error: Exception) -> bool:
    """Whether AWS has surely made nothing: it was not asked, or said no."""
    if not isinstance(error, ClientError):
        return isinstance(error, NoCredentialsError | PartialCredentialsError)
    # A request that is repeated, as its answer was lost, may meet the stream that it has made.
    in_use = error.response["Error"]["Code"] == "ResourceInUseException"
    return error.response["ResponseMetadata"]["HTTPStatusCode"] < 500 and not in_use


def _wait_until_active(run: Run) -> None:
    waiting = {"Delay": 1, "MaxAttempts": int(STREAM_SECONDS)}
    run.kinesis.get_waiter("stream_exists").wait(StreamName=run.stream, WaiterConfig=waiting)


def _delete(run: Run) -> None:
    """A stream that is being made or split cannot be deleted yet; one that was never made need not be."""
    ends = time.monotonic() + STREAM_SECONDS
    while True:
        try:
            run.kinesis.delete_stream(StreamName=run.stream, EnforceConsumerDeletion=True)
        except run.kinesis.exceptions.ResourceNotFoundException:
            say(f"there is no stream {run.stream}")
            return
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() < ends and isinstance(error, run.kinesis.exceptions.ResourceInUseException):
                time.sleep(1)
                continue
            by_hand = f"aws kinesis delete-stream --stream-name {run.stream} --region {run.region}"
            say(f"THE STREAM IS LEFT, AND COSTS: {error}; delete it: {by_hand}")
            return
        say(f"deleted the stream {run.stream}")
        return


def _dry_run(run: Run) -> list[Broken]:
    """`producerd check --online` says that records could be stored, and stores none."""
    say("asking by a dry run ...")
    sets = [f"--set={name}={value}" for name, value in run.settings().items()]
    command = [sys.executable, "-m", "producerd", "check", "--online", *sets]
    done = subprocess.run(command, env=run.environ, capture_output=True, text=True, timeout=DAEMON_SECONDS, check=False)
    allowed = done.stdout.count("PutRecords is allowed (a dry run")
    if done.returncode == 0 and allowed == len(AGGREGATIONS):
        return []
    return [Broken(Law.CALM, f"producerd check --online ended with {done.returncode}: {done.stdout}{done.stderr}")]


def _wrong_key(run: Run) -> list[Broken]:
    """A daemon whose key AWS refuses says so to its caller, who does not wait."""
    say("sending with a wrong key ...")
    with run.daemon("wrong", **WRONG_KEY) as running:
        try:
            with contextlib.closing(KinesisClient(AGGREGATIONS[0], socket=str(running.socket))) as client:
                client.put(b"by nobody", timeout_seconds=DAEMON_SECONDS).result(DAEMON_SECONDS)
        except ProducerdError as error:
            if error.code == "CREDENTIALS":
                return []
            return [Broken(Law.ENDS, f"with a wrong key the caller got {error}")]
    return [Broken(Law.SENT, "a record with a wrong key was acknowledged")]


def _under_load(run: Run) -> tuple[Figures, list[Broken]]:
    """Send, throttle and split; then judge all that can be read."""
    numbers = range(SENDERS * (len(AGGREGATIONS) + 1))
    shapes = dict.fromkeys(numbers, CALM_SHAPE) | dict.fromkeys(numbers[-SENDERS:], THROTTLED_SHAPE)
    book = Book(int(time.time()) % (LARGEST_SEED + 1), shapes)
    watch, broken, began = Watch(), list[Broken](), 0.0
    with run.daemon("smoke") as running, watch.running():
        watch.begin(running.process.pid, running.url)
        calm = [
            Sender(number, AGGREGATIONS[number % len(AGGREGATIONS)], book, running.socket, CALM_RATE)
            for number in numbers[:-SENDERS]
        ]
        many = [Sender(number, "none", book, running.socket, THROTTLED_RATE) for number in numbers[-SENDERS:]]
        say(f"sending with aggregation {' and '.join(AGGREGATIONS)} ...")
        _start(calm)
        time.sleep(CALM_SECONDS)
        say("sending more than the shards take ...")
        _start(many)
        time.sleep(THROTTLED_SECONDS)
        _stop(many)
        say("splitting a shard ...")
        _split(run)
        time.sleep(SPLIT_SECONDS)
        ended = time.monotonic()
        _stop(calm)
        broken += _all_end([*calm, *many], ended + END_SECONDS)
        began = time.monotonic() - ended
        metrics = running.metrics()
        watch.look_now()
    if not metrics.get("record_errors_total[THROTTLED]"):
        broken.append(Broken(Law.CALM, "nothing was throttled, so the throttle was not tried"))
    senders = [*calm, *many]
    reading = _read(run, book, senders)
    (life,) = watch.lives
    broken += oracle.copies_within(reading.duplicates, life.counted_duplicates) + reading.broken
    broken += [Broken(Law.QUEUE, each) for each in life.beyond_limit[:1]]
    told = sum((sender.errors_told for sender in senders), Counter[str]())
    if told:
        broken.append(Broken(Law.PATIENT, f"callers got {dict(told)}"))
    return Figures(
        "aws-smoke",
        book.seed,
        sent=sum(sender.sent for sender in senders),
        acknowledged=sum(len(sender.acknowledged) for sender in senders),
        readable=reading.readable,
        duplicates=reading.duplicates,
        counted_duplicates=int(life.counted_duplicates),
        errors_told=told.total(),
        order_violations=reading.order_violations,
        peak_queue=int(life.peak_queue_records),
        peak_rss_bytes=life.peak_rss_bytes,
        seconds_to_recover=round(began, 2),
    ), broken


def _start(senders: Sequence[Sender]) -> None:
    for sender in senders:
        sender.start()


def _stop(senders: Sequence[Sender]) -> None:
    for sender in senders:
        sender.stop()


def _all_end(senders: Sequence[Sender], ends: float) -> list[Broken]:
    """Wait until every record has ended."""
    broken = []
    for sender in senders:
        sender.join(max(0.0, ends - time.monotonic()))
        try:
            sender.flush(max(0.1, ends - time.monotonic()))
        except ProducerdError as error:
            broken.append(Broken(Law.ENDS, f"{sender.name}: {error}"))
        if sender.failure:
            broken.append(Broken(Law.ENDS, f"{sender.name} ended by {sender.failure}"))
        with contextlib.suppress(ProducerdError):
            sender.close()
    return broken


def _split(run: Run) -> None:
    """In the middle of the first shard.  Returns when the stream is active again."""
    shard = run.kinesis.list_shards(StreamName=run.stream)["Shards"][0]
    start, end = (int(shard["HashKeyRange"][f"{which}HashKey"]) for which in ("Starting", "Ending"))
    middle = str((start + end) // 2)
    run.kinesis.split_shard(StreamName=run.stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=middle)
    _wait_until_active(run)


def _read(run: Run, book: Book, senders: Sequence[Sender]) -> oracle.Reading:
    """Read the whole stream, and again while something acknowledged is not there yet."""
    say("reading everything back ...")
    sent = [oracle.Sent(each.number, each.sent, each.acknowledged, each.stream == "kpl") for each in senders]
    for left in reversed(range(READINGS)):
        handed = (record for entry in entries_of(run.kinesis, run.stream) for record in handed_by_rule(entry))
        reading = oracle.judge(book, sent, handed)
        if not left or all(each.law != Law.READABLE for each in reading.broken):
            break
        time.sleep(BETWEEN_READINGS_SECONDS)
    return reading


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev aws-smoke",
        description="Try a daemon against AWS itself, in a stream of its own that is deleted at the end.",
        epilog="AWS charges for it: the cost is printed, and you are asked, before anything is made.  It takes some "
        "minutes and an uplink of 40 Mbit/s.  docs/understand/reliability.md has the permissions that it needs.",
    )
    parser.add_argument("--region", help="default: AWS_REGION, or the region of your AWS profile")
    parser.add_argument("--yes", action="store_true", help="agree to the cost without being asked")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
