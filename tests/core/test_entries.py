"""A request's body holds its rows as Kinesis reads them, within every bound.  Any bytes may come as its answer."""

from __future__ import annotations

from functools import partial
from typing import Any

import cbor2
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.core.encoding.entries import encode
from producerd.core.sending.answers import (
    NOT_KINESIS,
    Answer,
    RequestFailed,
    error_text,
    is_cbor,
    loads,
    parse_answer,
)
from producerd.errors import Code
from producerd.testing import FakeKinesis, hash_of
from tests.core.pieces import pieces_of, read_body, users_of
from tests.core.rows import Row
from tests.core.strategies import some_rows
from tests.simulation.setting import ADDRESS, STREAM, make_rules


@settings(max_examples=20)
@given(rows=some_rows(), aggregate=st.booleans())
def test_what_is_taken_is_what_the_service_stores(rows: list[Row], aggregate: bool) -> None:
    """The fake Kinesis, whose reader is not ours, finds each user record."""
    kinesis = FakeKinesis()
    stream = kinesis.create_stream(STREAM, 4)
    pieces = pieces_of(rows, 4)
    encoded = encode(ADDRESS, pieces, make_rules(aggregate=aggregate, request_max_bytes=9 << 20).entries)
    answer = parse_answer(kinesis.handle("PutRecords", encoded.body, 0.0).body, encoded.entries)
    assert isinstance(answer, Answer)
    assert (answer.errors == -1).all()
    read = stream.read()
    assert read.dropped_aggregates == 0
    sent = users_of(pieces)[: int(encoded.ends[-1])]
    assert [(user.partition_key, user.data) for user in read.records] == [row[:2] for row in sent]


def test_a_null_key_is_sent_as_a_dash_with_a_hash_key_of_its_own() -> None:
    entries = read_body(encode(ADDRESS, pieces_of([(None, b"1", None), (b"", b"2", None)]), make_rules().entries))
    assert [entry["PartitionKey"] for entry in entries] == ["-", "-"]
    hashes = {int(entry["ExplicitHashKey"]) for entry in entries}
    assert len(hashes) == 2
    assert hash_of("-", None) not in hashes


@pytest.mark.parametrize("lanes", [1, 40])
def test_a_request_counts_the_entries_and_bytes_of_each_lane(lanes: int) -> None:
    pieces = pieces_of([(b"k%d" % i, bytes(i), None) for i in range(40)], lanes)
    encoded = encode(ADDRESS, pieces, make_rules(request_max_records=30).entries)
    lane_of_row = [lane for lane, span in pieces for _ in range(span.records)]
    sent = [*zip(lane_of_row, users_of(pieces), strict=True)][:30]
    sizes = [[len(key) + len(data) for at, (key, data, _, _) in sent if at == lane] for lane in range(lanes)]
    assert encoded.of_lanes(lanes) == [(len(each), sum(each)) for each in sizes]


@pytest.mark.parametrize("key", [b"k", b'"'], ids=["as it is", "escaped"])
def test_a_request_stops_at_its_bytes_and_an_entry_larger_than_that_goes_alone(key: bytes) -> None:
    for room, entries in ((1_000, 3), (999, 3), (998, 2), (333, 1)):
        rules = make_rules(request_max_bytes=room).entries
        encoded = encode(ADDRESS, pieces_of([(key, b"x" * 332, None)] * 4), rules)
        assert encoded.ends.tolist() == [1, 2, 3][:entries]
        assert encoded.payload_bytes == 333 * entries
    encoded = encode(ADDRESS, pieces_of([(key, b"x" * 2_000, None)] * 2), rules)
    assert encoded.ends.tolist() == [1]


@pytest.mark.parametrize("aggregate", [False, True])
def test_rows_behind_one_that_does_not_fit_go_back_though_they_are_small(aggregate: bool) -> None:
    rules = make_rules(aggregate=aggregate, aggregate_max_bytes=100, request_max_bytes=100).entries
    rows: list[list[Row]] = [[(b"k", b"x", None), (b"k", b"x" * 1_000, None)], [(b"k", b"x", None)]]
    lanes = [(lane, pieces_of(each)[0][1]) for lane, each in enumerate(rows)]
    assert encode(ADDRESS, lanes, rules).ends.tolist() == [1]


