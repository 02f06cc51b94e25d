"""The spans that encoders take, each with the number of its lane, and what a request's body has of them."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import cbor2

from producerd.core.encoding.entries import EncodedRequest
from producerd.core.encoding.formats import CBOR, JSON
from producerd.core.kpl.aggregation import AGGREGATE_KEY, parse
from producerd.core.rows.spans import Span
from producerd.core.rules import EntryRules
from tests.core.rows import Row, content, even_map, rows_of, sorted_of
from tests.simulation.setting import STREAM

SPECIAL_KEYS = [b'"', b"\\", b"\x00", b"\n\t\x1f", b"</script>", b"\x7f", "é€😀".encode(), "\u2028".encode(), b"%b{}"]
FORMATS = {format_.name: format_ for format_ in (JSON, CBOR)}
Numbered = list[tuple[int, Span]]
"""Spans with the numbers of their lanes."""


def pieces_of(rows: list[Row], shards: int = 1) -> Numbered:
    result = sorted_of([rows_of(rows)], even_map(shards), 1)
    return result.spans


def drop(pieces: Numbered, rows: int) -> Numbered:
    left: Numbered = []
    for lane, span in pieces:
        gone = min(rows, span.records)
        rows -= gone
        if gone < span.records:
            left.append((lane, span.cut(span.first + gone)[1]))
    return left


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


def check_body(pieces: Numbered, encoded: EncodedRequest, rules: EntryRules) -> None:
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
