"""The daemon is killed, stopped, frozen, started twice, and cut off from its path."""

from __future__ import annotations

import functools
import shutil
import signal
import time
from collections.abc import Callable
from typing import Final

from producerd.demo.children import Children
from tests.daemon import START_SECONDS, DaemonProcess, until
from tests.faults import spark_job
from tests.faults.network import Mode
from tests.faults.oracle import Law
from tests.faults.scenarios import scenario as any_scenario
from tests.faults.stage import END_SECONDS, Stage

REPLAYS: Final = {Law.COPIES: "a daemon that is killed counts nothing: its client sends again what it had"}
DRAIN_SECONDS: Final = 3.0
BOUND_SECONDS: Final = 3.0
"""How long a path may lead nowhere: the daemon looks at it every two seconds, on a machine that does more than that."""
LIVES_WITHOUT_NEWS: Final = 3
"""A client gives up after five daemons in a row that acknowledged nothing to it."""

scenario = functools.partial(any_scenario, resends=False, patient=True)


def _die(stage: Stage, turn: int) -> None:
    """Kill the daemon, and start its next life.  Some are killed while they start."""
    if turn % LIVES_WITHOUT_NEWS == LIVES_WITHOUT_NEWS - 1:
        _all_are_acknowledged(stage)
    stage.kill_daemon()
    if stage.chance.random() < 0.2:
        stage.begin_daemon()
        stage.wait_a_while(0.0, 0.6)
        stage.kill_daemon()
    stage.start_daemon()


def _all_are_acknowledged(stage: Stage) -> None:
    before = [len(sender.acknowledged) for sender in stage.senders]

    def have_more() -> bool:
        return all(len(sender.acknowledged) > had for sender, had in zip(stage.senders, before, strict=True))

    until(have_more, "every sender is acknowledged", END_SECONDS)


@scenario("kill -9 of the daemon 100 times under load", exempt=REPLAYS)
def killed_daemon(stage: Stage) -> None:
    for turn in stage.times(100, 3):
        stage.wait_a_while(0.0, 1.0)
        _die(stage, turn)


@scenario(
    "kill -9 of the daemon 100 times under a streaming query of Spark",
    exempt=REPLAYS,
    records_per_second=60,
    lacks=spark_job.lacks,
)
def killed_daemon_under_spark(stage: Stage) -> None:
    stage.book.shapes[spark_job.SENDER] = spark_job.SHAPE
    with Children(stage.folder, spark_job.environment()) as children:
        job = spark_job.SparkJob(children, stage.folder / "spark", stage.socket, stage.seed)
        job.wait_for(1)
        for turn in stage.times(100, 2):
            stage.wait_a_while(0.0, 1.5)
            _die(stage, turn)
            job.hear()
        job.stop()
    stage.also_sent.append(job.sent)
    stage.notes.append(f"Spark wrote {job.ended:,} batches of {spark_job.ROWS_OF_A_BATCH:,} records")
    stage.must(Law.ENDS, not job.failure, f"the query failed: {job.failure}")


@scenario("SIGTERM under load, and a new daemon, 20 times")
def stopped_daemon(stage: Stage) -> None:
    for _ in stage.times(20, 2):
        stage.wait_a_while(0.1, 1.0)
        stage.stop_daemon()
        stage.start_daemon()


@scenario(
    "SIGTERM while the service cannot be reached, where the next daemon starts, 10 times",
    exempt={Law.COPIES: "a daemon that stops counts no copy of what it gives back: its client does"},
    settings={"drain_timeout_seconds": DRAIN_SECONDS, "request_timeout_seconds": 10 * DRAIN_SECONDS},
)
def stopped_daemon_in_an_outage(stage: Stage) -> None:
    ways: tuple[tuple[Mode, Mode], ...] = ("blackhole", "half_open"), ("reset", "refuse")
    for turn in stage.times(10, 1):
        stage.proxy.set_mode(stage.chance.choice(ways[turn % 2]))
        stage.wait_a_while(0.3, 1.0)
        began = time.monotonic()
        stage.stop_daemon()
        seconds = time.monotonic() - began
        stage.must(Law.ENDS, seconds < DRAIN_SECONDS + 2, f"ended {seconds:.1f} s after SIGTERM")
        stage.start_daemon()
        stage.wait_a_while(0.1, 0.5)
        stage.proxy.set_mode("pass")
        stage.wait_a_while(0.5, 1.5)


