"""A front end or a stream's limit refuses requests, while tasks write with skip and with divert."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from tests.daemon import until
from tests.faults.network import Front
from tests.faults.oracle import Law
from tests.faults.records import Shape
from tests.faults.scenarios import scenario
from tests.faults.scenarios.service import longest_gap
from tests.faults.stage import END_SECONDS, STREAMS, WARM_SECONDS, Stage
from tests.faults.tasks import ROWS, Task

STATUSES: Final = ("413 Request Entity Too Large", "400 Bad Request", "403 Forbidden")
BODY_BYTES: Final = 200_000
"""The largest body that the proxy lets through."""
GRACE_SECONDS: Final = 2
PACE_SECONDS: Final = 15.0
"""How long small records may wait for their shard's pace, which large rows that the proxy refuses use as well."""
MIXED: Final = Shape(data_bytes=40_000, keys=10, large_every=10, large_bytes=600_000)
"""Rows of which any two or three fit a body, and each tenth fits none."""
BETWEEN: Final = Shape(keys=10, large_every=10, large_bytes=2_500_000)
"""Rows of which each tenth is between the smallest and the largest limit that a stream may have."""
SMALL_KIB: Final = 1_024
LARGE_KIB: Final = 10_240
STORED_SECONDS: Final = 15.0
"""How long a partition with large rows may take on a busy machine, when the stream takes them."""


def _refused(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n".encode()


def _refuses(status: str) -> Front:
    return lambda _: _refused(status)


def _starts(stage: Stage, shape: Shape) -> list[Task]:
    """Start a task with skip for each stream, and one with divert.  Returns when each has written."""
    tasks = [stage.add_task(stream, shape, diverts=diverts) for stream in STREAMS for diverts in (False, True)]
    for task in tasks:
        task.start()
    until(lambda: all(task.ended for task in tasks), "each task has written", WARM_SECONDS)
    return tasks


@scenario(
    "a front end answers every request with a bare 413, 400 and 403, each for 20 s, under tasks with skip and divert",
    patient=True,
)
def everything_refused(stage: Stage) -> None:
    _starts(stage, Shape())
    for status in STATUSES:
        stage.proxy.front = _refuses(status)
        stage.wait(20, 1.5)
    stage.proxy.front = None


@scenario(
    f"a proxy answers each body above {BODY_BYTES:,} bytes with a bare 413 for a minute, and some rows are larger",
    tuning={"permanent_error_grace_seconds": GRACE_SECONDS},
)
def proxy_with_a_body_limit(stage: Stage) -> None:
    def front(request: bytes) -> bytes | None:
        return _refused(STATUSES[0]) if len(request.partition(b"\r\n\r\n")[2]) > BODY_BYTES else None

    tasks = _starts(stage, MIXED)
    stage.proxy.front = front
    began = time.monotonic()
    stage.wait(60, 3 * GRACE_SECONDS)
    gap, stream = max((longest_gap(sender, began), sender.stream) for sender in stage.senders)
    stage.notes.append(f"senders of small records waited {gap:.2f} s at most for an acknowledgement (of {stream!r})")
    stage.must(Law.OTHERS, gap <= PACE_SECONDS, f"{gap:.2f} s between two acknowledgements of {stream!r}")
    for task in tasks:
        task.stop()
    for task in tasks:
        task.join(END_SECONDS)
        allowed = {"PROXY_REFUSED", *["PREDECESSOR_FAILED"] * (task.stream == "ordered")}
        well = "PROXY_REFUSED" in task.errors_told and task.errors_told.keys() <= allowed
        stage.must(Law.REFUSED, well, f"{task.name} got {dict(task.errors_told)}")
    told = sum((sender.errors_told for sender in stage.senders), Counter[str]())
    stage.must(Law.PATIENT, not told, f"senders of small records got {dict(told)}")
    stage.proxy.front = None


@scenario(
    "the limit of each stream's records is raised from 1 to 10 MiB and lowered again, under rows in between",
    resends=False,
)
def limit_changed_both_ways(stage: Stage) -> None:
    """What Kinesis has not judged is stored at once, and nothing refuses the stream."""
    tasks = [stage.add_task(stream, BETWEEN, diverts=stream == "plain") for stream in STREAMS]
    for task in tasks:
        task.bad.update(range(ROWS))
        task.write()  # the first one imports what tasks need
    for largest_kib in (SMALL_KIB, LARGE_KIB, SMALL_KIB):
        stage.service.control("settings", streams={stream: {"max_record_kib": largest_kib} for stream in STREAMS})
        before = stage.service.requests("DescribeStreamSummary")
        slowest = 0.0
        for _ in stage.times(10, 1):
            for task in tasks:
                first, began = task.sent, time.monotonic()
                left_out = task.write()
                slowest = max(slowest, time.monotonic() - began)
                large = {number for number in range(first, task.sent) if BETWEEN.is_large(number)}
                expected = large if largest_kib == SMALL_KIB else set()
                task.bad |= expected
                codes = {task.left_out[number] for number in left_out}
                well = left_out == expected and codes <= {"RECORD_TOO_LARGE"}
                what = f"{task.name} left out {sorted(left_out)} as {codes}, with a limit of {largest_kib:,} KiB"
                stage.must(Law.REFUSED, well, what)
        asked = stage.service.requests("DescribeStreamSummary") - before
        if largest_kib == LARGE_KIB:
            stage.must(Law.REFUSED, not asked, f"DescribeStreamSummary was called {asked} times")
        stage.notes.append(f"with a limit of {largest_kib:,} KiB the slowest of the batches took {slowest:.2f} s")
        stage.must(Law.OTHERS, slowest <= STORED_SECONDS, f"a batch took {slowest:.1f} s")
    up = stage.daemon.metrics()["stream_up"]
    stage.must(Law.OTHERS, up == len(STREAMS), f"{up:g} of {len(STREAMS)} streams are up")
