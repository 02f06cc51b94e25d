"""The command ``producerctl top``: streams and shards as they go on.

On a terminal, with rich, it is one picture that is drawn again and again: streams in trouble first, and below them the
shards for which most waits.  Without rich, and where the output is not a terminal, it is plain text.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count as numbers
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from producerd.ctl import tables
from producerd.ctl.daemon import AdminClient, Failed, path_of
from producerd.ctl.tables import Reply

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

CLEAR: Final = "\x1b[H\x1b[J"
STREAMS_ASKED: Final = 8
"""Most streams whose shards are asked for at once, because each answer needs the daemon's CPU."""
NEARLY_FULL: Final = 0.75
FULL: Final = 7 / 8
"""Share of a queue from which callers may be blocked; the last eighth is for those that hold little."""
BAR: Final = 10
DROPPED_FIRST: Final = (
    *("OLDEST S", "RETRIES/S", "MIB/S", "SHARE", "RECORDS/S", "FAILED", "OF TIME", "MIB", "IN FLIGHT"),
    *("IN/S", "HEALTH", "STORED/S", "USE"),
)
"""Columns that a narrow terminal lacks, in this order."""


class StatusPair(NamedTuple):
    """A status of the daemon, and the one before."""

    now: Reply
    before: Reply

    @staticmethod
    def of(now: Reply, before: Reply, seconds: float) -> StatusPair:
        """Return two statuses that lie at least ``seconds`` apart.

        If the uptime grew by less, another daemon has started, and all that it counts has come since.
        """
        grew = now["uptime_seconds"] - before["uptime_seconds"]
        return StatusPair(now, before if grew >= seconds - 2 * tables.UPTIME_STEP_SECONDS else AT_START)


AT_START: Final[Reply] = {"uptime_seconds": 0.0, "streams": []}
"""As much of the status of a daemon that has counted nothing yet as the rates need."""


def top(daemon: AdminClient, parsed: argparse.Namespace) -> Iterator[str]:
    """Draw the picture, or yield the texts, until the command's count is reached."""
    console = _console()
    if console is not None:
        _draw(console, daemon, parsed)
        return
    for reading in _readings(daemon, parsed):
        text = str(reading) if isinstance(reading, Failed) else "\n".join(tables.rates(*reading))
        yield f"{CLEAR}{text}" if sys.stdout and sys.stdout.isatty() else f"{text}\n"


def _readings(daemon: AdminClient, parsed: argparse.Namespace) -> Iterator[StatusPair | Failed]:
    """Yield a reading after each pause, or why there is none, as while a daemon restarts.

    Raise Failed if the first question of all has no answer.
    """
    before, at = daemon.get("/status"), time.monotonic()
    for _ in numbers() if parsed.count is None else range(parsed.count):
        time.sleep(parsed.every)
        seconds = time.monotonic() - at
        try:
            now, at = daemon.get("/status"), time.monotonic()
        except Failed as failed:
            yield failed
        else:
            yield StatusPair.of(now, before, seconds)
            before = now


def _console() -> Console | None:
    """Return rich's console if the standard output is a terminal that can be drawn on and rich is there."""
    if not (sys.stdout and sys.stdout.isatty()):
        return None
    try:
        from rich.console import Console
    except ImportError:  # the client's side is installed without it
        return None
    console = Console(highlight=False)
    return None if console.is_dumb_terminal else console


def _draw(console: Console, daemon: AdminClient, parsed: argparse.Namespace) -> None:
    from rich.live import Live
    from rich.text import Text

    picture: Any = "one moment"
    with Live(picture, console=console, screen=True, auto_refresh=False) as live:
        for reading in _readings(daemon, parsed):
            if isinstance(reading, Failed):
                picture = Text(str(reading))
            else:
                picture = _picture(reading, _shards(daemon, reading), console.width, console.height)
            live.update(picture, refresh=True)
    console.print(picture)  # the screen of before is back


def _shards(daemon: AdminClient, reading: StatusPair) -> list[tuple[Reply, Reply]]:
    """Return the busy shards of the streams in most trouble, each with its stream."""
    busy = []
    for stream in tables.by_trouble(reading.now, reading.before)[:STREAMS_ASKED]:
        try:
            known = daemon.get(f"{path_of(stream['stream'])}/shards")["shards"]
        except Failed:  # the daemon has forgotten the stream meanwhile
            continue
        busy += [(shard, stream) for shard in tables.busy_shards(known)]
    return sorted(busy, key=lambda pair: (-pair[0]["waiting_bytes"], -pair[0]["use"]))