@scenario("SIGSTOP of the daemon for a minute")
def frozen_daemon(stage: Stage) -> None:
    stage.daemon.signal(signal.SIGSTOP)
    stage.wait(60, 4)
    stage.daemon.signal(signal.SIGCONT)


@scenario("a second daemon on the same path, 12 times: also while the first is frozen")
def second_daemon(stage: Stage) -> None:
    """The first one's files are there, or one of them has just been deleted."""
    lock = stage.socket.with_name(f"{stage.socket.name}.lock")

    def freeze() -> None:
        stage.daemon.signal(signal.SIGSTOP)

    ways: list[Callable[[], object]] = [lambda: None, freeze, lock.unlink, stage.socket.unlink]
    for _ in stage.times(3, 1):
        for way in stage.chance.sample(ways, len(ways) if not stage.short else 2):
            stage.wait_a_while(2.0, 3.0)  # the first has all its files again
            way()
            _is_refused(stage)
            stage.daemon.signal(signal.SIGCONT)


def _is_refused(stage: Stage) -> None:
    first, before = stage.daemon, sum(len(sender.acknowledged) for sender in stage.senders)
    second, stage.daemon = _begun(stage), first
    until(lambda: second.process.poll() is not None or " serving " in second.log, "it has started", START_SECONDS)
    _says_why(stage, second)
    stage.must(Law.OTHERS, first.process.poll() is None, f"the first daemon ended: {first.log[-500:]}")
    first.signal(signal.SIGCONT)
    until(lambda: sum(len(sender.acknowledged) for sender in stage.senders) > before, "the first one stores")


def _begun(stage: Stage) -> DaemonProcess:
    stage.begin_daemon()
    return stage.daemon


def _ended(daemons: list[DaemonProcess]) -> list[DaemonProcess]:
    return [one for one in daemons if one.process.poll() is not None]


def _says_why(stage: Stage, second: DaemonProcess) -> None:
    refused = second.process.returncode == 75 and "in use" in second.log
    second.process.kill()
    what = f"a second daemon ended with exit code {second.process.returncode}: {second.log[-500:]}"
    stage.must(Law.REFUSED, refused, what)


@scenario("kill -9, and two daemons that start on its path at once, 10 times", exempt=REPLAYS)
def two_daemons_at_once(stage: Stage) -> None:
    for _ in stage.times(10, 1):
        _all_are_acknowledged(stage)
        stage.wait_a_while(0.0, 1.0)
        stage.kill_daemon()
        both = [_begun(stage), _begun(stage)]
        loser, *_ = until(functools.partial(_ended, both), "one of two daemons is refused", END_SECONDS)
        both.remove(loser)
        stage.daemon = both[0]
        _says_why(stage, loser)
        stage.daemon.wait_ready()
        stage.watch.begin(stage.daemon.process.pid, stage.daemon.url)


@scenario("the file of the socket, then its directory, are deleted, 10 times")
def deleted_socket(stage: Stage) -> None:
    folder = stage.socket.parent
    waits: list[float] = []
    for _ in stage.times(10, 1):
        for whole in (False, True):
            stage.wait_a_while(0.0, 1.0)
            if whole:
                shutil.rmtree(folder)
            else:
                stage.socket.unlink()
            waits.append(_is_bound_again(stage))
    stage.wait_a_while(0.0, 1.0)
    shutil.rmtree(folder)
    folder.touch()  # which the daemon can neither delete nor use
    until(lambda: stage.daemon.get("/-/ready")[0] == 503, "ready says that nobody can connect")
    text = stage.daemon.get("/-/ready")[1]
    stage.must(Law.REFUSED, f"nobody can connect to {stage.socket}: " in text, f"/-/ready says {text}")
    folder.unlink()
    waits.append(_is_bound_again(stage))
    stage.notes.append(f"a new client could connect again within {max(waits):.2f} s")


def _is_bound_again(stage: Stage) -> float:
    """Connect as a new client, as soon as there is a socket.  Returns the seconds until then."""
    began = time.monotonic()
    until(stage.connects, "the path is bound again")
    seconds = time.monotonic() - began
    stage.must(Law.RECOVERS, seconds < BOUND_SECONDS, f"the path was bound again after {seconds:.1f} s")
    return seconds
