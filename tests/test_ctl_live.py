"""The picture of `producerctl top` fits its terminal, and shows first and in colours what is in trouble."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from rich.console import Console

from producerd import ctl
from producerd.ctl.daemon import Failed
from producerd.ctl.tables import RATES
from tests.ctl_asking import Replies, node, shard, stream

FINE = {"failed_records": 0, "blocked_callers": 0, "blocked_seconds": 0.0}
ROW = "       working  1,500     1,000   0.50  #####-----  50%       8.2        0       0%          2       0"
PAST = {"failed_records": 9, "blocked_callers": 0, "blocked_seconds": 9.0}
Shards = Mapping[str, list[dict[str, Any]]]


class Screen:
    """A terminal of one size, and the picture on it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, width: int = 200, height: int = 60, *, colours: bool = False
    ) -> None:
        self._monkeypatch = monkeypatch
        self._size, self._colours = (width, height), colours

    def lines(
        self,
        streams: Sequence[dict[str, Any]],
        shards: Shards | None = None,
        before: Sequence[Any] = (),
        **other: object,
    ) -> list[str]:
        width, height = self._size
        file = io.StringIO()
        system: Any = "standard" if self._colours else None
        console = Console(file=file, width=width, height=height, force_terminal=self._colours, color_system=system)
        known = {each["stream"]: Failed("no client has opened this stream") for each in streams}
        replies = {**known, **{name: {"shards": of_stream} for name, of_stream in (shards or {}).items()}}
        self.daemon = Replies(
            node(*before, uptime_seconds=0.0),
            node(*streams, **other),
            by_target={f"/streams/{name}/shards": reply for name, reply in replies.items()},
        ).serve(self._monkeypatch)
        self._monkeypatch.setattr("producerd.ctl.live._console", lambda: console)
        assert ctl.main(["top", "--every", "0", "--count", "1"]) == 0
        picture = "producerd " + file.getvalue().rpartition("producerd ")[2]
        return [line.rstrip() for line in picture.splitlines()]


def test_streams_in_trouble_come_first_and_then_those_that_block_most_or_are_fullest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = [
        stream(stream="b", **FINE),
        stream(stream="a", **PAST),
        stream(stream="fuller", **{**FINE, "queue_records": 5_000}),
        stream(stream="blocks", **{**FINE, "blocked_seconds": 1.0}),
        stream(stream="paused", **FINE, paused=True),
        stream(stream="fails", **{**FINE, "failed_records": 1}),
        stream(stream="outage", **FINE, health="outage"),
        stream(stream="suspect", **FINE, health="suspect"),
        stream(stream="broken", **FINE, health="broken"),
    ]
    before = [stream(stream=each["stream"], **(PAST if each["stream"] == "a" else FINE)) for each in streams]
    screen = Screen(monkeypatch)
    _, _, *rows = screen.lines(streams, before=before)
    ordered = ["broken", "suspect", "outage", "fails", "paused", "blocks", "fuller", "a", "b"]
    assert [row.split()[0] for row in rows if ": " not in row] == ordered
    asked = [target.split("/")[2] for (target,) in screen.daemon.asked if target != "/status"]
    assert asked == ordered[:8], "as an answer about shards takes the daemon's time"


def test_the_picture_has_streams_then_why_records_wait_and_then_the_busiest_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards = {
        "a": [shard(1, waiting_records=1, waiting_bytes=1 << 20, use=0.1), shard(2)],
        "b": [
            shard(3, waiting_records=1, waiting_bytes=1 << 20, use=0.2, waits_for="its rate", backs_off=True),
            shard(4, waiting_records=1, waiting_bytes=2 << 20),
        ],
    }
    streams = [stream(stream=name, **FINE) for name in "abc"]
    streams[0]["last_error"] = "no such\nstream"
    lines = Screen(monkeypatch).lines(streams, shards, unready="it has\nno credentials", troubles=["its clock is off"])
    assert lines == [
        "producerd 1.2 on n7: serving, 1 connection, queues 1.5 of 2,048 MiB",
        "STREAM  HEALTH    IN/S  STORED/S  MIB/S  QUEUE            OLDEST S  BLOCKED  OF TIME  RETRIES/S  FAILED",
        *(f"{name}{ROW}" for name in "abc"),
        "it has no credentials",
        "its clock is off",
        "a: last error: no such stream",
        "",
        "STREAM  SHARD        WAITING  MIB  SHARE  IN FLIGHT  RECORDS/S  MIB/S  USE  WAITS FOR",
        "b       shardId-004        1  2.0     0%          0      1,000   1.50   0%  -",
        "b       shardId-003        1  1.0     0%          0      1,000   1.50  20%  its rate, throttled",
        "a       shardId-001        1  1.0     0%          0      1,000   1.50  10%  -",
    ]
    assert Screen(monkeypatch).lines([]) == [
        "producerd 1.2 on n7: serving, 1 connection, queues 1.5 of 2,048 MiB",
        "no client has opened a stream yet",
    ]


