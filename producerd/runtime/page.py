"""The status page: who opens ``/`` of `metrics_listen` sees at a glance why a stream is slow.

For each stream, pictures of the last ten minutes: what was accepted and stored, how full the queue was, how long
callers were blocked; then what holds it, and what to do about that.  Streams in trouble come first.

The page needs nothing but itself.  It renews itself every few seconds, also without scripts.  Every text in it is
escaped, and with `HEADERS` a browser runs and loads nothing that is not in here.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import floor, log10
from operator import sub
from typing import Any, Final, Literal, NamedTuple

LOOK_SECONDS: Final = 5.0
SAMPLES: Final = 120
"""Ten minutes, of each stream."""
LATELY_SAMPLES: Final = 12
"""A minute: what counts for whether callers are blocked now."""
BLOCKED_SHARE: Final = 0.1
"""Of the last minute.  A caller that waits for less is only as fast as the stream."""
OLD_SECONDS: Final = 30.0
"""A record that has waited for so long makes a line in the log, too."""
KEPT_SECONDS: Final = 1.0
"""However many look, the page is made once in this time: of 64 streams it takes the loop some milliseconds."""
HEIGHT: Final = 100
"""Of a picture, in its own units; as wide as it has samples."""
TEXT_CHARACTERS: Final = 600
"""As much is shown of an error: the service's words may be a whole page of a proxy."""
MIB: Final = 1 << 20

ADVICE: Final = {
    "hot_shard": "Spread the keys of that shard, or split it. `producerctl shards {stream}` shows each shard.",
    "shard_rate": 'Add shards; with many small records set aggregation = "kpl". If shards throttle below their quota, '
    "see who else writes to the stream.",
    "service": "The last error says why the service takes nothing: permissions, credentials, the network, an outage.",
    "shard_map": "The list of shards has not come: see whether kinesis:ListShards is allowed, or throttled. After a "
    "split it comes within seconds.",
    "in_flight": "Answers are late: look at the way to the service, and at slow shards with "
    "`producerctl shards {stream}`. max_in_flight_requests and max_in_flight_bytes bound what waits for answers.",
    "node_limit": "See to the streams that hold much of it; or raise node_queue_limit_bytes, if the memory is there.",
    "paused": "`producerctl resume {stream}` sends again what it holds.",
    "daemon": "Nothing but the daemon's own work holds it. If it stays so, the daemon has too little CPU.",
}
"""By cause, as in docs/operations.md."""
REFUSED: Final = (
    "Correct what the error names: the stream's name, permissions, credentials, its key, or the endpoint. The daemon "
    "tries again every few seconds and needs no restart."
)
FAILED: Final = "Their callers were told why. `producerd_failed_records_total` among the metrics counts them by reason."

Told = dict[str, Any]
Level = Literal["bad", "slow", "good", "idle"]
MARKS: Final[dict[Level, str]] = {"bad": "✕", "slow": "▲", "good": "●", "idle": "○"}


class Sample(NamedTuple):
    """What one stream did between two looks, and how full its queue was at the second."""

    accepted_per_second: float
    stored_per_second: float
    queue_share: float
    blocked_share: float
    failed_records: int


class Standing(NamedTuple):
    """How a stream is, in the order in which they are shown; below `CALM` it is in trouble."""

    place: int
    level: Level
    words: str


FAILURES: Final = 3
CALM: Final = 8


