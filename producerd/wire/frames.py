"""Encode and decode the messages between a client and the daemon.

A message is an 8-byte header and a payload.  A payload has the message's required fields in order, each of a fixed
kind, then any number of optional fields (tag, length, value).  A reader skips a tag that it does not know, by its
length.  All numbers are little endian.  docs/build/protocol.md is the specification, and the tables here repeat it.

Every function is pure.  Any bytes give a message or a ProtocolError, and no function allocates more than a checked
header allows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple, Union

from producerd.errors import Outcome, ProtocolError
from producerd.wire.columns import KNOWN_FLAGS, Layout

VERSION: Final = 1
"""Version of the protocol that this code speaks.  HELLO offers a range of versions."""

HEADER: Final = struct.Struct("<BBHI")  # type, flags, zero, payload length
MAX_CONTROL_BYTES: Final = 16 * 1024
"""Largest payload of a message other than BODY and ACK.  It bounds what either side buffers for one."""
MAX_ACK_BYTES: Final = 4 * 1024 * 1024
"""Largest payload of an ACK: bitmap, two bytes for each row of the largest frame, and the code table.

It bounds FIGURES, too, which names each shard.
"""
MAX_TEXT_BYTES: Final = 2048
"""Longest text in UTF-8.  `encode` cuts longer ones, so that an AWS message does not exceed MAX_CONTROL_BYTES."""
MAX_CODES: Final = 256
"""Highest number of different codes in one ACK.  The daemon merges the codes beyond it."""


class MessageType(IntEnum):
    """The types of messages, with the numbers that a header has."""

    HELLO = 1
    WELCOME = 2
    OPEN = 3
    OPENED = 4
    RESERVE = 5
    GRANT = 6
    REFUSED = 7
    CANCEL = 8
    BODY = 9
    ACK = 10
    FLUSH = 11
    STATUS = 12
    BLOCKED = 13
    DRAINING = 14
    CLOSE = 15
    FIGURES = 16


class OnDisconnect(IntEnum):
    """What the daemon does with accepted rows after their caller has disconnected."""

    DISCARD = 0
    DELIVER = 1


class BadRows(IntEnum):
    """What the daemon does with a frame in which some rows are invalid."""

    REFUSE_FRAME = 0
    TAKE_GOOD = 1


class Service(IntEnum):
    """What Kinesis answered when the daemon asked about a stream because of a STATUS."""

    NOT_ASKED = 0
    READY = 1
    NOT_VERIFIED = 2  # the daemon may not ask, so it does not know whether it can store records
    FAILED = 3


@dataclass(frozen=True)
class Hello:
    """The client's first message: the versions that it speaks, what to do with its rows, and its identity."""

    min_version: int
    max_version: int
    on_disconnect: int = OnDisconnect.DISCARD
    bad_rows: int = BadRows.REFUSE_FRAME
    client: str = ""
    application_id: str = ""
    query_id: str = ""
    run_id: str = ""
    batch_id: int = 0
    stage_id: int = 0
    partition: int = 0
    attempt: int = 0
    pid: int = 0
    comes_back: int = 0  # 1: the client knows TABLE_FULL, and comes back when it has rows


@dataclass(frozen=True)
class Welcome:
    """The daemon's answer to HELLO: the chosen version, and the session's limits for its window and its frames."""

    version: int
    session_id: int
    window_bytes: int
    window_frames: int
    max_frame_bytes: int
    max_frame_records: int
    body_timeout_seconds: float
    daemon: str = ""
    dry_runs: int = 0  # 1: the daemon knows ``dry_run`` in OPEN.  One that does not would store the rows


@dataclass(frozen=True)
class Open:
    """The client opens a stream in this session, under a ``stream_id`` of its own choice, from 1.

    ``resumed`` is 1 if the client continues a session with an earlier daemon, which acknowledged some of its rows or
    still had some.  Then the daemon waits for Kinesis without a time limit.

    With ``dry_run`` 1 the daemon checks, sorts and packs this session's rows of the stream and stores none of them.  A
    row that would be stored is acknowledged as STORED.
    """

    stream_id: int
    stream: str
    resumed: int = 0
    dry_run: int = 0


