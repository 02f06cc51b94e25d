"""Page: the status page as HTML, with the history that its pictures show."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from string import Template
from typing import Final

from producerd.runtime.commands import JsonObject
from producerd.runtime.page.pictures import SAMPLES, area, line, round_above, shares_picture, svg
from producerd.runtime.page.standing import (
    CALM,
    NO_SAMPLE,
    Sample,
    Severity,
    Standing,
    advice_for,
    queue_share_of,
    sample_of,
    share_of,
    standing_of,
    verdict_of,
)
from producerd.runtime.page.text import duration_of, number_of, text_of, with_code

LOOK_SECONDS: Final = 5.0
"""Time between two samples, and between two refreshes of the page in a browser."""
KEPT_SECONDS: Final = 1.0
"""Time for which a rendered page is reused, whatever the number of readers.

Rendering a page of 64 streams blocks the loop for some milliseconds.
"""
MIB: Final = 1 << 20
MARKS: Final[dict[Severity, str]] = {"bad": "✕", "slow": "▲", "good": "●", "idle": "○"}
"""Character that stands for a level next to its words."""
_FILES: Final = files("producerd.runtime.page")
_STYLE: Final = _FILES.joinpath("page.css").read_text("utf-8")
_SCRIPT: Final = _FILES.joinpath("page.js").read_text("utf-8")
_PAGE: Final = Template(_FILES.joinpath("page.html").read_text("utf-8"))


class Page:
    """The page of one daemon.

    ``status`` returns the daemon's status, as `Commands.status` does.  Call all methods on the loop thread.
    """

    def __init__(self, status: Callable[[], JsonObject], clock: Callable[[], float] = time.monotonic) -> None:
        self._status = status
        self._clock = clock
        self._looked_at: float | None = None
        self._before: dict[str, JsonObject] = {}  # each stream's status at the last look
        self._histories: dict[str, deque[Sample]] = {}
        self._node_shares: deque[float] = deque(maxlen=SAMPLES)
        self._timer: asyncio.TimerHandle | None = None
        self._html = ""
        self._html_until = 0.0

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take a sample every few seconds from now on, until `stop`."""
        self._timer = loop.call_later(LOOK_SECONDS, self.watch, loop)
        self.look()

    def stop(self) -> None:
        """Take no more samples."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Add a sample to each stream's history, and drop the histories of forgotten streams."""
        now, status = self._clock(), self._status()
        streams = {stream["stream"]: stream for stream in status["streams"]}
        self._histories = {name: self._histories.get(name, deque(maxlen=SAMPLES)) for name in streams}
        self._node_shares.append(share_of(status["node_queue_bytes"], status["node_queue_limit_bytes"]))
        if self._looked_at is not None and now > self._looked_at:
            for name, stream in streams.items():
                # A stream opened since the last look began with its counters at 0.
                self._histories[name].append(sample_of(stream, self._before.get(name, {}), now - self._looked_at))
        self._looked_at, self._before = now, streams

    def html(self) -> str:
        """Return the page, rendered again if it is older than `KEPT_SECONDS`."""
        now = self._clock()
        if not self._html or now >= self._html_until:
            self._html, self._html_until = self._render(), now + KEPT_SECONDS
        return self._html

    def _render(self) -> str:
        status = self._status()
        shown = []
        for stream in status["streams"]:
            history = list(self._histories.get(stream["stream"], ()))
            shown.append((standing_of(stream, history), stream, history))
        shown.sort(key=lambda each: (each[0].place, each[1]["stream"]))
        troubled = [stream["stream"] for standing, stream, _ in shown if standing.place < CALM]
        verdict = verdict_of(status, troubled)
        return _PAGE.substitute(
            title=text_of(f"{verdict} | producerd"),
            style=_STYLE,
            script=_SCRIPT,
            seconds=f"{LOOK_SECONDS:.0f}",
            head=_head(status, verdict, bool(troubled), list(self._node_shares)),
            streams="\n".join([_stream(*each) for each in shown]),
        )


# ---- as HTML


