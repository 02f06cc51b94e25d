"""What Python can set and see of the fake, other languages can by JSON, and a refused call changes nothing."""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from producerd.testing import FakeKinesis, FakeStream, Fault
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from tests.testing.calls import SHARDS, client_of, entry, put, service


@pytest.fixture
def fake() -> Iterator[tuple[FakeKinesis, FakeStream, FakeServer]]:
    kinesis, stream = service(shards=2)
    with serve_in_thread(kinesis) as server:
        yield kinesis, stream, server


def call(server: FakeServer, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(server.url + path, data) as answer:
        return json.load(answer)


def refused(server: FakeServer, path: str, body: Any = None) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        call(server, path, body)
    with caught.value as error:
        return error.code, json.load(error)["error"]


SETTINGS: dict[str, Any] = {
    "latency_seconds": [0.1, 0.3],
    "enforce_limits": True,
    "denied": ["ListShards"],
    "calls_per_second": {"DescribeStreamSummary": 20.0},
    "uplink_bytes_per_second": 2.5e6,
    "clock_offset_seconds": -600.0,
    "checks_clock": True,
    "accepted_access_keys": ["A", "B"],
    "expired_access_keys": ["B"],
    "streams": {
        "s": {
            "max_record_kib": 10_240,
            "record_distribution_strategy": "AUTO",
            "list_shards_lag_seconds": 3.0,
            "keeps_entries": False,
        }
    },
    "shard_delay_seconds": {"s": {SHARDS[0]: 0.0, SHARDS[1]: 6.0}},
}


def test_every_setting_can_be_set_and_is_shown(fake: tuple[FakeKinesis, FakeStream, FakeServer]) -> None:
    kinesis, stream, server = fake
    before = call(server, "/_fake/settings")
    assert before.keys() == SETTINGS.keys()
    assert all(before[name] != value for name, value in SETTINGS.items())
    assert call(server, "/_fake/settings", SETTINGS) == call(server, "/_fake/settings") == SETTINGS
    assert (kinesis.latency_seconds, kinesis.denied) == ((0.1, 0.3), {"ListShards"})
    assert (server.accepted_access_keys, server.uplink_bytes_per_second) == ({"A", "B"}, 2.5e6)
    assert (stream.record_distribution_strategy, stream.shards[1].delay_seconds) == ("AUTO", 6.0)
    assert call(server, "/_fake/settings", before) == before


def test_what_is_not_given_stays(fake: tuple[FakeKinesis, FakeStream, FakeServer]) -> None:
    kinesis, _, server = fake
    call(server, "/_fake/settings", {"latency_seconds": 0.5})
    after = call(server, "/_fake/settings", {"streams": {"s": {"keeps_entries": False}}})
    assert (after["latency_seconds"], after["streams"]["s"]["max_record_kib"]) == (0.5, 1024)
    assert kinesis.latency_seconds == 0.5


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"latency_second": 1}, "latency_second: Extra inputs are not permitted"),
        ({"latency_seconds": -1}, "latency_seconds=-1.0: 0 or more"),
        ({"latency_seconds": [3, 1]}, "latency_seconds=(3.0, 1.0): 0 or more, or a pair of such with the lower first"),
        ({"denied": ["ListShards", "Nope"]}, "no action 'Nope'; there are PutRecords, ListShards,"),
        ({"calls_per_second": {"ListShards": 0}}, "calls_per_second of ListShards is 0.0: above 0"),
        ({"calls_per_second": {"Nope": 1}}, "no action 'Nope'; there are PutRecords, ListShards,"),
        ({"clock_offset_seconds": 1e300}, "clock_offset_seconds=1e+300: at most 3,153,600,000, a century"),
        ({"uplink_bytes_per_second": -1}, "greater than or equal to 0 (given: -1)"),
        ({"streams": {"t": {}}}, "no stream 't'; there are s"),
        ({"streams": {"s": {"shards": 3}}}, "streams.s.shards: Extra inputs are not permitted"),
        ({"shard_delay_seconds": {"s": {"x": 1}}}, "Could not find shard x in stream s"),
        ([], "should be an object"),
    ],
)
def test_a_wrong_setting_is_named_and_changes_nothing(
    fake: tuple[FakeKinesis, FakeStream, FakeServer], wrong: Any, words: str
) -> None:
    _, _, server = fake
    before = call(server, "/_fake/settings")
    status, message = refused(
        server, "/_fake/settings", {"enforce_limits": True, **wrong} if isinstance(wrong, dict) else wrong
    )
    assert status == 400
    assert words in message
    assert call(server, "/_fake/settings") == before


