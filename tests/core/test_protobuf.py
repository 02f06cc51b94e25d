"""producerd reads a protobuf message as protobuf-java does, and refuses what protobuf-java refuses."""

from __future__ import annotations

import pytest

from producerd.core.kpl.protobuf import NotProtobuf, fields


def test_each_field_is_read_with_its_tag_and_its_number_or_bytes() -> None:
    message = b"\x08\x96\x01" + b"\x12\x03abc" + b"\x12\x00" + b"\x19" + bytes(8) + b"\x25" + bytes(4) + b"\x08\x00"
    read = [(0x08, 150, b""), (0x12, 0, b"abc"), (0x12, 0, b""), (0x19, 0, b""), (0x25, 0, b""), (0x08, 0, b"")]
    assert list(fields(message)) == read
    assert list(fields(b"")) == []


def test_numbers_keep_64_bits_and_tags_and_lengths_32() -> None:
    assert list(fields(b"\x08" + b"\xff" * 9 + b"\x7f")) == [(0x08, 2**64 - 1, b"")]
    assert list(fields(b"\x88\x80\x80\x80\x10\x01")) == [(0x08, 1, b"")]
    assert list(fields(b"\x12\x81\x80\x80\x80\x10a")) == [(0x12, 0, b"a")]


def test_a_group_is_passed_over_with_all_that_is_in_it() -> None:
    inside = b"\x08\x01" + b"\x23" + b"\x12\x01a" + b"\x24"
    assert list(fields(b"\x1b" + inside + b"\x1c\x08\x07")) == [(0x1C, 0, b""), (0x08, 7, b"")]


@pytest.mark.parametrize(("level", "deepest"), [(0, 100), (1, 99), (2, 98)])
def test_messages_and_groups_lie_at_most_100_deep_within_each_other(level: int, deepest: int) -> None:
    assert len(list(fields(b"\x0b" * deepest + b"\x0c" * deepest, level))) == 1
    with pytest.raises(NotProtobuf):
        list(fields(b"\x0b" * (deepest + 1) + b"\x0c" * (deepest + 1), level))


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x00\x00", id="number 0"),
        pytest.param(b"\x80\x80\x80\x80\x10\x00", id="number 0 in the low 32 bits"),
        pytest.param(b"\x0e", id="wire type 6"),
        pytest.param(b"\x0f", id="wire type 7"),
        pytest.param(b"\x08", id="no value"),
        pytest.param(b"\x08\x80", id="a number that does not end"),
        pytest.param(b"\x08" + b"\x80" * 10 + b"\x00", id="a number of 11 bytes"),
        pytest.param(b"\x12\x02a", id="bytes beyond the end"),
        pytest.param(b"\x12" + b"\xff" * 9 + b"\x01", id="a length below 0"),
        pytest.param(b"\x19" + bytes(7), id="7 of 8 bytes"),
        pytest.param(b"\x25" + bytes(3), id="3 of 4 bytes"),
        pytest.param(b"\x0b\x08\x01", id="a group that does not end"),
        pytest.param(b"\x0c", id="the end of a group that is not open"),
        pytest.param(b"\x0b\x13\x0c\x14", id="groups that cross"),
    ],
)
def test_what_is_not_protobuf_is_refused(message: bytes) -> None:
    with pytest.raises(NotProtobuf):
        list(fields(message))
