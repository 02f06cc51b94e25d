"""Every hash key belongs to exactly one open shard, which exact arithmetic on 128 bits finds."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from itertools import pairwise
from math import inf
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from producerd.core.shards import md5
from producerd.core.shards.hash_keys import MAX_HASH_KEY, hash_keys, parse_hash_keys
from producerd.core.shards.knowledge import KnownShards
from producerd.core.shards.shard_map import ONE_LANE, Shard, ShardMap, map_from_listing
from producerd.errors import Code
from producerd.testing import FakeKinesis, hash_of

pytestmark = pytest.mark.law("ShardMap")

U64 = npt.NDArray[np.uint64]
EDGES_64 = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]


def map_of(starts: list[int]) -> ShardMap:
    ends = [*(start - 1 for start in starts[1:]), MAX_HASH_KEY]
    return ShardMap(Shard(f"shard-{i}", start, end) for i, (start, end) in enumerate(zip(starts, ends, strict=True)))


HALF = st.one_of(st.sampled_from(EDGES_64), st.integers(0, 2**64 - 1))
HASH_KEY = st.builds(lambda high, low: high << 64 | low, HALF, HALF)
STARTS = st.lists(HASH_KEY, max_size=40).map(lambda found: sorted({0, *found}))
"""Uneven maps, many with boundaries that share their high half, or sit at its edges."""


def columns_of(numbers: list[int]) -> tuple[U64, U64]:
    high = np.array([number >> 64 for number in numbers], np.uint64)
    low = np.array([number & 2**64 - 1 for number in numbers], np.uint64)
    return high, low


def locate(shard_map: ShardMap, numbers: list[int]) -> list[int]:
    return [int(index) for index in shard_map.locate(*columns_of(numbers))]


def owner(shard_map: ShardMap, number: int) -> int:
    """The oracle: look at every shard."""
    (found,) = [i for i, shard in enumerate(shard_map.shards) if shard.start <= number <= shard.end]
    return found


@settings(max_examples=80)
@given(STARTS, st.lists(HASH_KEY))
def test_locate_agrees_with_big_integers_for_uneven_maps(starts: list[int], others: list[int]) -> None:
    shard_map = map_of(starts)
    edges = [start + step for start in starts for step in (-1, 0, 1) if 0 <= start + step <= MAX_HASH_KEY]
    same_high_half = [start >> 64 << 64 | number & 2**64 - 1 for start, number in zip(starts, others, strict=False)]
    numbers = [*edges, *same_high_half, *others, MAX_HASH_KEY]
    expected = [owner(shard_map, number) for number in numbers]
    assert locate(shard_map, numbers) == expected
    assert [shard_map.locate_one(number) for number in numbers] == expected


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 7, 64, 1_000])
def test_even_maps_as_the_service_makes_them_are_located_exactly_at_every_edge(shards: int) -> None:
    starts = [i * 2**128 // shards for i in range(shards)]
    shard_map = map_of(starts)
    numbers = [number for start in starts for number in (start, (start - 1) % 2**128)]
    expected = [place for i in range(shards) for place in (i, (i - 1) % shards)]
    assert locate(shard_map, numbers) == expected


@given(STARTS, st.randoms(use_true_random=True), st.sampled_from(["gone", "twice", "shorter", "longer"]))
def test_a_map_covers_every_hash_key_once_or_it_is_refused(starts: list[int], random: Random, damage: str) -> None:
    shards = list(map_of(starts).shards)
    random.shuffle(shards)
    good = ShardMap(shards)
    assert (good.shards[0].start, good.shards[-1].end) == (0, MAX_HASH_KEY)
    assert all(a.end + 1 == b.start for a, b in pairwise(good.shards))
    shard = shards.pop()
    if damage == "twice":
        shards += [shard, Shard("twice", shard.start, shard.end)]
    elif damage != "gone":
        shards.append(Shard(shard.shard_id, shard.start, shard.end + (1 if damage == "longer" else -1)))
    with pytest.raises(ValueError, match="hash key"):
        ShardMap(shards)


@pytest.mark.parametrize(
    "shards",
    [[], [Shard("a", 1, MAX_HASH_KEY)], [Shard("a", 0, -1), Shard("b", 0, MAX_HASH_KEY)]],
    ids=["no shard", "the first hash key is missing", "an empty range"],
)
def test_gaps_and_overlaps_are_refused(shards: list[Shard]) -> None:
    with pytest.raises(ValueError, match="hash key"):
        ShardMap(shards)


def test_a_map_that_ends_early_is_refused_with_its_last_hash_key() -> None:
    with pytest.raises(ValueError, match=r"end at hash key 41$"):
        ShardMap([Shard("a", 0, 41)])


def listing_of(shard_id: object = "a", start: object = "0", end: object = str(MAX_HASH_KEY)) -> list[dict[str, Any]]:
    keys = {"StartingHashKey": start, "EndingHashKey": end}
    return [{"Shards": [{"ShardId": shard_id, "HashKeyRange": keys}]}]


@pytest.mark.parametrize("shard_id", ["a", "a" * 128])
def test_a_listing_names_shards_by_texts_of_up_to_128_characters(shard_id: str) -> None:
    assert map_from_listing(listing_of(shard_id)) == ShardMap([Shard(shard_id, 0, MAX_HASH_KEY)])


@pytest.mark.parametrize(
    "listed",
    [
        *({"shard_id": shard_id} for shard_id in ("", "a" * 129, None, 7, ["a"])),
        *({"start": start} for start in ("", "+0", " 0", "0_0", "-0", "\u0660", 0, None)),
        {"end": f"+{MAX_HASH_KEY}"},
    ],
    ids=repr,
)
def test_a_listing_with_other_ids_or_hash_keys_is_refused(listed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="in what is listed"):
        map_from_listing(listing_of(**listed))


def test_the_stand_in_while_the_shards_are_not_known_owns_everything() -> None:
    assert locate(ONE_LANE, [0, 2**127, MAX_HASH_KEY]) == [0, 0, 0]
    assert ONE_LANE.shards[0].shard_id == ""


def test_maps_are_values_and_know_their_shards_by_id() -> None:
    shard_map = map_of([0, 2**127])
    assert shard_map == map_of([0, 2**127])
    assert hash(shard_map) == hash(map_of([0, 2**127]))
    assert shard_map != map_of([0, 2**126])
    assert shard_map != shard_map.shards
    assert shard_map.get("shard-1") == Shard("shard-1", 2**127, MAX_HASH_KEY)
    assert shard_map.get("shard-2") is None
    assert len(shard_map) == 2


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


@pytest.mark.parametrize("longest", [md5.MOST_BYTES, md5.MOST_BYTES + 1, 3])
@pytest.mark.parametrize("count", [1, md5.LEAST_TEXTS - 1, md5.LEAST_TEXTS, 2 * md5.TEXTS_AT_ONCE + 1])
def test_hash_keys_are_the_md5_of_the_key_as_a_big_endian_number(count: int, longest: int) -> None:
    """Many short keys are hashed as columns.  Offsets begin anywhere."""
    random = Random(count + longest)
    keys = [random.randbytes(random.randint(0, longest)) for _ in range(count)]
    keys[count // 2] = b"\xff" * longest
    ends = np.cumsum([7, *map(len, keys)]).astype(np.int32)
    halves = hash_keys(memoryview(b"before " + b"".join(keys) + b"after"), ends)
    digests = np.frombuffer(b"".join(hashlib.md5(key).digest() for key in keys), ">u8").reshape(-1, 2)
    for half, expected in zip(halves, digests.T, strict=True):
        assert half.dtype == np.uint64
        assert (half == expected).all()


@given(st.lists(HASH_KEY))
def test_explicit_hash_keys_are_read_as_numbers_and_absent_ones_are_0(numbers: list[int]) -> None:
    texts = [b"", *[b"%d" % number for number in numbers], b""]
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    found = parse_hash_keys(memoryview(b"".join(texts)), ends)
    for half, expected in zip(found, columns_of([0, *numbers, 0]), strict=True):
        assert half.tolist() == expected.tolist()


# ---- what an answer may be believed by

MIDDLE = 2**127


def halves(first: str = "low", second: str = "high") -> ShardMap:
    return ShardMap([Shard(first, 0, MIDDLE - 1), Shard(second, MIDDLE, MAX_HASH_KEY)])


def quarters() -> ShardMap:
    """The low half was split once more."""
    quarter = MIDDLE // 2
    return ShardMap([Shard("a", 0, quarter - 1), Shard("b", quarter, MIDDLE - 1), Shard("high", MIDDLE, MAX_HASH_KEY)])


class RequestInFlight:
    """Any object that can be hashed stands for a request."""


def known_from(shard_map: ShardMap, now: float = 0.0) -> KnownShards:
    known = KnownShards(Random(1), aggregates=True)
    known.learn_map(shard_map, now, asked_at=now, in_flight=())
    return known


@pytest.mark.parametrize(("end", "wanted"), [(KnownShards.forget_stream, True), (KnownShards.rest, False)])
def test_a_map_is_gone_with_its_stream_or_after_an_idle_time(end: Callable[[KnownShards], None], wanted: bool) -> None:
    known, request = known_from(map_of([0])), RequestInFlight()
    known.learn_map(halves(), 1.0, asked_at=1.0, in_flight=[request])
    known.refute()
    known.not_read("InternalFailure", "m", 2.0, 9.0)
    assert known.is_blind
    end(known)
    assert [known.get(shard_id) for shard_id in ("shard-0", "low")] == [None, None]
    assert (known.map, known.doubted, known.is_blind) == (None, False, False)
    kept = weakref.ref(request)
    del request
    assert kept() is None, "it would keep the request's body"
    assert known.wanted is wanted
    assert known.error == ("InternalFailure: m" if wanted else "")
    known.seen_storing(100.0, 200.0)
    assert not known.doubted, "there is nothing to doubt"
    known.learn_map(map_of([0, 7]), 202.0, asked_at=202.0, in_flight=())
    assert known.get("low") is None


def test_shards_that_close_one_after_the_other_are_kept_for_the_requests_of_their_time() -> None:
    """A request from before the first split may be answered by the parent or by a child that is closed, too."""
    known = known_from(map_of([0]))
    known.learn_map(halves(), 1.0, asked_at=1.0, in_flight=["old"])
    known.learn_map(quarters(), 2.0, asked_at=2.0, in_flight=["old", "young"])
    for shard_id in ("shard-0", "low", "a", "high"):
        assert known.get(shard_id) is not None
    known.request_ended("old")
    assert known.get("low") is not None
    known.request_ended("young")
    assert (known.get("shard-0"), known.get("low")) == (None, None)


def test_a_map_that_contradicts_is_of_another_stream_and_nothing_of_the_first_is_kept() -> None:
    known = known_from(halves("shard-0", "shard-1"))
    known.learn_map(map_of([0, 7]), 1.0, asked_at=1.0, in_flight=["old"])
    assert known.get("shard-0") == Shard("shard-0", 0, 6)
    known = known_from(halves("shard-0", "shard-1"))
    known.learn_map(map_of([0]), 1.0, asked_at=1.0, in_flight=["old"])
    assert known.get("shard-0") == Shard("shard-0", 0, MAX_HASH_KEY)
    assert known.get("shard-1") is None
    known = known_from(map_of([0]))
    known.learn_map(halves(), 1.0, asked_at=1.0, in_flight=["old"])
    other = ShardMap([Shard("low", 0, 5), Shard("x", 6, MAX_HASH_KEY)])
    known.learn_map(other, 2.0, asked_at=2.0, in_flight=["old"])
    assert [known.get(shard_id) for shard_id in ("shard-0", "high", "low")] == [None, None, Shard("low", 0, 5)]


def test_an_answer_that_was_stored_long_before_it_is_told_of_does_not_turn_time_back() -> None:
    known = known_from(halves(), now=100.0)
    known.seen_storing(110.0, 110.0)
    known.seen_storing(105.0, 111.0)
    known.seen_storing(129.0, 129.0)
    assert not known.doubted


def test_a_failure_of_the_stream_itself_says_nothing_of_its_list() -> None:
    known = known_from(halves())
    known.refute()
    known.not_read(Code.UNREACHABLE, "", 1.0, wait_seconds=10.0)
    known.not_read("ExpiredTokenException", "", 2.0, wait_seconds=10.0, concerns_stream=True)
    assert known.is_blind


@example(0, MAX_HASH_KEY, [], 1)
@given(HASH_KEY, HASH_KEY, st.lists(HASH_KEY, max_size=3), st.integers(-1, 1))
def test_a_shard_says_whether_its_range_holds_all_of_some_hash_keys(
    one: int, other: int, numbers: list[int], step: int
) -> None:
    start, end = sorted((one, other))
    numbers = [number for number in (start - step, *numbers, end + step) if 0 <= number <= MAX_HASH_KEY]
    shard = Shard("s", start, end)
    inside = all(start <= number <= end for number in numbers)
    assert shard.holds(*columns_of(numbers)) == inside
    assert shard.holds(*columns_of([start, (start + end) // 2, end]))
    assert not numbers or shard.covers(min(numbers), max(numbers)) == inside


@pytest.mark.parametrize(("silence_seconds", "doubted"), [(20.0, False), (20.001, True)])
def test_a_map_is_doubted_after_a_longer_silence_than_a_stream_can_be_made_anew_in(
    silence_seconds: float, doubted: bool
) -> None:
    known = KnownShards(Random(1), aggregates=True)
    known.learn_map(ONE_LANE, 100.0, asked_at=100.0, in_flight=[])
    known.seen_storing(100.0, 100.0 + silence_seconds)
    assert known.doubted is doubted


def test_a_denied_reading_of_a_map_that_is_not_in_doubt_does_not_shorten_the_silence() -> None:
    known = known_from(halves(), now=0.0)
    known.not_read("AccessDeniedException", "", 15.0, wait_seconds=10.0)
    known.seen_storing(30.0, 30.0)
    assert known.doubted


def test_failures_to_read_a_list_that_is_known_begin_no_wait() -> None:
    known = known_from(halves(), now=0.0)
    known.not_read("LimitExceededException", "m", 1.0, 9.0)
    assert known.next_time(of_refusal=False) == inf
    known.forget_stream()
    assert known.for_sorting(100.0, 10.0) is None
    assert known.next_time(of_refusal=False) == 110.0


@pytest.mark.parametrize(
    ("short", "long", "as_columns"),
    [
        (md5.LEAST_TEXTS - 1, 0, False),
        (md5.LEAST_TEXTS - 1, 9, False),
        (md5.LEAST_TEXTS, 0, True),
        (md5.LEAST_TEXTS, 9, True),
    ],
)
def test_many_short_keys_are_hashed_as_columns_and_long_ones_among_them_one_by_one(
    short: int, long: int, as_columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []
    really = md5.digests

    def digests(texts: Any, offsets: Any) -> Any:
        hashed.append(len(offsets) - 1)
        return really(texts, offsets)

    monkeypatch.setattr(md5, "digests", digests)
    keys = [b"%d" % number for number in range(short - 1)] + [b"k" * md5.MOST_BYTES]
    for number in range(long):
        keys.insert(100 * number, b"%d" % number * (md5.MOST_BYTES + 1))
    found = hash_keys(memoryview(b"".join(keys)), np.cumsum([0, *map(len, keys)]).astype(np.int32))
    numbers = [int(high) << 64 | int(low) for high, low in zip(*found, strict=True)]
    assert numbers == [hash_of(key.decode(), None) for key in keys]
    assert hashed == [short + long] * as_columns


@pytest.mark.parametrize("length", [0, 1, 3, 4, 51, 52, md5.MOST_BYTES])
def test_texts_that_are_all_as_long_are_hashed_like_others(length: int) -> None:
    random = Random(length)
    texts = [random.randbytes(length) for _ in range(100)]
    high, low = md5.digests(b"".join(texts), np.arange(0, 101 * length, length) if length else np.zeros(101, np.int32))
    found = [int(h) << 64 | int(lo) for h, lo in zip(high, low, strict=True)]
    assert found == [int.from_bytes(hashlib.md5(text, usedforsecurity=False).digest(), "big") for text in texts]
