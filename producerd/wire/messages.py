"""Encode and decode the messages between a client and the daemon.

A message is an 8-byte header and a payload.  A payload has the message's required fields in order, each of a fixed
kind, then any number of optional fields (tag, length, value).  A reader skips a tag that it does not know, by its
length.  All numbers are little endian.  docs/build/protocol.md is the specification.  The classes here repeat it: each
field has its kind, and each optional field its tag.

Every function is pure.  Any bytes give a message or a ProtocolError, and no function allocates more than a checked
header allows.  The classes are not frozen, because a frozen one takes three times as long to make, but no message
changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from itertools import takewhile
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_type_hints

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


class FieldKind(NamedTuple):
    """A kind of field: how its value is written and read.

    A required field whose kind has no fixed size has its length in front, in four bytes.  ``format``: of a number.
    """

    name: str
    write: Callable[[Any], bytes]
    read: Callable[[_Reader], Any]
    has_fixed_size: bool = False
    format: str = ""


def _number(name: str, format_: str) -> FieldKind:
    layout = struct.Struct(f"<{format_}")
    return FieldKind(name, layout.pack, lambda reader: reader.unpack(layout)[0], has_fixed_size=True, format=format_)


def _write_text(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_TEXT_BYTES:
        return encoded
    return encoded[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()


def _read_text(reader: _Reader) -> str:
    if reader.left > MAX_TEXT_BYTES:
        raise reader.error(f"a text of {reader.left} bytes passes {MAX_TEXT_BYTES}")
    try:
        return str(reader.take(reader.left), "utf-8")
    except UnicodeDecodeError:
        raise reader.error("text that is not UTF-8") from None


def _write_layout(layout: Layout) -> bytes:
    return _LAYOUT.pack(layout.records, layout.key_bytes, layout.data_bytes, layout.hash_key_bytes)


def _read_layout(reader: _Reader) -> Layout:
    records, key_bytes, data_bytes, hash_key_bytes = reader.unpack(_LAYOUT)
    return Layout(records, key_bytes, data_bytes, hash_key_bytes, reader.header.flags)


def _write_codes(codes: tuple[RowCode, ...]) -> bytes:
    return b"".join(
        _ROW_CODE.pack(code.outcome, code.maybe_stored) + written(TEXT, code.code) + written(TEXT, code.message)
        for code in codes
    )


def _read_codes(reader: _Reader) -> tuple[RowCode, ...]:
    codes: list[RowCode] = []
    while reader.left:
        if len(codes) == MAX_CODES:
            raise reader.error(f"over {MAX_CODES} codes")
        outcome, maybe_stored = reader.unpack(_ROW_CODE)
        if outcome not in tuple(Outcome) or outcome == Outcome.STORED or maybe_stored > 1:
            raise reader.error(f"unknown outcome {outcome}")
        codes.append(RowCode(outcome, reader.field(TEXT), reader.field(TEXT), bool(maybe_stored)))
    return tuple(codes)


def _write_counts(counts: tuple[tuple[str, int], ...]) -> bytes:
    return b"".join(written(TEXT, name) + _COUNT.write(count) for name, count in counts)


def _read_counts(reader: _Reader) -> tuple[tuple[str, int], ...]:
    counts: list[tuple[str, int]] = []
    while reader.left:
        counts.append((reader.field(TEXT), reader.field(_COUNT)))
    return tuple(counts)


_LAYOUT: Final = struct.Struct("<IIII")
_ROW_CODE: Final = struct.Struct("<BB")
_SIZE: Final = struct.Struct("<I")
TAG: Final = struct.Struct("<HI")
_COUNT: Final = _number("u64", "Q")
TEXT: Final = FieldKind("text", _write_text, _read_text)

U8 = Annotated[int, _number("u8", "B")]
U16 = Annotated[int, _number("u16", "H")]
U32 = Annotated[int, _number("u32", "I")]
U64 = Annotated[int, _COUNT]
I64 = Annotated[int, _number("i64", "q")]
F64 = Annotated[float, _number("f64", "d")]
Text = Annotated[str, TEXT]
Blob = Annotated[bytes, FieldKind("blob", bytes, lambda reader: bytes(reader.take(reader.left)))]
LayoutOfFrame = Annotated[Layout, FieldKind("layout", _write_layout, _read_layout, has_fixed_size=True)]
Codes = Annotated["tuple[RowCode, ...]", FieldKind("codes", _write_codes, _read_codes)]
Counts = Annotated["tuple[tuple[str, int], ...]", FieldKind("counts", _write_counts, _read_counts)]


@dataclass
class Hello:
    """The client's first message: the versions that it speaks, what to do with its rows, and its identity."""

    min_version: U16
    max_version: U16
    on_disconnect: U8 = OnDisconnect.DISCARD
    bad_rows: U8 = BadRows.REFUSE_FRAME
    client: Annotated[Text, 1] = ""
    application_id: Annotated[Text, 2] = ""
    query_id: Annotated[Text, 3] = ""
    run_id: Annotated[Text, 4] = ""
    batch_id: Annotated[I64, 5] = 0
    stage_id: Annotated[I64, 6] = 0
    partition: Annotated[I64, 7] = 0
    attempt: Annotated[I64, 8] = 0
    pid: Annotated[I64, 9] = 0
    comes_back: Annotated[U8, 10] = 0  # 1: the client knows TABLE_FULL, and comes back when it has rows


