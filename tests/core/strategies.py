"""What hypothesis draws for the core: rows, the spans that encoders take, rules, and records inside aggregates."""

from __future__ import annotations

from operator import itemgetter

from hypothesis import strategies as st

from producerd.core.kpl.aggregation import InnerRecord
from producerd.core.rows.spans import RAW_FROM_STRAYS
from producerd.core.rules import EntryRules
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from tests.core.pieces import SPECIAL_KEYS, Numbered, pieces_of
from tests.core.rows import Row
from tests.simulation.setting import make_rules

EACH_ITS_OWN = b"a key for each"
"""Stands for as many keys as there are rows."""
KEYS = st.sampled_from([EACH_ITS_OWN, EACH_ITS_OWN, b"k0", b"k1", b"k0", None, b"", b"y" * 127, b"z" * 128, b"x" * 256])
ANY_KEYS = KEYS | st.sampled_from(SPECIAL_KEYS)
HASH_KEYS = st.integers(0, MAX_HASH_KEY).map(lambda number: b"%d" % number)
GIVEN_HASH_KEYS = st.sampled_from([None, None, None, b"", b"0", b"%d" % MAX_HASH_KEY]) | HASH_KEYS
SIZES = st.sampled_from([0, 1, 2, 3, 4, 60, 61, 62, 126, 127, 128, 129, 300, 1_000, 5_000, 16_383, 16_384])
COUNTS = st.sampled_from([1, 1, 2, 3, 47, 48, 130])


def data_of(number: int, size: int) -> bytes:
    """Bytes of this size, others for each number."""
    return (b"%d:" % number * (size // 2 + 1))[:size]


@st.composite
def some_rows(
    draw: st.DrawFn,
    *,
    keys: st.SearchStrategy[bytes | None] = ANY_KEYS,
    sizes: st.SearchStrategy[int] = SIZES,
    hash_keys: st.SearchStrategy[bytes | None] = GIVEN_HASH_KEYS,
) -> list[Row]:
    """Some runs of rows that are alike except their data."""
    rows: list[Row] = []
    plain = draw(st.booleans())
    for key, size, count, hash_key in draw(st.lists(st.tuples(keys, sizes, COUNTS, hash_keys), min_size=1, max_size=6)):
        for number in range(len(rows), len(rows) + min(count, 1 + 200_000 // (size + 1))):
            own = b"key %d" % number if key == EACH_ITS_OWN else key
            rows.append((own, data_of(number, size), None if plain else hash_key))
    return rows


@st.composite
def pieces(draw: st.DrawFn) -> Numbered:
    """Rows of one lane or of many, of one job or of two: a lane has several spans then, or comes twice."""
    shards = draw(st.sampled_from([1, 1, 3, 20]))
    found = pieces_of(draw(some_rows()), shards)
    if draw(st.booleans()):
        found += pieces_of(draw(some_rows()), shards)
        if draw(st.booleans()):
            found.sort(key=itemgetter(0))
    strays = draw(st.lists(st.sampled_from([0, 0, RAW_FROM_STRAYS]), min_size=1, max_size=4))
    return [(lane, span._replace(strays=strays[at % len(strays)])) for at, (lane, span) in enumerate(found)]


@st.composite
def entry_rules(draw: st.DrawFn) -> EntryRules:
    return make_rules(
        aggregate=draw(st.booleans()),
        aggregate_max_bytes=draw(st.sampled_from([40, 200, 2_000, 51_200, 1 << 20])),
        aggregate_max_records=draw(st.sampled_from([1, 2, 7, 2**32 - 1])),
        request_max_records=draw(st.sampled_from([1, 3, 60, 500])),
        request_max_bytes=draw(st.sampled_from([10, 3_000, 1 << 20])),
        per_key=draw(st.sampled_from([False, False, False, True])),
    ).entries


@st.composite
def inner_records(draw: st.DrawFn, *, tag: bytes = b"", max_runs: int = 5) -> list[InnerRecord]:
    """Records of an aggregate, some of them alike except their data, which begins with ``tag`` if it has any."""
    key = st.sampled_from([EACH_ITS_OWN, b"k0", b"k1", "é€😀".encode(), "é€😀".encode() * 60, b"x" * 256, b'"\\\x00'])
    hash_key = st.sampled_from([None, None, b"0", b"7"]) | HASH_KEYS
    size, count = st.sampled_from([0, 1, 127, 128, 300, 16_384]), st.sampled_from([1, 1, 2, 30])
    found: list[InnerRecord] = []
    for drawn, hashed, length, times in draw(
        st.lists(st.tuples(key, hash_key, size, count), min_size=1, max_size=max_runs)
    ):
        for number in range(len(found), len(found) + (times if length < 1_000 else 2)):
            own = b"key %d" % number if drawn == EACH_ITS_OWN else drawn
            prefix = tag + b"/%d:" % number if tag else b""
            found.append(InnerRecord(own, hashed, prefix + data_of(number, length)))
    return found
