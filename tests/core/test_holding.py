"""A full queue names its true cause: a hot shard only while other shards have room, else that there are too few shards.

Callers, gate and pipeline are real, the fake Kinesis enforces its limits, and time is virtual.  Each test looks every
tenth of a second from the start, not only at a moment that suits it.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Final

import orjson
import pytest

from producerd.core.holding import Facts, Holding, Limit, sentence
from producerd.errors import Code
from producerd.testing import hash_of
from producerd.wire.columns import Columns, lay_out
from tests.core.stories import Desk
from tests.simulation.setting import ADDRESS
from tests.simulation.shards_world import World
from tests.snapshots import Snapshot

HOT_KEY: Final = b"the hot key"
LOOK_SECONDS: Final = 0.1
STREAMS: Final = pytest.mark.parametrize(
    ("shards", "fraction", "limit_records"),
    [
        (4, 1.0, 1_000),
        pytest.param(16, 1.0, 4_000, marks=pytest.mark.slow),
        pytest.param(256, 0.1, 30_000, marks=pytest.mark.slow),
    ],
)
"""``fraction``: of the shards' rate that is the daemon's, as the rows of 256 shards take long to make."""


def frame_of(random: Random, records: int, hot: float = 0.0) -> Columns:
    """Rows of 100 bytes with random keys, of which a share have the hot key."""
    keys = [HOT_KEY if random.random() < hot else b"key %d" % random.randrange(10**6) for _ in range(records)]
    return lay_out(keys, [b"x" * 90] * records)


def loaded(world: World, *, callers: int = 4, hot: float = 0.0) -> World:
    """With callers that always have more to send."""
    random = Random(1)
    records = world.budget.limit_records // (5 * callers)
    for _ in range(callers):
        world.caller(frame_of(random, records, hot)).steady()
    return world


def looks(world: World, seconds: float) -> list[Holding]:
    """What holds the queue, over and over from now on."""
    seen = []
    for _ in range(round(seconds / LOOK_SECONDS)):
        world.run(LOOK_SECONDS)
        seen.append(world.pipeline.diagnosis.holding(world.now))
    return seen


def shard_of(world: World, key: bytes) -> str:
    hash_key = hash_of(key.decode(), None)
    return next(shard.shard_id for shard in world.stream.open_shards if shard.start <= hash_key <= shard.end)


@pytest.mark.promise("shards-full-few-none")
@STREAMS
def test_shards_that_are_all_full_are_too_few_and_none_of_them_is_hot(
    shards: int, fraction: float, limit_records: int
) -> None:
    """Though chance gives one of them half of what waits: the queue has few records for each shard."""
    world = loaded(World(shards=shards, shard_rate_fraction=fraction, limit_records=limit_records))
    seen = looks(world, 3.0)
    causes = Counter(holding.cause for holding in seen)
    assert world.rows_of.total() > 0.8 * 3.0 * shards * fraction * 1_000, "they are full"
    assert not causes["hot_shard"], causes
    assert causes["shard_rate"] >= 0.9 * len(seen), causes
    assert all(holding.by_records and not holding.throttled for holding in seen if holding.cause == "shard_rate")


@pytest.mark.promise("shards-full-few-none")
@STREAMS
def test_a_shard_with_a_hot_key_is_named_while_the_others_have_room(
    shards: int, fraction: float, limit_records: int
) -> None:
    """Also where the queue holds next to nothing for the others, as their callers wait for the hot one."""
    limit_records = min(limit_records, 8_000)
    world = loaded(World(shards=shards, shard_rate_fraction=fraction, limit_records=limit_records), hot=0.6)
    looks(world, 1.0)  # in which the queue fills
    hot = shard_of(world, HOT_KEY)
    for holding in looks(world, 5.0):
        assert (holding.cause, holding.shard_id, holding.throttled) == ("hot_shard", hot, False)
        assert holding.share > 0.8


def test_a_shard_is_hot_also_where_the_daemon_may_use_a_third_of_the_quota_and_another_is_paced_at_times() -> None:
    world = World(shards=4, shard_rate_fraction=0.3, limit_records=1_000)
    world.caller(lay_out([HOT_KEY] * 100, [b"x" * 90] * 100)).steady()
    hot = shard_of(world, HOT_KEY)
    cold = next(key for key in (b"key %d" % number for number in range(99)) if shard_of(world, key) != hot)
    world.caller(lay_out([cold] * 90, [b"x" * 90] * 90)).bursts(1, 0.5)
    assert {holding.cause for holding in looks(world, 3.0)} == {"hot_shard"}


def test_two_hot_shards_are_named_one_or_the_other() -> None:
    world = World(shards=16, limit_records=2_000)
    keys = [b"hot 1", b"hot 2", *[b"key %d" % number for number in range(30)]]
    assert len({shard_of(world, key) for key in keys[:2]}) == 2
    random = Random(1)
    for _ in range(4):
        drawn = random.choices(keys, [20, 20] + [1] * 30, k=100)
        world.caller(lay_out(drawn, [b"x" * 90] * 100)).steady()
    looks(world, 1.0)
    hot = {shard_of(world, key) for key in keys[:2]}
    assert all(holding.cause == "hot_shard" and holding.shard_id in hot for holding in looks(world, 4.0))


@pytest.mark.promise("shards-full-few-none")
def test_a_shard_that_another_producer_fills_is_named_though_keys_are_even() -> None:
    """The callers wait for it, so that the others store no more than it does, and have room."""
    world = loaded(World(shards=4, limit_records=1_000))
    body = orjson.dumps({**ADDRESS, "Records": [{"Data": "eA==", "PartitionKey": HOT_KEY.decode()}] * 48})

    def put() -> None:
        world.kinesis.handle("PutRecords", body, world.now)
        world.after(0.05, put)

    put()
    looks(world, 4.0)
    seen = looks(world, 4.0)
    named = [holding for holding in seen if holding.cause == "hot_shard"]
    assert {holding.shard_id for holding in named} == {shard_of(world, HOT_KEY)}
    assert len(named) >= 0.9 * len(seen)
    assert sum([holding.throttled for holding in named]) >= 0.9 * len(named)


def test_the_only_shard_is_never_hot() -> None:
    """Where there is nothing to spread keys over, more shards are the answer."""
    world = loaded(World(shards=1, limit_records=1_000), hot=0.9)
    assert {holding.cause for holding in looks(world, 2.0)} == {"shard_rate"}


def test_a_queue_of_which_more_than_half_has_no_answer_waits_for_answers() -> None:
    desk = Desk()
    desk.queue(10)
    desk.send()
    desk.queue(9)
    assert desk.holding().cause == "in_flight"
    desk.queue(1)
    assert desk.holding().cause == "daemon"


def test_slow_answers_are_named_where_no_slow_shard_may_have_another_request() -> None:
    world = World(shards=4, limit_records=1_000)
    world.kinesis.latency_seconds = (2.0, 3.0)
    causes = Counter(holding.cause for holding in looks(loaded(world), 20.0))
    assert causes["in_flight"] >= 0.9 * causes.total(), causes


def facts(**known: Any) -> Facts:
    unused = Limit(0, 1)
    nothing: dict[str, Any] = {
        "stream": "flights",
        "refused_as": None,
        "failed_as": "",
        "shards": 4,
        "silent_shards": 0,
        "map_error": "",
        "aggregates": False,
        "goes_plain": False,
        "is_full": False,
        "used_records": 1_000,
        "used_bytes": 100_000,
        "queues": unused,
        "in_flight": None,
    }
    return Facts(**(nothing | known))


TOLD: list[tuple[Holding, dict[str, Any]]] = [
    (Holding("service"), {"failed_as": Code.UNREACHABLE}),
    (Holding("service"), {"failed_as": Code.UNREACHABLE, "silent_shards": 1}),
    (Holding("service"), {"failed_as": Code.UNREACHABLE, "silent_shards": 4}),
    (Holding("service"), {"failed_as": Code.THROTTLED}),
    (Holding("service"), {"failed_as": "InternalFailure"}),
    (Holding("service"), {"failed_as": Code.PROXY_REFUSED}),
    (Holding("hot_shard", "shard-7", 0.876), {}),
    (Holding("hot_shard", "shard-7", 0.5, throttled=True), {}),
    (Holding("shard_rate", by_records=True, throttled=True), {}),
    (Holding("shard_rate"), {}),
    (Holding("shard_map"), {"goes_plain": True, "map_error": "InternalFailure: m"}),
    (Holding("shard_map"), {"map_error": "InternalFailure: m"}),
    (Holding("shard_map"), {}),
    (Holding("in_flight"), {"in_flight": Limit(1_234_567, 2_000_000)}),
    (Holding("in_flight"), {}),
    (Holding("daemon"), {"in_flight": Limit(1, 2)}),
    (Holding("daemon", throttled=True), {}),
    (Holding("daemon"), {"is_full": True}),
    (Holding("service"), {"used_records": 0, "failed_as": Code.UNREACHABLE}),
    (Holding("paused"), {"is_full": True}),
    (Holding("node_limit"), {"is_full": True, "queues": Limit(1_234_567, 2_000_000)}),
    (Holding("paused"), {"refused_as": (Code.UNREACHABLE, "no route to host")}),
    (Holding("service"), {"refused_as": (Code.ACCESS_DENIED, "not authorized"), "is_full": True}),
]


def test_each_cause_is_told_in_a_sentence_with_what_to_do(snapshot: Snapshot) -> None:
    lines = [f"{holding.cause}: {sentence(holding, facts(**known))}\n" for holding, known in TOLD]
    snapshot("holding", "".join(lines))


@pytest.mark.parametrize(
    ("known", "advice"),
    [
        ({}, '; aggregation = "kpl" would send up to 10 times more'),
        (
            {"used_records": 4, "used_bytes": 2_048},
            '; aggregation = "kpl" would send up to 2 times more',
        ),
        ({"used_records": 4, "used_bytes": 2_049}, ""),
        ({"used_records": 0, "used_bytes": 0}, ""),
        ({"aggregates": True}, ""),
    ],
)
def test_aggregation_is_advised_if_it_sends_at_least_twice_as_much(known: dict[str, Any], advice: str) -> None:
    """A shard takes 1,000 records a second, of 1 KiB each if it takes its 1 MiB."""
    words = "the shards take no more, each 1 MiB/s and 1,000 records/s: add shards"
    assert sentence(Holding("shard_rate", by_records=True), facts(**known)) == words + advice
