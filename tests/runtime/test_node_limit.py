"""All streams of a node together hold no more than the node may, and each still gets its part."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from producerd.config import Config, NodeSettings, StreamSettings
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.sending.answers import Answer, RequestFailed, parse_answer
from producerd.errors import BackpressureTimeout
from producerd.runtime import shares
from producerd.runtime import streams as streams_module
from producerd.runtime.daemon import Daemon, State
from producerd.runtime.session import Session
from producerd.runtime.stream import Stream
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from producerd.wire import frames
from spark_client import KinesisClient
from tests.daemon import PATIENCE_SECONDS, ROOT, daemon, idle, rows, until, until_on_loop
from tests.runtime.stand_ins import StandInTransport, body, reserve, tell

NODE: dict[str, Any] = {"node_queue_limit_bytes": "1 MiB", "max_streams": 4, "max_frame_bytes": "64 KiB"}
FLOOR_BYTES = 128 * 1024


@pytest.mark.parametrize("linger_seconds", [0.01, 3600])
def test_a_stream_that_fills_the_node_leaves_the_others_their_floor_and_all_is_delivered(
    kinesis: FakeKinesis, server: FakeServer, linger_seconds: float
) -> None:
    """Whatever lingers is sent when somebody waits for the node's room."""
    kinesis.create_stream("orders", shards=1)
    kinesis.standing.append(Fault("hang"))
    with daemon(server.url, request_timeout_seconds=60, linger_seconds=linger_seconds, **NODE) as running:
        client = KinesisClient("flights", socket=str(running.socket))
        other = KinesisClient("orders", socket=str(running.socket))
        other.put("first")
        large = [(b"%d:" % i + b"x" * 10_000, f"k{i}") for i in range(200)]
        with pytest.raises(BackpressureTimeout, match="queues of all streams together are at their limit") as caught:
            client.put_many(large, timeout_seconds=1)
        taken = caught.value.taken
        held = running.metrics()["queue_bytes"]
        assert (1 << 20) - FLOOR_BYTES - 64 * 1024 <= held <= (1 << 20) - FLOOR_BYTES + 2_048
        others = [(b"%d:" % i + b"y" * 10_000, f"k{i}") for i in range(11)]
        other.put_many(others, timeout_seconds=5)
        assert running.metrics()["queue_bytes"] <= 1 << 20
        kinesis.standing.clear()
        server.release()
        client.put_many(large[taken:], timeout_seconds=30)
        client.close()
        other.close()
        assert {r.data for r in kinesis.streams["flights"].read().records} == {data for data, _ in large}
        assert len(kinesis.streams["orders"].read().records) == 12
        until(lambda: idle(running.metrics()))


def test_room_that_one_stream_frees_goes_to_another_that_waits(kinesis: FakeKinesis, server: FakeServer) -> None:
    """What lingers in the one is sent because the other waits, and the other hears of it."""
    kinesis.create_stream("orders", shards=1)
    with daemon(server.url, linger_seconds=3600, **NODE) as running:
        client = KinesisClient("flights", socket=str(running.socket))
        client.put_many([(b"%d:" % i + b"x" * 10_000,) for i in range(95)], timeout_seconds=10)
        other = KinesisClient("orders", socket=str(running.socket))
        other.put_many([(b"%d:" % i + b"y" * 10_000,) for i in range(30)], timeout_seconds=10)
        other.close(10)
        client.close(10)
        assert len(kinesis.streams["flights"].read().records) == 95
        assert len(kinesis.streams["orders"].read().records) == 30


class Kinesis:
    """Stores a request once ``may_answer`` is set."""

    is_aws = False

    def __init__(self) -> None:
        self.was_asked, self.may_answer = False, asyncio.Event()

    async def ready(self) -> None:
        pass

    async def put_records(
        self, address: object, request: EncodedRequest, timeout_seconds: float
    ) -> Answer | RequestFailed:
        self.was_asked = True
        await self.may_answer.wait()
        results = b",".join([b'{"ShardId":"s"}'] * request.entries)
        return parse_answer(b'{"Records":[' + results + b"]}", request.entries)