@dataclass(frozen=True)
class Opened:
    """The daemon opened a stream.  The fields have the largest frame (charged bytes, records) and record (key +
    data)."""

    stream_id: int
    max_frame_bytes: int
    max_frame_records: int
    max_record_bytes: int = 0


@dataclass(frozen=True)
class Reserve:
    """The client asks for room for one frame.  ``frame_id`` rises within the session, from 1."""

    frame_id: int
    stream_id: int
    layout: Layout


@dataclass(frozen=True)
class Grant:
    """The daemon has reserved room for a frame.  The client must send the whole body now."""

    frame_id: int


@dataclass(frozen=True)
class Refused:
    """The daemon refuses a RESERVE or, with ``frame_id`` 0, an OPEN.  With TOO_LARGE it gives the new maximum.

    ``judged`` is 1 if the frame's only row can never be stored.
    """

    frame_id: int
    stream_id: int
    code: str
    message: str
    max_frame_bytes: int = 0
    max_frame_records: int = 0
    judged: int = 0


@dataclass(frozen=True)
class Cancel:
    """The client withdraws a RESERVE.  A GRANT that crosses the CANCEL is void on both sides."""

    frame_id: int


@dataclass(frozen=True)
class RowCode:
    """One line of the code table of an ACK: how some rows ended, and why.

    ``judged``: each of the rows itself was found to be one that can never be stored.  The table does not have it:
    `Ack.failed_rows` adds it.
    """

    outcome: int
    code: str
    message: str = ""
    maybe_stored: bool = False
    judged: bool = False


@dataclass(frozen=True)
class Ack:
    """The end of a frame: how many rows ended in which way, which ones are not STORED, and why.

    ``bitmap`` has bit i set (least significant first) if row i is not STORED.  It is empty if all rows are STORED.
    ``code_rows`` has one uint16 for each set bit, in row order: an index into ``codes``.  It is empty if ``codes`` has
    only one line.  ``judged`` has bit i set if the rows of line i were judged.  It is empty if none were, and from
    daemons of 0.2.0 and before, which do not tell.
    """

    frame_id: int
    records: int
    stored: int
    not_stored: int
    unknown: int
    returned: int
    retries: int = 0
    throttled: int = 0
    possible_duplicates: int = 0
    spread_keys: int = 0
    bitmap: bytes = b""
    code_rows: bytes = b""
    codes: tuple[RowCode, ...] = ()
    judged: bytes = b""

    def failed_rows(self) -> Iterator[tuple[int, RowCode]]:
        """Yield the index and the code of each row that is not STORED, in row order."""
        judged = int.from_bytes(self.judged, "little")
        codes = [replace(code, judged=bool(judged >> line & 1)) for line, code in enumerate(self.codes)]
        places: Iterator[int] | None = None
        if self.code_rows:
            places = iter(memoryview(self.code_rows).cast("H"))
        for i, byte in enumerate(self.bitmap):
            while byte:
                low = byte & -byte
                yield i * 8 + low.bit_length() - 1, codes[next(places) if places else 0]
                byte ^= low


@dataclass(frozen=True)
class Flush:
    """The client asks the daemon to send this session's rows of a stream (0: of all streams) without lingering.

    The ACKs of the frames are the answer.
    """

    stream_id: int = 0


@dataclass(frozen=True)
class Status:
    """The client asks for one BLOCKED about a stream at once.

    A caller quotes it when its time-out ends.  A Spark task asks now and then while it waits, for its result.

    With ``asks_service`` 1 the daemon first asks Kinesis whether it can store records.  With ``asks_figures`` 1 it
    answers with FIGURES instead, if the stream is opened for a dry run.
    """

    stream_id: int
    asks_service: int = 0
    asks_figures: int = 0


