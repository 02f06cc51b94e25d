"""An entry counts as delivered only if a consumer receives it: the answer's shard must match the known shards."""

from __future__ import annotations

import base64
from random import Random

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.core.encoding.entries import encode
from producerd.core.kpl.aggregation import InnerRecord, parse
from producerd.core.lanes.lane import Lane
from producerd.core.lanes.taken import Taken
from producerd.core.rows import intake
from producerd.core.rows.spans import Span
from producerd.core.sending.answers import Answer
from producerd.core.sending.judging import STORED, STRAYED, UNSURE, Judgement, judge
from producerd.core.sending.requests import Request
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.knowledge import KnownShards
from producerd.core.shards.shard_map import Shard, ShardMap
from tests.core.given import aggregate_of, body_of
from tests.core.rows import Row, even_map, rows_of, sorted_of
from tests.core.stories import HALVES, HIGH, LOW
from tests.simulation.setting import ADDRESS, make_rules

pytestmark = pytest.mark.law("ShardMap")

THROTTLED = ("ProvisionedThroughputExceededException", "m")
BROKEN = ("InternalFailure", "m")


def known_from(shard_map: ShardMap) -> KnownShards:
    known = KnownShards(Random(1), aggregates=True)
    known.learn_map(shard_map, 0.0, asked_at=0.0, in_flight=())
    return known


def encoded(
    spans: list[tuple[int, Span]], shard_map: ShardMap, *, aggregate: bool = True, aggregate_max_bytes: int = 51_200
) -> Request:
    """A request of sorted rows, encoded and on its way."""
    lanes = [Lane(shard, None) for shard in shard_map.shards]
    rules = make_rules(aggregate=aggregate, aggregate_max_bytes=aggregate_max_bytes).entries
    taken = Taken()
    for place, span in spans:
        taken.add_rows(lanes[place], [span], span.bytes, span.records, 0)
    request = Request(taken, shard_map)
    request.mark_sent(encode(ADDRESS, request.numbered, rules, shard_map=shard_map), 0.0, 6.0)
    return request


def answer(*results: str | tuple[str, str]) -> Answer:
    """Each a shard's id, or an error."""
    shards = list(dict.fromkeys([result for result in results if isinstance(result, str)]))
    errors = list(dict.fromkeys([result for result in results if not isinstance(result, str)]))
    return Answer(
        np.array([shards.index(result) if isinstance(result, str) else -1 for result in results], np.int32),
        tuple(shards),
        np.array([-1 if isinstance(result, str) else errors.index(result) for result in results], np.int32),
        tuple(errors),
        tuple([0] * len(shards)),
    )


def told(verdicts: Judgement) -> tuple[list[int], list[bool]]:
    return verdicts.classes.tolist(), verdicts.elsewhere.tolist()


def test_before_the_shards_are_known_nothing_is_elsewhere() -> None:
    nameless = ShardMap([Shard("", 0, MAX_HASH_KEY)])
    rows: list[Row] = [(b"k", b"1", b"1"), (b"k", b"2", b"2")]
    request = encoded(sorted_of([rows_of(rows)], nameless).spans, nameless, aggregate=False)
    known = KnownShards(Random(1), aggregates=True)
    assert told(judge(request, answer("shard-7", "shard-9"), known)) == ([STORED] * 2, [False] * 2)


# ---- rows that were aggregates themselves


def request_of_aggregates(users: list[list[InnerRecord]], shard_map: ShardMap) -> Request:
    rows = intake.check(body_of([aggregate_of(inside) for inside in users]), 1 << 20, takes_aggregates=True)
    return encoded(sorted_of([rows], shard_map).spans, shard_map)


TWO_AND_ONE = [InnerRecord(b"a", LOW, b"1"), InnerRecord(b"b", b"1", b"2"), InnerRecord(b"c", HIGH, b"3")]
"""In two shards: an aggregate of two, and one plain."""