def _head(status: JsonObject, verdict: str, in_trouble: bool, shares: Sequence[float]) -> str:
    used, limit = status["node_queue_bytes"], status["node_queue_limit_bytes"]
    level: Severity = "slow" if in_trouble or status["unready"] is not None else "good"
    facts = [
        ("State", status["state"]),
        ("Version", status["version"]),
        ("Up for", duration_of(status["uptime_seconds"])),
        ("Connections", f"{status['connections']:,}"),
        ("Streams", f"{len(status['streams']):,}"),
        *([("Log level", status["log_level"])] if status["log_level"] != "info" else []),
        ("All queues", f"{used / MIB:,.1f} of node_queue_limit_bytes = {limit / MIB:,.0f} MiB"),
        ("Seen at", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())),
    ]
    return (
        f'<header class="{level}"><div><p class="faint">producerd: the last ten minutes, the newest on the right</p>'
        f"<h1>{_mark(level)} {text_of(verdict[0].upper() + verdict[1:])}</h1>{_list(facts)}</div>"
        + _figure(
            "All queues",
            f"{share_of(used, limit):.0%} full",
            shares_picture("How full all queues together are", "queue", shares),
            "100%",
        )
        + "</header>"
    )


def _stream(standing: Standing, stream: JsonObject, history: Sequence[Sample]) -> str:
    in_trouble, reason, error = standing.place < CALM, stream["reason"], stream["last_error"]
    texts = {
        "Why": with_code(reason) if in_trouble else "",
        "What to do": with_code(advice_for(stream, standing)),
        "Last error": text_of(error) if error not in reason else "",
    }
    now = "" if in_trouble else f'<span class="faint">{with_code(reason)}</span>'
    facts = [
        ("Queued", f"{stream['queue_records']:,} of {stream['queue_limit_records']:,} records"),
        ("Taken on", f"{stream['queue_bytes'] / MIB:,.1f} of {stream['queue_limit_bytes'] / MIB:,.1f} MiB"),
        ("Oldest record", duration_of(stream["oldest_record_seconds"])),
        ("Sessions", f"{stream['sessions']:,}"),
        ("Requests in flight", f"{stream['requests_in_flight']:,}"),
        ("Open shards", f"{stream['shards_open']:,}"),
        ("Failed", f"{stream['failed_records']:,}"),
        *[
            (head, f"{stream[records]:,}")
            for head, records in (("Discarded", "discarded_records"), ("Sent again", "record_retries"))
            if stream[records]
        ],
    ]
    return (
        f'<section class="{standing.level}"><h2>{text_of(stream["stream"])} '
        f'<span class="standing">{_mark(standing.level)} {text_of(standing.words)}</span> {now}</h2>'
        + "".join([f"<p><b>{head}</b> <bdi>{text}</bdi></p>" for head, text in texts.items() if text])
        + f'<div class="charts">{_charts(stream, history)}</div>{_list(facts)}</section>'
    )


def _charts(stream: JsonObject, history: Sequence[Sample]) -> str:
    name = stream["stream"]
    now = history[-1] if history else NO_SAMPLE
    accepted, stored, queued, blocked, _ = zip(*history, strict=True) if history else ((), (), (), (), ())
    highest = max((*accepted, *stored), default=0.0)
    most = round_above(highest)
    return (
        _figure(
            "Records",
            f'<span class="key accepted">accepted {number_of(now.accepted_per_second)}/s</span> '
            f'<span class="key stored">stored {number_of(now.stored_per_second)}/s</span>',
            svg(
                f"{name}: records accepted and stored a second, now {number_of(now.accepted_per_second)} and "
                f"{number_of(now.stored_per_second)}, at most {number_of(highest)}",
                area("stored", stored, most) + line("accepted", accepted, most),
            ),
            f"{number_of(most)}/s",
        )
        + _figure(
            "Queue",
            f"{queue_share_of(stream):.0%} full",
            shares_picture(f"{name}: how full the queue is", "queue", queued),
            "100%",
        )
        + _figure(
            "Callers blocked",
            f"{now.blocked_share:.0%} of the time, {stream['blocked_callers']:,} now",
            shares_picture(f"{name}: for how much of the time callers were blocked", "blocked", blocked),
            "100%",
        )
    )


def _figure(head: str, caption: str, chart: str, most: str) -> str:
    return (
        f"<figure><figcaption><b>{head}</b> {caption}</figcaption>"
        f'<div class="plot">{chart}<span aria-hidden="true">{most}</span></div></figure>'
    )


def _list(facts: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join([f'<div><dt>{head}</dt> <dd>{text_of(value)}</dd></div>' for head, value in facts])}</dl>"


def _mark(level: Severity) -> str:
    """Return a level's mark.  It is hidden from screen readers, because the words next to it say the same."""
    return f'<span aria-hidden="true">{MARKS[level]}</span>'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers for the page.  If a text got through unescaped, the browser still would not run anything in it."""
