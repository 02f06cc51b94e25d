"""How a stream stands: its history, what holds it in a few words, and what to do about that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from producerd.core.holding import ADVICE
from producerd.runtime.page.text import count_of, duration_of

LATELY_SAMPLES: Final = 12
"""A minute: whether callers are blocked now is decided over that."""
BLOCKED_SHARE: Final = 0.1
"""The least share of the last minute.  A caller that waits for less is only as fast as the stream."""
OLD_SECONDS: Final = 30.0
"""A record that has waited for this long makes a line in the log, too."""

REFUSED: Final = (
    "Correct what the error names: the stream's name, permissions, credentials, its key, or the endpoint. The daemon "
    "tries again every few seconds and needs no restart."
)
FAILED: Final = "Their callers were told why. `producerd_failed_records_total` among the metrics counts them by reason."

Told = dict[str, Any]
Level = Literal["bad", "slow", "good", "idle"]


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


def sample_of(stream: Told, before: Told, seconds: float) -> Sample:
    def since(name: str) -> Any:
        return max(0, stream[name] - before.get(name, 0))

    return Sample(
        since("ingest_records") / seconds,
        since("delivered_records") / seconds,
        queue_share_of(stream),
        min(1.0, since("blocked_seconds") / seconds),
        since("failed_records"),
    )


def share_of(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def queue_share_of(stream: Told) -> float:
    """How full its queue is, by whichever limit is nearer."""
    return max(
        share_of(stream["queue_records"], stream["queue_limit_records"]),
        share_of(stream["queue_bytes"], stream["queue_limit_bytes"]),
    )


def standing_of(stream: Told, history: Sequence[Sample]) -> Standing:
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
    lately = [sample.blocked_share for sample in history[-LATELY_SAMPLES:]]
    blocked_share = share_of(sum(lately), len(lately))
    if blocked_share >= BLOCKED_SHARE:
        return Standing(5, "slow", f"callers blocked for {blocked_share:.0%} of the last minute")
    if stream["oldest_record_seconds"] >= OLD_SECONDS:
        return Standing(6, "slow", f"a record has waited for {duration_of(stream['oldest_record_seconds'])}")
    if stream["last_error"] and stream["queue_records"]:
        return Standing(7, "slow", "sends fail, and are tried again")
    if stream["health"] == "unproven":
        return Standing(CALM + 1, "idle", "unproven: nothing was stored yet")
    return Standing(CALM, "good", str(stream["health"]))


def verdict_of(told: Told, troubled: Sequence[str]) -> str:
    """The whole page in one sentence."""
    count = len(told["streams"])
    if not count:
        said = "no client has opened a stream yet"
    elif not troubled:
        said = "no stream is in trouble"
    else:
        more = f" and {len(troubled) - 3} more" if len(troubled) > 3 else ""
        said = f"{len(troubled)} of {count_of(count, 'stream')} in trouble: {', '.join(troubled[:3])}{more}"
    return said if told["unready"] is None else f"{told['unready']}; {said}"


def advice_for(stream: Told, standing: Standing) -> str:
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