@pytest.mark.parametrize(
    ("results", "verdict", "partly"),
    [
        (("shard-0", "shard-1"), STORED, False),
        (("shard-1", "shard-1"), STRAYED, False),
        (("shard-0", "anywhere"), STORED, False),
        (("anywhere", "shard-1"), UNSURE, False),
        ((THROTTLED, "shard-1"), 1, True),
        (("shard-0", THROTTLED), 1, True),
        ((THROTTLED, THROTTLED), 1, False),
        ((THROTTLED, BROKEN), 2, False),
        (("shard-1", THROTTLED), 1, True),
    ],
)
def test_a_row_that_was_an_aggregate_is_delivered_if_all_of_its_parts_are(
    results: tuple[str | tuple[str, str], ...], verdict: int, partly: bool
) -> None:
    request = request_of_aggregates([TWO_AND_ONE], even_map(2))
    assert request.encoded is not None
    assert request.encoded.ends.tolist() == [1, 1]
    verdicts = judge(request, answer(*results), known_from(even_map(2)))
    assert verdicts.classes.tolist() == [verdict] * 2, "all of its entries share the row's fate"
    assert verdicts.partly == ([0] if partly else [])
    assert not verdicts.elsewhere.any(), "only its first record decides its lane"


def test_in_doubt_no_part_is_believed() -> None:
    known = known_from(even_map(2))
    known.refute()
    request = request_of_aggregates([TWO_AND_ONE], even_map(2))
    assert judge(request, answer("shard-0", "shard-1"), known).classes.tolist() == [UNSURE] * 2


# ---- all of it, against an oracle


def expected(
    request: Request, results: list[str | tuple[str, str]], known: KnownShards
) -> tuple[list[int], list[bool]]:
    """Entry by entry, as the page says it."""
    assert request.encoded is not None
    entries = orjson.loads(request.encoded.body)["Records"]
    errors = list(dict.fromkeys([result for result in results if not isinstance(result, str)]))
    classes, elsewhere = [], []
    for entry, result, place in zip(entries, results, request.encoded.lanes.tolist(), strict=True):
        shard_of_lane = request.lanes[place].shard
        if not isinstance(result, str):
            classes.append(1 + errors.index(result))
            elsewhere.append(False)
            continue
        own = result == shard_of_lane.shard_id and known.get(result) == shard_of_lane
        elsewhere.append(not own)
        inside = parse(base64.b64decode(entry["Data"]))
        if inside is None or (own and not known.doubted):
            classes.append(STORED)
            continue
        shard = None if known.doubted else known.get(result)
        if shard is None:
            classes.append(UNSURE)
        else:
            good = all(shard.start <= user.hash_key <= shard.end for user in inside)
            classes.append(STORED if good else STRAYED)
    return classes, elsewhere


MAPS = st.sampled_from([even_map(1), even_map(2), even_map(3), HALVES])
EDGES = st.sampled_from([0, 1, 2**127 - 1, 2**127, MAX_HASH_KEY])
HASH_KEYS = st.lists(st.one_of(EDGES, st.integers(0, MAX_HASH_KEY)), min_size=1, max_size=20)


@settings(max_examples=150)
@given(
    frames=st.lists(HASH_KEYS, min_size=1, max_size=2),
    before=MAPS,
    after=st.none() | MAPS,
    is_refuted=st.sampled_from([False, False, False, True]),
    aggregate=st.sampled_from([True, True, False]),
    aggregate_max_bytes=st.sampled_from([60, 200, 51_200]),
    random=st.randoms(use_true_random=True),
)
def test_every_entry_is_judged_as_one_by_one(
    frames: list[list[int]],
    before: ShardMap,
    after: ShardMap | None,
    is_refuted: bool,
    aggregate: bool,
    aggregate_max_bytes: int,
    random: Random,
) -> None:
    """Also an aggregate of two frames' rows, and where an id means another range by now."""
    checked = [rows_of([(b"k", b"%d" % i, b"%d" % key) for i, key in enumerate(keys)]) for keys in frames]
    spans = [span for rows in checked for span in sorted_of([rows], before).spans]
    spans.sort(key=lambda numbered: numbered[0])
    request = encoded(spans, before, aggregate=aggregate, aggregate_max_bytes=aggregate_max_bytes)
    known = known_from(before)
    if after is not None:
        known.learn_map(after, 1.0, asked_at=1.0, in_flight=[request])
    if is_refuted:
        known.refute()
    assert request.encoded is not None
    names = [shard.shard_id for shard_map in (before, after) if shard_map for shard in shard_map.shards]
    likely = [request.lanes[place].shard.shard_id for place in request.encoded.lanes.tolist()]
    results = [
        random.choice([right, right, right, random.choice([*names, "unknown"]), random.choice([THROTTLED, BROKEN])])
        for right in likely
    ]
    assert told(judge(request, answer(*results), known)) == expected(request, results, known)
