"""A client sends what a lost or stopped daemon did not acknowledge to its successor in the same call, and counts it."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer
from producerd.wire import messages
from producerd.wire.columns import Columns, lay_out
from spark_client.channel import Channel
from spark_client.connection import Connection
from tests.daemon import DaemonProcess, daemon, directory, until

HELLO = messages.Hello(1, 1, client="test", pid=os.getpid())


class Node:
    """One daemon after the other on one socket."""

    def __init__(self, stack: ExitStack, url: str, **settings: Any) -> None:
        self._stack = stack
        self._url = url
        self._settings = settings
        self.path = stack.enter_context(directory()) / "daemon.sock"
        self.running = self.start()

    def start(self, **settings: Any) -> DaemonProcess:
        both = {**self._settings, **settings}
        self.running = self._stack.enter_context(daemon(self._url, socket_path=self.path, exit_code=None, **both))
        return self.running

    def end(self, number: signal.Signals) -> None:
        self.running.signal(number)
        self.running.wait()

    def connect(self) -> Connection:
        connection = Connection(HELLO, [str(self.path)], connect_timeout_seconds=5, reconnect_timeout_seconds=30)
        return self._stack.enter_context(connection)


@pytest.fixture
def node(server: FakeServer) -> Iterator[Callable[..., Node]]:
    with ExitStack() as stack:
        yield lambda **settings: Node(stack, server.url, **settings)


def stored(kinesis: FakeKinesis) -> Counter[bytes]:
    return Counter(record.data for record in kinesis.streams["flights"].read().records)


def numbered(first: int, count: int) -> Columns:
    return lay_out([b"k%d" % (i % 7) for i in range(count)], [b"row %d" % (first + i) for i in range(count)])


def every_row_is_there(kinesis: FakeKinesis, count: int) -> int:
    """How many of them more than once."""
    found = stored(kinesis)
    assert set(found) == {b"row %d" % i for i in range(count)}
    return sum(times - 1 for times in found.values())


@pytest.mark.promise("daemon-killed-waited")
def test_a_daemon_that_is_killed_is_waited_for_and_its_successor_gets_what_it_had(
    kinesis: FakeKinesis, node: Callable[..., Node]
) -> None:
    at = node()
    client = at.connect()
    client.put("flights", numbered(0, 100))
    client.flush()
    kinesis.standing.append(Fault("hang"))
    for place in range(1, 6):
        client.put("flights", numbered(100 * place, 100))
    at.end(signal.SIGKILL)
    kinesis.standing.clear()
    threading.Timer(0.5, at.start).start()
    client.put("flights", numbered(600, 100))
    client.flush()
    assert (client.tally.records, client.tally.stored, client.tally.failures) == (700, 700, ())
    assert (client.tally.resent, client.tally.possible_duplicates) == (500, 500)
    every_row_is_there(kinesis, 700)


@pytest.mark.promise("list-fails-now-waited-records")
def test_a_client_outlives_a_daemon_killed_while_the_list_of_shards_is_throttled(
    kinesis: FakeKinesis, node: Callable[..., Node]
) -> None:
    """What it had waits in its successor, and goes plain when the wait is over, until the list comes."""
    kinesis.standing.append(Fault("error", action="ListShards", status=400))
    at = node(aggregation="kpl", tuning={"shard_map_wait_seconds": 1.0})
    client = at.connect()
    client.put("flights", numbered(0, 100))
    at.end(signal.SIGKILL)
    at.start()
    client.put("flights", numbered(100, 100))
    client.flush()
    assert (client.tally.stored, client.tally.failures) == (200, ())
    entries = len(kinesis.streams["flights"].entries())
    assert entries >= 200, "each is a record of its own"
    until(lambda: "records go plain until the shards are known" in at.running.log)
    kinesis.standing.clear()
    until(lambda: "records are aggregated again" in at.running.log)
    client.put("flights", numbered(200, 100))
    client.flush()
    assert client.tally.stored == 300
    assert len(kinesis.streams["flights"].entries()) - entries <= 4, "one for each shard"
    every_row_is_there(kinesis, 300)


@pytest.mark.promise("daemon-stops-gives-rows")
def test_a_daemon_that_stops_gives_rows_back_and_they_go_to_the_next_one_once(
    kinesis: FakeKinesis, node: Callable[..., Node]
) -> None:
    kinesis.latency_seconds = 0.3
    at = node(max_in_flight_requests=1, tuning={"request_max_records": 50}, drain_timeout_seconds=5)
    client = at.connect()
    for place in range(8):
        client.put("flights", numbered(100 * place, 100))
    until(lambda: at.running.metrics()["inflight_requests"] == 1)

    def restart() -> None:
        at.end(signal.SIGTERM)
        kinesis.latency_seconds = 0.0
        at.start()

    restarting = threading.Thread(target=restart)
    restarting.start()
    client.flush()
    restarting.join()
    tally = client.tally
    assert (tally.records, tally.stored, tally.returned, tally.failures) == (800, 800, 0, ())
    assert 0 < tally.resent < 800
    assert tally.possible_duplicates == 0
    assert every_row_is_there(kinesis, 800) == 0, "none twice: nothing was cut off"
    assert tally.payload_bytes == sum(len(b"k0") + len(b"row %d" % i) for i in range(800))


@pytest.mark.promise("client-body-late-sends")
def test_a_client_whose_body_is_late_sends_it_again_and_fails_nobody(
    kinesis: FakeKinesis, node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process, or its whole machine, may have had no processor for some seconds."""
    at = node(tuning={"body_timeout_seconds": 0.3})
    client = at.connect()
    send_body = Channel.send_body
    late: list[bool] = []

    def send_late(channel: Channel, frame_id: int, columns: Columns) -> None:
        if not late:
            late.append(until(lambda: "client is late" in at.running.log))
        send_body(channel, frame_id, columns)

    monkeypatch.setattr(Channel, "send_body", send_late)
    client.put("flights", numbered(0, 100))
    client.flush()
    assert late
    assert every_row_is_there(kinesis, 100) == 0