async def test_room_that_comes_free_wakes_a_stream_to_which_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No message of its client comes, no timer is set, no list of its shards is read, and no row of it settles."""

    class Watch:
        """Of a service that may not be asked."""

        def __init__(self, stream: Stream, kinesis: object) -> None:
            stream.shards_not_read("AccessDeniedException", "no", 0.0)

        async def run(self) -> None:
            pass

    def client_of(stream: str) -> tuple[Session, StandInTransport]:
        session = Session(node, 1)
        transport = StandInTransport(session)
        tell(session, frames.encode(frames.Hello(1, 1)) + frames.encode(frames.Open(1, stream)))
        assert [type(message) for message in transport.drain()] == [frames.Welcome, frames.Opened]
        return session, transport

    kinesis, stopped, nothing = Kinesis(), asyncio.Event(), cast("Any", None)
    monkeypatch.setattr(shares, "ALONE", shares.Share(60.0, 1.0))  # so that no busy machine pauses the reading
    monkeypatch.setattr(streams_module, "AioKinesis", lambda client, executor: kinesis)
    monkeypatch.setattr(streams_module, "ShardWatch", Watch)
    clients: Any = SimpleNamespace(of=lambda access: SimpleNamespace(credentials=None))
    config = Config(
        node=NodeSettings(node_queue_limit_bytes=512 * 1024, max_frame_bytes=128 * 1024, max_streams=2),
        defaults=StreamSettings(linger_seconds=0),
    )
    with ThreadPoolExecutor(1) as executor:
        node = Daemon(config, lambda: config, clients=clients, executor=executor, notifier=nothing, listener=nothing)
        node.state = State.SERVING
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(node._dispatcher.run(stopped))
            tasks.create_task(node._streams.run(stopped))
            await asyncio.sleep(0)
            holder, of_holder = client_of("flights")
            frame = rows(6, size=20_000)  # the node has room for four
            for number in range(1, 5):
                tell(holder, reserve(number, frame) + body(number, frame))
            await until_on_loop(lambda: kinesis.was_asked)
            waiter, of_waiter = client_of("orders")
            tell(waiter, reserve(1, frame))
            for _ in range(5):
                await asyncio.sleep(0)
            assert of_waiter.drain() == [], "there is no room"
            kinesis.may_answer.set()
            await until_on_loop(lambda: frames.Grant(1) in of_waiter.drain())
            for session in (holder, waiter):
                session.connection_lost(None)
            stopped.set()
    assert [type(message) for message in of_holder.drain()] == [frames.Grant] * 4 + [frames.Ack] * 4


def test_requests_that_hang_leave_other_streams_their_part_of_what_may_be_on_its_way(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    """A stream may have more on its way than all of them together: it hangs with that, and the other goes on."""
    other = FakeKinesis()
    other.create_stream("orders", shards=1)
    records = [(b"%d:" % i + b"x" * 10_000, f"k{i}") for i in range(300)]
    with serve_in_thread(other) as elsewhere:
        sets: dict[str, Any] = {
            'streams."orders".endpoint_url': elsewhere.url,
            "node_max_in_flight_bytes": "1 MiB",
            "max_streams": 4,
        }
        with daemon(server.url, request_timeout_seconds=60, request_max_bytes="64 KiB", **sets) as running:
            hung = KinesisClient("flights", socket=str(running.socket))
            hung.put_many(records, timeout_seconds=PATIENCE_SECONDS)
            hung.flush(PATIENCE_SECONDS)
            kinesis.standing.append(Fault("hang"))
            hung.put_many(records, timeout_seconds=PATIENCE_SECONDS)
            until(lambda: running.metrics()["inflight_requests"] >= 9, "of 64 KiB: half of the limit, and its own part")
            client = KinesisClient("orders", socket=str(running.socket))
            client.put_many(records, timeout_seconds=PATIENCE_SECONDS)
            client.close(PATIENCE_SECONDS)
            assert len(other.streams["orders"].read().records) == 300
            assert running.metrics()["inflight_requests"] <= 14, "10, but requests of a shard's last rows are smaller"
            kinesis.standing.clear()
            server.release()
            hung.close(2 * PATIENCE_SECONDS)


def test_a_node_too_small_for_its_streams_is_a_configuration_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "producerd", "check", "--set=max_streams=1000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 78
    assert "node_queue_limit_bytes = " in done.stderr
    assert 'max_streams = "1000" (--set)' in done.stderr
    assert "which must hold one frame of max_frame_bytes = 1 MiB" in done.stderr
