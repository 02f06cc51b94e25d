"""Every hash key belongs to exactly one open shard, and a row is found there by exact arithmetic on 128 bits."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from producerd.core.shards import (
    MAX_HASH_KEY,
    Shard,
    ShardMap,
    hash_keys,
    map_from_listing,
    one_lane,
    parse_hash_keys,
)
from producerd.testing import FakeKinesis

EDGES_64 = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]


def map_of(starts: list[int]) -> ShardMap:
    ends = [*(start - 1 for start in starts[1:]), MAX_HASH_KEY]
    return ShardMap(Shard(f"shard-{i}", start, end) for i, (start, end) in enumerate(zip(starts, ends, strict=True)))


def locate(shard_map: ShardMap, numbers: list[int]) -> list[int]:
    high = np.array([number >> 64 for number in numbers], np.uint64)
    low = np.array([number & 2**64 - 1 for number in numbers], np.uint64)
    return [int(index) for index in shard_map.locate(high, low)]


def owner(shard_map: ShardMap, number: int) -> int:
    """The oracle: look at every shard."""
    (found,) = [i for i, shard in enumerate(shard_map.shards) if shard.start <= number <= shard.end]
    return found


def random_starts(random: Random) -> list[int]:
    """Uneven maps, many with boundaries that share their high half, or sit at its edges."""
    starts = {0}
    for _ in range(random.randint(0, 12)):
        high = random.choice([random.getrandbits(64), *EDGES_64])
        for _ in range(random.randint(1, 4)):
            starts.add(high << 64 | random.choice([random.getrandbits(64), *EDGES_64]))
    return sorted(starts)


@pytest.mark.law("ShardMap")
def test_locate_agrees_with_big_integers_for_uneven_maps() -> None:
    for seed in range(400):
        random = Random(seed)
        starts = random_starts(random)
        shard_map = map_of(starts)
        numbers = [random.getrandbits(128) for _ in range(20)]
        for start in starts:
            numbers += [start + step for step in (-1, 0, 1) if 0 <= start + step <= MAX_HASH_KEY]
            numbers += [(start >> 64) << 64 | random.choice(EDGES_64), (start >> 64) << 64 | random.getrandbits(64)]
        numbers += [0, MAX_HASH_KEY]
        assert locate(shard_map, numbers) == [owner(shard_map, number) for number in numbers], f"seed {seed}"
        assert [shard_map.locate_one(number) for number in numbers] == [owner(shard_map, n) for n in numbers]


@pytest.mark.law("ShardMap")
@pytest.mark.parametrize("shards", [1, 2, 3, 5, 7, 64, 1_000])
def test_even_maps_as_the_service_makes_them_are_located_exactly_at_every_edge(shards: int) -> None:
    starts = [i * 2**128 // shards for i in range(shards)]
    shard_map = map_of(starts)
    numbers = [number for start in starts for number in (start, (start - 1) % 2**128)]
    expected = [place for i in range(shards) for place in (i, (i - 1) % shards)]
    assert locate(shard_map, numbers) == expected


@pytest.mark.law("ShardMap")
def test_a_map_covers_every_hash_key_once_or_it_is_refused() -> None:
    for seed in range(300):
        random = Random(seed)
        shards = list(map_of(random_starts(random)).shards)
        random.shuffle(shards)
        good = ShardMap(shards)
        assert good.shards[0].start == 0
        assert good.shards[-1].end == MAX_HASH_KEY
        assert all(a.end + 1 == b.start for a, b in pairwise(good.shards))
        broken = list(shards)
        victim = random.randrange(len(broken))
        shard = broken[victim]
        match random.randrange(4):
            case 0:
                del broken[victim]
            case 1:
                broken.append(Shard("twice", shard.start, shard.end))
            case 2:
                end = shard.end - 1
                broken[victim] = Shard(shard.shard_id, shard.start, end)
            case 3:
                broken[victim] = Shard(shard.shard_id, shard.start, shard.end + 1)
        with pytest.raises(ValueError, match="hash key"):
            ShardMap(broken)


@pytest.mark.law("ShardMap")
@pytest.mark.parametrize(
    "shards",
    [
        [],
        [Shard("a", 1, MAX_HASH_KEY)],
        [Shard("a", 0, MAX_HASH_KEY - 1)],
        [Shard("a", 0, MAX_HASH_KEY + 1)],
        [Shard("a", 0, -1), Shard("b", 0, MAX_HASH_KEY)],
        [Shard("a", 0, 10), Shard("b", 12, MAX_HASH_KEY)],
        [Shard("a", 0, 10), Shard("b", 10, MAX_HASH_KEY)],
    ],
)
def test_gaps_and_overlaps_are_refused(shards: list[Shard]) -> None:
    with pytest.raises(ValueError, match="hash key"):
        ShardMap(shards)


def test_the_stand_in_while_the_shards_are_not_known_owns_everything() -> None:
    assert locate(one_lane(), [0, 2**127, MAX_HASH_KEY]) == [0, 0, 0]
    assert one_lane().shards[0].shard_id == ""


def test_maps_are_values_and_know_their_shards_by_id() -> None:
    shard_map = map_of([0, 2**127])
    assert shard_map == map_of([0, 2**127])
    assert hash(shard_map) == hash(map_of([0, 2**127]))
    assert shard_map != map_of([0, 2**126])
    assert shard_map.get("shard-1") == Shard("shard-1", 2**127, MAX_HASH_KEY)
    assert shard_map.get("shard-2") is None
    assert len(shard_map) == 2


@pytest.mark.law("ShardMap")
def test_a_listing_of_several_pages_gives_the_open_shards() -> None:
    import orjson

    kinesis = FakeKinesis()
    stream = kinesis.create_stream("s", 5)
    split = stream.split_shard("shardId-000000000002")
    merged = stream.merge_shards("shardId-000000000000", "shardId-000000000001")
    pages, request = [], {"StreamName": "s", "MaxResults": 3}
    while True:
        pages.append(orjson.loads(kinesis.handle("ListShards", orjson.dumps(request), 0.0).body))
        if "NextToken" not in pages[-1]:
            break
        request = {"NextToken": pages[-1]["NextToken"], "MaxResults": 3}
    assert len(pages) == 3
    shard_map = map_from_listing(pages)
    names = [shard.shard_id for shard in shard_map.shards]
    assert names == [merged, *split, "shardId-000000000003", "shardId-000000000004"]
    with pytest.raises(ValueError, match="hash key"):
        map_from_listing(pages[:1])


def test_hash_keys_are_the_md5_of_the_key_as_a_big_endian_number() -> None:
    random = Random(1)
    keys = [b"", b"k", "é€😀".encode(), *(random.randbytes(random.randint(1, 300)) for _ in range(500))]
    ends = np.cumsum([0, *map(len, keys)]).astype(np.int32)
    high, low = hash_keys(memoryview(b"".join(keys)), ends)
    for row, key in enumerate(keys):
        expected = int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest(), "big")
        assert int(high[row]) << 64 | int(low[row]) == expected
    assert high.dtype == low.dtype == np.uint64


def test_explicit_hash_keys_are_read_as_numbers_and_absent_ones_are_0() -> None:
    random = Random(2)
    numbers = [0, 1, 2**64 - 1, 2**64, MAX_HASH_KEY, *(random.getrandbits(random.randint(1, 128)) for _ in range(300))]
    texts = [b"%d" % number for number in numbers] + [b""]
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    high, low = parse_hash_keys(memoryview(b"".join(texts)), ends)
    assert [int(h) << 64 | int(lo) for h, lo in zip(high, low, strict=True)] == [*numbers, 0]
