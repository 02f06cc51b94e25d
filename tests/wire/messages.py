"""One message of each type and form."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from producerd.errors import Outcome
from producerd.wire import messages
from producerd.wire.columns import Layout
from producerd.wire.messages import Message


def bits(flags: Sequence[bool]) -> bytes:
    """Return one bit for each flag, least significant first, or b"" if none is set."""
    return (
        sum(flag << place for place, flag in enumerate(flags)).to_bytes((len(flags) + 7) // 8, "little").rstrip(b"\0")
    )


PROTOCOL = Path(__file__).resolve().parents[2] / "docs/build/protocol.md"
MESSAGES: tuple[Message, ...] = (
    messages.Hello(1, 3, 1, 1, "spark_client 1.0", "app-1", "query", "run", 7, -1, 3, 4, 4711, 1),
    messages.Welcome(1, 9, 8 << 20, 16, 1 << 20, 10_000, 30.0, "producerd 1.0", 1),
    messages.Open(2, "flights", 1, 1, 1),
    messages.Opened(2, 1 << 20, 10_000, 10 << 20, 1, "there", "arn", 7),
    messages.Reserve(5, 2, Layout(3, 10, 20, 5, 3)),
    messages.Grant(5),
    messages.Refused(5, 2, "TOO_LARGE", "cut it", 4096, 12, 1),
    messages.Cancel(5),
    messages.Ack(
        *(5, 10, 6, 2, 1, 1, 4, 3, 2, 1),
        bitmap=bytes([0b10010001, 0b10]),
        code_rows=struct.pack("<4H", 0, 1, 2, 0),
        codes=(
            messages.RowCode(Outcome.NOT_STORED, "RECORD_INVALID", "data is null"),
            messages.RowCode(Outcome.UNKNOWN, "RESULT_COUNT", "é", True),
            messages.RowCode(Outcome.RETURNED, "DRAINING"),
        ),
        judged=bytes([0b1]),
    ),
    messages.Flush(2, 7),
    messages.Status(2, 1, 1),
    messages.Blocked(
        2,
        30.5,
        "the queue is at its limit",
        10,
        20,
        30,
        40,
        5,
        "none",
        "shardId-000000000001",
        0.25,
        messages.Service.FAILED,
        "UNREACHABLE",
        "no such host",
        "ON_DEMAND",
        1,
        60,
        70,
        80,
        90.5,
    ),
    messages.Draining(25.0, "the daemon stops"),
    messages.Close("PROTOCOL", "what was wrong"),
    messages.Figures(
        2, 10, 20, 30, 40, 50, 60, 1, 2, 1 << 20, (("shardId-000000000001", 10),), (("64", 7), ("256", 3))
    ),
)