def test_faults_take_the_place_of_those_before(fake: tuple[FakeKinesis, FakeStream, FakeServer]) -> None:
    kinesis, _, server = fake
    kinesis.script(Fault("lost"))
    shown = call(
        server, "/_fake/faults", {"script": [{"kind": "error", "status": 503}, {"kind": "throttle", "entries": 5}]}
    )
    assert kinesis.scripted == [Fault("error", status=503), Fault("throttle", entries=5)]
    assert [fault["kind"] for fault in shown["script"]] == ["error", "throttle"]
    call(server, "/_fake/faults", {"standing": [{"kind": "hang", "action": "*", "fraction": 0.5}]})
    assert len(kinesis.scripted) == 2
    call(server, "/_fake/faults", {"script": [{"kind": "lost", "requests": 2}]})
    assert (kinesis.scripted, kinesis.standing) == (
        [Fault("lost", requests=2)],
        [Fault("hang", action="*", fraction=0.5)],
    )
    for wrong, words in (
        (
            {"kind": "lost", "entries": 1},
            "script.0: Value error, lost with entries=1, which is for throttle and fail only",
        ),
        ({}, "script.0.kind"),
    ):
        status, message = refused(server, "/_fake/faults", {"script": [wrong], "standing": []})
        assert status == 400
        assert words in message
    assert len(kinesis.scripted) == len(kinesis.standing) == 1
    assert call(server, "/_fake/faults", {"script": [], "standing": []}) == {"script": [], "standing": []}


def test_entries_records_and_counters_are_seen(fake: tuple[FakeKinesis, FakeStream, FakeServer]) -> None:
    kinesis, stream, server = fake
    put(kinesis, entry("k", b"\xff\x00", 0), entry("l"), now=1.0)
    put(kinesis, entry("m"), now=62.0)
    shown = call(server, "/_fake/entries?stream=s")["entries"]
    assert [base64.b64decode(one["data"]) for one in shown] == [b"\xff\x00", b"d", b"d"]
    assert shown[0] == {**stream.entries()[0]._asdict(), "data": "/wA="}
    records = call(server, "/_fake/records?stream=s")
    assert [record["partition_key"] for record in records["records"]] == ["k", "l", "m"]
    assert records["records"][0] == {"partition_key": "k", "explicit_hash_key": None, "data": "/wA="}
    assert records["dropped_aggregates"] == 0
    counters = call(server, "/_fake/counters")
    assert counters["requests"] == {"PutRecords": 2}
    assert counters["replies"] == {"ok": 2}
    assert counters["results"] == {"stored": 3}
    assert counters["most_calls_a_minute"] == {"PutRecords": 1}
    assert (counters["in_flight"], counters["connections_open"]) == (0, 1)
    assert refused(server, "/_fake/records") == (400, "stream: Field required")
    assert refused(server, "/_fake/entries?stream=t") == (400, "no stream 't'; there are s")


def test_a_stream_is_made_again_with_other_ranges_and_a_refused_one_leaves_the_old(
    fake: tuple[FakeKinesis, FakeStream, FakeServer],
) -> None:
    kinesis, old, server = fake
    assert refused(server, "/_fake/streams", {"name": "s", "edges": [5]})[0] == 400
    assert refused(server, "/_fake/streams", {"name": "?"})[0] == 400
    assert kinesis.streams == {"s": old}
    edge = 2**127 + 12345  # more than a float can hold
    shown = call(server, "/_fake/streams", {"name": "s", "edges": [0, edge], "record_distribution_strategy": "AUTO"})
    assert (shown["OpenShardCount"], shown["RecordDistributionStrategy"]) == (2, "AUTO")
    new = kinesis.streams["s"]
    assert new is not old
    assert new.shards[1].start == edge
    assert int(new.shards[0].first_sequence) > old.sequence
    call(server, "/_fake/streams", {"name": "s", "shards": 3, "restart_sequences": True})
    assert len(kinesis.streams["s"].shards) == 3
    assert kinesis.streams["s"].sequence < old.sequence + 10


def test_hung_requests_are_released(fake: tuple[FakeKinesis, FakeStream, FakeServer]) -> None:
    kinesis, stream, server = fake
    call(server, "/_fake/faults", {"standing": [{"kind": "hang"}]})
    with client_of(server) as client:
        records = [{"PartitionKey": "k", "Data": b"d"}]
        putting = threading.Thread(target=client.put_records, kwargs={"StreamName": "s", "Records": records})
        putting.start()
        while not call(server, "/_fake/counters")["requests"]:
            pass
        call(server, "/_fake/faults", {"standing": []})
        call(server, "/_fake/release", {})
        putting.join()
    assert len(stream.entries()) == 1
    assert kinesis.replies == {"hang": 1, "ok": 1}


def test_an_unknown_path_is_told_which_there_are(fake: tuple[FakeKinesis, FakeStream, FakeServer]) -> None:
    kinesis, _, server = fake
    for path, body in (("/_fake/x", None), ("/_fake/records", {}), ("/_fake/release", None)):
        status, message = refused(server, path, body)
        assert status == 404
        assert "there are GET /_fake/settings, POST /_fake/settings" in message
    assert kinesis.requests == {}
