"""The columnar encoder writes the same bytes as the loop over rows, whatever the rows and the bounds are.

Both read the same results out of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from functools import partial
from random import Random
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.core.encoding import columnar
from producerd.core.encoding.entries import EncodedRequest, encode
from producerd.core.encoding.formats import CBOR, JSON, Format
from producerd.core.encoding.gather import INLINE_BYTES, Texts
from producerd.core.encoding.row_columns import columns_of
from producerd.core.kpl.aggregation import AGGREGATE_KEY, Aggregate
from producerd.core.rows import intake
from producerd.core.rows.spans import RAW_FROM_STRAYS
from producerd.core.rules import EntryRules
from producerd.core.sending import answers
from producerd.core.sending.answers import Answer, parse_answer
from producerd.wire.columns import lay_out
from tests.core import sdk_bodies
from tests.core.pieces import FORMATS, Numbered, check_body, drop, pieces_of
from tests.core.rows import Row, even_map, sorted_of
from tests.core.strategies import entry_rules, pieces
from tests.runtime.odd_answers import mutated
from tests.simulation.setting import ADDRESS, make_body, make_rules

ROOMY = 10 << 20
"""Bytes of a request that holds all of these rows."""


def by_loop(pieces: Numbered, rules: EntryRules, aggregate_bytes: Sequence[int] = (), **format_: Any) -> EncodedRequest:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "LEAST_ROWS", 1 << 30)
        patch.setattr(columnar, "LEAST_AGGREGATED_ROWS", 1 << 30)
        return encode(ADDRESS, pieces, rules, aggregate_bytes, **format_)


def by_columns(
    pieces: Numbered,
    rules: EntryRules,
    aggregate_bytes: Sequence[int] = (),
    least_rows_of_aggregate: int = 0,
    **format_: Any,
) -> EncodedRequest:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "LEAST_ROWS", 1)
        patch.setattr(columnar, "LEAST_AGGREGATED_ROWS", 1)
        patch.setattr(columnar, "LEAST_ROWS_OF_AGGREGATE", least_rows_of_aggregate)
        patch.setattr(columnar, "MOST_ROW_BYTES", 1 << 30)
        patch.setattr(columnar, "MOST_AGGREGATED_BYTES", 1 << 30)
        return encode(ADDRESS, pieces, rules, aggregate_bytes, **format_)


def by_both(
    pieces: Numbered, rules: EntryRules, aggregate_bytes: Sequence[int] = (), least: int = 0, **format_: Any
) -> EncodedRequest:
    """What the loop writes, after a comparison with the columns."""
    loop = by_loop(pieces, rules, aggregate_bytes, **format_)
    columns = by_columns(pieces, rules, aggregate_bytes, least, **format_)
    for name in ("body", "sha256", "content_type", "fragments"):
        assert getattr(columns, name) == getattr(loop, name)
    for name in ("ends", "lanes", "sizes"):
        assert getattr(columns, name).tolist() == getattr(loop, name).tolist()
    return loop


LIMITS = st.lists(st.sampled_from([0, 0, 0, 0, 41, 300, 5_000, 1 << 20]), min_size=20, max_size=20)


@settings(max_examples=120)
@given(
    pieces=pieces(),
    rules=entry_rules(),
    aggregate_bytes=LIMITS,
    least=st.sampled_from([0, 0, 5]),
    format_=st.sampled_from([*FORMATS.values()]),
)
def test_both_twins_write_entries_that_hold_their_rows_within_every_bound(
    pieces: Numbered, rules: EntryRules, aggregate_bytes: list[int], least: int, format_: Format
) -> None:
    """And agree on what they hand back; also where some lanes are for one of them, and some for the other."""
    check_body(pieces, by_both(pieces, rules, [0] * 20, least, format_=format_), rules)
    for _ in range(4):
        if not pieces:
            break
        encoded = by_both(pieces, rules, aggregate_bytes, least, format_=format_)
        pieces = drop(pieces, int(encoded.ends[-1]))


@pytest.mark.parametrize("format_", FORMATS.values())
@pytest.mark.parametrize("aggregate", [False, True])
def test_both_twins_write_rows_of_every_length_around_what_a_length_takes(aggregate: bool, format_: Format) -> None:
    lengths = [*range(260), *range(4_090, 4_100), *range(16_380, 16_386), 65_535, 65_536, *range(2_097_150, 2_097_153)]
    rules = make_rules(aggregate=aggregate, aggregate_max_bytes=1 << 20, request_max_bytes=ROOMY).entries
    for order in (lengths, lengths[::-1]):
        by_both(
            pieces_of([(b"key %d" % (i % 100), bytes(length), None) for i, length in enumerate(order)]),
            rules,
            format_=format_,
        )


def test_both_twins_give_each_aggregate_the_keys_that_earlier_ones_have_too() -> None:
    made = pieces_of([(b"a key of many characters %d" % (row % 40), b"data", None) for row in range(2_000)])
    rules = make_rules(aggregate=True, aggregate_max_bytes=5_000, request_max_bytes=ROOMY).entries
    assert len(by_both(made, rules).ends) > 4


def test_both_twins_write_keys_of_every_length_in_cbor() -> None:
    """A key has 256 characters, each of up to 4 bytes."""
    keys = pieces_of([(b"k" * length, b"d", None) for length in range(1_025)])
    by_both(keys, make_rules(request_max_records=2_000).entries, format_=CBOR)


@pytest.mark.parametrize("encode_by", [by_loop, by_columns])
def test_a_body_in_cbor_has_the_bytes_of_aws_s_sdk(encode_by: Callable[..., EncodedRequest]) -> None:
    rules = make_rules(request_max_bytes=ROOMY).entries
    for rows, body in zip(sdk_bodies.cases(), sdk_bodies.frozen(), strict=True):
        made = pieces_of([(key.encode(), data, number.encode() if number else None) for key, data, number in rows])
        assert encode_by(made, rules, format_=CBOR).body == body


def test_a_body_in_cbor_is_a_quarter_smaller() -> None:
    made = pieces_of([(b"a key of 16 chars", bytes(1_024), None)] * 100)
    in_json, in_cbor = (len(encode(ADDRESS, made, make_rules().entries, format_=each).body) for each in (JSON, CBOR))
    assert 0.74 < in_cbor / in_json < 0.77


@pytest.mark.parametrize(
    ("rows", "keys", "data_bytes"),
    [(300, 1, 1), (300, 300, 1), (300, 300, 130), (128, 128, 1), (129, 129, 1), (4_100, 4_100, 1), (40, 3, 16_390)],
)
def test_an_aggregate_is_as_large_as_it_may_be_and_no_byte_larger(rows: int, keys: int, data_bytes: int) -> None:
    made = pieces_of([(b"%d" % (number % keys), bytes(data_bytes), None) for number in range(rows)])
    rules = make_rules(aggregate=True, request_max_bytes=ROOMY).entries
    blob_bytes = int(by_loop(made, rules, [ROOMY]).sizes[0]) - len(AGGREGATE_KEY)
    for limit in range(blob_bytes - 12, blob_bytes + 12):
        assert by_both(made, rules, [limit]).entries == (1 if limit >= blob_bytes else 2)


@pytest.mark.parametrize(("full", "cut_at"), [("entries", 3), ("bytes", 3), ("entries", 4)])
def test_a_request_may_be_full_in_the_middle_of_a_lane(full: str, cut_at: int) -> None:
    """Three lanes of 100 rows each, two aggregates for each lane: the rows behind the last entry go back."""
    lanes = [
        (lane, pieces_of([(b"key %d" % lane, b"data %3d" % row, None) for row in range(100)])[0][1])
        for lane in range(3)
    ]
    rules = make_rules(aggregate=True, aggregate_max_records=60, request_max_bytes=1 << 20).entries
    whole = by_columns(lanes, rules)
    assert whole.ends.tolist() == [60, 100, 160, 200, 260, 300]
    assert whole.lanes.tolist() == [0, 0, 1, 1, 2, 2]
    size = int(whole.sizes[: cut_at + 1].sum())
    if full == "entries":
        rules = replace(rules, request_max_records=cut_at)
    else:
        assert by_columns(lanes, replace(rules, request_max_bytes=size)).entries == cut_at + 1
        rules = replace(rules, request_max_bytes=size - 1)
    assert by_columns(lanes, rules).ends.tolist() == whole.ends[:cut_at].tolist()
    assert by_columns(lanes, replace(rules, per_key=True)).ends.tolist() == [60]


def test_short_texts_and_long_ones_do_not_mix() -> None:
    with pytest.raises(ValueError, match="short texts and long ones"):
        Texts([bytes(INLINE_BYTES), bytes(INLINE_BYTES + 1)].__getitem__, 2).table  # noqa: B018 - it is made on demand


# ---- which of them writes


def test_which_twin_writes_plain_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns, if that suits, if all of them go plain, and if the format takes the keys."""
    pieces = pieces_of([(b"k", b"data", None)] * 3)
    raw = [(lane, span._replace(strays=RAW_FROM_STRAYS)) for lane, span in pieces]
    plain, aggregated = make_rules().entries, make_rules(aggregate=True).entries
    suits, found = True, (b"columns", np.full(3, 5, np.int32))
    monkeypatch.setattr(columnar, "suits", lambda spans: suits)
    monkeypatch.setattr(columnar, "raw_request", lambda *_: found)

    def as_columns(pieces: Numbered, rules: EntryRules) -> bool:
        return encode(ADDRESS, pieces, rules).body == b"columns"

    assert as_columns(pieces, plain)
    assert as_columns(raw, plain)
    assert as_columns(raw, aggregated)
    assert not as_columns(pieces, aggregated)
    assert not as_columns([*raw, *pieces], aggregated)
    suits = False
    assert not as_columns(pieces, plain)
    monkeypatch.setattr(columnar, "suits", lambda spans: True)
    monkeypatch.setattr(columnar, "raw_request", lambda *_: None)
    assert encode(ADDRESS, pieces, plain).entries == 3


