"""A request's body holds its rows as Kinesis reads them, within every bound.  Any bytes may come as its answer."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import partial
from random import Random
from typing import Any

import cbor2
import orjson
import pytest

from producerd.core.encoding.entries import EncodedRequest, encode
from producerd.core.encoding.formats import JSON, Format
from producerd.core.kpl.aggregation import AGGREGATE_KEY, parse
from producerd.core.rows.spans import RAW_FROM_STRAYS, Span
from producerd.core.sending.answers import (
    NOT_KINESIS,
    Answer,
    RequestFailed,
    error_text,
    is_cbor,
    loads,
    parse_answer,
)
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.errors import Code
from producerd.testing import FakeKinesis, hash_of
from tests.core.pieces import FORMATS, SPECIAL_KEYS, Numbered, drop, pieces_of
from tests.core.rows import Row, content
from tests.simulation.setting import ADDRESS, STREAM, make_rules


def users_of(pieces: Numbered) -> list[tuple[str, bytes, int, bool]]:
    """key, data, hash, explicit of each row of a request, in order."""
    found = []
    for _, span in pieces:
        for at in range(span.first, span.last):
            key, data, number, explicit = content(span, at)
            found.append((key.decode() or "-", data, number, explicit))
    return found


def read_body(encoded: EncodedRequest) -> list[dict[str, Any]]:
    """The entries of a body, each with its data as bytes."""
    assert encoded.sha256 == hashlib.sha256(encoded.body).hexdigest()
    if encoded.content_type == JSON.content_type:
        body = json.loads(bytes(encoded.body))
        for entry in body["Records"]:
            entry["Data"] = base64.b64decode(entry["Data"], validate=True)
    else:
        body = cbor2.loads(bytes(encoded.body))
    assert set(body) == {"StreamName", "Records"}
    assert body["StreamName"] == STREAM
    entries: list[dict[str, Any]] = body["Records"]
    assert len(entries) == encoded.entries == len(encoded.lanes)
    assert encoded.payload_bytes == sum(len(entry["Data"]) + len(entry["PartitionKey"].encode()) for entry in entries)
    return entries


def check(pieces: Numbered, encoded: EncodedRequest, rules: Any) -> None:
    """Every entry holds exactly its rows, of its lane, within every bound."""
    entries = read_body(encoded)
    users = users_of(pieces)
    lane_of_row = [lane for lane, span in pieces for _ in range(span.records)]
    raw_of_row = [span.raw for _, span in pieces for _ in range(span.records)]
    assert len(entries) <= rules.request_max_records
    assert encoded.payload_bytes <= rules.request_max_bytes or len(entries) == 1
    start = 0
    for entry, end, lane in zip(entries, encoded.ends.tolist(), encoded.lanes.tolist(), strict=True):
        rows = users[start:end]
        assert {lane} == set(lane_of_row[start:end]), "an entry is of one lane"
        data = entry["Data"]
        hash_key = entry.get("ExplicitHashKey")
        if len(rows) == 1:
            key, value, number, explicit = rows[0]
            assert (entry["PartitionKey"], data) == (key, value)
            assert hash_key == (str(number) if explicit else None)
        else:
            assert rules.aggregate
            assert not any(raw_of_row[start:end])
            assert entry["PartitionKey"] == AGGREGATE_KEY.decode()
            assert hash_key == str(rows[0][2]), "an aggregate is placed by its first row"
            inside = parse(data)
            assert inside is not None
            assert [(user.partition_key.decode(), user.data) for user in inside] == [row[:2] for row in rows]
            for user, (_, _, number, explicit) in zip(inside, rows, strict=True):
                assert user.explicit_hash_key == (b"%d" % number if explicit else None)
            assert len(data) <= rules.aggregate_max_bytes
            assert len(rows) <= rules.aggregate_max_records
        start = end
    assert 1 <= start <= len(users)


def random_rows(random: Random) -> list[Row]:
    keys = [None, b"", b"k", b"x" * 256, *SPECIAL_KEYS]
    sizes = [0, 1, 50, 1_000, 5_000]
    return [
        (
            random.choice(keys),
            random.randbytes(random.choice(sizes)),
            random.choice([None, None, b"", b"0", b"%d" % MAX_HASH_KEY, b"%d" % random.getrandbits(128)]),
        )
        for _ in range(random.choice([1, 2, 30, 700]))
    ]


@pytest.mark.parametrize("seed", range(150))
def test_entries_hold_their_rows_within_every_bound(seed: int) -> None:
    random = Random(seed)
    rules = make_rules(
        aggregate=bool(seed % 2),
        aggregate_max_bytes=random.choice([200, 2_000, 51_200]),
        aggregate_max_records=random.choice([1, 2, 7, 2**32 - 1]),
        request_max_records=random.choice([1, 3, 500]),
        request_max_bytes=random.choice([10, 3_000, 1 << 20]),
    ).entries
    format_ = random.choice([*FORMATS.values()])
    pieces = pieces_of(random_rows(random), random.choice([1, 4]))
    if random.random() < 0.4:
        pieces = [(lane, span._replace(strays=random.choice([0, RAW_FROM_STRAYS]))) for lane, span in pieces]
    total = sum(span.records for _, span in pieces)
    done = 0
    while pieces and done < 20:  # what is handed back makes the next request
        encoded = encode(ADDRESS, pieces, rules, format_=format_)
        check(pieces, encoded, rules)
        pieces = drop(pieces, int(encoded.ends[-1]))
        done += 1
    assert total


@pytest.mark.parametrize("key", SPECIAL_KEYS)
@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize("format_", FORMATS.values())
def test_a_key_that_json_must_escape_arrives_as_it_was(key: bytes, aggregate: bool, format_: Format) -> None:
    pieces = pieces_of([(b"plain", b"0", None), (key, b"1", None), (b"plain", b"2", None)])
    entries = read_body(encode(ADDRESS, pieces, make_rules().entries, format_=format_))
    assert [entry["PartitionKey"].encode() for entry in entries] == [b"plain", key, b"plain"]
    rules = make_rules(aggregate=aggregate).entries
    (alone,) = read_body(encode(ADDRESS, pieces_of([(key, b"1", None)]), rules, format_=format_))
    assert alone["PartitionKey"].encode() == key


def test_a_null_key_is_sent_as_a_dash_with_a_hash_key_of_its_own() -> None:
    entries = read_body(encode(ADDRESS, pieces_of([(None, b"1", None), (b"", b"2", None)]), make_rules().entries))
    assert [entry["PartitionKey"] for entry in entries] == ["-", "-"]
    hashes = {int(entry["ExplicitHashKey"]) for entry in entries}
    assert len(hashes) == 2
    assert hash_of("-", None) not in hashes


def test_a_request_holds_500_entries_and_hands_the_rest_back() -> None:
    pieces = pieces_of([(b"k%d" % i, b"d", None) for i in range(501)])
    encoded = encode(ADDRESS, pieces, make_rules().entries)
    assert (encoded.entries, encoded.ends[-1]) == (500, 500)


@pytest.mark.parametrize("lanes", [1, 2, 4, 40])
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


def test_an_aggregate_that_no_longer_fits_is_handed_back_whole() -> None:
    rules = make_rules(aggregate=True, aggregate_max_bytes=1_000, request_max_bytes=1_500).entries
    pieces = pieces_of([(b"k", b"x" * 100, None)] * 20)
    encoded = encode(ADDRESS, pieces, rules)
    assert encoded.entries == 1
    assert 1 < encoded.ends[-1] < 20


def test_what_is_taken_is_what_the_service_stores() -> None:
    """The fake Kinesis, whose reader is not ours, finds each user record."""
    random = Random(9)
    for aggregate in (False, True):
        kinesis = FakeKinesis()
        stream = kinesis.create_stream(STREAM, 4)
        pieces = pieces_of(random_rows(random) + random_rows(random), 4)
        rules = make_rules(aggregate=aggregate, request_max_records=500, request_max_bytes=9 << 20).entries
        encoded = encode(ADDRESS, pieces, rules)
        reply = kinesis.handle("PutRecords", encoded.body, 0.0)
        answer = parse_answer(reply.body, encoded.entries)
        assert isinstance(answer, Answer)
        assert (answer.errors == -1).all()
        read = stream.read()
        assert read.dropped_aggregates == 0
        sent = users_of(pieces)[: int(encoded.ends[-1])]
        assert [(user.partition_key, user.data) for user in read.records] == [row[:2] for row in sent]


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
        {"ErrorMessage": "m"},
        {"ErrorCode": ""},
        {"ErrorCode": 5},
        {"ErrorCode": ["X"], "ShardId": "b"},
    ],
)
def test_a_result_that_names_neither_shard_nor_error_is_not_kinesis_s(result: object) -> None:
    """It is never a success.  Nor does it say that the entry is not stored."""
    error = (NOT_KINESIS, "a result with neither a shard nor an error")
    assert meanings(answer_of(stored("a"), result)) == ["a", error]


@pytest.mark.parametrize("results", [0, 1, 3])
def test_another_number_of_results_makes_every_entry_unknown(results: int) -> None:
    found = parse_answer(orjson.dumps({"Records": [stored("a")] * results}), 2)
    assert found == RequestFailed(Code.RESULT_COUNT, f"{results} results for 2 entries", True, False, False, 0, "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b'"Records"',
        b'["Records"]',
        b"{}",
        b'{"Records": null}',
        b'{"Records": 2}',
        b'{"Records": "ab"}',
        b'{"Records": {"a": 1, "b": 2}}',
        b'{"Records": [null, null]}',
        b'{"Records": [1, 2]}',
        b"\x80",
        b"\xa0",
        b"\xa1\x67Records\xf6",
        b"\xa1\x67Records\x82\x01\x02",
        b"\xa1\x67Records\x82" + b"\xa1\x67ShardId\x01" * 2,
        b"\xbf",
        b"\x9f" * 100_000,
        b"\xbf\x9f\xff\x00\xff",
        b"\xd8\x23\x61(",
        b"\xd8\x23\xa1\x67Records\x80",
        b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
        b'{"Records": ["a", "b"]}',
        b'{"Records": [[], []]}',
        b'{"Records": [{"ShardId": [1]}, {"ShardId": {"a": 1}}]}',
        b'{"Records": [{"ShardId": "a"}, {"ShardId": "b"}',
        b"\xff\xfe",
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


@pytest.mark.parametrize("number", ["²", "9" * 5_000, "-1", "1.5", "", None, 7])
def test_a_sequence_number_that_is_none_says_nothing(number: object) -> None:
    found = parse_answer(orjson.dumps({"Records": [{"ShardId": "a", "SequenceNumber": number}]}), 1)
    assert isinstance(found, Answer)
    assert (found.shards.tolist(), found.sequences) == ([0], (0,))


def test_an_error_of_any_length_is_kept_in_500_characters_and_without_a_sequence_number() -> None:
    result = failed("X" * 501, "m" * 501) | {"SequenceNumber": "7"}
    answer = answer_of(result, stored("a"), failed("Y" * 500, "n" * 500))
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


def test_thousands_of_damaged_answers_are_understood_or_unknown() -> None:
    random = Random(1)
    whole = orjson.dumps({"FailedRecordCount": 1, "Records": [stored("shard-0"), failed("X"), stored("shard-1")]})
    for _ in range(5_000):
        damaged = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(len(damaged))] = random.choice(b'"{}[],:0a\\\xff' + random.randbytes(1))
        if random.random() < 0.2:
            del damaged[random.randrange(len(damaged)) :]
        found = parse_answer(bytes(damaged), 3)
        if isinstance(found, Answer):
            assert len(meanings(found)) == 3
        else:
            assert found.maybe_stored


def test_the_first_span_is_never_empty() -> None:
    """`encode` writes at least one entry, however small the bounds: a request always gets on."""
    rules = make_rules(aggregate=True, aggregate_max_bytes=1, request_max_bytes=1, request_max_records=1).entries
    pieces = pieces_of([(b"k", b"data", None)] * 3)
    encoded = encode(ADDRESS, pieces, rules)
    assert encoded.ends.tolist() == [1]
    assert isinstance(pieces[0][1], Span)