@dataclass(frozen=True)
class Blocked:
    """The daemon says why rows of a stream wait, while a caller is blocked and as the answer to a STATUS.

    ``service`` is a `Service`.  If Kinesis refused, the next two fields have its code and message.

    ``capacity_mode`` is the stream's, PROVISIONED or ON_DEMAND, or "" if the daemon does not know it.  ``aggregates``
    is 1 where the daemon may put several records into one of Kinesis.  The last four fields say what it has stored of
    the stream, in about how many records of Kinesis, and how long ago it began.
    """

    stream_id: int
    seconds: float
    reason: str
    queue_records: int = 0
    queue_limit_records: int = 0
    queue_bytes: int = 0
    queue_limit_bytes: int = 0
    requests_in_flight: int = 0
    last_error: str = ""
    shard: str = ""
    share: float = 0.0
    service: int = Service.NOT_ASKED
    service_code: str = ""
    service_message: str = ""
    capacity_mode: str = ""
    aggregates: int = 0
    delivered_records: int = 0
    delivered_bytes: int = 0
    kinesis_records: int = 0
    delivering_seconds: float = 0.0


@dataclass(frozen=True)
class Draining:
    """The daemon stops: it grants no more frames, and returns the rows that it cannot send within the deadline."""

    deadline_seconds: float
    message: str = ""


@dataclass(frozen=True)
class Close:
    """Either side ends the session, and says why."""

    code: str
    message: str


