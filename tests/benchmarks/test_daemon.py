"""The daemon's benchmark counts every record at the sink, and takes no run for good in which one is missing."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pybase64 import b64encode

import benchmarks.daemon.run
from benchmarks.daemon.client import KEY_BYTES, put_all, rows
from benchmarks.daemon.run import (
    FEW_RECORDS,
    Bench,
    Case,
    Figures,
    RecordsWrong,
    forget_peak,
    peak_rss_bytes,
    warn_of_few,
)
from benchmarks.sink import MARK, Sink
from producerd.core.kpl.aggregation import Aggregate

ROOT = Path(__file__).resolve().parents[2]


# --------------------------------------------------------------------------------------------------------------- sink


class Wire(socket.socket):
    """A client that sends one request after the other, and its bytes in chunks; ``written`` has the answers."""

    def __init__(self, *requests: bytes, chunk: int = 1 << 20) -> None:
        self.chunks = [sent[at : at + chunk] for sent in requests for at in range(0, len(sent), chunk)]
        self.written: list[bytes] = []

    def recv_into(self, buffer: Any, *_: Any) -> int:
        chunk = self.chunks.pop(0) if self.chunks else b""
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def sendall(self, data: Any, *_: Any) -> None:
        self.written.append(bytes(data))


def served(sink: Sink, *requests: bytes, chunk: int = 1 << 20) -> list[Any]:
    """What each request is answered."""
    wire = Wire(*requests, chunk=chunk)
    sink.serve(wire)
    return [answer_of(written) for written in wire.written]


def answer_of(written: bytes) -> Any:
    head, _, body = written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]) == len(body)
    return json.loads(body)


def request(operation: str, body: bytes) -> bytes:
    head = f"POST / HTTP/1.1\r\nX-Amz-Target: Kinesis_20131202.{operation}\r\ncontent-LENGTH: {len(body)}\r\n\r\n"
    return head.encode() + body


def put_of(*data: bytes) -> bytes:
    entries = [{"Data": b64encode(value).decode(), "PartitionKey": "k"} for value in data]
    return request("PutRecords", json.dumps({"Records": entries}, separators=(",", ":")).encode())


def aggregate_of(*data: bytes) -> bytes:
    aggregate = Aggregate()
    for i, value in enumerate(data):
        assert aggregate.add(b"key-%d" % i, None, value, 1 << 20)
    return aggregate.to_bytes()


def record(size: int) -> bytes:
    return rows(1, size)[1][0]


@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
def test_each_entry_is_answered_as_kinesis_does_however_the_bytes_come(chunk: int) -> None:
    sink = Sink()
    put = put_of(record(100), record(8), record(5_000))
    told, listed, summary = served(
        sink, put, request("ListShards", b"{}"), request("DescribeStreamSummary", b"{}"), chunk=chunk
    )
    assert (told["FailedRecordCount"], told["EncryptionType"], len(told["Records"])) == (0, "KMS", 3)
    assert all(len(entry["SequenceNumber"]) == 56 for entry in told["Records"])
    (shard,) = listed["Shards"]
    assert {entry["ShardId"] for entry in told["Records"]} == {shard["ShardId"]}
    assert shard["HashKeyRange"] == {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}
    assert summary["StreamDescriptionSummary"]["OpenShardCount"] == 1
    assert sink.records == 3


def test_records_inside_of_aggregates_are_counted() -> None:
    sink = Sink()
    put = put_of(aggregate_of(*[record(100)] * 7), record(100), aggregate_of(record(9), record(3_000)))
    assert len(served(sink, put)[0]["Records"]) == 3
    assert sink.records == 7 + 1 + 2


def test_the_next_request_is_counted_without_what_is_left_of_a_longer_one() -> None:
    sink = Sink()
    longer, shorter = served(sink, put_of(*[record(100)] * 10), put_of(record(100)))
    assert (len(longer["Records"]), len(shorter["Records"])) == (10, 1)
    assert sink.records == 11


# -------------------------------------------------------------------------------------------------------------- client


def test_rows_are_marked_once_and_as_large_as_asked() -> None:
    keys, data = rows(1_000, 100)
    assert len(set(keys)) == len(set(data)) == 1_000
    assert {len(key) for key in keys} == {KEY_BYTES}
    assert {len(value) for value in data} == {100}
    assert b"".join(data).count(MARK) == 1_000


class Sevens:
    """Puts whole frames of 7 records."""

    def put(self, records: int) -> int:
        return -(-records // 7) * 7


def test_sessions_put_together_what_was_asked_or_a_few_more() -> None:
    assert put_all([Sevens()] * 3, 100) == 3 * 35


# --------------------------------------------------------------------------------------------------------------- cases


# ------------------------------------------------------------------------------------------------------------- figures


class Process:
    def __init__(self, pid: int) -> None:
        self.pid = pid


class Told:
    """A child that says the given lines."""

    def __init__(self, lines: list[str]) -> None:
        self.process = Process(os.getpid())
        self._lines = lines

    def tell(self, line: str) -> None:
        pass

    def line(self, within_seconds: float) -> str:
        return self._lines.pop(0)


def a_run(arrived: list[str], put: str) -> benchmarks.daemon.run.Run:
    nobody: Any = None
    sink, daemon, client = (Told(lines) for lines in (arrived, [], [put]))
    bench: Any = Bench(nobody, nobody, sink, "https://sink", 100, 1, lambda _: None)  # type: ignore[arg-type]
    run: benchmarks.daemon.run.Run = bench.run(daemon, client, 100)
    return run


def test_a_run_in_which_every_record_arrives_once_has_figures() -> None:
    assert a_run(["1000", "1104"], "104").records_per_second > 0


def test_few_records_are_told_to_say_nothing() -> None:
    told: list[str] = []
    warn_of_few(FEW_RECORDS, told.append)
    assert told == []
    warn_of_few(FEW_RECORDS - 1, told.append)
    assert [line.partition(":")[0] for line in told] == ["FEW RECORDS"]


@pytest.mark.parametrize(("arrived", "put"), [("1103", "104"), ("1105", "104"), ("1099", "99")])
def test_a_record_that_is_missing_or_came_twice_ends_it(arrived: str, put: str) -> None:
    with pytest.raises(RecordsWrong, match=rf"^{put} records were acknowledged, and \d+ arrived$"):
        a_run(["1000", arrived], put)


def test_the_clock_of_a_thread_is_that_of_its_own_work() -> None:
    def burn() -> None:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass

    pid, here = os.getpid(), threading.get_native_id()
    before = benchmarks.daemon.run.thread_cpu_seconds(pid, here)
    other = threading.Thread(target=burn)
    other.start()
    other.join()
    between = benchmarks.daemon.run.thread_cpu_seconds(pid, here)
    burn()
    after = benchmarks.daemon.run.thread_cpu_seconds(pid, here)
    assert between - before < 0.1
    assert after - between > 0.185  # a tick less


def test_the_peak_is_that_since_it_was_forgotten() -> None:
    pid = os.getpid()
    held = b"x" * (128 << 20)
    before = peak_rss_bytes(pid)
    del held
    assert peak_rss_bytes(pid) > before - (1 << 20), "it is over, and known"
    forget_peak(pid)
    assert 1 << 20 < peak_rss_bytes(pid) < before - (100 << 20)


@pytest.mark.slow
def test_the_whole_of_it_on_few_records() -> None:
    """Plain, aggregated and large records, all acknowledged and all at the sink: else it fails.  Standard output is
    JSON alone."""
    chosen = ["100,none,1", "100,kpl,2", "10240,none,1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.daemon", "--json", "--records", "40000", "--repeat", "1", "--only", *chosen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = [Figures(**row) for row in json.loads(done.stdout)]
    assert [str(Case(row.record_bytes, row.aggregation, row.worker_threads)) for row in figures] == chosen
    said = dict(re.findall(r"^(\S+): 1 runs \.\.\.\n  ([\d,]+) records in each", done.stderr, re.MULTILINE))
    for row, case in zip(figures, chosen, strict=True):
        records = int(said[case].replace(",", ""))
        between_ns = 1e6 / records  # the loop may run for a moment between the two readings
        assert row.cpu_ns_per_record + between_ns >= row.loop_cpu_ns_per_record > 0
        assert row.records_per_second > 0
        assert row.peak_rss_bytes > 1 << 20
        assert row.queue_limit_bytes == 64 << 20
        assert row.ratio_to_naive > 0
    assert " cores, " in done.stderr
    assert "100,naive: 1 runs ..." in done.stderr
    assert done.stderr.count("FEW RECORDS") == 1