class Page:
    """See the module's text.  ``status``: `Commands.status`; asked on the loop thread, like `html`."""

    def __init__(self, status: Callable[[], Told], clock: Callable[[], float] = time.monotonic) -> None:
        self._status = status
        self._clock = clock
        self._looked_at: float | None = None
        self._before: dict[str, Told] = {}  # each stream's status at the last look
        self._histories: dict[str, deque[Sample]] = {}
        self._node_shares: deque[float] = deque(maxlen=SAMPLES)
        self._timer: asyncio.TimerHandle | None = None
        self._html = ""
        self._html_until = 0.0

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look every few seconds from now on, until `stop`."""
        self._timer = loop.call_later(LOOK_SECONDS, self.watch, loop)
        self.look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Add a sample to each stream's history; that of a stream which is gone goes, too."""
        now, told = self._clock(), self._status()
        streams = {stream["stream"]: stream for stream in told["streams"]}
        self._histories = {name: self._histories.get(name, deque(maxlen=SAMPLES)) for name in streams}
        self._node_shares.append(_share(told["node_queue_bytes"], told["node_queue_limit_bytes"]))
        if self._looked_at is not None and now > self._looked_at:
            for name, stream in streams.items():
                # Opened since, its counters began at 0.
                self._histories[name].append(_sample(stream, self._before.get(name, {}), now - self._looked_at))
        self._looked_at, self._before = now, streams

    def html(self) -> str:
        now = self._clock()
        if not self._html or now >= self._html_until:
            self._html, self._html_until = self._made(), now + KEPT_SECONDS
        return self._html

    def _made(self) -> str:
        told = self._status()
        shown = []
        for stream in told["streams"]:
            history = list(self._histories.get(stream["stream"], ()))
            shown.append((_standing(stream, history), stream, history))
        shown.sort(key=lambda each: (each[0].place, each[1]["stream"]))
        troubled = [stream["stream"] for standing, stream, _ in shown if standing.place < CALM]
        verdict = _verdict(told, troubled)
        return _PAGE.format(
            title=_text(f"{verdict} | producerd"),
            style=_STYLE,
            script=_SCRIPT,
            seconds=f"{LOOK_SECONDS:.0f}",
            head=_head(told, verdict, bool(troubled), list(self._node_shares)),
            streams="\n".join([_stream(*each) for each in shown]),
        )


# ---- what is so


def _sample(stream: Told, before: Told, seconds: float) -> Sample:
    def since(name: str) -> Any:
        return max(0, stream[name] - before.get(name, 0))

    return Sample(
        since("ingest_records") / seconds,
        since("delivered_records") / seconds,
        _queue_share(stream),
        min(1.0, since("blocked_seconds") / seconds),
        since("failed_records"),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _queue_share(stream: Told) -> float:
    """How full its queue is, by whichever limit is nearer."""
    return max(
        _share(stream["queue_records"], stream["queue_limit_records"]),
        _share(stream["queue_bytes"], stream["queue_limit_bytes"]),
    )


def _standing(stream: Told, history: Sequence[Sample]) -> Standing:
    if stream["health"] == "broken":
        return Standing(0, "bad", "broken: the service refuses it, or cannot be reached")
    if stream["health"] == "suspect":
        return Standing(1, "bad", "suspect: it worked, and now the service refuses it")
    if stream["health"] == "outage" or (stream["cause"] == "service" and stream["queue_records"]):
        return Standing(2, "bad", "the service does not answer, or takes nothing")
    failed_records = sum(sample.failed_records for sample in history)
    if failed_records:
        reasons = " and ".join(sorted(stream["failed_reasons"], key=stream["failed_reasons"].get, reverse=True)[:2])
        return Standing(
            FAILURES, "bad", f"{_count(failed_records, 'record')} failed in the last ten minutes: {reasons}"
        )
    if stream["paused"]:
        return Standing(4, "slow", "paused")
    lately = [sample.blocked_share for sample in history[-LATELY_SAMPLES:]]
    blocked_share = _share(sum(lately), len(lately))
    if blocked_share >= BLOCKED_SHARE:
        return Standing(5, "slow", f"callers blocked for {blocked_share:.0%} of the last minute")
    if stream["oldest_record_seconds"] >= OLD_SECONDS:
        return Standing(6, "slow", f"a record has waited for {_duration(stream['oldest_record_seconds'])}")
    if stream["last_error"] and stream["queue_records"]:
        return Standing(7, "slow", "sends fail, and are tried again")
    if stream["health"] == "unproven":
        return Standing(CALM + 1, "idle", "unproven: nothing was stored yet")
    return Standing(CALM, "good", str(stream["health"]))


def _verdict(told: Told, troubled: Sequence[str]) -> str:
    """The whole page in one sentence."""
    count = len(told["streams"])
    if not count:
        said = "no client has opened a stream yet"
    elif not troubled:
        said = "no stream is in trouble"
    else:
        more = f" and {len(troubled) - 3} more" if len(troubled) > 3 else ""
        said = f"{len(troubled)} of {_count(count, 'stream')} in trouble: {', '.join(troubled[:3])}{more}"
    return said if told["unready"] is None else f"{told['unready']}; {said}"


def _advice(stream: Told, standing: Standing) -> str:
    """What to do about a stream in trouble."""
    if stream["health"] in ("broken", "suspect"):
        advice = REFUSED
    elif stream["paused"]:
        advice = ADVICE["paused"]
    else:
        advice = ADVICE.get(stream["cause"], "") if standing.place < CALM else ""
        if standing.place == FAILURES:
            advice = f"{FAILED} {advice}".rstrip()
    return advice.format(stream=stream["stream"])


# ---- as HTML


def _head(told: Told, verdict: str, in_trouble: bool, shares: Sequence[float]) -> str:
    used, limit = told["node_queue_bytes"], told["node_queue_limit_bytes"]
    level: Level = "slow" if in_trouble or told["unready"] is not None else "good"
    facts = [
        ("State", told["state"]),
        ("Version", told["version"]),
        ("Up for", _duration(told["uptime_seconds"])),
        ("Connections", f"{told['connections']:,}"),
        ("Streams", f"{len(told['streams']):,}"),
        *([("Log level", told["log_level"])] if told["log_level"] != "info" else []),
        ("All queues", f"{used / MIB:,.1f} of node_queue_limit_bytes = {limit / MIB:,.0f} MiB"),
        ("Seen at", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())),
    ]
    return (
        f'<header class="{level}"><div><p class="faint">producerd: the last ten minutes, the newest on the right</p>'
        f"<h1>{_mark(level)} {_text(verdict[0].upper() + verdict[1:])}</h1>{_list(facts)}</div>"
        + _figure(
            "All queues",
            f"{_share(used, limit):.0%} full",
            _shares("How full all queues together are", "queue", shares),
            "100%",
        )
        + "</header>"
    )