def test_which_twin_aggregates_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    really = columnar.aggregates
    made: list[int] = []

    def aggregates(lanes: Sequence[columnar.LaneRows]) -> Iterator[list[columnar.AggregatedRows]]:
        for found in really(lanes):
            made.append(sum(each.rows for each in found))
            yield found

    monkeypatch.setattr(columnar, "aggregates", aggregates)
    lanes = [*enumerate(pieces_of([(b"k", b"data", hash_key)] * 9)[0][1] for hash_key in (None, b"1", None))]
    assert by_columns(lanes, make_rules(aggregate=True).entries).ends.tolist() == [9, 18, 27]
    assert made == [9, 9], "a lane with explicit hash keys is left to the loop"
    assert by_columns(lanes, make_rules().entries).entries == 27
    assert made == [9, 9], "and there is no other to aggregate"


def lane_rows(rows: list[Row], most_bytes: int = 51_200, most_records: int = 1 << 32) -> columnar.LaneRows:
    return columnar.LaneRows([span for _, span in pieces_of(rows)], most_bytes, most_records)


def test_it_writes_records_where_that_pays_and_can_be() -> None:
    """Many small rows, none of them an aggregate itself."""
    least = columnar.LEAST_ROWS
    row: Row = (b"k", b"data", None)
    large: Row = (b"k", bytes(columnar.MOST_ROW_BYTES - 1), None)
    small: Row = (b"k", bytes(columnar.MOST_ROW_BYTES - 2), None)
    rows = [[row] * (least - 1), [row] * least, [large] * least, [small] * least]
    spans = [lane_rows(each).spans for each in rows]
    assert [columnar.suits(each) for each in spans] == [False, True, False, True]
    spans[1][0].buffer.aggregates = np.zeros(least, np.bool_)
    assert not columnar.suits(spans[1])


