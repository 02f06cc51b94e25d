"""The two formats of PutRecords: JSON 1.1, which every endpoint takes, and Amazon's CBOR, without base64.

Each format writes rows in two ways, with the same bytes: one by one for the loop in `entries`, and as whole columns for
its twin `columnar`.  (Source: RFC 8949 for CBOR.  Amazon has published nothing about its own: a body has the bytes that
AWS's SDK for Java 2 writes for the same rows.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, Protocol

import numpy as np
import orjson
from pybase64 import b64encode

from producerd.core.encoding.gather import Buffer, Cells, Texts, offsets_of
from producerd.core.encoding.row_columns import RowColumns
from producerd.core.kpl.aggregation import MAX_KEY_CHARACTERS
from producerd.core.rows.spans import NULL_KEY
from producerd.core.shards.hash_keys import I32


class Format(Protocol):
    """One of the formats.  A key is UTF-8, and a hash key decimal digits.

    - ``name``: its name in the setting `wire_format`.
    - ``content_type``: the value of the header Content-Type.
    """

    name: str
    content_type: str

    def start(self, address: Mapping[str, str]) -> bytes:
        """Return how a body begins.  ``address`` has the members that name the stream."""

    def end(self, address: Mapping[str, str]) -> bytes:
        """Return how a body ends, in place of the last chunk of its last entry."""

    def entry(self, key: bytes, hash_key: bytes | None, data: Sequence[Buffer]) -> Sequence[Buffer]:
        """Return an entry in chunks.  Its data come in chunks, too."""

    def takes(self, keys: bytes) -> bool:
        """Return whether keys are written as they are.  ``keys`` are one or many, joined."""

    def entries(self, keys: Sequence[bytes], data: Sequence[Buffer]) -> list[Buffer]:
        """Return the entries in chunks.  The format `takes` their keys, and none has a hash key."""

    def body(self, address: Mapping[str, str], columns: RowColumns, hash_keys: Sequence[bytes | None] | None) -> Buffer:
        """Return the body with one entry for each row.  The format `takes` their keys, which may be empty.

        ``hash_keys``: each row's explicit hash key if it has one, or None if no row has one.
        """


# ---- JSON


class _Json:
    name = "json"
    content_type = "application/x-amz-json-1.1"

    _DATA: Final = b'{"Data":"'
    _KEY: Final = b'","PartitionKey":"'
    _HASH_KEY: Final = b'","ExplicitHashKey":"'
    _END: Final = b'"},'
    _PADDING: Final = b"=="

    def start(self, address: Mapping[str, str]) -> bytes:
        return orjson.dumps(dict(address))[:-1] + b',"Records":['

    def end(self, address: Mapping[str, str]) -> bytes:  # noqa: ARG002 - the start has it
        return b'"}]}'

    def entry(self, key: bytes, hash_key: bytes | None, data: Sequence[Buffer]) -> Sequence[Buffer]:
        base64 = b64encode(data[0] if len(data) == 1 else b"".join(data))
        text = orjson.dumps(str(key, "utf-8"))[1:-1]  # escaped if need be
        if hash_key is None:
            return self._DATA, base64, self._KEY, text, self._END
        return self._DATA, base64, self._KEY, text, self._HASH_KEY, hash_key, self._END

    def takes(self, keys: bytes) -> bool:
        values = np.frombuffer(keys, np.uint8)
        return not len(values) or bool(values.min() >= ord(" ") and b'"' not in keys and b"\\" not in keys)

    def entries(self, keys: Sequence[bytes], data: Sequence[Buffer]) -> list[Buffer]:
        chunks: list[Buffer] = [self._DATA, b"", self._KEY, b"", self._END] * len(keys)
        chunks[1::5], chunks[3::5] = map(b64encode, data), keys
        return chunks

    def body(self, address: Mapping[str, str], columns: RowColumns, hash_keys: Sequence[bytes | None] | None) -> Buffer:
        text, offsets, padding = _base64(columns)
        cells = Cells(columns.rows, 5)
        cells.text(0, self._DATA)
        cells.text(0, self.start(address) + self._DATA, rows=0)
        cells.slices(1, [text], 0, offsets[:-1], offsets[1:] - offsets[:-1] - padding)
        cells.slices(2, [self._PADDING + self._KEY], 0, len(self._PADDING) - padding, padding + len(self._KEY))
        _put_keys(cells, 3, columns)
        if not columns.key_bytes.all():
            cells.text(3, NULL_KEY, rows=np.flatnonzero(columns.key_bytes == 0))
        ends = [b"" if hash_key is None else self._HASH_KEY + hash_key for hash_key in hash_keys or ()]
        if hash_keys is None:
            cells.text(4, self._END)
        else:
            _put_texts(cells, 4, [end + self._END for end in ends])
        cells.text(4, (ends[-1] if ends else b"") + self.end(address), rows=columns.rows - 1)
        return cells.joined()


def _base64(columns: RowColumns) -> tuple[bytes, I32, I32]:
    """Encode the data of all rows in base64, with one call.

    Zero bytes fill each row's data up to a multiple of three.  Returns the text, the offsets of the rows in it, and the
    number of characters at each row's end that the caller must replace by padding.
    """
    missing = -columns.data_bytes % 3
    cells = Cells(columns.rows, 2)
    cells.slices(0, columns.data, columns.data_places, columns.data_offsets, columns.data_bytes)
    cells.zeros(1, missing)
    return b64encode(cells.joined()), offsets_of(columns.data_bytes + missing) // 3 * 4, missing


# ---- CBOR


BYTES, TEXT, LIST = 0x40, 0x60, 0x80
"""The first byte of a byte string, a text and a list, without its length (RFC 8949, section 3.1)."""
_MAP: Final = b"\xbf"
_LIST: Final = b"\x9f"
_BREAK: Final = b"\xff"
"""A map and a list without a length begin so, and end with a break (RFC 8949, section 3.2.1)."""


@lru_cache(maxsize=4_096)
def head(kind: int, length: int) -> bytes:
    """Return the head of a byte string or a text of this many bytes, or of a list of this many items."""
    if length < 24:
        return bytes((kind + length,))
    octets = 1 if length < 1 << 8 else 2 if length < 1 << 16 else 4
    return bytes((kind + 24 + octets.bit_length() - 1,)) + length.to_bytes(octets, "big")


def _text(value: str) -> bytes:
    octets = value.encode()
    return head(TEXT, len(octets)) + octets


class _Cbor:
    name = "cbor"
    content_type = "application/x-amz-cbor-1.1"

    _DATA: Final = _MAP + _text("Data")
    _KEY: Final = _text("PartitionKey")
    _HASH_KEY: Final = _text("ExplicitHashKey")

    def __init__(self) -> None:
        self._data_heads = Texts(lambda length: _BREAK + self._DATA + head(BYTES, length), 4_096)
        self._key_heads = Texts(self._key_head, MAX_KEY_CHARACTERS * 4 + 1)

    def start(self, address: Mapping[str, str]) -> bytes:  # noqa: ARG002 - the end has it
        return _MAP + _text("Records") + _LIST

    def end(self, address: Mapping[str, str]) -> bytes:
        return _BREAK * 2 + b"".join(map(_text, chain(*address.items()))) + _BREAK

    def entry(self, key: bytes, hash_key: bytes | None, data: Sequence[Buffer]) -> Sequence[Buffer]:
        key_head = self._KEY + head(TEXT, len(key))
        if hash_key is not None:
            key_head = self._hash_key(hash_key) + key_head
        return self._DATA + head(BYTES, sum(map(len, data))), *data, key_head, key, _BREAK

    def takes(self, keys: bytes) -> bool:  # noqa: ARG002 - a text in CBOR has no quotes
        return True

    def entries(self, keys: Sequence[bytes], data: Sequence[Buffer]) -> list[Buffer]:
        chunks: list[Buffer] = [_BREAK] * (5 * len(keys))
        chunks[::5], chunks[1::5] = [self._DATA + head(BYTES, len(value)) for value in data], data
        chunks[2::5], chunks[3::5] = [self._KEY + head(TEXT, len(key)) for key in keys], keys
        return chunks

    def body(self, address: Mapping[str, str], columns: RowColumns, hash_keys: Sequence[bytes | None] | None) -> Buffer:
        cells = Cells(columns.rows, 4 if hash_keys is None else 5)
        cells.chosen(0, self._data_heads, columns.data_bytes)  # each also ends the entry before
        cells.text(0, self.start(address) + self._DATA + head(BYTES, int(columns.data_bytes[0])), rows=0)
        cells.slices(1, columns.data, columns.data_places, columns.data_offsets, columns.data_bytes)
        if hash_keys is not None:
            _put_texts(cells, 2, [b"" if hash_key is None else self._hash_key(hash_key) for hash_key in hash_keys])
        cells.chosen(-2, self._key_heads, columns.key_bytes)
        _put_keys(cells, -1, columns)
        cells.end(self.end(address))
        return cells.joined()

    def _key_head(self, length: int) -> bytes:
        """Return the text before a key.  A row without a key gets its key here."""
        return self._KEY + (head(TEXT, length) if length else head(TEXT, len(NULL_KEY)) + NULL_KEY)

    def _hash_key(self, hash_key: bytes) -> bytes:
        return self._HASH_KEY + head(TEXT, len(hash_key)) + hash_key


# ---- columns of both


def _put_keys(cells: Cells, column: int, columns: RowColumns) -> None:
    cells.slices(column, [columns.keys], 0, offsets_of(columns.key_bytes)[:-1], columns.key_bytes)


def _put_texts(cells: Cells, column: int, texts: Sequence[bytes]) -> None:
    lengths = np.fromiter(map(len, texts), np.int32, len(texts))
    cells.slices(column, [b"".join(texts)], 0, offsets_of(lengths)[:-1], lengths)


JSON: Final[Format] = _Json()
CBOR: Final[Format] = _Cbor()
