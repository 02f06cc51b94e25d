"""Every message round-trips whole; any other bytes give a message or a ProtocolError, and cost no more."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.errors import Outcome, ProtocolError
from producerd.wire import columns, messages
from producerd.wire.columns import Layout
from producerd.wire.messages import HEADER, Message, MessageType
from tests.wire import golden
from tests.wire.messages import MESSAGES, PROTOCOL, bits
from tests.wire.strategies import DAMAGES, damaged

pytestmark = pytest.mark.law("wire")

GOLDEN = {
    "Hello": (
        "0100000088000000010003000101010010000000737061726b5f636c69656e7420312e300200050000006170702d31030005"
        "000000717565727904000300000072756e0500080000000700000000000000060008000000ffffffffffffffff0700080000"
        "000300000000000000080008000000040000000000000009000800000067120000000000000a000100000001"
    ),
    "Welcome": (
        "0200000044000000010009000000000000000000800000000000100000000000100000000000102700000000000000003e40"
        "01000d00000070726f64756365726420312e3002000100000001"
    ),
    "Open": "03000000240000000200000007000000666c6967687473010001000000010200010000000103000100000001",
    "Opened": (
        "0400000047000000020000000000100000000000102700000100080000000000a00000000000020001000000010300050000"
        "00746865726504000300000061726e0500080000000700000000000000"
    ),
    "Refused": (
        "070000004200000005000000000000000200000009000000544f4f5f4c415247450600000063757420697401000800000000"
        "100000000000000200040000000c00000003000100000001"
    ),
    "Ack": (
        "0a000000bd00000005000000000000000a000000060000000200000001000000010000000100080000000400000000000000"
        "0200080000000300000000000000030004000000020000000400040000000100000005000200000091020600080000000000"
        "01000200000007004e00000001000e0000005245434f52445f494e56414c49440c00000064617461206973206e756c6c0201"
        "0c000000524553554c545f434f554e5402000000c3a9030008000000445241494e494e470000000008000100000001"
    ),
    "Status": "0c00000012000000020000000100010000000102000100000001",
    "Blocked": (
        "0d00000015010000020000000000000000803e401900000074686520717565756520697320617420697473206c696d697401"
        "00080000000a0000000000000002000800000014000000000000000300080000001e00000000000000040008000000280000"
        "0000000000050004000000050000000600040000006e6f6e65070014000000736861726449642d3030303030303030303030"
        "31080008000000000000000000d03f090001000000030a000b000000554e524541434841424c450b000c0000006e6f207375"
        "636820686f73740c00090000004f4e5f44454d414e440d0001000000010e00080000003c000000000000000f000800000046"
        "0000000000000010000800000050000000000000001100080000000000000000a05640"
    ),
    "Figures": (
        "100000009c000000020000000a0000000000000014000000000000001e00000000000000280000000000000032000000000000003c"
        "000000000000000100010000000102000400000002000000030008000000000010000000000004002000000014000000736861726449"
        "642d3030303030303030303030310a0000000000000005001d0000000200000036340700000000000000030000003235360300000000"
        "000000"
    ),
}


def read(data: bytes) -> Message:
    """What a reader does with a whole message."""
    header = messages.parse_header(data)
    return messages.decode(header, data[HEADER.size :])


def with_payload(type_: int, payload: bytes, flags: int = 0) -> bytes:
    return HEADER.pack(type_, flags, 0, len(payload)) + payload


def message_or_protocol_error(data: bytes) -> None:
    """Anything but a message or a ProtocolError fails the test."""
    try:
        header = messages.parse_header(data)
        assert header.payload_bytes <= messages.MAX_ACK_BYTES or header.type is MessageType.BODY
        messages.decode(header, data[HEADER.size :])
    except ProtocolError:
        pass


def ids(message: Message) -> str:
    return type(message).__name__


@pytest.mark.parametrize("message", MESSAGES, ids=ids)
def test_a_message_is_the_same_after_its_bytes_were_read(message: Message) -> None:
    assert read(messages.encode(message)) == message


@pytest.mark.parametrize("name", GOLDEN)
def test_the_bytes_of_version_1_only_grow_at_their_end(name: str) -> None:
    """Messages without later fields have the bytes of `tests.wire.golden`."""
    (message,) = [message for message in MESSAGES if ids(message) == name]
    assert messages.encode(message).hex() == GOLDEN[name]


def test_every_message_type_has_its_example_here() -> None:
    shown = {messages.number_of(message) for message in MESSAGES}
    assert shown == set(MessageType) - {MessageType.BODY}
    for message in MESSAGES:
        defaults = {field.name: field.default for field in fields(message)}
        assert all(getattr(message, name) != default for name, default in defaults.items()), ids(message)


@pytest.mark.parametrize("message", MESSAGES, ids=ids)
def test_optional_fields_at_their_defaults_take_no_bytes_and_are_read_as_such(message: Message) -> None:
    bare = golden.bare(message)
    assert read(messages.encode(bare)) == bare
    assert len(messages.encode(bare)) <= len(messages.encode(message))


@pytest.mark.parametrize("message", MESSAGES, ids=ids)
def test_every_truncation_is_a_protocol_error_or_a_shorter_message(message: Message) -> None:
    whole = messages.encode(message)
    for size in range(HEADER.size, len(whole)):
        # The header as it was: fewer bytes than it says are never a message.
        with pytest.raises(ProtocolError):
            messages.decode(messages.parse_header(whole), whole[HEADER.size : size])
        # A header that fits what is left.
        message_or_protocol_error(with_payload(whole[0], whole[HEADER.size : size], whole[1]))


@settings(max_examples=250)
@given(message=st.sampled_from(MESSAGES), damages=DAMAGES, sized=st.sampled_from([True, True, True, False]))
def test_any_damage_gives_a_message_or_a_protocol_error(
    message: Message, damages: list[tuple[str, int, bytes]], sized: bool
) -> None:
    data = bytearray(damaged(messages.encode(message), damages, HEADER.size))
    if sized:
        data[4:8] = struct.pack("<I", len(data) - HEADER.size)
    message_or_protocol_error(bytes(data))


@settings(max_examples=150)
@given(type_=st.sampled_from(MessageType) | st.integers(0, 255), payload=st.binary(max_size=80))
def test_any_payload_gives_a_message_or_a_protocol_error(type_: int, payload: bytes) -> None:
    message_or_protocol_error(with_payload(type_, payload))


@pytest.mark.parametrize("type_", [type_ for type_ in MessageType if type_ is not MessageType.BODY])
def test_a_payload_over_its_bound_is_refused_by_its_header_alone(type_: MessageType) -> None:
    large = type_ in (MessageType.ACK, MessageType.FIGURES)
    bound = messages.MAX_ACK_BYTES if large else messages.MAX_CONTROL_BYTES
    assert messages.parse_header(HEADER.pack(type_, 0, 0, bound)).payload_bytes == bound
    for size in (bound + 1, 2**31, 2**32 - 1):
        with pytest.raises(ProtocolError, match=str(size)):
            messages.parse_header(HEADER.pack(type_, 0, 0, size))


@pytest.mark.parametrize("number", [0, 17, 255])
def test_an_unknown_type_is_a_protocol_error(number: int) -> None:
    with pytest.raises(ProtocolError, match=f"type {number}"):
        messages.parse_header(HEADER.pack(number, 0, 0, 0))


@pytest.mark.parametrize("type_", list(MessageType))
def test_unknown_flags_and_reserved_bytes_are_protocol_errors(type_: MessageType) -> None:
    with pytest.raises(ProtocolError, match="reserved"):
        messages.parse_header(HEADER.pack(type_, 0, 1, 0))
    framed = type_ in (MessageType.BODY, MessageType.RESERVE)
    for flags in range(1, 256):
        if framed and flags <= columns.KNOWN_FLAGS:
            assert messages.parse_header(HEADER.pack(type_, flags, 0, 0)).flags == flags
        else:
            with pytest.raises(ProtocolError, match="flags"):
                messages.parse_header(HEADER.pack(type_, flags, 0, 0))


def test_the_bound_of_control_messages_is_not_that_of_a_body() -> None:
    header = messages.parse_header(HEADER.pack(MessageType.BODY, 0, 0, messages.MAX_ACK_BYTES + 1))
    assert header.payload_bytes == messages.MAX_ACK_BYTES + 1


def test_a_body_is_no_message_of_this_table() -> None:
    with pytest.raises(ProtocolError):
        messages.decode(messages.Header(MessageType.BODY, 0, 0), b"")


@pytest.mark.parametrize("message", MESSAGES, ids=ids)
def test_unknown_optional_tags_are_skipped_by_their_length(message: Message) -> None:
    whole = messages.encode(message)
    unknown = struct.pack("<HI", 60_000, 5) + b"later" + struct.pack("<HI", 60_001, 0)
    payload = whole[HEADER.size :] + unknown
    assert read(with_payload(whole[0], payload, whole[1])) == message


def test_optional_fields_are_read_in_any_order_and_at_most_once() -> None:
    required = messages.encode(messages.Refused(1, 2, "C", "m"))[HEADER.size :]
    records = struct.pack("<HII", 2, 4, 12)
    size = struct.pack("<HIQ", 1, 8, 4096)
    assert read(with_payload(7, required + records + size)) == messages.Refused(1, 2, "C", "m", 4096, 12)
    with pytest.raises(ProtocolError, match="twice"):
        read(with_payload(7, required + records + records))


@pytest.mark.parametrize(
    ("tag", "size", "value"),
    [(1, 7, b"1234567"), (1, 9, b"123456789"), (1, 2**32 - 1, b""), (1, 8, b"1234567"), (99, 2**32 - 1, b"x")],
)
def test_an_optional_field_of_the_wrong_size_is_a_protocol_error(tag: int, size: int, value: bytes) -> None:
    required = messages.encode(messages.Opened(1, 2, 3))[HEADER.size :]
    with pytest.raises(ProtocolError):
        read(with_payload(4, required + struct.pack("<HI", tag, size) + value))


def test_a_huge_length_field_allocates_nothing() -> None:
    huge = struct.pack("<I", 2**32 - 1)
    cases = [
        with_payload(3, struct.pack("<I", 1) + huge),
        with_payload(15, huge + b"xx"),
        with_payload(14, struct.pack("<d", 1.0) + struct.pack("<H", 1) + huge),
        with_payload(10, struct.pack("<QIIIII", 1, 2**32 - 1, 0, 2**32 - 1, 0, 0)),
        with_payload(10, struct.pack("<QIIIII", 1, 2**32 - 1, 0, 2**32 - 1, 0, 0) + struct.pack("<H", 5) + huge),
        with_payload(10, struct.pack("<QIIIII", 1, 1, 0, 1, 0, 0) + struct.pack("<HIBBI", 7, 10, 1, 0, 2**32 - 1)),
    ]
    tracemalloc.start()
    try:
        for data in cases:
            with pytest.raises(ProtocolError):
                read(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_text_is_cut_where_it_is_written_and_never_in_mid_character() -> None:
    written = read(messages.encode(messages.Close("C", "é" * 2_000)))
    assert isinstance(written, messages.Close)
    assert written.message == "é" * 1_024
    odd = read(messages.encode(messages.Close("C", "x" + "é" * 2_000)))
    assert isinstance(odd, messages.Close)
    assert odd.message == "x" + "é" * 1_023
    lone = read(messages.encode(messages.Close("C", "lone \ud800 half")))
    assert lone == messages.Close("C", "lone ? half")


def test_a_text_over_2048_bytes_is_a_protocol_error() -> None:
    for size in (2_048, 2_049):
        payload = struct.pack("<I", 1) + b"C" + struct.pack("<I", size) + b"x" * size
        if size <= messages.MAX_TEXT_BYTES:
            assert read(with_payload(15, payload)) == messages.Close("C", "x" * size)
        else:
            with pytest.raises(ProtocolError, match="2049"):
                read(with_payload(15, payload))


def test_text_that_is_not_utf8_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        read(with_payload(3, struct.pack("<II", 1, 2) + b"\xc3\x28"))


@pytest.mark.parametrize(
    "message",
    [
        messages.Hello(2, 1),
        messages.Hello(1, 1, 2, 0),
        messages.Hello(1, 1, 0, 2),
        messages.Reserve(1, 1, Layout(0, 0, 0)),
        messages.Reserve(1, 1, Layout(1, 2**31, 0)),
        messages.Reserve(1, 1, Layout(1, 0, 2**31)),
        messages.Reserve(1, 1, Layout(1, 0, 0, 1)),
    ],
)
def test_values_that_cannot_be_are_protocol_errors(message: Message) -> None:
    with pytest.raises(ProtocolError):
        read(messages.encode(message))


LINE = messages.RowCode(Outcome.NOT_STORED, "C")
OTHER = messages.RowCode(Outcome.UNKNOWN, "D")
ONE_OF_TWO = messages.Ack(1, 2, 1, 1, 0, 0, bitmap=b"\x01", codes=(LINE,))
TWO_LINES = replace(ONE_OF_TWO, codes=(LINE, OTHER))


@pytest.mark.parametrize(
    "ack",
    [
        pytest.param(messages.Ack(1, 2, 1, 0, 0, 0), id="a row without an end"),
        pytest.param(messages.Ack(1, 2, 1, 1, 0, 0), id="no bitmap"),
        pytest.param(replace(ONE_OF_TWO, codes=()), id="no code"),
        pytest.param(replace(ONE_OF_TWO, bitmap=b"\x03"), id="more rows in the bitmap than failed"),
        pytest.param(replace(ONE_OF_TWO, bitmap=b"\x04"), id="a row that the frame lacks"),
        pytest.param(replace(ONE_OF_TWO, bitmap=b"\x01\x00"), id="a bitmap that is too long"),
        pytest.param(replace(ONE_OF_TWO, code_rows=b"\0\0"), id="a line for each row where one line is for all"),
        pytest.param(TWO_LINES, id="no line for each row"),
        pytest.param(replace(TWO_LINES, code_rows=b"\x02\0"), id="a line that is not there"),
        pytest.param(replace(TWO_LINES, code_rows=b"\0"), id="half a line number"),
        pytest.param(replace(ONE_OF_TWO, codes=(messages.RowCode(Outcome.STORED, "C"),)), id="a code of stored rows"),
        pytest.param(replace(ONE_OF_TWO, codes=(messages.RowCode(4, "C"),)), id="an unknown outcome"),
        pytest.param(replace(ONE_OF_TWO, codes=(messages.RowCode(1, "C", "", 2),)), id="a flag of 2"),  # type: ignore[arg-type]
        pytest.param(messages.Ack(1, 2, 2, 0, 0, 0, bitmap=b"\x00"), id="a bitmap though all are stored"),
        pytest.param(messages.Ack(1, 2, 2, 0, 0, 0, code_rows=b"\0\0"), id="lines though all are stored"),
        pytest.param(
            messages.Ack(1, 2, 0, 2, 0, 0, bitmap=b"\x03", code_rows=b"\0\0\x02\0", codes=(LINE, OTHER)),
            id="a second line that is not there",
        ),
        pytest.param(replace(ONE_OF_TWO, judged=b"\x02"), id="a judged line that is not there"),
        pytest.param(
            messages.Ack(1, 600, 0, 600, 0, 0, bitmap=b"\xff" * 75, code_rows=b"\0\0" * 600, codes=(LINE,) * 257),
            id="257 lines",
        ),
    ],
)
def test_an_ack_that_contradicts_itself_is_a_protocol_error(ack: messages.Ack) -> None:
    with pytest.raises(ProtocolError):
        read(messages.encode(ack))


@settings(max_examples=100)
@given(
    lines=st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=12),
    rows=st.lists(st.none() | st.integers(0, 11), min_size=1, max_size=70),
)
def test_failed_rows_names_each_row_that_is_not_stored_with_its_code(
    lines: list[tuple[int, bool]], rows: list[int | None]
) -> None:
    codes = tuple(messages.RowCode(outcome, f"C{i}", judged=judged) for i, (outcome, judged) in enumerate(lines))
    failed = {row: line % len(codes) for row, line in enumerate(rows) if line is not None}
    not_stored, unknown, returned = (sum(codes[at].outcome == kind for at in failed.values()) for kind in (1, 2, 3))
    bitmap = bytearray((len(rows) + 7) // 8 if failed else 0)
    for row in failed:
        bitmap[row // 8] |= 1 << row % 8
    code_rows = struct.pack(f"<{len(failed)}H", *failed.values()) if len(codes) > 1 else b""
    judged = bits([code.judged for code in codes]) if failed else b""
    ack = messages.Ack(
        *(1, len(rows), len(rows) - len(failed), not_stored, unknown, returned),
        bitmap=bytes(bitmap),
        code_rows=code_rows,
        codes=codes if failed else (),
        judged=judged,
    )
    again = read(messages.encode(ack))
    assert isinstance(again, messages.Ack)
    assert dict(again.failed_rows()) == {row: codes[line] for row, line in failed.items()}


# ---- docs/build/protocol.md says the same as the tables


def test_the_page_names_the_bounds_that_the_code_keeps() -> None:
    page = " ".join(PROTOCOL.read_text("utf-8").split())
    assert "Texts are at most 2,048 bytes" in page
    assert messages.MAX_TEXT_BYTES == 2_048
    assert "at most 16 KiB, an ACK's 4 MiB" in page
    assert (messages.MAX_CONTROL_BYTES, messages.MAX_ACK_BYTES) == (16 << 10, 4 << 20)
    assert "at most 256 lines" in page
    assert messages.MAX_CODES == 256
    assert "32 for each record, and 1,024 for the frame" in page
    assert (columns.RECORD_CHARGE_BYTES, columns.FRAME_CHARGE_BYTES) == (32, 1_024)
    assert "Flags: 1 RESENT" in page
    assert "2 hash key columns present, 4 validity" in page
    assert (columns.FLAG_RESENT, columns.FLAG_HASH_KEYS, columns.FLAG_VALIDITY) == (1, 2, 4)


def test_the_largest_acknowledgement_fits_its_bound() -> None:
    """The most rows of a 1 MiB frame, each with another full line of the code table."""
    records = (1 << 20) // columns.RECORD_CHARGE_BYTES
    codes = tuple(messages.RowCode(1, f"{i}" * 2_048, "m" * 4_096) for i in range(messages.MAX_CODES))
    rows = struct.pack(f"<{records}H", *(i % messages.MAX_CODES for i in range(records)))
    ack = messages.Ack(1, records, 0, records, 0, 0, bitmap=b"\xff" * (records // 8), code_rows=rows, codes=codes)
    assert len(messages.encode(ack)) < messages.MAX_ACK_BYTES
    assert isinstance(read(messages.encode(ack)), messages.Ack)
