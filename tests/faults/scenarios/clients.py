"""Other clients of the daemon break its rules, or keep them to the letter and do harm.

Each scenario judges that the daemon's memory, descriptors and connections return to calm when the abuse ends, and that
its log says why it refused the client that broke a rule.  The times of honest acknowledgements are notes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from producerd.config.values import MIB
from tests.faults.abusers import OWN, abusing
from tests.faults.oracle import Law
from tests.faults.scenarios import scenario
from tests.faults.stage import SETTLE_SECONDS, SPARE, Stage, wait_for
from tests.faults.watch import Process, look, wait_for_level

TIGHT: Final = {"node_max_in_flight_bytes": 32 * MIB}
SHORT: Final = {"body_timeout_seconds": 2.0}
Act = Callable[[Stage], None]
HONEST: Final = "honest acknowledgements: "
KEPT_BYTES: Final = 24 * MIB
"""What the allocator may keep, for it gives nothing back while records come."""


def abuse(
    injected: str, settings: Mapping[str, Any] = TIGHT, tuning: Mapping[str, Any] = SHORT, **options: Any
) -> Callable[[Act], Act]:
    """A scenario in which no honest caller may get an error, and nothing hits the way to the service."""
    return scenario(injected, patient=True, resends=False, settings=settings, tuning=tuning, **options)


class Refused(NamedTuple):
    """The log's line on a broken rule: its event, and what else stands in it.  ``reason``: what the metric counts."""

    event: str
    why: str
    reason: str = ""


LATE: Final = Refused("client is late", 'waited_for="a body"', "late")
BROKE: Final = Refused("client broke the protocol", "error=", "protocol")


@abuse("8 clients die in the middle of a message, over and over, for 20 s")
def died_in_mid_frame(stage: Stage) -> None:
    met = _abused(stage, "half_frames", [], connections=8)
    stage.must(Law.CALM, met["died"], f"nobody died: {met}")


@abuse("32 clients send frames and STATUS and read no answer, for 20 s", settings={}, connections=32)
def unread_answers(stage: Stage) -> None:
    met = _abused(stage, "never_reads", [], connections=32)
    stage.must(Law.CALM, met["choked"], f"nobody was left waiting: {met}")


@abuse("32 clients send one byte a second, of each type of message, for 20 s", settings={}, connections=32)
def slow_bytes(stage: Stage) -> None:
    _abused(
        stage,
        "one_byte_a_second",
        [LATE, Refused("client has not greeted", "waited_for=HELLO", "late")],
        connections=32,
    )


@abuse("1,000 connections at once, for 20 s", settings={"max_connections": 256}, tuning={}, connections=256)
def crowd(stage: Stage) -> None:
    _abused(stage, "crowd", [], connections=256, short_seconds=5)
    made_place = stage.daemon.metrics()["client_disconnects_total[table_full]"]
    stage.must(Law.CALM, made_place, "no idle client made place for another")


@abuse("4 clients send garbage and spoiled messages, for 20 s")
def garbage(stage: Stage) -> None:
    _abused(stage, "garbage", [BROKE], connections=4)


@abuse("16 clients reserve and never send the body, for 20 s")
def unsent_bodies(stage: Stage) -> None:
    # Honest callers wait for up to two of the bodies' time-outs, so the abuse must last longer to see them go on.
    _abused(stage, "reserve_only", [LATE], connections=16, short_seconds=4 * SHORT["body_timeout_seconds"])


@abuse("4 clients ask for the status without end, for 20 s")
def status_flood(stage: Stage) -> None:
    met = _abused(stage, "status_flood", [], connections=4)
    stage.must(Law.CALM, met["Blocked"], f"nobody was answered: {met}")


@abuse("4 clients flush without end, for 20 s")
def flush_flood(stage: Stage) -> None:
    met = _abused(stage, "flush_flood", [], connections=4)
    stage.must(Law.CALM, met["flushes"], f"nobody flushed: {met}")


@abuse("4 clients connect and leave without end, for 20 s")
def reconnects(stage: Stage) -> None:
    _abused(
        stage,
        "reconnects",
        [Refused("client speaks other versions", "versions=8-9", "version_mismatch")],
        connections=4,
    )


