"""A row is called stored only if the body of an answer says so, in JSON and in CBOR, by another reading of it."""

from __future__ import annotations

import json
from typing import Any, Final

import cbor2

from producerd.core.sending.answers import Answer, RequestFailed, parse_answer

MANY: Final = 130
"""Entries of a request whose answer is read in columns."""
MARK: Final = b"|"


def check(data: bytes) -> None:
    """The first byte has the number of entries.  From 128 on, what stands between two marks comes once for each."""
    entries, body = data[0] if data else 1, data[1:]
    if entries >= MANY - 2 and body.count(MARK) >= 2:
        before, result, after = body.split(MARK, 2)
        many = bytearray(before + result * entries + after)
        if after[:1] == b"!" and many:  # a fault in only one of them
            many[len(many) // 2] ^= after[-1]
        body = bytes(many)
    assert_said(parse_answer(body, entries), body, entries)


def assert_said(found: Answer | RequestFailed, body: bytes, entries: int) -> None:
    """Compare what was found with the body's own words."""
    if isinstance(found, RequestFailed):
        assert found.maybe_stored, "an answer with status 200 that rules out that records are stored"
        return
    results = _loads(body)["Records"]
    assert len(results) == len(found.shards) == len(found.errors) == entries
    for result, shard, error in zip(results, found.shards.tolist(), found.errors.tolist(), strict=True):
        if error < 0:
            assert not result.get("ErrorCode"), "a row that failed is called stored"
            assert result["ShardId"] == found.shard_table[shard], "a row is called stored in another shard"
        else:
            assert shard == -1, "a row that failed has a shard"
            assert not result.get("ShardId") or result.get("ErrorCode"), "a row that is stored is called failed"
    assert all(type(number) is int and number >= 0 for number in found.sequences)


def _loads(body: bytes) -> Any:
    return json.loads(body) if body[:1] < b"\x80" else cbor2.loads(body)
