"""All streams of a node together hold no more than the node may, and each still gets its part."""

from __future__ import annotations

from typing import Any

import pytest

from producerd.errors import BackpressureTimeout
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer
from spark_client import KinesisClient
from tests.daemon import daemon, idle, until

MIB = 1 << 20
NODE: dict[str, Any] = {"node_queue_limit_bytes": 8 * MIB, "max_streams": 4}
FLOOR_BYTES = MIB


def test_a_stream_that_fills_the_node_leaves_the_others_their_floor_and_all_is_delivered(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    """Whatever lingers is sent when somebody waits for the node's room."""
    kinesis.create_stream("orders", shards=1)
    kinesis.standing.append(Fault("hang"))
    with daemon(server.url, request_timeout_seconds=60, linger_seconds=3600, **NODE) as running:
        client = KinesisClient("flights", socket=str(running.socket))
        other = KinesisClient("orders", socket=str(running.socket))
        other.put("first")
        large = [(b"%d:" % i + b"x" * 80_000, f"k{i}") for i in range(200)]
        with pytest.raises(BackpressureTimeout, match="queues of all streams together are at their limit") as caught:
            client.put_many(large, timeout_seconds=1)
        taken = caught.value.taken
        held = running.metrics()["queue_bytes"]
        assert 8 * MIB - FLOOR_BYTES - MIB <= held <= 8 * MIB - FLOOR_BYTES + 2_048
        others = [(b"%d:" % i + b"y" * 80_000, f"k{i}") for i in range(11)]
        other.put_many(others, timeout_seconds=5)
        assert running.metrics()["queue_bytes"] <= 8 * MIB
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
        client.put_many([(b"%d:" % i + b"x" * 80_000,) for i in range(95)], timeout_seconds=10)
        other = KinesisClient("orders", socket=str(running.socket))
        other.put_many([(b"%d:" % i + b"y" * 80_000,) for i in range(30)], timeout_seconds=10)
        other.close(10)
        client.close(10)
        assert len(kinesis.streams["flights"].read().records) == 95
        assert len(kinesis.streams["orders"].read().records) == 30