def _stream(standing: Standing, stream: Told, history: Sequence[Sample]) -> str:
    in_trouble, reason, error = standing.place < CALM, stream["reason"], stream["last_error"]
    said = {
        "Why": _with_code(reason) if in_trouble else "",
        "What to do": _with_code(_advice(stream, standing)),
        "Last error": _text(error) if error not in reason else "",
    }
    now = "" if in_trouble else f'<span class="faint">{_with_code(reason)}</span>'
    facts = [
        ("Queued", f"{stream['queue_records']:,} of {stream['queue_limit_records']:,} records"),
        ("Taken on", f"{stream['queue_bytes'] / MIB:,.1f} of {stream['queue_limit_bytes'] / MIB:,.1f} MiB"),
        ("Oldest record", _duration(stream["oldest_record_seconds"])),
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
        f'<section class="{standing.level}"><h2>{_text(stream["stream"])} '
        f'<span class="standing">{_mark(standing.level)} {_text(standing.words)}</span> {now}</h2>'
        + "".join([f"<p><b>{head}</b> <bdi>{text}</bdi></p>" for head, text in said.items() if text])
        + f'<div class="charts">{_charts(stream, history)}</div>{_list(facts)}</section>'
    )


def _charts(stream: Told, history: Sequence[Sample]) -> str:
    name = stream["stream"]
    now = history[-1] if history else Sample(0.0, 0.0, 0.0, 0.0, 0)
    accepted, stored, queued, blocked, _ = zip(*history, strict=True) if history else ((), (), (), (), ())
    highest = max((*accepted, *stored), default=0.0)
    most = _round_above(highest)
    return (
        _figure(
            "Records",
            f'<span class="key accepted">accepted {_number(now.accepted_per_second)}/s</span> '
            f'<span class="key stored">stored {_number(now.stored_per_second)}/s</span>',
            _svg(
                f"{name}: records accepted and stored a second, now {_number(now.accepted_per_second)} and "
                f"{_number(now.stored_per_second)}, at most {_number(highest)}",
                _area("stored", stored, most) + _line("accepted", accepted, most),
            ),
            f"{_number(most)}/s",
        )
        + _figure(
            "Queue",
            f"{_queue_share(stream):.0%} full",
            _shares(f"{name}: how full the queue is", "queue", queued),
            "100%",
        )
        + _figure(
            "Callers blocked",
            f"{now.blocked_share:.0%} of the time, {stream['blocked_callers']:,} now",
            _shares(f"{name}: for how much of the time callers were blocked", "blocked", blocked),
            "100%",
        )
    )


