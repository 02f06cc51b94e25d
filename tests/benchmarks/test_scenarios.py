"""Scenarios are bounded in time, hit the shards that they say, and act on the service as it acts on itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.delivery import scenarios
from benchmarks.delivery.scenarios import (
    LONGEST_SECONDS,
    SOCKET,
    Load,
    Scenario,
    Stage,
    all_scenarios,
    hot_shard,
    keys_for,
    merge,
    outage,
    reshards,
    slow_shard,
    slow_uplink,
    socket_deleted,
    split,
    throttled_start,
)
from producerd.testing import FakeKinesis, hash_of
from producerd.testing.fake_kinesis import serve_in_thread

ALL = all_scenarios()


def name_of(scenario: Scenario) -> str:
    return f"{scenario.name}-{scenario.aggregation}"


def offered_rows(loads: tuple[Load, ...], until: float) -> float:
    return sum(min(load.rows, load.rows_per_second * (min(load.ends, until) - load.begins)) for load in loads)


@pytest.mark.parametrize("scenario", ALL, ids=name_of)
def test_the_fault_ends_in_time_and_with_time_left_to_recover(scenario: Scenario) -> None:
    assert 0 <= scenario.begins <= scenario.ends < LONGEST_SECONDS
    assert not scenario.recovers or scenario.begins >= 1, "throughput before is known"
    ends = max(load.ends for load in scenario.loads)
    assert ends <= LONGEST_SECONDS
    assert not scenario.recovers or ends >= scenario.ends + 2


@pytest.mark.parametrize("shards", [1, 3, 8])
def test_keys_live_in_the_shards_that_were_asked_for_as_many_in_each(shards: int) -> None:
    stream = FakeKinesis().create_stream("flights", shards=shards)
    wanted = range(shards // 2, shards)
    found = [stream.shard_of(hash_of(key.decode(), None)) for key in keys_for(shards, wanted)]
    counts = [found.count(shard) for shard in stream.shards]
    assert counts == [50 if i in wanted else 0 for i in range(shards)]


@pytest.mark.parametrize("scenario", [hot_shard("none"), slow_shard()], ids=name_of)
def test_other_rows_never_live_in_the_shard_at_fault(scenario: Scenario) -> None:
    stream = FakeKinesis().create_stream("flights", shards=scenario.shards)
    for load in scenario.loads:
        shards = {stream.shard_of(hash_of(key.decode(), None)).shard_id for key in load.keys}
        assert (stream.shards[0].shard_id in shards) != load.is_other


def test_a_hot_shard_is_offered_five_times_its_quota_and_the_others_half_of_theirs() -> None:
    loads = hot_shard("none").loads
    assert sum(load.rows_per_second for load in loads if not load.is_other) == 5 * 1_000
    assert sum(load.rows_per_second for load in loads if load.is_other) == 7 * 500


def test_what_an_outage_leaves_behind_can_be_carried_in_seconds() -> None:
    scenario = outage()
    assert scenario.ends - scenario.begins == 20
    assert offered_rows(scenario.loads, scenario.ends) / (scenario.shards * 1_000) < 4


def test_a_start_without_a_list_of_shards_is_offered_less_than_one_shard_takes() -> None:
    scenario = throttled_start()
    assert scenario.begins_before_start
    assert (scenario.begins, scenario.ends) == (0.0, 20.0)
    assert sum(load.rows_per_second for load in scenario.loads) < 1_000


@pytest.mark.parametrize(
    ("scenario", "parents", "children"), [(split("kpl"), 1, 2), (merge("kpl"), 2, 1)], ids=["split", "merge"]
)
def test_a_reshard_closes_and_opens_shards_by_calls_to_the_service(
    scenario: Scenario, parents: int, children: int, tmp_path: Path
) -> None:
    kinesis = FakeKinesis()
    stream = kinesis.create_stream("flights", shards=scenario.shards)
    before = set(stream.open_shards)
    with serve_in_thread(kinesis, tls=True) as server:
        scenario.begin(Stage(kinesis, stream, server, tmp_path))
    after = set(stream.open_shards)
    assert (len(before - after), len(after - before)) == (parents, children)


def test_shards_that_change_twice_a_second_are_as_many_in_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scenarios, "RESHARD_EVERY_SECONDS", 0.0)
    kinesis = FakeKinesis()
    stream = kinesis.create_stream("flights", shards=reshards().shards)
    with serve_in_thread(kinesis, tls=True) as server:
        reshards().begin(Stage(kinesis, stream, server, tmp_path))
    assert (kinesis.requests["SplitShard"], kinesis.requests["MergeShards"]) == (10, 10)
    assert kinesis.replies == {"ok": 20}
    assert len(stream.open_shards) == 2


@pytest.mark.parametrize(
    "scenario",
    [s for s in ALL if s.name in ("slow_shard", "lost_replies", "outage", "throttled_start", "storm")],
    ids=name_of,
)
def test_a_fault_that_stands_is_taken_away_whole(scenario: Scenario, tmp_path: Path) -> None:
    kinesis = FakeKinesis()
    stream = kinesis.create_stream("flights", shards=scenario.shards)
    with serve_in_thread(kinesis) as server:
        stage = Stage(kinesis, stream, server, tmp_path)
        scenario.begin(stage)
        assert kinesis.standing or stream.shards[0].delay_seconds
        scenario.end(stage)
    assert not kinesis.standing
    assert not any(shard.delay_seconds for shard in stream.shards)


def test_the_slow_uplink_carries_20_mbit_a_second(tmp_path: Path) -> None:
    kinesis = FakeKinesis()
    stream = kinesis.create_stream("flights", shards=1)
    with serve_in_thread(kinesis) as server:
        slow_uplink().begin(Stage(kinesis, stream, server, tmp_path))
        assert server.uplink_bytes_per_second == 20e6 / 8


def test_a_socket_that_is_deleted_is_found_by_as_many_sessions_as_leave_then(tmp_path: Path) -> None:
    scenario, kinesis = socket_deleted(), FakeKinesis()
    stream = kinesis.create_stream("flights", shards=scenario.shards)
    (tmp_path / SOCKET).touch()
    with serve_in_thread(kinesis) as server:
        scenario.begin(Stage(kinesis, stream, server, tmp_path))
    assert not (tmp_path / SOCKET).exists()
    leaving = [load for load in scenario.loads if load.ends == scenario.begins]
    coming = [load for load in scenario.loads if load.connects_late and load.begins > scenario.begins]
    assert len(leaving) == len(coming) == 2