@dataclass
class Welcome:
    """The daemon's answer to HELLO: the chosen version, and the session's limits for its window and its frames."""

    version: U16
    session_id: U64
    window_bytes: U64
    window_frames: U32
    max_frame_bytes: U64
    max_frame_records: U32
    body_timeout_seconds: F64
    daemon: Annotated[Text, 1] = ""
    dry_runs: Annotated[U8, 2] = 0  # 1: the daemon knows ``dry_run`` in OPEN.  One that does not would store the rows


@dataclass
class Open:
    """The client opens a stream in this session, under a ``stream_id`` of its own choice, from 1."""

    stream_id: U32
    stream: Text
    resumed: Annotated[U8, 1] = 0
    dry_run: Annotated[U8, 2] = 0
    asks_where: Annotated[U8, 3] = 0  # 1: OPENED is to say where the stream is


@dataclass
class Opened:
    """The daemon opened a stream.  The fields have the largest frame (charged bytes, records) and record (key + data).

    Where the stream is was read after the OPEN that asked for it.  The ARN is empty if it could not be read.
    """

    stream_id: U32
    max_frame_bytes: U64
    max_frame_records: U32
    max_record_bytes: Annotated[U64, 1] = 0
    per_key: Annotated[U8, 2] = 0
    endpoint_host: Annotated[Text, 3] = ""
    stream_arn: Annotated[Text, 4] = ""
    created_milliseconds: Annotated[U64, 5] = 0  # its StreamCreationTimestamp


@dataclass
class Reserve:
    """The client asks for room for one frame.  ``frame_id`` rises within the session, from 1."""

    frame_id: U64
    stream_id: U32
    layout: LayoutOfFrame


@dataclass
class Grant:
    """The daemon has reserved room for a frame.  The client must send the whole body now."""

    frame_id: U64


@dataclass
class Refused:
    """The daemon refuses a RESERVE or, with ``frame_id`` 0, an OPEN.  With TOO_LARGE it gives the new maximum."""

    frame_id: U64
    stream_id: U32
    code: Text
    message: Text
    max_frame_bytes: Annotated[U64, 1] = 0
    max_frame_records: Annotated[U32, 2] = 0
    judged: Annotated[U8, 3] = 0


@dataclass
class Cancel:
    """The client withdraws a RESERVE.  A GRANT that crosses the CANCEL is void on both sides."""

    frame_id: U64


@dataclass(frozen=True)
class RowCode:
    """One line of the code table of an ACK: how some rows ended, and why.

    ``judged`` is not in the table: `Ack.failed_rows` adds it.
    """

    outcome: int
    code: str
    message: str = ""
    maybe_stored: bool = False
    judged: bool = False


@dataclass
class Ack:
    """The end of a frame: how many rows ended in which way, which ones are not STORED, and why.

    ``bitmap`` has bit i set (least significant first) if row i is not STORED.  ``code_rows`` has one uint16 for each
    set bit, in row order: an index into ``codes``.  It is empty if ``codes`` has only one line.  ``judged`` has bit i
    set if the rows of line i were judged.
    """

    frame_id: U64
    records: U32
    stored: U32
    not_stored: U32
    unknown: U32
    returned: U32
    retries: Annotated[U64, 1] = 0
    throttled: Annotated[U64, 2] = 0
    possible_duplicates: Annotated[U32, 3] = 0
    spread_keys: Annotated[U32, 4] = 0
    bitmap: Annotated[Blob, 5] = b""
    code_rows: Annotated[Blob, 6] = b""
    codes: Annotated[Codes, 7] = ()
    judged: Annotated[Blob, 8] = b""

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


@dataclass
class Flush:
    """The client asks the daemon to send this session's rows of a stream (0: of all streams) without lingering.

    It may also tell of rows of the stream that it has left out, because an earlier run has stored them.
    """

    stream_id: U32 = 0
    left_out: Annotated[U64, 1] = 0