@pytest.mark.parametrize("height", [6, 9, 24, 60])
@pytest.mark.parametrize("streams", [1, 20])
@pytest.mark.parametrize("reasons", [0, 30])
@pytest.mark.parametrize("busy", [0, 30])
def test_the_picture_is_no_higher_than_the_terminal_and_uses_what_there_is(
    height: int, streams: int, reasons: int, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = [stream(stream=f"s{number:02}", **FINE) for number in range(streams)]
    of[0]["reason"] = " ".join(["word" + "x" * 50] * reasons)
    shards = {"s00": [shard(number, waiting_records=1) for number in range(busy)]}
    lines = Screen(monkeypatch, 80, height).lines(of, shards)
    kinds = (r"s\d\d +working", r"s00: |wordx", "s00 +shardId")
    rows, why, waiting = (sum(bool(re.match(kind, line)) for line in lines) for kind in kinds)
    assert len(lines) <= height
    assert rows == min(streams, max(1, (height - 6) // 2))
    room = height - rows - 5
    assert why + waiting == min(reasons + busy, room) or (why, waiting) == (1, 0)
    assert why >= min(1, reasons)
    assert waiting >= min(busy, room // 3), "reasons leave a third to shards"


def test_a_narrow_terminal_lacks_columns_and_a_narrower_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def columns(width: int) -> list[str]:
        lines = Screen(monkeypatch, width).lines([stream()])
        assert max(map(len, lines[1:])) <= width
        return re.split(" {2,}", lines[1])

    widest = len(Screen(monkeypatch).lines([stream()])[1])
    assert columns(widest) == list(RATES)
    assert columns(widest - 1) == [name for name in RATES if name != "OLDEST S"]
    assert columns(80) == ["STREAM", "HEALTH", "IN/S", "STORED/S", "QUEUE", "BLOCKED", "OF TIME", "FAILED"]
    assert columns(40) == ["STREAM", "QUEUE", "BLOCKED"]


@pytest.mark.parametrize("width", [40, 80])
def test_a_long_name_is_cropped_and_no_number(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = {"n" * 128: [shard(0, waiting_records=1)]}
    lines = Screen(monkeypatch, width).lines([stream(stream="n" * 128)], shards)
    assert re.fullmatch(r"n+  #####-----  50%    2,001", lines[2])
    assert re.fullmatch(r"n+  shardId-000        1  -", lines[5])
    assert {len(line) for line in (lines[2], lines[4])} == {width}
    assert Screen(monkeypatch, 27).lines([stream(stream="n" * 128)])[2] == "n  #####-----  50%    2,001"


def test_colours_show_what_is_in_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def colour(text: str, use: float = 0.0, backs_off: bool = False, **other: Any) -> str:
        shown = shard(0, waiting_records=1, use=use, backs_off=backs_off)
        lines = Screen(monkeypatch, colours=True).lines([stream(**{**FINE, **other})], {"flights": [shown]})
        found = re.search(rf"\x1b\[([\d;]+)m *{re.escape(text)}", "\n".join(lines[2:]))
        return {"1;31": "bold red", "31": "red", "33": "yellow", "32": "green"}[found[1]] if found else ""

    assert colour("flights") == ""
    assert colour("working") == "green"
    assert colour("flights", health="outage") == colour("outage", health="outage") == "bold red"
    assert colour("flights", paused=True) == colour("paused", paused=True) == "yellow"
    queues = {4_499: "green", 4_500: "yellow", 5_249: "yellow", 5_250: "bold red"}
    assert {records: colour("#", queue_records=records) for records in queues} == queues
    assert [colour(f"{callers}", blocked_callers=callers) for callers in (0, 7)] == ["", "bold red"]
    assert [colour(f"{share}%", blocked_seconds=share / 5) for share in (0, 5)] == ["", "yellow"]
    assert [colour(f"{records}", failed_records=records) for records in (0, 77)] == ["", "red"]
    assert [colour(f"{use:.0%}", use=use) for use in (0.74, 0.75)] == ["", "yellow"]
    assert [colour("-", backs_off=backs_off) for backs_off in (False, True)] == ["", "bold red"]
