"""The Spark benchmark's sink counts its records, its CPU time is the workers', and a lost row is reported."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

import benchmarks.spark.run
from benchmarks.spark import sink
from benchmarks.spark.cost import cpu_seconds, workers_cpu_seconds
from benchmarks.spark.paths import ALONE, BOTO3, PATHS, Place, put_all, put_partition
from benchmarks.spark.run import RUNS, Bench, Figures, RowsMissing
from benchmarks.table import table

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()\n"


# --------------------------------------------------------------------------------------------------------------- sink


class Wire(asyncio.Transport):
    """What the sink writes."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data


def request(operation: str, body: bytes) -> bytes:
    head = f"POST / HTTP/1.1\r\nX-Amz-Target: Kinesis_20131202.{operation}\r\ncontent-LENGTH: {len(body)}\r\n\r\n"
    return head.encode() + body


def put_of(count: int) -> bytes:
    return request("PutRecords", json.dumps({"Records": [{"Data": "eA==", "PartitionKey": "k"}] * count}).encode())


def answers(wire: Wire) -> Iterator[Any]:
    rest = wire.written
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        size = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        yield json.loads(rest[:size])
        rest = rest[size:]


@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_the_sink_answers_each_record_however_the_bytes_come(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink.Sink, "records", 0)
    wire, connection = Wire(), sink.Sink()
    connection.connection_made(wire)
    data = put_of(3) + request("ListShards", b"{}") + put_of(1) + b"GET / HTTP/1.1\r\n\r\n"
    for start in range(0, len(data), chunk):
        connection.data_received(data[start : start + chunk])
    first, shards, second, count = answers(wire)
    assert (first["FailedRecordCount"], len(first["Records"]), len(second["Records"]), count) == (0, 3, 1, 4)
    assert first["Records"][0]["ShardId"] == shards["Shards"][0]["ShardId"]


# -------------------------------------------------------------------------------------------------- boto3, by hand


class Kinesis:
    """Refuses the first record of each of the first requests."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.requests: list[list[bytes]] = []

    def put_records(self, *, StreamName: str, Records: list[Any]) -> Any:  # noqa: N803 - boto3's names
        self.requests.append([record["Data"] for record in Records])
        failed = int(len(self.requests) <= self.refusals)
        results = [{"ErrorCode": "Throttled"}] * failed + [{"ShardId": "s"}] * (len(Records) - failed)
        return {"FailedRecordCount": failed, "Records": results}


def test_boto3_is_given_full_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    kinesis = Kinesis(0)
    monkeypatch.setattr(boto3, "client", lambda *_, **__: kinesis)
    put_partition("http://sink", [(str(i), f"é{i}") for i in range(1_001)])
    assert [len(records) for records in kinesis.requests] == [500, 500, 1]
    assert [record for records in kinesis.requests for record in records] == [f"é{i}".encode() for i in range(1_001)]


def test_boto3_sends_only_those_again_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    kinesis = Kinesis(2)
    put_all(kinesis, [{"Data": data, "PartitionKey": "k"} for data in (b"1", b"2")])
    assert kinesis.requests == [[b"1", b"2"], [b"1"], [b"1"]]


# ------------------------------------------------------------------------------------------------------------- clocks


def test_the_clock_of_a_process_is_that_of_its_processor_time() -> None:
    before = time.process_time()
    told = cpu_seconds(os.getpid())
    assert before <= told <= time.process_time()


# It stands for the JVM: one child that burns, one whose child burns, and in the end its own view of what it reaped.
JVM = r"""
import os, subprocess, sys
burn = sys.argv[1]
shell = ["/bin/sh", "-c", '"$1" -c "$2"; true', "sh", sys.executable, burn]
children = [
    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for command in ([sys.executable, "-c", burn], shell)
]
for child in children:
    child.stdout.readline()
print(flush=True)
input()
for child in children:
    child.communicate(b"\n")
spent = os.times()
print(spent.children_user + spent.children_system, flush=True)
input()
"""


def test_workers_are_all_that_runs_below_the_jvm_or_has_ended_there() -> None:
    """A process of its own, as this one may have other children that run; what the JVM itself used does not count."""
    command = [sys.executable, "-c", f"{BURN.removesuffix('input()' + chr(10))}{JVM}", BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as jvm:
        assert jvm.stdin is not None
        assert jvm.stdout is not None
        for _ in range(2):  # the JVM has burned; its children have
            jvm.stdout.readline()
        running = workers_cpu_seconds(jvm.pid)
        print(file=jvm.stdin, flush=True)
        reaped = float(jvm.stdout.readline())
        ended = workers_cpu_seconds(jvm.pid)
        jvm.communicate("\n")
    assert running >= 0.6
    assert ended == pytest.approx(reaped, abs=0.001)


# -------------------------------------------------------------------------------------------------------------- rows


def a_bench() -> Bench:
    nobody: Any = None
    return Bench(nobody, Place("http://sink", "socket", Path()), nobody, 200, lambda _: None)


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows arrive in each run; each takes the workers 2 us a row, boto3's 10, and the daemon 1."""
    counts, total, python, daemon = [100] * (len(PATHS) * (RUNS + 1)), 0, 0.0, 0.0

    def path(name: str) -> Any:
        def run() -> None:
            nonlocal total, python, daemon
            total += counts.pop()
            python += 100 * (10e-6 if name == BOTO3 else 2e-6)
            daemon += 100 * 1e-6

        return lambda df, place: run

    monkeypatch.setattr(benchmarks.spark.run, "PATHS", {name: path(name) for name in PATHS})
    monkeypatch.setattr(Bench, "rows", lambda self, count: None)
    monkeypatch.setattr(Bench, "_arrived", lambda self: total)
    monkeypatch.setattr(Bench, "_cpu", lambda self: (python, daemon))
    return counts


def test_each_path_is_compared_with_boto3(arrivals: list[int]) -> None:
    figures = {row.path: row for row in a_bench().paths(100)}
    assert list(figures) == list(PATHS)
    first, ours, alone = figures[BOTO3], figures["write_batch"], figures[ALONE]
    assert (first.python_cpu_ns_per_row, first.ratio_to_boto3, first.daemon_cpu_ns_per_row) == (10_000, 1.0, None)
    assert (ours.python_cpu_ns_per_row, ours.ratio_to_boto3, ours.daemon_cpu_ns_per_row) == (2_000, 5.0, 1_000)
    assert (alone.python_cpu_ns_per_row, alone.ratio_to_boto3, alone.daemon_cpu_ns_per_row) == (2_000, None, None)
    assert ours.rows_per_second is not None


def test_a_row_that_does_not_arrive_ends_it(arrivals: list[int]) -> None:
    arrivals[-2] = 99  # in the first run that is measured
    with pytest.raises(RowsMissing, match=f"{BOTO3}: 99 of 100 rows arrived"):
        list(a_bench().paths(100))


def test_the_table_has_the_names_of_the_json() -> None:
    rows = [Figures("write_batch", 1_000, 2_000, 60, 70.5), Figures("tiny_batch write_batch", 0, tiny_batch_ms=1.5)]
    head, first, second = table(Figures, rows).splitlines()
    assert head.split() == list(Figures.__slots__)
    assert first.split() == ["write_batch", "1,000", "2,000", "60", "70.5", "-", "-"]
    assert second.split() == ["tiny_batch", "write_batch", "0", "-", "-", "-", "-", "1.5"]
