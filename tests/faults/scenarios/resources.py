"""Memory, the log's disk and the node's room run out, or the daemon is idle for long."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from producerd.config.values import MIB
from tests.cgroup import new_cgroup
from tests.daemon import SERVICE_PYTHON, until
from tests.faults.network import Proxy
from tests.faults.oracle import Law
from tests.faults.records import Shape
from tests.faults.scenarios import scenario
from tests.faults.scenarios.processes import REPLAYS
from tests.faults.senders import Sender
from tests.faults.stage import STREAMS, Stage

LARGE: Final = Shape(data_bytes=20_000)
QUEUE_BYTES: Final = 16 * MIB
STUCK: Final = tuple(f"stuck-{number}" for number in range(6))
NODE_BYTES: Final = 24 * MIB
LEAST_SHARE: Final = 0.25
"""How much of what a healthy stream stored before it must store meanwhile, also on a busy machine."""
DISK: Final = "disk"
FULL_SECONDS: Final = 30.0
FORGET_SECONDS: Final = 900.0
"""How long an idle daemon may keep its lists of shards: ten minutes, which begin and end when it would read them."""


# ---- memory


@contextlib.contextmanager
def _in_a_cgroup_of_the_law(stage: Stage) -> Iterator[None]:
    made = new_cgroup()
    try:
        made.limit(stage.law_bytes)
        stage.prefix = made.joined_by
        yield
        stage.must(Law.MEMORY, not made.kills(), f"the kernel killed {made.kills()} processes for lack of memory")
    finally:
        until(made.is_empty, "the daemon's end")
        made.path.rmdir()


def _lacks_cgroup() -> str:
    try:
        new_cgroup().path.rmdir()
    except OSError as error:
        return f"it must make a cgroup that limits memory: {error}"
    return ""


@scenario(
    "the queues full while the service is stuck in four ways, in a cgroup of exactly the memory law",
    settings={
        "node_queue_limit_bytes": QUEUE_BYTES,
        "queue_limit_bytes": QUEUE_BYTES,
        "queue_limit": 1_000_000,
        "node_max_in_flight_bytes": 8 * MIB,
        "max_streams": len(STREAMS),
        "max_connections": 16,
    },
    tuning={"session_window_bytes": 64 * MIB},
    shape=LARGE,
    records_per_second=60,
    tls=True,
    around=_in_a_cgroup_of_the_law,
    lacks=_lacks_cgroup,
)
def memory_of_the_law(stage: Stage) -> None:
    ways: list[dict[str, Any]] = [{"kind": "hang"}, {"kind": "throttle"}, {"kind": "reset"}, {"kind": "error"}]
    for way in stage.chance.sample(ways, 1 if stage.short else len(ways)):
        stage.service.fails(way)
        _fills(stage, QUEUE_BYTES * 3 // 4)
        stage.wait(15, 0.5)
        stage.service.calm()
        stage.wait(5, 0)


def _fills(stage: Stage, least_bytes: int) -> None:
    """Wait until the queues of all streams hold this much together."""
    until(lambda: stage.daemon.metrics()["queue_bytes"] >= least_bytes, "the queues are full", FULL_SECONDS)


# ---- the log's disk


@contextlib.contextmanager
def _logs_on_a_small_disk(stage: Stage) -> Iterator[None]:
    """A file system in memory that only a process of its own mounts: it goes with that process."""
    (stage.folder / DISK).mkdir()
    mounts = 'mount -t tmpfs -o size=1m tmpfs "$0" && echo mounted && exec sleep infinity'
    command = ["unshare", "--mount", "/bin/sh", "-c", mounts, str(stage.folder / DISK)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline(), "the disk is not mounted"
            stage.log_folder = Path(f"/proc/{holder.pid}/root{stage.folder / DISK}")
            yield
        finally:
            holder.kill()


def _lacks_mount() -> str:
    if shutil.which("unshare") is None:
        return "there is no command unshare"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"it must mount a file system: {tried.stderr.strip()}" if tried.returncode else ""


def _fill_disk(stage: Stage) -> Path:
    filler = stage.log_folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return filler


@scenario(
    "the disk of the daemon's log is full for a minute of faults, at its end and at the next start",
    settings={"log_level": "debug"},
    exempt=REPLAYS,
    around=_logs_on_a_small_disk,
    lacks=_lacks_mount,
)
def full_log_disk(stage: Stage) -> None:
    filler = _fill_disk(stage)
    for way in ("throttle", "error", "reset"):
        stage.service.fails({"kind": way, "fraction": 0.5})
        stage.wait(20, 0.7)
        _log(stage)
    stage.service.calm()
    filler.unlink()
    _log(stage)
    until(lambda: "log lines were dropped" in stage.daemon.log, "the log says how many lines are missing")
    filler = _fill_disk(stage)
    stage.stop_daemon()
    stage.begin_daemon()
    until(stage.connects, "a daemon starts where its log's disk is full")
    filler.unlink()
    stage.kill_daemon()
    stage.start_daemon()


def _log(stage: Stage) -> None:
    """Have the daemon log more than its file's last page has room for: a line for each session."""
    for _ in range(50):
        stage.connects()