@dataclass
class Status:
    """The client asks for one BLOCKED about a stream at once, or for FIGURES."""

    stream_id: U32
    asks_service: Annotated[U8, 1] = 0
    asks_figures: Annotated[U8, 2] = 0


@dataclass
class Blocked:
    """Why rows of a stream wait: sent while a caller is blocked, and as the answer to a STATUS."""

    stream_id: U32
    seconds: F64
    reason: Text
    queue_records: Annotated[U64, 1] = 0
    queue_limit_records: Annotated[U64, 2] = 0
    queue_bytes: Annotated[U64, 3] = 0
    queue_limit_bytes: Annotated[U64, 4] = 0
    requests_in_flight: Annotated[U32, 5] = 0
    last_error: Annotated[Text, 6] = ""
    shard: Annotated[Text, 7] = ""
    share: Annotated[F64, 8] = 0.0
    service: Annotated[U8, 9] = Service.NOT_ASKED
    service_code: Annotated[Text, 10] = ""
    service_message: Annotated[Text, 11] = ""
    capacity_mode: Annotated[Text, 12] = ""
    aggregates: Annotated[U8, 13] = 0
    delivered_records: Annotated[U64, 14] = 0
    delivered_bytes: Annotated[U64, 15] = 0
    kinesis_records: Annotated[U64, 16] = 0
    delivering_seconds: Annotated[F64, 17] = 0.0


@dataclass
class Draining:
    """The daemon stops: it grants no more frames, and returns the rows that it cannot send within the deadline."""

    deadline_seconds: F64
    message: Annotated[Text, 1] = ""


@dataclass
class Close:
    """Either side ends the session, and says why."""

    code: Text
    message: Text


@dataclass
class Figures:
    """What a session's rows of a dry run would be in Kinesis: as records of their own, and as aggregates.

    ``units`` are PUT payload units, one for each 25 KiB that a record has or begins.  ``shards`` has the number of rows
    of each shard, ``sizes`` how many rows have a size up to each bound in bytes, and above the bound before it.
    """

    stream_id: U32
    records: U64
    bytes: U64
    units: U64
    aggregated_records: U64
    aggregated_bytes: U64
    aggregated_units: U64
    aggregates: Annotated[U8, 1] = 0
    open_shards: Annotated[U32, 2] = 0
    max_record_bytes: Annotated[U64, 3] = 0
    shards: Annotated[Counts, 4] = ()
    sizes: Annotated[Counts, 5] = ()


Message = Union[
    Hello, Welcome, Open, Opened, Reserve, Grant, Refused, Cancel, Ack, Flush, Status, Blocked, Draining, Close, Figures
]


class Field(NamedTuple):
    """A field of a message.  ``tag``: of an optional field, which is not written if it has its default."""

    name: str
    kind: FieldKind
    tag: int
    default: Any


class Schema:
    """The fields of a message.  The numbers with which it begins are read and written at once, as ``head``."""

    def __init__(self, class_: type) -> None:
        hints = get_type_hints(class_, include_extras=True)
        self.number = MessageType[class_.__name__.upper()]
        self.class_ = class_
        self.fields: list[Field] = []
        for each in fields(class_):
            kind, *tag = hints[each.name].__metadata__
            self.fields.append(Field(each.name, kind, tag[0] if tag else 0, each.default))
        required = [field for field in self.fields if not field.tag]
        numbers = [*takewhile(lambda field: field.kind.format, required)]
        self.head = struct.Struct("<" + "".join([field.kind.format for field in numbers]))
        self.head_of = _values_of(numbers)
        self.required = required[len(numbers) :]
        self.optional = {field.tag: field for field in self.fields if field.tag}
        self.optional_of = _values_of([*self.optional.values()])
        self.defaults = tuple([field.default for field in self.optional.values()])
        self.check = _CHECKS.get(class_)


def _values_of(named: list[Field]) -> Callable[[Message], tuple[Any, ...]]:
    """Return a function that returns a message's values of these fields."""
    if not named:
        return lambda message: ()  # noqa: ARG005
    get = attrgetter(*[field.name for field in named])
    return get if len(named) > 1 else lambda message: (get(message),)


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
    type_ = _TYPES.get(number)
    if type_ is None:
        raise ProtocolError(f"unknown message type {number}")
    if zero:
        raise ProtocolError(f"{type_.name}: reserved header bytes are {zero:#x}, not 0")
    if flags:
        if type_ not in (MessageType.BODY, MessageType.RESERVE):
            raise ProtocolError(f"{type_.name}: unknown flags {flags:#x}")
        if flags & ~KNOWN_FLAGS:
            raise ProtocolError(f"{type_.name}: unknown frame flags {flags:#x}")
    if payload_bytes > MAX_CONTROL_BYTES and type_ is not MessageType.BODY:
        bound = MAX_ACK_BYTES if type_ in (MessageType.ACK, MessageType.FIGURES) else MAX_CONTROL_BYTES
        if payload_bytes > bound:
            raise ProtocolError(f"{type_.name}: a payload of {payload_bytes} bytes passes {bound}")
    return Header(type_, flags, payload_bytes)


