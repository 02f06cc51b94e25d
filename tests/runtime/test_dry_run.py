"""A dry run stores nothing, and says what a write of the same rows would put where."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from producerd.core.kpl.aggregation import Aggregate
from producerd.errors import Code, Outcome
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer
from producerd.wire import messages
from producerd.wire.columns import Columns, lay_out
from tests.daemon import DaemonProcess, WireClient, daemon, rows

UNIT = 25 * 1024


def tried(
    running: DaemonProcess, *bodies: Columns, service: int = messages.Service.READY
) -> tuple[list[messages.Ack], messages.Figures]:
    """What a dry run of these frames says."""
    with trying(running) as client:
        assert client.welcome is not None
        assert client.welcome.dry_runs == 1
        client.send(messages.Status(1, asks_service=1))
        assert client.expect(messages.Blocked).service == service
        for body in bodies:
            client.put(body)
        client.send(messages.Flush(1))
        acks = client.acks(len(bodies))
        client.send(messages.Status(1, asks_figures=1))
        return acks, client.expect(messages.Figures)


@pytest.mark.promise("dry-run-stores-nothing")
@pytest.mark.parametrize("aggregation", ["none", "kpl"])
def test_its_figures_are_those_of_the_write_and_nothing_is_stored(
    kinesis: FakeKinesis, server: FakeServer, aggregation: str
) -> None:
    aggregate = Aggregate()
    for key in range(12):  # of all shards: only a stream that aggregates takes it, and splits it
        aggregate.try_add(b"%d" % key, None, b"data", 1 << 20)
    given = aggregate.to_bytes()
    large = lay_out([b"a", b"b", b"c", b"d", b"e"], [b"x" * 30_000, None, b"y", b"z" * (UNIT - 1), given])
    bodies, flights = [rows(300, size=100), large], kinesis.streams["flights"]
    with daemon(server.url, aggregation=aggregation) as running:
        acks, figures = tried(running, *bodies)
        metrics = running.metrics()
    assert not flights.entries()
    assert sum(value for name, value in metrics.items() if name.startswith("ingest_records_total")) == 0
    bad = [why.message.partition(",")[0] for _, why in acks[1].failed_rows()]
    assert bad == ["data is null", *(["data is an aggregated record"] if aggregation == "none" else [])]
    assert [(ack.stored, ack.not_stored) for ack in acks] == [(300, 0), (5 - len(bad), len(bad))]
    assert figures.sizes == (("256", 301 + (len(bad) == 1)), ("65536", 2))
    assert (figures.aggregates, figures.open_shards) == (aggregation == "kpl", 4)
    with (
        daemon(server.url, aggregation=aggregation, linger_seconds=60, shard_rate_fraction=100) as running,
        WireClient(running.socket).hello(take_good=True) as client,
    ):
        client.open()
        for body in bodies:
            client.put(body)
        client.send(messages.Flush(1))
        client.acks(2)
    sizes = [len(entry.partition_key) + len(entry.data) for entry in flights.entries()]
    found = len(sizes), sum(sizes), sum(max(1, math.ceil(size / UNIT)) for size in sizes)
    if aggregation == "kpl":
        assert (figures.aggregated_records, figures.aggregated_bytes, figures.aggregated_units) == found
    else:
        assert (figures.records, figures.bytes, figures.units) == found
        assert dict(figures.shards) == Counter(entry.shard_id for entry in flights.entries())


@contextmanager
def trying(running: DaemonProcess) -> Iterator[WireClient]:
    """A client that has opened a dry run."""
    with WireClient(running.socket).hello(take_good=True) as client:
        client.send(messages.Open(1, "flights", dry_run=1))
        client.expect(messages.Opened)
        yield client


def figures_of(client: WireClient) -> messages.Figures:
    """Flush a hundred rows, all of which are taken, and return what the dry run says."""
    client.send(messages.Flush(1))
    assert client.acks()[0].stored == 100
    client.send(messages.Status(1, asks_figures=1))
    return client.expect(messages.Figures)


def test_rows_wait_for_the_shards_and_do_not_expire(kinesis: FakeKinesis, server: FakeServer) -> None:
    """A write lingers less; and one reading that fails does not show that the daemon may not list the shards."""
    kinesis.script(Fault("error", action="ListShards", status=500, code="InternalFailure"))
    with daemon(server.url, record_ttl_seconds=0.05) as running, trying(running) as client:
        client.put(rows(100))
        assert client.hears_nothing()
        assert sum(count for _, count in figures_of(client).shards) == 100


def test_the_wait_for_the_shards_has_an_end(kinesis: FakeKinesis, server: FakeServer) -> None:
    """As in a write, rows to be aggregated then go as they are."""
    kinesis.standing.append(Fault("hang", action="ListShards"))
    tuning = {"shard_map_wait_seconds": 0.5}
    with daemon(server.url, aggregation="kpl", tuning=tuning) as running, trying(running) as client:
        client.put(rows(100))
        figures = figures_of(client)
        assert (figures.aggregated_records, figures.open_shards) == (100, 0)


def test_a_record_over_the_streams_limit_is_judged(kinesis: FakeKinesis, server: FakeServer) -> None:
    # The limit is not known when the record comes.
    kinesis.standing.append(Fault("answer", action="DescribeStreamSummary", delay_seconds=1))
    with daemon(server.url, max_streams=8, tuning={"max_frame_bytes": 4 << 20}) as running:
        (ack,), figures = tried(running, lay_out([b"a", b"b"], [b"x", b"y" * (1 << 20)]))
        ((row, why),) = ack.failed_rows()
        assert (row, why.outcome, why.code, why.judged) == (1, Outcome.NOT_STORED, Code.RECORD_TOO_LARGE, True)
        assert "has 1048577 bytes, more than the maximum record size of 1048576 bytes" in why.message
        assert (figures.records, figures.aggregated_records) == (1, 1)


def test_without_a_list_of_the_shards_a_stream_of_plain_records_is_counted_as_one(
    kinesis: FakeKinesis, server: FakeServer
) -> None:
    kinesis.standing.append(Fault("error", action="ListShards", status=400, code="AccessDeniedException"))
    with daemon(server.url) as running:
        (ack,), figures = tried(running, rows(100), service=messages.Service.NOT_VERIFIED)
        assert ack.stored == 100
        assert (figures.records, figures.open_shards, figures.shards, figures.aggregated_records) == (100, 0, (), 1)
