"""The standing of a stream: its history, the cause that holds its queue, and what to do about that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from producerd.core.holding import ADVICE
from producerd.runtime.commands import JsonObject
from producerd.runtime.page.text import count_of, duration_of

RECENT_SAMPLES: Final = 12
"""Number of the newest samples, of one minute, that decide whether callers are blocked now."""
BLOCKED_SHARE: Final = 0.1
"""Share of the last minute from which blocked callers count as trouble.  Shorter waits are the stream's own pace."""
OLD_SECONDS: Final = 30.0
"""Age of a record from which its stream is in trouble; the log reports such a record, too."""

REFUSED: Final = (
    "Correct what the error names: the stream's name, permissions, credentials, its key, or the endpoint. The daemon "
    "tries again every few seconds and needs no restart."
)
"""Advice for a stream that the service refuses."""
FAILED: Final = (
    "Their callers have received the reason. The metric `producerd_failed_records_total` counts them by reason."
)
"""Advice for a stream whose records failed."""

"""A part of the daemon's status, as `producerctl status --json` prints it."""
Severity = Literal["bad", "slow", "good", "idle"]
"""Level of a stream's standing, which decides its colour and mark."""


class Sample(NamedTuple):
    """The work of one stream between two looks, and how full its queue was at the second look."""

    accepted_per_second: float
    stored_per_second: float
    queue_share: float
    blocked_share: float
    failed_records: int


NO_SAMPLE: Final = Sample(
    accepted_per_second=0.0, stored_per_second=0.0, queue_share=0.0, blocked_share=0.0, failed_records=0
)
"""What a stream shows before its second look."""


class Standing(NamedTuple):
    """The state of a stream.  The page shows streams by ``place``; below `CALM` a stream is in trouble."""

    place: int
    level: Severity
    words: str


FAILURES: Final = 3
"""Place of a stream whose records failed."""
CALM: Final = 8
"""First place of a stream that is not in trouble."""


def sample_of(stream: JsonObject, before: JsonObject, seconds: float) -> Sample:
    """Return the sample of a stream, from its status now and ``seconds`` before."""

    def since(name: str) -> Any:
        return max(0, stream[name] - before.get(name, 0))

    return Sample(
        accepted_per_second=since("ingest_records") / seconds,
        stored_per_second=since("delivered_records") / seconds,
        queue_share=queue_share_of(stream),
        blocked_share=min(1.0, since("blocked_seconds") / seconds),
        failed_records=since("failed_records"),
    )


def share_of(part: float, whole: float) -> float:
    """Return ``part / whole``, or 0 if there is no whole."""
    return part / whole if whole else 0.0


def queue_share_of(stream: JsonObject) -> float:
    """Return how full a stream's queue is, by the limit that is nearer."""
    return max(
        share_of(stream["queue_records"], stream["queue_limit_records"]),
        share_of(stream["queue_bytes"], stream["queue_limit_bytes"]),
    )


def standing_of(stream: JsonObject, history: Sequence[Sample]) -> Standing:
    """Return a stream's standing, by the first of its troubles."""
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
            FAILURES, "bad", f"{count_of(failed_records, 'record')} failed in the last ten minutes: {reasons}"
        )
    if stream["paused"]:
        return Standing(4, "slow", "paused")
    recent = [sample.blocked_share for sample in history[-RECENT_SAMPLES:]]
    blocked_share = share_of(sum(recent), len(recent))
    if blocked_share >= BLOCKED_SHARE:
        return Standing(5, "slow", f"callers blocked for {blocked_share:.0%} of the last minute")
    if stream["oldest_record_seconds"] >= OLD_SECONDS:
        return Standing(6, "slow", f"a record has waited for {duration_of(stream['oldest_record_seconds'])}")
    if stream["last_error"] and stream["queue_records"]:
        return Standing(7, "slow", "sends fail, and are tried again")
    if stream["health"] == "unproven":
        return Standing(CALM + 1, "idle", "unproven: nothing was stored yet")
    return Standing(CALM, "good", str(stream["health"]))


def verdict_of(status: JsonObject, troubled: Sequence[str]) -> str:
    """Return the state of the whole daemon in one sentence."""
    count = len(status["streams"])
    if not count:
        verdict = "no client has opened a stream yet"
    elif not troubled:
        verdict = "no stream is in trouble"
    else:
        more = f" and {len(troubled) - 3} more" if len(troubled) > 3 else ""
        verdict = f"{len(troubled)} of {count_of(count, 'stream')} in trouble: {', '.join(troubled[:3])}{more}"
    return verdict if status["unready"] is None else f"{status['unready']}; {verdict}"


def advice_for(stream: JsonObject, standing: Standing) -> str:
    """Return what to do about a stream in trouble, or ""."""
    if stream["health"] in ("broken", "suspect"):
        advice = REFUSED
    elif stream["paused"]:
        advice = ADVICE["paused"]
    else:
        advice = ADVICE.get(stream["cause"], "") if standing.place < CALM else ""
        if standing.place == FAILURES:
            advice = f"{FAILED} {advice}".rstrip()
    return advice.format(stream=stream["stream"])