# ---- the node's room


@contextlib.contextmanager
def _with_stuck_streams(stage: Stage) -> Iterator[Proxy]:
    """Streams whose way to the service is a proxy of their own."""
    with Proxy("127.0.0.1", stage.service.port).running() as proxy:
        for name in STUCK:
            stage.service.client.create_stream(StreamName=name, ShardCount=2)
            stage.sets[f'streams."{name}".endpoint_url'] = f"http://127.0.0.1:{proxy.port}"
        stage.streams += STUCK
        yield proxy


@scenario(
    "the way of six streams to the service is broken for a minute, and the node's limit is full",
    settings={
        "node_queue_limit_bytes": NODE_BYTES,
        "queue_limit_bytes": NODE_BYTES,
        "queue_limit": 100_000,
        "max_streams": len(STREAMS) + len(STUCK),
        "node_max_in_flight_bytes": 16 * MIB,
    },
    around=_with_stuck_streams,
)
def six_stuck_streams(stage: Stage) -> None:
    healthy = list(stage.senders)
    stuck = [stage.add_sender(name, 60, LARGE) for name in STUCK[::2]]
    stuck += [stage.add_sender(name, 300, Shape()) for name in STUCK[1::2]]  # for what large frames leave of the room
    until(lambda: all(sender.acknowledged for sender in stuck), "all streams work")
    before = _rates(stage, healthy, stage.of(10, 2))
    assert all(before.values()), before
    stage.given.set_mode(stage.chance.choice(["blackhole", "half_open"]))
    _fills(stage, NODE_BYTES * 2 // 3)  # the rest is kept for the streams that hold less than their floor
    rates = _rates(stage, healthy, stage.of(60, 3))
    for stream, rate in rates.items():
        told = f"{stream} stored {rate:,.0f} records/s, and {before[stream]:,.0f} before"
        stage.notes.append(told)
        stage.must(Law.OTHERS, rate >= before[stream] * LEAST_SHARE, told)
    stage.given.set_mode("pass")


def _rates(stage: Stage, senders: Iterable[Sender], seconds: float) -> Counter[str]:
    """Let everything run on for so long; return the records a second that each stream had acknowledged."""
    rates = Counter[str]()
    before = {sender: len(sender.acknowledged) for sender in senders}
    stage.wait(seconds)
    for sender, had in before.items():
        rates[sender.stream] += len(sender.acknowledged) - had
    return Counter({stream: int(count / seconds) for stream, count in rates.items()})


# ---- nothing to do


@contextlib.contextmanager
def _in_a_hurry(stage: Stage) -> Iterator[None]:
    """Run the daemon with three seconds in place of the ten minutes, in the short form."""
    if stage.short:
        stage.prefix = SERVICE_PYTHON, "-m", "tests.faults.impatient"
    yield


@scenario(
    "ten idle minutes in which shards split and merge and connections end; then ListShards fails for now",
    tuning={"shard_map_wait_seconds": 1},
    around=_in_a_hurry,
    resends=False,
)
def ten_idle_minutes(stage: Stage) -> None:
    for sender in stage.senders:
        sender.rests = True
    until(lambda: not any(sender.open_calls for sender in stage.senders), "nothing is on its way")
    for stream in STREAMS:
        stage.service.split(stream, stage.chance)
        stage.service.merge(stream, stage.chance)
    seconds = stage.of(FORGET_SECONDS, 60)
    until(lambda: not stage.daemon.metrics()["shards_open"], "the lists of shards are forgotten", seconds)
    for stream in STREAMS:
        stage.service.split(stream, stage.chance)
    stage.proxy.reset_connections()
    stage.service.fails({"kind": "error", "action": "ListShards", "status": 400, "code": "LimitExceededException"})
    before = [len(sender.acknowledged) for sender in stage.senders]
    for sender in stage.senders:
        sender.rests = False
    stage.wait(15, 2)
    for sender, had in zip(stage.senders, before, strict=True):
        grew = len(sender.acknowledged) > had
        stage.must(Law.OTHERS, grew, f"{sender.name} ({sender.stream}): nothing is stored while ListShards fails")
    stage.service.calm()
    stage.wait(5, 0.5)