@dataclass(frozen=True)
class Figures:
    """What a session's rows of a dry run would be in Kinesis.

    - ``records``, ``bytes`` and ``units``: the good rows as records of their own, their keys and data in bytes, and the
      PUT payload units that they are billed as: one for each 25 KiB that a record has or begins.
    - ``aggregated_records``, ``aggregated_bytes`` and ``aggregated_units``: the same as aggregates of the KPL's format.
    - ``aggregates``: 1 if the stream's setting is to aggregate.
    - ``open_shards``: the number of the stream's open shards, or 0 if they are unknown.  ``shards`` has the number of
      rows of each shard that gets any.
    - ``sizes``: how many rows have a size up to each bound in bytes, and above the bound before it.
    - ``max_record_bytes``: the stream's limit on a record, or 0 if it is unknown.
    """

    stream_id: int
    records: int
    bytes: int
    units: int
    aggregated_records: int
    aggregated_bytes: int
    aggregated_units: int
    aggregates: int = 0
    open_shards: int = 0
    max_record_bytes: int = 0
    shards: tuple[tuple[str, int], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()


Message = Union[
    Hello, Welcome, Open, Opened, Reserve, Grant, Refused, Cancel, Ack, Flush, Status, Blocked, Draining, Close, Figures
]


class _Kind(NamedTuple):
    """The kind of a field.  ``struct`` is None for kinds that carry their own length."""

    name: str
    struct: struct.Struct | None


U8: Final = _Kind("u8", struct.Struct("<B"))
U16: Final = _Kind("u16", struct.Struct("<H"))
U32: Final = _Kind("u32", struct.Struct("<I"))
U64: Final = _Kind("u64", struct.Struct("<Q"))
I64: Final = _Kind("i64", struct.Struct("<q"))
F64: Final = _Kind("f64", struct.Struct("<d"))
TEXT: Final = _Kind("text", None)
BLOB: Final = _Kind("blob", None)
_LAYOUT: Final = struct.Struct("<IIII")
LAYOUT: Final = _Kind("layout", _LAYOUT)
CODES: Final = _Kind("codes", None)
COUNTS: Final = _Kind("counts", None)

_TAG: Final = struct.Struct("<HI")
_ROW_CODE: Final = struct.Struct("<BB")


class _Schema(NamedTuple):
    number: MessageType
    message: type
    required: tuple[tuple[str, _Kind], ...]
    optional: tuple[tuple[int, str, _Kind], ...] = ()


_SCHEMAS: Final = (
    _Schema(
        MessageType.HELLO,
        Hello,
        (("min_version", U16), ("max_version", U16), ("on_disconnect", U8), ("bad_rows", U8)),
        (
            (1, "client", TEXT),
            (2, "application_id", TEXT),
            (3, "query_id", TEXT),
            (4, "run_id", TEXT),
            (5, "batch_id", I64),
            (6, "stage_id", I64),
            (7, "partition", I64),
            (8, "attempt", I64),
            (9, "pid", I64),
            (10, "comes_back", U8),
        ),
    ),
    _Schema(
        MessageType.WELCOME,
        Welcome,
        (
            ("version", U16),
            ("session_id", U64),
            ("window_bytes", U64),
            ("window_frames", U32),
            ("max_frame_bytes", U64),
            ("max_frame_records", U32),
            ("body_timeout_seconds", F64),
        ),
        ((1, "daemon", TEXT), (2, "dry_runs", U8)),
    ),
    _Schema(MessageType.OPEN, Open, (("stream_id", U32), ("stream", TEXT)), ((1, "resumed", U8), (2, "dry_run", U8))),
    _Schema(
        MessageType.OPENED,
        Opened,
        (("stream_id", U32), ("max_frame_bytes", U64), ("max_frame_records", U32)),
        ((1, "max_record_bytes", U64),),
    ),
    _Schema(MessageType.RESERVE, Reserve, (("frame_id", U64), ("stream_id", U32), ("layout", LAYOUT))),
    _Schema(MessageType.GRANT, Grant, (("frame_id", U64),)),
    _Schema(
        MessageType.REFUSED,
        Refused,
        (("frame_id", U64), ("stream_id", U32), ("code", TEXT), ("message", TEXT)),
        ((1, "max_frame_bytes", U64), (2, "max_frame_records", U32), (3, "judged", U8)),
    ),
    _Schema(MessageType.CANCEL, Cancel, (("frame_id", U64),)),
    _Schema(
        MessageType.ACK,
        Ack,
        (
            ("frame_id", U64),
            ("records", U32),
            ("stored", U32),
            ("not_stored", U32),
            ("unknown", U32),
            ("returned", U32),
        ),
        (
            (1, "retries", U64),
            (2, "throttled", U64),
            (3, "possible_duplicates", U32),
            (4, "spread_keys", U32),
            (5, "bitmap", BLOB),
            (6, "code_rows", BLOB),
            (7, "codes", CODES),
            (8, "judged", BLOB),
        ),
    ),
    _Schema(MessageType.FLUSH, Flush, (("stream_id", U32),)),
    _Schema(MessageType.STATUS, Status, (("stream_id", U32),), ((1, "asks_service", U8), (2, "asks_figures", U8))),
    _Schema(
        MessageType.BLOCKED,
        Blocked,
        (("stream_id", U32), ("seconds", F64), ("reason", TEXT)),
        (
            (1, "queue_records", U64),
            (2, "queue_limit_records", U64),
            (3, "queue_bytes", U64),
            (4, "queue_limit_bytes", U64),
            (5, "requests_in_flight", U32),
            (6, "last_error", TEXT),
            (7, "shard", TEXT),
            (8, "share", F64),
            (9, "service", U8),
            (10, "service_code", TEXT),
            (11, "service_message", TEXT),
            (12, "capacity_mode", TEXT),
            (13, "aggregates", U8),
            (14, "delivered_records", U64),
            (15, "delivered_bytes", U64),
            (16, "kinesis_records", U64),
            (17, "delivering_seconds", F64),
        ),
    ),
    _Schema(MessageType.DRAINING, Draining, (("deadline_seconds", F64),), ((1, "message", TEXT),)),
    _Schema(MessageType.CLOSE, Close, (("code", TEXT), ("message", TEXT))),
    _Schema(
        MessageType.FIGURES,
        Figures,
        (
            ("stream_id", U32),
            ("records", U64),
            ("bytes", U64),
            ("units", U64),
            ("aggregated_records", U64),
            ("aggregated_bytes", U64),
            ("aggregated_units", U64),
        ),
        (
            (1, "aggregates", U8),
            (2, "open_shards", U32),
            (3, "max_record_bytes", U64),
            (4, "shards", COUNTS),
            (5, "sizes", COUNTS),
        ),
    ),
)
_BY_NUMBER: Final = {schema.number: schema for schema in _SCHEMAS}
_BY_CLASS: Final = {schema.message: schema for schema in _SCHEMAS}
_DEFAULTS: Final = {
    schema.message: {field.name: field.default for field in fields(schema.message)} for schema in _SCHEMAS
}


class Header(NamedTuple):
    """The checked header of a message."""

    type: MessageType
    flags: int
    payload_bytes: int


def parse_header(data: bytes | bytearray | memoryview, at: int = 0) -> Header:
    """Return the header in the 8 bytes from ``at``.  Raise ProtocolError if the payload is too long for its type.

    The length of a BODY has no bound here: the caller compares it with the frame that the daemon granted.
    """
    number, flags, zero, payload_bytes = HEADER.unpack_from(data, at)
    try:
        type_ = MessageType(number)
    except ValueError:
        raise ProtocolError(f"unknown message type {number}") from None
    if zero:
        raise ProtocolError(f"{type_.name}: reserved header bytes are {zero:#x}, not 0")
    if flags and type_ not in (MessageType.BODY, MessageType.RESERVE):
        raise ProtocolError(f"{type_.name}: unknown flags {flags:#x}")
    if flags & ~KNOWN_FLAGS:
        raise ProtocolError(f"{type_.name}: unknown frame flags {flags:#x}")
    bound = MAX_ACK_BYTES if type_ in (MessageType.ACK, MessageType.FIGURES) else MAX_CONTROL_BYTES
    if type_ is not MessageType.BODY and payload_bytes > bound:
        raise ProtocolError(f"{type_.name}: a payload of {payload_bytes} bytes passes {bound}")
    return Header(type_, flags, payload_bytes)


def number_of(message: Message) -> MessageType:
    """Return the type of a message."""
    return _BY_CLASS[type(message)].number


def body_header(layout: Layout) -> bytes:
    """Return the header of a BODY message.  The prefix and the columns follow it."""
    return HEADER.pack(MessageType.BODY, layout.flags, 0, layout.body_bytes)


def encode(message: Message) -> bytes:
    """Return header and payload of a message, with texts cut to MAX_TEXT_BYTES."""
    schema = _BY_CLASS[type(message)]
    written_fields = [_write(kind, getattr(message, name)) for name, kind in schema.required]
    defaults = _DEFAULTS[schema.message]
    for tag, name, kind in schema.optional:
        value = getattr(message, name)
        if value != defaults[name]:
            written = _write(kind, value, framed=False)
            written_fields += [_TAG.pack(tag, len(written)), written]
    payload = b"".join(written_fields)
    flags = message.layout.flags if isinstance(message, Reserve) else 0
    return HEADER.pack(schema.number, flags, 0, len(payload)) + payload


def decode(header: Header, payload: bytes | bytearray | memoryview) -> Message:
    """Return the message in a whole payload.  Raise ProtocolError if docs/build/protocol.md does not allow it."""
    schema = _BY_NUMBER.get(header.type)
    if schema is None or len(payload) != header.payload_bytes:
        raise ProtocolError(f"{header.type.name}: {len(payload)} payload bytes, not a message")
    reader = _Reader(memoryview(payload), header)
    values: dict[str, Any] = {name: reader.field(kind) for name, kind in schema.required}
    known = {tag: (name, kind) for tag, name, kind in schema.optional}
    while reader.left:
        tag, size = reader.unpack(_TAG)
        value = reader.take(size)
        if tag not in known:
            continue
        name, kind = known[tag]
        if name in values:
            raise ProtocolError(f"{header.type.name}: the optional field {name} twice")
        values[name] = _Reader(value, header).whole(kind)
    message: Message = schema.message(**values)
    _check(message)
    return message


def _check(message: Message) -> None:
    if isinstance(message, Hello):
        if message.min_version > message.max_version:
            raise ProtocolError(f"HELLO: versions {message.min_version} to {message.max_version}")
        if message.on_disconnect not in tuple(OnDisconnect) or message.bad_rows not in tuple(BadRows):
            raise ProtocolError("HELLO: unknown on_disconnect or bad_rows")
    elif isinstance(message, Reserve):
        message.layout.check()
    elif isinstance(message, Ack):
        _check_ack(message)


def _check_ack(ack: Ack) -> None:
    failed = ack.not_stored + ack.unknown + ack.returned
    if int.from_bytes(ack.judged, "little") >> len(ack.codes):
        raise ProtocolError("ACK: judged lines beyond the code table")
    if ack.stored + failed != ack.records:
        raise ProtocolError("ACK: its tallies do not add up to its records")
    if not failed and not ack.bitmap and not ack.code_rows:
        return
    if len(ack.bitmap) != (ack.records + 7) // 8 or not ack.codes:
        raise ProtocolError("ACK: bitmap or code table of the wrong size")
    if bin(int.from_bytes(ack.bitmap, "little")).count("1") != failed:
        raise ProtocolError("ACK: the bitmap does not mark as many rows as the tallies say")
    if int.from_bytes(ack.bitmap, "little") >> ack.records:
        raise ProtocolError("ACK: the bitmap marks rows beyond the frame")
    if len(ack.code_rows) != (2 * failed if len(ack.codes) > 1 else 0):
        raise ProtocolError("ACK: one code a failed row, or one code for all")
    if ack.code_rows and max(memoryview(ack.code_rows).cast("H")) >= len(ack.codes):
        raise ProtocolError("ACK: a code beyond its table")


def _write(kind: _Kind, value: Any, *, framed: bool = True) -> bytes:
    """Return the bytes of a field.  ``framed`` puts the length in front, for kinds without a fixed one."""
    if kind is LAYOUT:
        assert kind.struct is not None
        return kind.struct.pack(value.records, value.key_bytes, value.data_bytes, value.hash_key_bytes)
    if kind.struct is not None:
        return kind.struct.pack(value)
    if kind is TEXT:
        written = _cut_text(value)
    elif kind is CODES:
        written = b"".join(
            _ROW_CODE.pack(row.outcome, row.maybe_stored) + _write(TEXT, row.code) + _write(TEXT, row.message)
            for row in value
        )
    elif kind is COUNTS:
        written = b"".join(_write(TEXT, name) + _write(U64, count) for name, count in value)
    else:
        written = bytes(value)
    return U32.struct.pack(len(written)) + written if framed else written  # type: ignore[union-attr]


def _cut_text(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_TEXT_BYTES:
        return encoded
    return encoded[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()


class _Reader:
    """A reader of the fields in a payload, which checks each length before it uses it."""

    def __init__(self, view: memoryview, header: Header) -> None:
        self._view = view
        self._header = header
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._view) - self._at

    def take(self, size: int) -> memoryview:
        if size > self.left:
            raise ProtocolError(f"{self._header.type.name}: {size} bytes wanted where {self.left} are left")
        self._at += size
        return self._view[self._at - size : self._at]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self.take(layout.size))

    def field(self, kind: _Kind) -> Any:
        """Read a field at this place in the payload."""
        if kind is LAYOUT:
            records, key_bytes, data_bytes, hash_key_bytes = self.unpack(_LAYOUT)
            return Layout(records, key_bytes, data_bytes, hash_key_bytes, self._header.flags)
        if kind.struct is not None:
            return self.unpack(kind.struct)[0]
        (size,) = self.unpack(U32.struct)  # type: ignore[arg-type]
        return _Reader(self.take(size), self._header).whole(kind)

    def whole(self, kind: _Kind) -> Any:
        """Read a field that fills the rest of the payload."""
        if kind is TEXT:
            if self.left > MAX_TEXT_BYTES:
                raise ProtocolError(f"{self._header.type.name}: a text of {self.left} bytes passes {MAX_TEXT_BYTES}")
            try:
                return str(self.take(self.left), "utf-8")
            except UnicodeDecodeError:
                raise ProtocolError(f"{self._header.type.name}: text that is not UTF-8") from None
        if kind is BLOB:
            return bytes(self.take(self.left))
        if kind is CODES:
            return self._codes()
        if kind is COUNTS:
            return self._counts()
        value = self.field(kind)
        if self.left:
            raise ProtocolError(f"{self._header.type.name}: {self.left} bytes behind a field")
        return value

    def _codes(self) -> tuple[RowCode, ...]:
        codes: list[RowCode] = []
        while self.left:
            if len(codes) == MAX_CODES:
                raise ProtocolError(f"{self._header.type.name}: over {MAX_CODES} codes")
            outcome, maybe_stored = self.unpack(_ROW_CODE)
            if outcome not in tuple(Outcome) or outcome == Outcome.STORED or maybe_stored > 1:
                raise ProtocolError(f"{self._header.type.name}: unknown outcome {outcome}")
            codes.append(RowCode(outcome, self.field(TEXT), self.field(TEXT), bool(maybe_stored)))
        return tuple(codes)

    def _counts(self) -> tuple[tuple[str, int], ...]:
        counts: list[tuple[str, int]] = []
        while self.left:
            counts.append((self.field(TEXT), self.field(U64)))
        return tuple(counts)