def _figure(head: str, caption: str, chart: str, most: str) -> str:
    return (
        f"<figure><figcaption><b>{head}</b> {caption}</figcaption>"
        f'<div class="plot">{chart}<span aria-hidden="true">{most}</span></div></figure>'
    )


def _list(facts: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join([f'<div><dt>{head}</dt> <dd>{_text(value)}</dd></div>' for head, value in facts])}</dl>"


def _mark(level: Level) -> str:
    """Beside words that say the same."""
    return f'<span aria-hidden="true">{MARKS[level]}</span>'


def _text(text: str) -> str:
    """Whatever it is, it is text.  What is no character, as half of a pair of UTF-16, could not be sent at all."""
    cut = text if len(text) <= TEXT_CHARACTERS else text[:TEXT_CHARACTERS] + " …"
    return escape(cut.encode(errors="replace").decode())


def _with_code(text: str) -> str:
    """What stands between backticks is to be typed."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", _text(text))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds / 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days:,} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {seconds % 60:.0f} s"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# ---- pictures


def _round_above(value: float) -> float:
    """A plain number: the end of an axis."""
    if value <= 1:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 6, 8, 10) if value <= step * power)


def _shares(what: str, kind: str, shares: Sequence[float]) -> str:
    now, most = (shares[-1], max(shares)) if shares else (0.0, 0.0)
    return _svg(f"{what}, now {now:.0%}, at most {most:.0%}", _area(kind, shares, 1.0))


def _svg(told: str, drawn: str) -> str:
    return (
        f'<svg role="img" viewBox="0 {-HEIGHT} {SAMPLES - 1} {HEIGHT}" preserveAspectRatio="none">'
        f"<title>{_text(told)}, in the last ten minutes</title>{drawn}</svg>"
    )


def _area(kind: str, values: Sequence[float], most: float) -> str:
    return _path(f"area {kind}", values, most, f"V0H{SAMPLES - len(values)}z")


def _line(kind: str, values: Sequence[float], most: float) -> str:
    return _path(f"line {kind}", values, most)


def _path(kind: str, values: Sequence[float], most: float, end: str = "") -> str:
    """From the first height to each next one; the newest value stands at the right edge."""
    if len(values) < 2:
        return ""
    scale = -HEIGHT / most
    heights = [round(value * scale) for value in values]  # SVG counts downwards
    steps = " 1 ".join(map(str, map(sub, heights[1:], heights)))
    return f'<path class="{kind}" d="M{SAMPLES - len(values)} {heights[0]}l1 {steps}{end}"/>'


# ---- what is the same on every page

_STYLE: Final = """
:root { color-scheme: light dark; --back: #f4f5f7; --card: #fff; --text: #1b1f24; --faint: #5c6570; --rule: #d8dce1;
  --accepted: #1a56c4; --stored: #6fb6e8; --queue: #c98a1b; --blocked: #b3405f;
  --bad: #b3261e; --slow: #8a5300; --good: #1d6b34; --idle: #5c6570 }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --card: #1d2126; --text: #e6e8eb; --faint: #a0a8b2;
  --rule: #363c44; --accepted: #8ab8ff; --stored: #2f6f9f; --queue: #b07d22; --blocked: #c2566f;
  --bad: #ff8a80; --slow: #f0b95a; --good: #7fd197; --idle: #a0a8b2 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.45 system-ui, sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
main, #gone { max-width: 76rem; margin: 0 auto; padding: 1rem }
#gone { color: var(--bad); font-weight: 600; position: sticky; top: 0; background: var(--back); z-index: 1 }
.bad { --level: var(--bad) } .slow { --level: var(--slow) }
.good { --level: var(--good) } .idle { --level: var(--idle) }
header, section { background: var(--card); border: 1px solid var(--rule); border-left: 4px solid var(--level);
  border-radius: 6px; padding: .8rem 1rem; margin: 0 0 .8rem }
header, .charts { display: grid; gap: .5rem 1.5rem }
h1, h2, p, dl, dd, figure { margin: 0 }
h1 { font-size: 1.3rem; line-height: 1.3; margin: .1rem 0 .5rem }
h1 > span, .standing { color: var(--level) }
h2 { font-size: 1.1rem }
.standing { margin: 0 .4rem }
h2 span { font-size: .95rem } h2 .faint { font-weight: 400 }
.faint, dt, figcaption, .plot span { color: var(--faint) }
section p { margin-top: .3rem; max-width: 62rem }
p b, figcaption b { color: var(--text); margin-right: .3rem }
code { font: .93em ui-monospace, monospace }
.charts { margin: .7rem 0 }
figure { display: flex; flex-direction: column; min-width: 0 }
figcaption { font-size: .87rem; flex: 1 }
.plot { position: relative; margin-top: .3rem }
.plot span { position: absolute; top: 1px; left: 0; padding: 0 .2rem; font-size: .72rem; line-height: 1.3;
  text-shadow: 0 0 2px var(--card), 0 0 2px var(--card), 0 0 3px var(--card) }
svg { display: block; width: 100%; height: 4.2rem; border: solid var(--rule); border-width: 1px 0;
  background: linear-gradient(var(--rule), var(--rule)) center / 100% 1px no-repeat }
path { vector-effect: non-scaling-stroke; stroke-width: 1.5 }
.line { fill: none }
.line.accepted { stroke: var(--accepted) }
.area.stored { fill: var(--stored) } .area.queue { fill: var(--queue) } .area.blocked { fill: var(--blocked) }
.key { white-space: nowrap; margin-right: .5rem }
.key::before { content: ""; display: inline-block; width: 1rem; margin-right: .3rem; vertical-align: middle }
.key.accepted::before { border-top: 2px solid var(--accepted) }
.key.stored::before { height: .65rem; background: var(--stored) }
dl { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; font-size: .87rem }
dt, dd { display: inline }
footer { color: var(--faint); font-size: .87rem }
@media (min-width: 46rem) { header { grid-template-columns: 2fr 1fr }
  .charts { grid-template-columns: repeat(3, 1fr) } }
"""

_SCRIPT: Final = f"""
setInterval(async () => {{
  if (!getSelection().isCollapsed) return;
  const gone = document.getElementById("gone");
  try {{
    const answer = await fetch(location.pathname, {{ cache: "no-store", signal: AbortSignal.timeout(4000) }});
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceWith(next.querySelector("main"));
    document.title = next.title;
    gone.hidden = true;
  }} catch {{
    gone.hidden = false;
  }}
}}, {LOOK_SECONDS * 1000:.0f});
"""
"""The scroll position stays; text that somebody marks stays, too."""

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<noscript><meta http-equiv="refresh" content="{seconds}"></noscript>
<style>{style}</style>
</head>
<body>
<p id="gone" role="alert" hidden>The daemon does not answer: what is below is old.</p>
<main>
{head}
{streams}
<footer>Sent again, failed and discarded count since a stream was opened.
More: <code>producerctl status</code>, <code>producerctl shards STREAM</code>; <a href="/metrics">metrics</a>.</footer>
</main>
<script>{script}</script>
</body>
</html>
"""


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
"""To be sent with the page: should a text ever get through unescaped, the browser still runs nothing of it."""
