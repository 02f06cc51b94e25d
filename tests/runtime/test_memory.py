"""A daemon whose cgroup has exactly the memory that the law allows is not killed.

It admits as much as its limits allow, and makes callers wait.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from producerd.config import load
from producerd.config.memory import needed_bytes
from producerd.config.process_limits import ADDRESSES_BYTES, DATA_BYTES
from producerd.config.values import MIB
from producerd.errors import BackpressureTimeout
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from producerd.wire.columns import Columns, lay_out
from producerd.wire.messages import Hello
from spark_client.connection import Connection
from tests.cgroup import Cgroup, new_cgroup
from tests.daemon import CREDENTIALS, DaemonProcess, daemon, until

QUEUE_BYTES = 16 * MIB
SHARDS = 16
CALLERS = 8
SETTINGS: dict[str, Any] = {
    "node_queue_limit_bytes": QUEUE_BYTES,
    "queue_limit_bytes": QUEUE_BYTES,
    "queue_limit": 1_000_000_000,
    "node_max_in_flight_bytes": 8 * MIB,
    "max_streams": 1,
    "max_connections": 16,
    "shard_rate_fraction": 10_000,
    "request_timeout_seconds": 300,  # what is late is not sent twice: every record can be counted
}
TUNING = {"session_window_bytes": 1024 * MIB}  # nothing but the queue's limit bounds what callers hand over
BLOCKED_SECONDS = 1.5
PATIENCE_SECONDS = 120.0


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cgroup]:
    """Daemons start in it."""
    try:
        made = new_cgroup()
    except OSError as error:
        pytest.skip(f"needs to make a cgroup that limits memory: {error}")
    joins = tmp_path / "python"
    joins.write_text(f'#!/bin/sh\nexec {shlex.join(made.joined_by)} {sys.executable} "$@"\n')
    joins.chmod(0o755)
    monkeypatch.setattr("tests.daemon.SERVICE_PYTHON", str(joins))
    yield made
    until(made.is_empty, "the daemon's end")
    made.path.rmdir()


def peak_rss_bytes(running: DaemonProcess) -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{running.process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def spread(count: int, size: int) -> Columns:
    """Rows on all shards alike."""
    keys = [b"%d" % number for number in range(count)]
    hash_keys: list[bytes | None] = [b"%d" % (number % SHARDS << 124) for number in range(count)]
    return lay_out([*keys], [key.ljust(size, b".") for key in keys], hash_keys)


def at_once(callers: Sequence[Connection], act: Callable[[Connection], object]) -> None:
    with ThreadPoolExecutor(len(callers)) as threads:
        list(threads.map(act, callers))


def push_until_blocked(caller: Connection, frame: Columns) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        try:
            caller.put("flights", frame, BLOCKED_SECONDS)
        except BackpressureTimeout:
            return
    raise AssertionError(f"was not blocked within {PATIENCE_SECONDS:g} s")


def keeps_the_law(
    cgroup: Cgroup,
    server: FakeServer,
    frame: Columns,
    fault: Fault,
    rounds: int = 1,
    settings: Mapping[str, Any] = SETTINGS,
    prefix: Sequence[str] = (),
) -> None:
    """Filled while the endpoint fails, and drained when it does not any more."""
    kinesis = server.kinesis
    config = load(None, [f"{name}={value}" for name, value in settings.items()], {})
    law_bytes, queue_bytes = config.node.memory or needed_bytes(config).bytes, config.node.node_queue_limit_bytes
    cgroup.limit(law_bytes)
    environ = {**CREDENTIALS, "AWS_CA_BUNDLE": str(server.certificate)}
    with daemon(server.url, environ=environ, prefix=prefix, forked=False, tuning=TUNING, **settings) as running:
        callers = [Connection(Hello(1, 1, pid=os.getpid()), [str(running.socket)]) for _ in range(CALLERS)]
        for caller in callers:
            for _ in range(4):  # the daemon has worked, and sends many requests at once
                caller.put("flights", frame)
                caller.flush(PATIENCE_SECONDS)
        for _ in range(rounds):
            kinesis.standing[:] = [fault]
            at_once(callers, lambda caller: push_until_blocked(caller, frame))
            held = running.metrics()
            kinesis.standing.clear()
            server.release()
            assert 7 / 8 * queue_bytes - 2 * MIB < held["queue_bytes"] <= queue_bytes
            at_once(callers, lambda caller: caller.flush(PATIENCE_SECONDS))
            assert running.process.poll() is None
            assert peak_rss_bytes(running) <= law_bytes
        for caller in callers:
            caller.close()
            assert not caller.tally.failures
        acknowledged = sum(caller.tally.stored for caller in callers)
        assert acknowledged == sum(caller.tally.taken for caller in callers) == kinesis.results["stored"]
        assert cgroup.kills() == 0


@pytest.mark.promise("against-endpoint-never")
@pytest.mark.slow
@pytest.mark.law("process")
@pytest.mark.parametrize(("size", "rounds"), [(100, 1), (1_000_000, 3)])
def test_against_an_endpoint_that_never_answers_callers_wait_and_the_daemon_keeps_to_its_memory(
    cgroup: Cgroup, size: int, rounds: int
) -> None:
    """Its cgroup has what the settings' sum is, and no more.  When the endpoint answers again, every record that was
    taken is acknowledged and stored once."""
    kinesis = FakeKinesis()
    kinesis.create_stream("flights", shards=4).keeps_entries = False
    with serve_in_thread(kinesis, tls=True) as server:
        keeps_the_law(cgroup, server, spread(max(1, 900_000 // (size + 80)), size), Fault("hang"), rounds)


@pytest.mark.promise("daemon-keeps-least-memory")
@pytest.mark.slow
@pytest.mark.law("process")
def test_a_daemon_keeps_to_the_least_memory_that_the_documents_name(cgroup: Cgroup) -> None:
    """It lowers its limits by itself.  Its address space and its data have the size that it asks for, and no more."""
    kinesis = FakeKinesis()
    kinesis.create_stream("flights", shards=4).keeps_entries = False
    settings = {"memory": "256 MiB", "request_timeout_seconds": 300}
    with serve_in_thread(kinesis, tls=True) as server:
        limits = [f"--as={256 * MIB + ADDRESSES_BYTES}", f"--data={256 * MIB + DATA_BYTES}"]
        keeps_the_law(
            cgroup, server, spread(500, 100), Fault("hang"), settings=settings, prefix=["prlimit", *limits, "--"]
        )


@pytest.mark.promise("against-endpoint-never")
@pytest.mark.slow
@pytest.mark.law("process")
def test_one_lagging_shard_of_16_fills_the_queue_with_its_own_rows_and_no_more_memory(cgroup: Cgroup) -> None:
    """Callers put keys of all shards until they wait for that one."""
    kinesis = FakeKinesis()
    lagging = kinesis.create_stream("flights", shards=SHARDS)
    lagging.keeps_entries = False
    fault = Fault("throttle", shard_id=lagging.open_shards[0].shard_id)
    with serve_in_thread(kinesis, tls=True) as server:
        keeps_the_law(cgroup, server, spread(SHARDS, 50_000), fault)