def number_of(message: Message) -> MessageType:
    """Return the type of a message."""
    return SCHEMAS[type(message)].number


def body_header(layout: Layout) -> bytes:
    """Return the header of a BODY message.  The prefix and the columns follow it."""
    return HEADER.pack(MessageType.BODY, layout.flags, 0, layout.body_bytes)


def encode(message: Message) -> bytes:
    """Return header and payload of a message, with texts cut to MAX_TEXT_BYTES."""
    schema = SCHEMAS[type(message)]
    payload = schema.head.pack(*schema.head_of(message))
    for field in schema.required:
        payload += written(field.kind, getattr(message, field.name))
    if schema.optional_of(message) != schema.defaults:
        for tag, (name, kind, _, default) in schema.optional.items():
            value = getattr(message, name)
            if value != default:
                optional = kind.write(value)
                payload += TAG.pack(tag, len(optional)) + optional
    flags = message.layout.flags if isinstance(message, Reserve) else 0
    return HEADER.pack(schema.number, flags, 0, len(payload)) + payload


def written(kind: FieldKind, value: Any) -> bytes:
    """Return the bytes of a required field."""
    data = kind.write(value)
    return data if kind.has_fixed_size else _SIZE.pack(len(data)) + data


def decode(header: Header, payload: bytes | bytearray | memoryview) -> Message:
    """Return the message in a whole payload.  Raise ProtocolError if docs/build/protocol.md does not allow it."""
    schema = _BY_NUMBER.get(header.type)
    if schema is None or len(payload) != header.payload_bytes:
        raise ProtocolError(f"{header.type.name}: {len(payload)} payload bytes, not a message")
    reader = _Reader(memoryview(payload), header)
    required = [*reader.unpack(schema.head), *[reader.field(field.kind) for field in schema.required]]
    values: dict[str, Any] = {}
    while reader.left:
        tag, size = reader.unpack(TAG)
        value = reader.take(size)
        if tag not in schema.optional:
            continue
        name, kind, *_ = schema.optional[tag]
        if name in values:
            raise reader.error(f"the optional field {name} twice")
        values[name] = _Reader(value, header).whole(kind)
    message: Message = schema.class_(*required, **values)
    if schema.check is not None:
        schema.check(message)
    return message


def _check_hello(hello: Hello) -> None:
    if hello.min_version > hello.max_version:
        raise ProtocolError(f"HELLO: versions {hello.min_version} to {hello.max_version}")
    if hello.on_disconnect not in tuple(OnDisconnect) or hello.bad_rows not in tuple(BadRows):
        raise ProtocolError("HELLO: unknown on_disconnect or bad_rows")


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


class _Reader:
    """A reader of the fields in a payload, which checks each length before it uses it."""

    def __init__(self, view: memoryview, header: Header) -> None:
        self.header = header
        self._view = view
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._view) - self._at

    def error(self, what: str) -> ProtocolError:
        return ProtocolError(f"{self.header.type.name}: {what}")

    def take(self, size: int) -> memoryview:
        if size > self.left:
            raise self.error(f"{size} bytes wanted where {self.left} are left")
        self._at += size
        return self._view[self._at - size : self._at]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        at, size = self._at, layout.size
        if size > len(self._view) - at:
            raise self.error(f"{size} bytes wanted where {self.left} are left")
        self._at = at + size
        return layout.unpack_from(self._view, at)

    def field(self, kind: FieldKind) -> Any:
        """Read a field at this place in the payload."""
        if kind.has_fixed_size:
            return kind.read(self)
        (size,) = self.unpack(_SIZE)
        return _Reader(self.take(size), self.header).whole(kind)

    def whole(self, kind: FieldKind) -> Any:
        """Read a field that fills the rest of the payload."""
        value = kind.read(self)
        if self.left:
            raise self.error(f"{self.left} bytes behind a field")
        return value


_CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    Hello: _check_hello,
    Reserve: lambda reserve: reserve.layout.check(),
    Ack: _check_ack,
}
SCHEMAS: Final = {class_: Schema(class_) for class_ in get_args(Message)}
_BY_NUMBER: Final = {schema.number: schema for schema in SCHEMAS.values()}
_TYPES: Final = {int(type_): type_ for type_ in MessageType}