@abuse("4 clients open streams by wrong names, over 10,000 in 20 s")
def wrong_names(stage: Stage) -> None:
    refusals = [
        Refused("stream cannot have this name", "1 to 128 of a-z"),
        Refused("stream is one too many", "max_streams = 16"),
    ]
    met = _abused(stage, "wrong_names", refusals, connections=4)
    stage.must(Law.CALM, met["wrong names"] >= stage.of(10_000, 500), f"{met['wrong names']:,} wrong names")


@abuse("4 clients put the largest frames, and larger ones, for 20 s", settings={"queue_limit": 100_000})
def largest_frames(stage: Stage) -> None:
    met = _abused(stage, "largest_frames", [BROKE], connections=4)
    for answer in ("Ack", "Refused TOO_LARGE", "Refused RECORD_TOO_LARGE"):
        stage.must(Law.CALM, met[answer], f"no {answer}: {met}")


def _abused(
    stage: Stage, name: str, refusals: Sequence[Refused], *, connections: int, short_seconds: float = 2.5
) -> dict[str, int]:
    """Let the abusers run, judge what they left behind, and return what they met."""
    stage.service.client.create_stream(StreamName=OWN, ShardCount=4)
    warm = time.monotonic()
    stage.wait(5, 0.5)
    calm = look(stage.daemon.process.pid)
    before = stage.daemon.metrics()
    assert calm is not None
    with abusing(name, stage.socket, stage.seed) as running:
        began = time.monotonic()
        stage.wait(20, short_seconds)
        wait_for(lambda: all(_lines(stage, refused) for refused in refusals))
        ended = time.monotonic()
    _returns_to_calm(stage, calm, before["client_connections"])
    stage.wait(5, 0.5)
    for refused in refusals:
        _is_refused(stage, refused, before)
    spans = {"before": (warm, began), "under": (began, ended), "after": (ended, time.monotonic())}
    for sender in stage.senders:
        meanwhile = any(began <= call.began + call.seconds < ended for call in sender.calls)
        stage.must(Law.OTHERS, meanwhile, f"{sender.name}: nothing was acknowledged during the abuse")
    stage.notes.append(HONEST + "; ".join(_took(stage, when, *span) for when, span in spans.items()))
    stage.notes.append(f"abusers met {', '.join(f'{count:,} {what}' for what, count in sorted(running.met.items()))}")
    return running.met


def _returns_to_calm(stage: Stage, calm: Process, connections: float) -> None:
    at_most = Process(calm.rss_bytes + KEPT_BYTES, calm.descriptors + SPARE.descriptors, calm.threads + SPARE.threads)
    wait_for(lambda: stage.daemon.metrics()["client_connections"] <= connections)
    left = stage.daemon.metrics()["client_connections"]
    stage.must(Law.LEVEL, left <= connections, f"{left:g} connections after the abuse, {connections:g} before")
    now = wait_for_level(stage.daemon.process.pid, at_most, SETTLE_SECONDS)
    assert now is not None, stage.daemon.log
    for kind in ("descriptors", "threads"):
        after, before = getattr(now, kind), getattr(calm, kind)
        stage.must(Law.LEVEL, after <= getattr(at_most, kind), f"{after} {kind} after the abuse, {before} before")
    grown = f"{now.rss_bytes - calm.rss_bytes:,} bytes more than in calm, {KEPT_BYTES:,} at most"
    stage.notes.append(grown)
    stage.must(Law.MEMORY, now.rss_bytes <= at_most.rss_bytes, grown)


def _lines(stage: Stage, refused: Refused) -> list[str]:
    return [line for line in stage.daemon.log.splitlines() if f": {refused.event} " in line and refused.why in line]


def _is_refused(stage: Stage, refused: Refused, before: dict[str, float]) -> None:
    stage.must(Law.REFUSED, _lines(stage, refused), f"no line of the log says {refused.event} ... {refused.why}")
    if refused.reason:
        metric = f"client_disconnects_total[{refused.reason}]"
        count = stage.daemon.metrics()[metric] - before[metric]
        stage.must(Law.REFUSED, count, f"{metric} counts none")


def _took(stage: Stage, when: str, began: float, ended: float) -> str:
    seconds = sorted(call.seconds for sender in stage.senders for call in sender.calls if began <= call.began < ended)
    if not seconds:
        return f"none {when}"
    p50, p99 = (seconds[math.ceil(len(seconds) * share) - 1] for share in (0.5, 0.99))
    return f"p50 {p50 * 1000:,.0f} ms, p99 {p99 * 1000:,.0f} ms {when}"
