"""On the loop thread the work in Python grows with frames, requests and spans, and never with records.

Counted are Python calls and calls of C functions (`sys.setprofile`) on the loop thread alone, from the moment before a
client sends one frame until it has its acknowledgement.  The client runs in another thread, workers in theirs, and
the service in another process: none of them is counted.  What is compared does the same number of requests:

- ``none``: 200 and 500 records are one request each (at most 500 entries; fewer than 192 would be written by the loop
  over rows); 1,000 and 10,000 are 2 and 20 requests, and are compared by request.  Small batches are sorted
  on the loop thread, and their keys hashed one by one, with `CALLS_OF_A_KEY` of C functions.
- ``kpl``: 1,000 and 10,000 records are one request each.  Ten times the bytes are ten times the spans (256 KiB), and
  each of these costs some five calls.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from producerd.config import Config, NodeSettings, StreamSettings
from producerd.runtime.app import live
from producerd.wire import messages
from tests.daemon import ROOT, WireClient, directory, rows, until

MAY_GROW = 1.1
CALLS_OF_A_KEY = 2


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A fake Kinesis with one shard in a process of its own."""
    arguments = [sys.executable, "-m", "producerd.testing.fake_kinesis", "--shards", "1", "--stream", "flights"]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


class Calls:
    """How many there were between `start` and `stop`, on the thread that calls both."""

    def __init__(self) -> None:
        self.count = 0

    def start(self) -> None:
        self.count = 0
        sys.setprofile(self._seen)

    def stop(self) -> None:
        sys.setprofile(None)

    def _seen(self, _frame: Any, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            self.count += 1


def listens(path: Path) -> bool:
    """Whether somebody listens at a path, where the file of a socket is there before."""
    try:
        WireClient(path).close()
    except OSError:
        return False
    return True


def calls_of_frames(endpoint: str, aggregation: str, sizes: dict[int, int], path: Path) -> dict[int, int]:
    """Return the fewest calls of six for each frame of ``sizes`` (records, bytes each), without late events."""
    settings: dict[str, Any] = {"aggregation": aggregation, "linger_seconds": 0, "request_timeout_seconds": 30}
    settings["shard_rate_fraction"] = 10_000
    config = Config(
        NodeSettings(socket=path / "daemon.sock", metrics_listen="", region="us-east-1", endpoint_url=endpoint),
        StreamSettings(**settings),
    )
    counted: dict[int, int] = {}
    failures: list[BaseException] = []

    def drive(loop: asyncio.AbstractEventLoop) -> None:
        calls = Calls()

        def on_loop(work: Any) -> None:
            done = threading.Event()
            loop.call_soon_threadsafe(work)
            loop.call_soon_threadsafe(done.set)
            assert done.wait(10)

        try:
            until(lambda: listens(path / "daemon.sock"))
            with WireClient(path / "daemon.sock").hello() as client:
                client.open()
                for _ in range(6):
                    for size, record_bytes in sizes.items():
                        columns = rows(size, size=record_bytes)
                        on_loop(calls.start)
                        client.put(columns)
                        assert client.acks()[0] == messages.Ack(client.last_frame_id, size, size, 0, 0, 0)
                        on_loop(calls.stop)
                        counted[size] = min(calls.count, counted.get(size, sys.maxsize))
        except BaseException as error:
            failures.append(error)
        finally:
            loop.call_soon_threadsafe(signal.raise_signal, signal.SIGTERM)

    async def run() -> int:
        thread = threading.Thread(target=drive, args=(asyncio.get_running_loop(),))
        thread.start()
        try:
            return await live(config, lambda: config)
        finally:
            thread.join()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop, debug=False) as runner:
        assert runner.run(run()) == 0
    assert not failures, failures
    return counted


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


def test_calls_do_not_grow_with_the_records_of_plain_requests(endpoint: str) -> None:
    with directory() as path:
        calls = calls_of_frames(endpoint, "none", dict.fromkeys((200, 500, 1_000, 10_000), 20), path)
    assert calls[500] <= MAY_GROW * calls[200] + CALLS_OF_A_KEY * 300, calls
    assert calls[10_000] / 20 <= MAY_GROW * calls[1_000] / 2, calls


def test_calls_do_not_grow_with_the_records_of_aggregates(endpoint: str) -> None:
    with directory() as path:
        calls = calls_of_frames(endpoint, "kpl", {1_000: 20, 10_000: 20}, path)
    assert calls[10_000] <= MAY_GROW * calls[1_000], calls
