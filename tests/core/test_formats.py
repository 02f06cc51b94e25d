"""Heads in CBOR are as short as they can be, and JSON writes a key as it is only if that is its text."""

from __future__ import annotations

import json

import cbor2
import pytest

from producerd.core.encoding.formats import BYTES, CBOR, JSON, LIST, TEXT, head

LENGTHS = [0, 1, 23, 24, 255, 256, 257, 65_535, 65_536, 70_000]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_head_has_the_fewest_bytes_for_its_length(length: int) -> None:
    for kind, value in ((BYTES, bytes(length)), (TEXT, "x" * length), (LIST, [0] * length)):
        written = cbor2.dumps(value)
        assert head(kind, length) == written[: len(written) - length]


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        (b"", True),
        (b" ", True),
        (b"!", True),
        (b"\x1f", False),
        (b'"', False),
        (b"\\", False),
        (b"\x7f", True),
        ("é€😀".encode(), True),
        (b'two "keys"', False),
    ],
)
def test_json_takes_keys_that_need_no_escape(keys: bytes, taken: bool) -> None:
    assert JSON.takes(keys) is taken
    assert CBOR.takes(keys)
    assert (json.dumps(keys.decode(), ensure_ascii=False)[1:-1].encode() == keys) is taken


def test_each_format_is_named_as_its_content_type_and_as_the_setting_say() -> None:
    assert (JSON.name, JSON.content_type) == ("json", "application/x-amz-json-1.1")
    assert (CBOR.name, CBOR.content_type) == ("cbor", "application/x-amz-cbor-1.1")