def test_it_aggregates_lanes_where_that_pays_and_can_be() -> None:
    """Some small rows for each aggregate, and many of all lanes; none is raw or has an explicit hash key."""
    least = columnar.LEAST_ROWS_OF_AGGREGATE
    row: Row = (b"k", b"data", None)
    some = lane_rows([row] * least)
    others = [
        lane_rows([row] * (least - 1)),
        lane_rows([row] * least, most_bytes=5 * least),
        lane_rows([row] * least, most_records=least // 2),
        lane_rows([*[row] * least, (b"k", b"", b"1")]),
        lane_rows([(b"k", bytes(columnar.MOST_AGGREGATED_BYTES - 1), None)] * least, most_bytes=1 << 20),
        some._replace(spans=[span._replace(strays=RAW_FROM_STRAYS) for span in some.spans]),
    ]
    lanes, rest = divmod(columnar.LEAST_AGGREGATED_ROWS, least)
    enough = [*[some] * (lanes - 1), lane_rows([row] * (least + rest))]
    assert columnar.suited([*others, *enough]) == [False] * len(others) + [True] * lanes
    one_too_few = [*[some] * (lanes - 1), lane_rows([row] * (least + rest - 1))]
    assert not any(columnar.suited([*others, *one_too_few]))
    assert (columnar.suited([]), [*columnar.aggregates([])]) == ([], [])
    for size, suits in ((columnar.MOST_AGGREGATED_BYTES - 1, False), (columnar.MOST_AGGREGATED_BYTES - 2, True)):
        rows: list[Row] = [(b"k", bytes(size), None)] * columnar.LEAST_AGGREGATED_ROWS
        assert columnar.suited([lane_rows(rows, most_bytes=1 << 30)]) == [suits]


@pytest.mark.parametrize("data_bytes", [2_097_145, 2_097_146, 2_097_151, 2_097_152])
def test_aggregates_of_rows_around_2_mib_have_the_bytes_of_the_loop(data_bytes: int) -> None:
    """There the lengths of a record and of its data begin to take four bytes."""
    data = bytes(data_bytes)
    rows = intake.check(make_body(lay_out([b"k", b"l"], [data, data])), 10 << 20)
    spans = [span for _, span in sorted_of([rows], even_map(1)).spans]
    ((made,),) = columnar.aggregates([columnar.LaneRows(spans, 1 << 30, 1 << 30)])
    by_loop = Aggregate()
    for key in (b"k", b"l"):
        by_loop.try_add(key, None, data, 1 << 30)
    assert b"".join(made.chunks) == by_loop.to_bytes()


@pytest.mark.parametrize("format_", FORMATS.values())
@pytest.mark.parametrize(
    ("most", "most_bytes", "entries"), [(5, 50, 5), (9, 50, 5), (4, 50, 4), (5, 49, 4), (5, 9, 1), (5, 20, 2)]
)
def test_a_request_of_columns_has_as_many_rows_as_fit(
    most: int, most_bytes: int, entries: int, format_: Format
) -> None:
    spans = lane_rows([(b"key", b"seven b", None)] * 5).spans
    found = columnar.raw_request(spans, most, most_bytes, ADDRESS, format_)
    assert found is not None
    assert found[1].tolist() == [10] * entries


def test_columns_have_the_data_of_their_rows_and_nothing_of_what_else_lies_in_the_buffers() -> None:
    """Which may be the whole queue, where requests take few rows of each of many lanes."""
    rows: list[Row] = [(b"k%d" % number, b"%d" % number * (number % 7), None) for number in range(300)]
    whole = [span for _, span in pieces_of(rows)]
    spans = [span.cut(at)[1].cut(at + 2)[0] for span in whole for at in range(span.first, span.last - 2, 5)]
    columns = columns_of(spans)
    assert sum(map(len, columns.data)) == columns.data_bytes.sum() < sum(span.bytes for span in whole) / 2


GONE = [["keys"], ["data"], ["key_offsets"], ["data_offsets"], ["keys", "data", "key_offsets", "data_offsets"]]


@pytest.mark.parametrize("names", GONE, ids=",".join)
@pytest.mark.parametrize("format_", FORMATS.values())
def test_rows_that_are_gone_are_not_read(format_: Format, names: list[str]) -> None:
    """A worker may still encode what the daemon has given up, and let go of.  Arrow looks at no bounds."""
    spans = [span for _, span in pieces_of([(b"a key" * 4, b"data" * 10, None)] * 300)]
    for name in names:  # as `SpanBuffer.settle` does it, one after the other
        setattr(spans[-1].buffer, name, b"" if "offsets" not in name else np.zeros(1, np.int32))
    with pytest.raises((ValueError, IndexError)):
        columnar.raw_request(spans, 500, 1 << 20, ADDRESS, format_)


@pytest.mark.parametrize("name", ["keys", "data"])
def test_a_single_row_that_is_gone_is_not_read(name: str) -> None:
    ((_, span),) = pieces_of([(b"a key", b"data", None)])
    assert columns_of([span]).rows == 1
    setattr(span.buffer, name, b"")
    with pytest.raises(ValueError, match="rows that are gone"):
        columns_of([span])


def test_a_key_that_json_must_escape_is_left_to_the_loop() -> None:
    rows: list[Row] = [(b'"' if number == 99 else b"k", b"data", None) for number in range(100)]
    spans = [span for _, span in pieces_of(rows)]
    assert columnar.raw_request(spans, 500, 1 << 20, ADDRESS, JSON) is None
    assert columnar.raw_request(spans, 500, 1 << 20, ADDRESS, CBOR) is not None
    assert encode(ADDRESS, pieces_of(rows), make_rules().entries).entries == 100


# ---- answers


WRITERS: list[Callable[[object], bytes]] = [
    lambda answer: json.dumps(answer).encode(),
    lambda answer: json.dumps(answer, separators=(",", ":")).encode(),
    cbor2.dumps,
    partial(cbor2.dumps, indefinite_containers=True),
]


def random_answer(random: Random) -> tuple[bytes, int]:
    """An answer and how many results it has: as Kinesis writes it, or as somebody might."""
    name = random.choice(["shardId-%012d", "shardId-%012d", "shard %d", '"%d', "é%d", "shardId-%d"])
    shards = random.sample(range(200), random.choice([1, 1, 2, 9]))
    digits = random.choice([1, 56, 56, 128, 129])
    results: list[dict[str, Any]] = []
    for shard in [*shards, *random.sample(shards, len(shards) // 2)]:
        for _ in range(random.choice([1, 2, 40])):
            number = str(random.randint(10 ** (digits - 1), 10**digits - 1))
            results.append({"SequenceNumber": number, "ShardId": name % shard})
    answer: dict[str, Any] = {"FailedRecordCount": 0, "Records": results}
    if random.random() < 0.3:
        answer = {"EncryptionType": "KMS", **answer, "More": [{}]}
    if random.random() < 0.3:
        answer = mutated(answer, random)
    body = bytearray(random.choice(WRITERS)(answer))
    if random.random() < 0.3:
        body[random.randrange(len(body))] = random.choice(b'0a"\\{}[]:, \0\xff\x9f\xa2\xbf\x78')
    if random.random() < 0.2:
        at, size = random.randrange(len(body)), random.choice([1, 30, 96])
        body[at : at + size] = random.choice([b"", body[at : at + size] * 2])
    return bytes(body), len(results)


@settings(max_examples=250)
@given(random=st.randoms(use_true_random=True), more=st.sampled_from([0, 0, -1, 1]))
def test_both_twins_read_the_same(random: Random, more: int) -> None:
    body, entries = random_answer(random)
    found: list[object] = []
    for least in (1, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(answers, "LEAST_RESULTS", least)
            answer = parse_answer(body, max(1, entries + more))
        columns = astuple(answer) if isinstance(answer, Answer) else (answer,)
        found.append([each.tolist() if isinstance(each, np.ndarray) else each for each in columns])
    assert found[0] == found[1]


@pytest.mark.parametrize("write", WRITERS[1:])
def test_answers_as_kinesis_writes_them_are_read_as_columns(write: Callable[[object], bytes]) -> None:
    for shards in (1, 3):
        results = [{"SequenceNumber": f"{n:056}", "ShardId": f"shardId-{n * shards // 300:012}"} for n in range(300)]
        for body in ({"FailedRecordCount": 0, "Records": results}, {"Records": results, "EncryptionType": "NONE"}):
            found = answers.stored(write(body), 300)
            assert found is not None
            assert len(found.shard_table) == shards


@pytest.mark.parametrize("write", WRITERS[1:])
@pytest.mark.parametrize("shards", ["s", "st"])
def test_columns_agree_with_an_answer_in_which_any_byte_changed(write: Callable[[object], bytes], shards: str) -> None:
    results = [{"SequenceNumber": str(number), "ShardId": shards[number % len(shards)]} for number in range(3)]
    body = write({"Records": results})
    for at in range(len(body)):
        changed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        if (found := answers.stored(changed, 3)) is not None:
            read = [result["ShardId"] for result in answers.loads(changed)["Records"]]
            assert [found.shard_table[shard] for shard in found.shards] == read


def test_results_that_are_all_malformed_are_no_results() -> None:
    body = cbor2.dumps({"Records": [{"SequenceNumber": "1", "ShardId": "s"}] * 3})
    assert answers.stored(body, 3) is not None
    assert answers.stored(body.replace(b"SequenceNumber\x611", b"SequenceNumber\x621"), 3) is None


@pytest.mark.parametrize(
    "answer",
    [
        b'{"a":%b,"Records":[]}',
        b'{"a":%b,"Records":[0]}',
        b'{"Records":%b,"Records":[]}',
        b'{"Records":[%b]}',
        b'[{"Records":%b}]',
        b'{"Records":%b',
        b'"\\"Records\\":%b"',
    ],
)
def test_results_in_another_place_are_no_results(answer: bytes) -> None:
    results = json.dumps([{"SequenceNumber": "1", "ShardId": "s"}] * 3, separators=(",", ":")).encode()
    assert answers.stored(b'{"Records":%b}' % results, 3) is not None
    assert answers.stored(answer % results, 3) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\xa1\x61a", b""),
        (b"\xa2\x67Records", b"\x67Records\x80"),
        (b"\xa2\x61a", b"\x67Records\x81\0"),
        (b"\xa1\x67Records\x81", b""),
        (b"\x81\xa1\x67Records", b""),
        (b"\xa2\x67Records", b""),
        (b"\xa1\x47Records", b""),
        (b"\xa1\x67Records\x81\x00", b""),  # behind the end of an answer
        (b"\xa1\x67Records\x81\x01", b""),
    ],
)
@pytest.mark.parametrize("write", WRITERS[2:])
def test_results_in_another_place_are_no_results_in_cbor(
    before: bytes, after: bytes, write: Callable[[object], bytes]
) -> None:
    results = write([{"SequenceNumber": "1", "ShardId": "s"}] * 3)
    assert answers.stored(b"\xa1\x67Records" + results, 3) is not None
    assert answers.stored(before + results + after, 3) is None
    assert answers.stored(b"\xa1\x67Records" + results[:-1], 3) is None


@pytest.mark.parametrize("length", [b"\x80", b"\x81", b"\x98\x01", b"\x82", b"\x84"])
def test_a_list_in_cbor_that_names_another_length_has_no_results(length: bytes) -> None:
    results = cbor2.dumps([{"SequenceNumber": "1", "ShardId": "s"}] * 3).removeprefix(b"\x83")
    assert answers.stored(b"\xa1\x67Records" + length + results, 3) is None


@pytest.mark.parametrize("write", WRITERS[1:])
@pytest.mark.parametrize(
    ("right", "wrong"), [(b"0000000009", b"000000000:"), (b"0000000009", b"000000000/"), (b"shard-9", b'shar"-9')]
)
def test_a_result_whose_number_or_shard_has_another_character_is_left_to_the_loop(
    write: Callable[[object], bytes], right: bytes, wrong: bytes
) -> None:
    results = [{"SequenceNumber": f"{number:010}", "ShardId": f"shard-{number}"} for number in range(10)]
    body = write({"Records": results})
    found = answers.stored(body, 10)
    assert found is not None
    assert found.shards.tolist() == list(range(10))
    assert found.shard_table == tuple([f"shard-{number}" for number in range(10)])
    assert found.sequences == tuple(range(10))
    assert answers.stored(body.replace(right, wrong), 10) is None