def _picture(reading: StatusPair, shards: Sequence[tuple[Reply, Reply]], width: int, height: int) -> Group:
    """Return what fits into a terminal of this size."""
    from rich.console import Group
    from rich.text import Text

    streams = tables.by_trouble(reading.now, reading.before)
    unready = tables.unready(reading.now)
    whys = [*([] if unready is None else [tables.plain(unready)]), *tables.troubles(reading.now)]
    shown = streams[: max(1, (height - 6) // 2)]
    lines = [line for why in (*whys, *tables.why(shown)) for line in wrap(why, width)]
    room = height - len(shown) - 5  # heads, and lines that stay empty
    shards = shards[: max(room // 3, room - len(lines), 0)]
    lines = lines[: max(1, room - len(shards))]
    parts: list[Any] = [Text(tables.head(reading.now), style="bold", no_wrap=True, overflow="crop")]
    if streams:
        parts.append(_table(tables.RATES, [_stream_cells(stream, reading) for stream in shown], width))
    else:
        parts.append(Text("no client has opened a stream yet"))
    parts += [Text(line, no_wrap=True) for line in lines]
    if shards:
        cells = [_shard_cells(shard, stream) for shard, stream in shards]
        parts += [Text(""), _table(("STREAM", *tables.SHARDS), cells, width)]
    return Group(*parts)


Cell = tuple[str, str]
"""A text and its style."""


def _stream_cells(stream: Reply, reading: StatusPair) -> dict[str, Cell]:
    cells = {name: (text, "") for name, text in zip(tables.RATES, tables.rates_of(stream, *reading))}
    share = tables.full(stream)
    filled = min(BAR, round(share * BAR))
    bar = f"{'#' * filled}{'-' * (BAR - filled)} {share:4.0%}"
    health = cells["HEALTH"][0]
    trouble = "bold red" if health in tables.REFUSED else "yellow" if health == "paused" else ""
    styles = {
        "STREAM": trouble,  # a narrow terminal has no other column of it
        "HEALTH": "green" if health == "working" else trouble,
        "QUEUE": "bold red" if share >= FULL else "yellow" if share >= NEARLY_FULL else "green",
        "BLOCKED": "bold red" if stream["blocked_callers"] else "",
        "OF TIME": "" if cells["OF TIME"][0] == "0%" else "yellow",
        "FAILED": "red" if stream["failed_records"] else "",
    }
    cells["QUEUE"] = bar, ""
    return cells | {name: (cells[name][0], style) for name, style in styles.items()}


def _shard_cells(shard: Reply, stream: Reply) -> dict[str, Cell]:
    styles = {
        "USE": "yellow" if shard["use"] >= NEARLY_FULL else "",
        "WAITS FOR": "bold red" if shard["backs_off"] else "",
    }
    cells = zip(tables.SHARDS, tables.shard_row(shard))
    return {"STREAM": (stream["stream"], ""), **{name: (text, styles.get(name, "")) for name, text in cells}}


def _table(head: Sequence[str], rows: Sequence[dict[str, Cell]], width: int) -> Table:
    """Return a table with the columns that fit.  The first one is cropped where those that stay are too wide."""
    from rich.table import Table
    from rich.text import Text

    widths = {name: max(len(name), *(len(row[name][0]) for row in rows)) for name in head}
    columns = list(head)
    for dropped in DROPPED_FIRST:
        if sum(widths[name] + 2 for name in columns) - 2 > width and dropped in columns:
            columns.remove(dropped)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    room = width - sum(widths[name] + 2 for name in columns[1:])
    for place, name in enumerate(columns):
        is_text = name in ("STREAM", "SHARD", "HEALTH", "QUEUE", "WAITS FOR")
        least, most = (None, max(1, room)) if place == 0 else (widths[name], None)
        table.add_column(
            name,
            justify="left" if is_text else "right",
            no_wrap=True,
            overflow="crop",
            min_width=least,
            max_width=most,
        )
    for row in rows:
        table.add_row(*(Text(*row[name]) for name in columns))
    return table