# ---- answers


def stored(shard_id: str) -> dict[str, str]:
    return {"SequenceNumber": "1", "ShardId": shard_id}


def failed(code: str, message: str = "m") -> dict[str, str]:
    return {"ErrorCode": code, "ErrorMessage": message}


def answer_of(*results: Any) -> Answer:
    answers = [
        parse_answer(write({"FailedRecordCount": 0, "Records": results}), len(results))
        for write in (orjson.dumps, cbor2.dumps, partial(cbor2.dumps, indefinite_containers=True))
    ]
    assert isinstance(answers[0], Answer)
    for answer in answers[1:]:
        assert repr(answer) == repr(answers[0]), "in JSON, and in CBOR with lengths and without"
    return answers[0]


def meanings(answer: Answer) -> list[str | tuple[str, str]]:
    pairs = zip(answer.shards.tolist(), answer.errors.tolist(), strict=True)
    return [answer.shard_table[shard] if error < 0 else answer.error_table[error] for shard, error in pairs]


def test_each_result_of_an_answer_is_a_shard_or_an_error() -> None:
    answer = answer_of(stored("a"), failed("X"), stored("b"), stored("a"), failed("X"), failed("X", "n"), failed("Y"))
    assert meanings(answer) == ["a", ("X", "m"), "b", "a", ("X", "m"), ("X", "n"), ("Y", "m")]
    assert (answer.shards.tolist(), answer.shard_table) == ([0, -1, 2, 0, -1, -1, -1], ("a", "", "b"))
    assert (answer.errors.tolist(), answer.sequences) == ([-1, 0, -1, -1, 0, 1, 2], (1, 0, 1))
    assert answer.error_table == (("X", "m"), ("X", "n"), ("Y", "m"))


def test_an_answer_is_read_by_its_results_and_not_by_its_count_of_failures() -> None:
    body = orjson.dumps({"FailedRecordCount": 7, "Records": [stored("a")]})
    answer = parse_answer(body, 1)
    assert isinstance(answer, Answer)
    assert meanings(answer) == ["a"]


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"SequenceNumber": "1"},
        {"ShardId": "a"},
        {"ShardId": "a", "SequenceNumber": ""},
        {"ShardId": "a", "SequenceNumber": None},
        {"ErrorMessage": "m"},
        {"ErrorCode": ""},
        {"ErrorCode": 5},
        {"ErrorCode": ["X"], "ShardId": "b"},
        {"ErrorCode": "ValidationException", "SequenceNumber": "1", "ShardId": "a"},
    ],
)
def test_a_result_that_is_neither_a_place_nor_an_error_is_not_kinesis_s(result: object) -> None:
    """It is never a success.  Nor does it say that the entry is not stored."""
    error = (NOT_KINESIS, "a result that is neither a shard and a sequence number nor an error alone")
    answer = answer_of(stored("a"), result)
    assert meanings(answer) == ["a", error]
    assert answer.sequences == (1, 0), "also where it has a sequence number"


@pytest.mark.parametrize("results", [0, 1, 3])
def test_another_number_of_results_makes_every_entry_unknown(results: int) -> None:
    found = parse_answer(orjson.dumps({"Records": [stored("a")] * results}), 2)
    assert found == RequestFailed(Code.RESULT_COUNT, f"{results} results for 2 entries", True, False, False, 0, "")


JSON_OF_OTHERS = b"""
    {
    null
    []
    7
    "Records"
    ["Records"]
    {}
    {"Records":null}
    {"Records":2}
    {"Records":"ab"}
    {"Records":{"a":1,"b":2}}
    {"Records":[null,null]}
    {"Records":[1,2]}
    {"Records":["a","b"]}
    {"Records":[[],[]]}
    {"Records":[{"ShardId":[1],"SequenceNumber":"1"},{"ShardId":{"a":1},"SequenceNumber":"1"}]}
    {"Records":[{"ShardId":"a"},{"ShardId":"b"}
"""


