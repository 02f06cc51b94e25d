"""The status page shows what a stream did and why it is slow, within bounds, and escapes all text of others.

Tests that ask a browser need Debian's chromium (``apt-get install chromium``) and are skipped without it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from producerd.core.holding import ADVICE, Cause
from producerd.runtime.page.page import HEADERS, KEPT_SECONDS, LOOK_SECONDS, Page
from producerd.runtime.page.pictures import SAMPLES, line, round_above, shares_picture
from producerd.runtime.page.standing import NO_SAMPLE, Sample, Standing, sample_of, standing_of, verdict_of
from producerd.runtime.page.text import count_of, duration_of, number_of
from producerd.runtime.page.text import text_of as as_html
from tests.runtime.timers import Timers

Told = dict[str, Any]
MIB: Final = 1 << 20
CHROMIUM: Final = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def stream_of(name: str = "flights", **differently: Any) -> Told:
    """The status of one that works and has nothing to do."""
    numbers = "queue_records queue_bytes blocked_callers requests_in_flight ingest_records delivered_records"
    numbers += " failed_records discarded_records record_retries share oldest_record_seconds blocked_seconds"
    return {
        **dict.fromkeys(numbers.split(), 0),
        **dict.fromkeys(("cause", "shard_id", "reason", "last_error"), ""),
        "stream": name,
        "health": "working",
        "paused": False,
        "queue_limit_records": 1_000,
        "queue_limit_bytes": 64 * MIB,
        "sessions": 1,
        "shards_open": 4,
        "failed_reasons": {},
        **differently,
    }


class Node:
    """A daemon with the state that the test gives it, and a clock that goes when the test says so."""

    def __init__(self, *streams: Told) -> None:
        self.now = 1_000.0
        self.streams = list(streams)
        self.told: Told = {
            "version": "1.2.3",
            "state": "serving",
            "unready": None,
            "uptime_seconds": 93_784.0,
            "log_level": "info",
            "connections": 17,
            "node_queue_bytes": 64 * MIB,
            "node_queue_limit_bytes": 256 * MIB,
        }
        self.page = Page(lambda: {**self.told, "streams": [dict(each) for each in self.streams]}, lambda: self.now)

    def passes(self, seconds: float = LOOK_SECONDS, **more: float) -> None:
        """Let this time pass while the first stream adds to its counters, and then look."""
        self.now += seconds
        for name, number in more.items():
            self.streams[0][name] += number
        self.page.look()

    def html(self) -> str:
        self.now += KEPT_SECONDS
        return self.page.html()


class Parsed(HTMLParser):
    """What a browser would see: each tag with its attributes, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.text += " " if tag in ("p", "figcaption", "title", "h1") else ""

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(1 for name, _ in self.tags if name == tag)


def sections(html: str) -> dict[str, str]:
    """Each stream's part, in the order of the page."""
    parts = re.findall(r"<section.*?</section>", html, re.DOTALL)
    return {re.search(r"<h2>(\S+) ", part)[1]: part for part in parts}  # type: ignore[index] # each has one


def text_of(html: str) -> str:
    return " ".join(Parsed(html).text.split())


def heights(html: str, kind: str) -> list[int]:
    """What a picture shows, in its own units: 100 is its upper edge."""
    drawn = re.search(rf'<path class="{kind}" d="M(-?\d+) (-?\d+)l([^V"]+)', html)
    if drawn is None:
        return []
    steps = [int(step) for step in drawn[3].split()]
    assert steps[::2] == [1] * (len(steps) // 2)
    assert int(drawn[1]) + len(steps) // 2 == SAMPLES - 1, "the newest stands at the right edge"
    found = [-int(drawn[2])]
    for step in steps[1::2]:
        found.append(found[-1] - step)
    return found


# ---- what it shows


@pytest.mark.promise("pictures-show-accepted")
def test_pictures_show_what_was_accepted_stored_queued_and_blocked() -> None:
    """By the time that has passed, and not by the timer's."""
    node = Node(stream_of(ingest_records=700, blocked_seconds=30.0))
    node.page.look()
    assert heights(node.html(), "line accepted") == [], "of before the first look nothing is known"
    node.now -= KEPT_SECONDS
    node.passes(5, ingest_records=5_000, delivered_records=5_000)
    node.streams[0].update(queue_records=100, queue_bytes=32 * MIB, blocked_callers=3)
    node.passes(10, ingest_records=10_000, delivered_records=5_000, blocked_seconds=7.5)
    shown = sections(node.html())["flights"]
    assert heights(shown, "line accepted") == [100, 100]
    assert heights(shown, "area stored") == [100, 50]
    assert heights(shown, "area queue") == [0, 50], "by the nearer limit"
    assert heights(shown, "area blocked") == [0, 75]
    said = text_of(shown)
    assert "accepted 1,000/s stored 500/s" in said
    assert "Queue 50% full" in said
    assert "75% of the time, 3 now" in said
    assert "100 of 1,000 records" in said
    assert "32.0 of 64.0 MiB" in said


def test_a_stream_that_was_opened_since_the_last_look_counts_from_zero() -> None:
    node = Node()
    node.page.look()
    node.streams.append(stream_of())
    node.passes(ingest_records=50)
    assert "accepted 10/s" in text_of(node.html())


def test_counters_that_begin_anew_are_no_rates() -> None:
    """A stream was forgotten and opened again between two looks."""
    node = Node(stream_of(ingest_records=500, blocked_seconds=50.0, failed_records=5))
    node.page.look()
    node.passes(ingest_records=-400, blocked_seconds=-50.0, failed_records=-5)
    assert "accepted 0/s" in text_of(node.html())
    assert "● working" in text_of(node.html())


@pytest.mark.promise("pictures-show-accepted")
def test_history_is_of_ten_minutes_and_of_streams_that_are_there() -> None:
    node = Node(stream_of("a"), stream_of("b", ingest_records=5))
    for _ in range(SAMPLES + 30):
        node.passes(ingest_records=10)
    shown = sections(node.html())
    assert len(heights(shown["a"], "line accepted")) == SAMPLES
    assert len(heights(node.html(), "area queue")) == SAMPLES, "the node's own"
    gone = node.streams.pop()
    node.passes()
    assert list(sections(node.html())) == ["a"]
    node.streams.append(gone)
    node.passes()
    node.passes()
    assert len(heights(sections(node.html())["b"], "line accepted")) == 2


@pytest.mark.promise("streams-trouble-come")
def test_streams_in_trouble_come_first_and_words_say_what_colours_do() -> None:
    streams: dict[str, tuple[Told, str]] = {
        "a-blocked": ({"blocked_seconds": 4.0}, "▲ callers blocked for 80% of the last minute"),
        "b-broken": ({"health": "broken", "paused": True}, "✕ broken: the service refuses it"),
        "c-working": ({"oldest_record_seconds": 5.0, "blocked_seconds": 0.4}, "● working"),
        "d-unproven": ({"health": "unproven"}, "○ unproven: nothing was stored yet"),
        "e-failing": ({"failed_records": 12}, "✕ 12 records failed in the last ten minutes"),
    }
    node = Node(*map(stream_of, streams))
    node.page.look()
    for stream in node.streams:
        stream.update(streams[stream["stream"]][0])
    node.passes()
    shown = sections(node.html())
    assert list(shown) == ["b-broken", "e-failing", "a-blocked", "c-working", "d-unproven"]
    for name, (_, words) in streams.items():
        assert f"{name} {words}" in text_of(shown[name])
    said = "3 of 5 streams in trouble: b-broken, e-failing, a-blocked"
    assert f"▲ {said}" in text_of(node.html())
    assert f"<title>{said} | producerd</title>" in node.html(), "the browser's tab says it, too"


@pytest.mark.parametrize("cause", get_args(Cause))
def test_each_cause_has_its_advice(cause: Cause) -> None:
    """Where nothing is wrong, there is none."""
    stream = stream_of(cause=cause, reason="because `it` is so", oldest_record_seconds=60.0, queue_records=5)
    said = text_of(Node(stream).html())
    assert "Why because it is so What to do " in said
    assert ADVICE[cause].format(stream="flights").replace("`", "") in said
    stream = stream_of(cause=cause, reason="because `it` is so", queue_records=5)
    said = text_of(Node(stream).html())
    if cause == "service":
        assert "✕ the service does not answer, or takes nothing" in said
    else:
        assert "● working because it is so" in said
        assert "What to do" not in said


def test_a_record_that_failed_hides_not_what_holds_the_others() -> None:
    node = Node(stream_of(cause="hot_shard", reason="a shard is hot", queue_records=5))
    node.page.look()
    node.streams[0]["failed_reasons"] = {"RECORD_TOO_LARGE": 2, "EXPIRED": 1}
    node.passes(failed_records=3)
    said = text_of(node.html())
    assert "✕ 3 records failed in the last ten minutes: RECORD_TOO_LARGE and EXPIRED" in said
    assert "Their callers have received the reason" in said
    assert "spread the keys of the shard that is named" in said


@pytest.mark.parametrize("health", ["broken", "suspect"])
def test_what_a_refused_stream_wants_is_its_error_mended(health: str) -> None:
    """Said once, also where the reason quotes it."""
    error = "ACCESS_DENIED: not authorized"
    stream = stream_of(health=health, cause="service", reason=f"the stream is refused: {error}", last_error=error)
    said = text_of(Node(stream).html())
    assert "What to do Correct what the error names" in said
    assert said.count(error) == 1
    stream["reason"] = ""
    assert f"Last error {error}" in text_of(Node(stream).html())


def test_what_to_do_about_a_pause_is_to_end_it() -> None:
    assert "producerctl resume flights sends again what it holds" in text_of(Node(stream_of(paused=True)).html())


def test_the_node_says_how_it_is() -> None:
    node = Node()
    said = text_of(node.html())
    assert "● No client has opened a stream yet" in said
    for fact in ("State serving", "Version 1.2.3", "Up for 1 d 2 h", "Connections 17"):
        assert fact in said
    assert "All queues 64.0 of node_queue_limit_bytes = 256 MiB" in said
    assert "All queues 25% full" in said
    assert "Log level" not in said
    node.told.update(state="draining", unready="draining", log_level="debug", uptime_seconds=7_260.0)
    node.streams.append(stream_of())
    said = text_of(node.html())
    assert "▲ Draining; no stream is in trouble" in said
    assert "Log level debug" in said
    assert "Up for 2 h 1 min" in said


# ---- what it promises


EVIL: Final = "</title></style><script>alert('1')</script><img src=x onerror=\"alert(2)\"> & `<b>` \ud800 {x} %s"


@pytest.mark.promise("said-text-nothing-else")
def test_what_others_said_is_text_and_nothing_else() -> None:
    """Of a service, of a reason that quotes it, even of a name; and it can be sent."""
    plain = Parsed(Node(stream_of(reason="r", last_error="e", oldest_record_seconds=60.0)).html())
    said = {"reason": EVIL, "last_error": f"again {EVIL}", "oldest_record_seconds": 60.0}
    html = Node(stream_of(EVIL, **said, cause="hot_shard")).html()
    html.encode()
    evil = Parsed(html)
    shown = "</title></style><script>alert('1')</script><img src=x onerror=\"alert(2)\"> & "
    assert evil.text.count(shown) >= 3
    for tag in ("script", "img", "b", "title", "style"):
        extra = 1 if tag == "b" else 0  # the heading of "What to do"
        assert evil.count(tag) == plain.count(tag) + extra, tag
    assert {name for _, attributes in evil.tags for name in attributes} == {
        name for _, attributes in plain.tags for name in attributes
    }


@pytest.mark.promise("said-text-nothing-else", "web-page-reads-metrics")
def test_it_needs_nothing_from_elsewhere_and_its_policy_allows_what_it_has() -> None:
    """No style or handler in an attribute: the policy would stop them."""
    node = Node(stream_of())
    node.passes()
    node.passes()
    html = node.html()
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"
    parsed = Parsed(html)
    for tag, attributes in parsed.tags:
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("src") is None
        assert attributes.get("href") in (None, "data:,"), tag
    assert "url(" not in html
    assert "@import" not in html


@pytest.mark.parametrize(
    ("looks", "records", "queue"),
    [(0, "now 0 and 0, at most 0", "now 0%, at most 0%"), (1, "now 10 and 5, at most 10", "now 50%, at most 50%")],
)
def test_every_picture_says_in_words_what_it_shows(looks: int, records: str, queue: str) -> None:
    """Also of a stream without a history."""
    node = Node(stream_of())
    node.page.look()
    for _ in range(looks):
        node.passes(ingest_records=50, delivered_records=25, queue_records=500)
    html = node.html()
    pictures = re.findall(r"<svg .*?</svg>", html, re.DOTALL)
    assert len(pictures) == 4
    for picture in pictures:
        assert 'role="img"' in picture
        assert re.search(r"<title>[^<]+, now [^<]+, at most [^<]+</title>", picture)
    assert f"flights: records accepted and stored a second, {records}, in the last ten minutes" in html
    assert f"flights: how full the queue is, {queue}, in the last ten minutes" in html


@pytest.mark.promise("however-many-look-made")
def test_however_many_look_it_is_made_once_a_second() -> None:
    node = Node(stream_of())
    first = node.page.html()
    node.told["connections"] = 18
    node.now += KEPT_SECONDS / 2
    assert node.page.html() is first
    node.now += KEPT_SECONDS / 2
    assert "Connections 18" in text_of(node.page.html())


def test_it_looks_at_once_and_every_few_seconds_until_it_is_stopped() -> None:
    node, timers = Node(stream_of()), Timers()
    node.page.stop()  # which changes nothing yet
    node.page.watch(timers)  # type: ignore[arg-type] # it is only part of a loop
    for _ in range(3):
        assert timers.left == [LOOK_SECONDS]
        node.now += LOOK_SECONDS
        timers.go_on()
    assert len(heights(node.html(), "line accepted")) == 3
    node.page.stop()
    assert timers.left == []


# ---- its parts


BLOCKED: Final = Sample(0.0, 0.0, 0.0, 0.1, 0)
TWO_FAILED: Final = [NO_SAMPLE._replace(failed_records=1)] * 2
WORKING: Final = Standing(8, "good", "working")
NO_ANSWER: Final = Standing(2, "bad", "the service does not answer, or takes nothing")


@pytest.mark.parametrize(
    ("differently", "history", "standing"),
    [
        ({"health": "broken"}, [], Standing(0, "bad", "broken: the service refuses it, or cannot be reached")),
        ({"health": "suspect"}, [], Standing(1, "bad", "suspect: it worked, and now the service refuses it")),
        ({"health": "outage"}, [], NO_ANSWER),
        ({"cause": "service", "queue_records": 1}, [], NO_ANSWER),
        (
            *({"failed_reasons": {"A": 1, "B": 3, "C": 2}}, TWO_FAILED),
            Standing(3, "bad", "2 records failed in the last ten minutes: B and C"),
        ),
        ({"paused": True}, [], Standing(4, "slow", "paused")),
        ({}, [BLOCKED], Standing(5, "slow", "callers blocked for 10% of the last minute")),
        ({"oldest_record_seconds": 30.0}, [], Standing(6, "slow", "a record has waited for 30.0 s")),
        ({"last_error": "no", "queue_records": 1}, [], Standing(7, "slow", "sends fail, and are tried again")),
        ({}, [], WORKING),
        ({"oldest_record_seconds": 29.9}, [BLOCKED] * 11 + [NO_SAMPLE], WORKING),
        ({}, [BLOCKED._replace(blocked_share=9.0)] * 9 + [NO_SAMPLE] * 12, WORKING),
        ({"health": "unproven"}, [], Standing(9, "idle", "unproven: nothing was stored yet")),
    ],
)
def test_how_a_stream_stands(differently: Told, history: list[Sample], standing: Standing) -> None:
    assert standing_of(stream_of(**differently), history) == standing


@pytest.mark.parametrize(
    ("streams", "troubled", "said"),
    [
        (0, 0, "no client has opened a stream yet"),
        (4, 0, "no stream is in trouble"),
        (1, 1, "1 of 1 stream in trouble: s0"),
        (4, 3, "3 of 4 streams in trouble: s0, s1, s2"),
        (4, 4, "4 of 4 streams in trouble: s0, s1, s2 and 1 more"),
    ],
)
def test_the_verdict_names_three_streams_in_trouble(streams: int, troubled: int, said: str) -> None:
    status: Told = {"streams": [{}] * streams, "unready": None}
    assert verdict_of(status, [f"s{number}" for number in range(troubled)]) == said


def test_a_sample_is_of_the_time_that_has_passed() -> None:
    before = stream_of(ingest_records=10, delivered_records=20, blocked_seconds=1.0, failed_records=2)
    now: Told = {"ingest_records": 20, "delivered_records": 25, "blocked_seconds": 8.5, "failed_records": 5}
    assert sample_of(stream_of(**now, queue_records=250), before, 5.0) == Sample(2.0, 1.0, 0.25, 1.0, 3)
    assert sample_of(stream_of(**now, queue_limit_records=0, queue_limit_bytes=0), {}, 50.0) == Sample(
        0.4, 0.5, 0.0, 0.17, 5
    )


def test_two_looks_at_the_same_time_are_one() -> None:
    node = Node(stream_of())
    node.page.look()
    node.passes(0.0, ingest_records=5)
    node.passes(5.0, ingest_records=5)
    assert "accepted 1/s" in text_of(node.html())


def test_a_history_is_of_ten_minutes_and_a_page_of_a_second() -> None:
    assert (LOOK_SECONDS * SAMPLES, KEPT_SECONDS) == (600.0, 1.0)
    assert NO_SAMPLE == (0.0, 0.0, 0.0, 0.0, 0)


def test_a_picture_is_one_path_to_its_right_edge() -> None:
    assert shares_picture("How full", "queue", [0.5, 1.0, 0.25]) == (
        '<svg role="img" viewBox="0 -100 119 100" preserveAspectRatio="none">'
        "<title>How full, now 25%, at most 100%, in the last ten minutes</title>"
        '<path class="area queue" d="M117 -50l1 -50 1 75V0H117z"/></svg>'
    )
    assert line("accepted", [5.0, 10.0], 20.0) == '<path class="line accepted" d="M118 -25l1 -25"/>'
    assert line("accepted", [5.0], 20.0) == ""


@pytest.mark.parametrize(
    ("end", "values"),
    [
        (1.0, (0.0, 0.3, 1.0)),
        (1.5, (1.01, 1.5)),
        (2.0, (1.51, 2.0)),
        (3.0, (2.01, 3.0)),
        (4.0, (3.01, 4.0)),
        (6.0, (4.01, 6.0)),
        (8.0, (6.01, 8.0)),
        (10.0, (8.01, 10.0)),
        (1_500.0, (1_001.0, 1_500.0)),
    ],
)
def test_an_axis_ends_at_a_round_number(end: float, values: tuple[float, ...]) -> None:
    assert {round_above(value) for value in values} == {end}


def rows_of(number: int) -> str:
    return count_of(number, "row")


@pytest.mark.parametrize(
    ("says", "texts"),
    [
        (rows_of, {0: "0 rows", 1: "1 row", 2: "2 rows", 1_000: "1,000 rows"}),
        (duration_of, {0.0: "0.0 s", 59.9: "59.9 s", 60.0: "1 min 0 s", 3_599.0: "59 min 59 s", 3_600.0: "1 h 0 min"}),
        (duration_of, {86_399.0: "23 h 59 min", 86_400.0: "1 d 0 h", 1_000 * 86_400.0 + 3_600.0: "1,000 d 1 h"}),
        (number_of, {0.0: "0", 7.0: "7", 9.5: "9.5", 0.25: "0.2", 10.0: "10", 10.4: "10", 2e3: "2,000"}),
        (as_html, {"x" * 600: "x" * 600, "x" * 601: "x" * 600 + " …"}),
    ],
)
def test_numbers_durations_and_texts_are_short(says: Callable[[Any], str], texts: dict[Any, str]) -> None:
    assert {value: says(value) for value in texts} == texts


# ---- in a browser


def browse(url: str, directory: Path, *, seconds: int) -> str:
    """The page as it is after so long, in the browser's own time.  Nothing that it has may be against its policy."""
    assert CHROMIUM is not None
    # It draws nothing to look at, and root may run the tests: hence the first three.
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={directory}")
    dump = (f"--virtual-time-budget={seconds * 1000}", "--enable-logging=stderr", "--dump-dom")
    done = subprocess.run([CHROMIUM, *options, *dump, url], capture_output=True, text=True, timeout=60, check=True)
    assert "Content Security Policy" not in done.stderr, done.stderr
    assert "Uncaught" not in done.stderr, done.stderr
    return done.stdout


@contextmanager
def served(answer: Callable[[int], str | None]) -> Iterator[str]:
    """A server for the page, with its headers; ``answer``: what the n-th visit gets, None for an error."""
    visits = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal visits
            visits += self.path == "/"
            html = answer(visits) if self.path == "/" else None
            body = (html or "").encode()
            self.send_response(200 if html else 503)
            for name, value in {**HEADERS, "Content-Type": "text/html; charset=utf-8"}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.promise("browser-renews-place")
@pytest.mark.slow
@needs_chromium
def test_a_browser_renews_it_in_place_and_says_so_where_it_gets_no_answer_any_more(tmp_path: Path) -> None:
    """And keeps what others said as text.  It asks at 0, 5 and 10 seconds."""
    node = Node(stream_of(last_error=EVIL))
    node.page.look()

    def answer(visit: int) -> str | None:
        node.told["connections"] = 100 + visit
        node.passes(ingest_records=50)
        return node.html() if visit < 3 else None

    assert re.search('<p id="gone"[^>]* hidden', node.html())
    with served(answer) as url:
        seen = browse(url, tmp_path, seconds=12)
    assert "● No stream is in trouble" in text_of(seen), "what was known stays"
    assert "Connections 102" in text_of(seen)
    assert seen.count("<script>") == 1
    assert re.search('<p id="gone"', seen)
    assert not re.search('<p id="gone"[^>]* hidden', seen)