@pytest.mark.parametrize(
    "body",
    [
        *JSON_OF_OTHERS.split(),
        b"\x80",
        b"\xa0",
        b"\xa1\x67Records\xf6",
        b"\xa1\x67Records\x82\x01\x02",
        b"\xa1\x67Records\x82" + b"\xa2\x67ShardId\x01\x6eSequenceNumber\x611" * 2,
        b"\xbf",
        b"\x9f" * 100_000,
        b"\xbf\x9f\xff\x00\xff",
        b"\xd8\x23\x61(",
        b"\xd8\x23\xa1\x67Records\x80",
        b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\xff\xfe",
        b"",
        b"<html>Service Unavailable</html>",
    ],
)
def test_an_answer_that_is_none_makes_every_entry_unknown(body: bytes) -> None:
    found = parse_answer(body, 2)
    assert found == RequestFailed(NOT_KINESIS, "an answer that is not PutRecords's", maybe_stored=True)


@pytest.mark.parametrize("shard_id", ["", None, 0, False])
def test_a_result_without_a_shard_and_without_an_error_is_not_stored(shard_id: object) -> None:
    found = parse_answer(orjson.dumps({"Records": [stored("a"), {"ShardId": shard_id, "SequenceNumber": "1"}]}), 2)
    assert isinstance(found, Answer)
    assert found.errors.tolist() == [-1, 0]
    assert found.error_table[0][0] == NOT_KINESIS


@pytest.mark.parametrize("number", ["²", "9" * 5_000, "-1", "1.5", 7])
def test_a_sequence_number_that_is_none_says_nothing(number: object) -> None:
    found = parse_answer(orjson.dumps({"Records": [{"ShardId": "a", "SequenceNumber": number}]}), 1)
    assert isinstance(found, Answer)
    assert (found.shards.tolist(), found.sequences) == ([0], (0,))


def test_an_error_of_any_length_is_kept_in_500_characters() -> None:
    answer = answer_of(failed("X" * 501, "m" * 501), stored("a"), failed("Y" * 500, "n" * 500))
    assert answer.error_table == (("X" * 500, "m" * 500), ("Y" * 500, "n" * 500))
    assert (answer.shards.tolist(), answer.errors.tolist(), answer.sequences) == ([-1, 1, -1], [0, -1, 1], (0, 1))


def test_the_first_byte_of_an_answer_tells_its_format() -> None:
    assert [is_cbor(body) for body in (b"", b"{\xff", b"\x7f", b"\x80", b"\xbf")] == [False, False, False, True, True]


@pytest.mark.parametrize(("levels", "is_read"), [(8, True), (9, False)])
def test_no_answer_has_more_than_eight_levels(levels: int, is_read: bool) -> None:
    """One of millions would take all of the stack."""
    body = b"\xa1\x61a" * levels + b"\x01"
    if is_read:
        assert isinstance(loads(body), dict)
    else:
        with pytest.raises(ValueError, match=r"^not CBOR: "):
            loads(body)


def test_an_error_is_one_line_with_the_service_s_id_of_the_request_if_it_has_one() -> None:
    assert error_text("X", "why") == str(RequestFailed("X", "why", maybe_stored=False)) == "X: why"
    with_id = RequestFailed("X", "why", maybe_stored=False, request_id="r-1")
    assert error_text("X", "why", "r-1") == str(with_id) == "X: why (request id r-1)"


@settings(max_examples=200)
@given(
    damages=st.lists(st.tuples(st.integers(0, 200), st.sampled_from(b'"{}[],:0a\\\xff\x00')), min_size=1, max_size=4),
    end=st.sampled_from([None, None, None, 5, 60, 120]),
)
def test_a_damaged_answer_is_understood_or_unknown(damages: list[tuple[int, int]], end: int | None) -> None:
    damaged = bytearray(
        orjson.dumps({"FailedRecordCount": 1, "Records": [stored("shard-0"), failed("X"), stored("shard-1")]})
    )
    for at, byte in damages:
        damaged[at % len(damaged)] = byte
    found = parse_answer(bytes(damaged[:end]), 3)
    if isinstance(found, Answer):
        assert len(meanings(found)) == 3
    else:
        assert found.maybe_stored
