"""Write the daemon's answers as tables and sentences for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

SHARDS_SHOWN: Final = 20
MIB: Final = 1 << 20
UPTIME_STEP_SECONDS: Final = 0.1
"""The daemon reports its uptime in whole steps of this length."""
REFUSED: Final = ("broken", "suspect", "outage")
"""Health of streams that do not get through, the worst first."""
EFFECTS: Final = {
    "suspect": "callers wait, and if it stays refused, they fail after a minute and keep their records",
    "broken": "callers fail and keep their records; the daemon tries again by itself",
    "outage": "nothing is lost: callers wait, and the daemon tries again by itself",
    "paused": "nothing is lost: callers wait when the queue is full",
}
"""What the health of a stream that does not get through means to its callers."""
Reply = Mapping[str, Any]


def status(reply: Reply) -> Iterator[str]:
    """Yield the lines of `producerctl status`: each stream's queue, and why records wait in it."""
    yield head(reply)
    if reply["state"] == "serving" and (why_not := unready(reply)):
        yield why_not
    yield from troubles(reply)
    streams = by_trouble(reply, reply)
    if not streams:
        yield "no client has opened a stream yet"
        return
    yield from table(
        ("STREAM", "HEALTH", "RECORDS", "OF", "MIB", "OF", "BLOCKED", "IN FLIGHT", "SHARDS"),
        [
            (
                stream["stream"],
                health(stream),
                f"{stream['queue_records']:,}",
                f"{stream['queue_limit_records']:,}",
                f"{stream['queue_bytes'] / MIB:.1f}",
                f"{stream['queue_limit_bytes'] / MIB:.1f}",
                f"{stream['blocked_callers']:,}",
                f"{stream['requests_in_flight']:,}",
                f"{stream['shards_open']:,}",
            )
            for stream in streams
        ],
    )
    yield from why(streams)


RATES: Final = (
    *("STREAM", "HEALTH", "IN/S", "STORED/S", "MIB/S", "QUEUE", "OLDEST S", "BLOCKED"),
    *("OF TIME", "RETRIES/S", "FAILED"),
)
"""The columns of `producerctl top`."""


def rates(reply: Reply, before: Reply) -> Iterator[str]:
    """Yield the lines of `producerctl top`: what each stream did since the earlier reply ``before``."""
    yield head(reply)
    yield from troubles(reply)
    streams = by_trouble(reply, before)
    if not streams:
        yield "no client has opened a stream yet"
    else:
        yield from table(RATES, [rates_of(stream, reply, before) for stream in streams])
    yield from why(streams)


def rates_of(stream: Reply, reply: Reply, before: Reply) -> tuple[str, ...]:
    """Return the values of one stream in the columns `RATES`."""
    seconds = max(reply["uptime_seconds"] - before["uptime_seconds"], UPTIME_STEP_SECONDS)
    then: Reply = next((other for other in before["streams"] if other["stream"] == stream["stream"]), {})

    def rate(name: str) -> float:
        return float(max(0.0, stream[name] - then.get(name, 0)) / seconds)

    return (
        stream["stream"],
        health(stream),
        f"{rate('ingest_records'):,.0f}",
        f"{rate('delivered_records'):,.0f}",
        f"{rate('delivered_bytes') / MIB:,.2f}",
        f"{full(stream):.0%}",
        f"{stream['oldest_record_seconds']:,.1f}",
        f"{stream['blocked_callers']:,}",
        f"{min(rate('blocked_seconds'), 1):.0%}",
        f"{rate('record_retries'):,.0f}",
        f"{stream['failed_records']:,}",
    )


SHARDS: Final = ("SHARD", "WAITING", "MIB", "SHARE", "IN FLIGHT", "RECORDS/S", "MIB/S", "USE", "WAITS FOR")
"""The columns of `producerctl shards`."""


def shards(reply: Reply) -> Iterator[str]:
    """Yield the lines of `producerctl shards`: what waits for each shard of a stream, and why."""
    known = reply["shards"]
    if not known:
        yield f"{reply['stream']}: its shards are not known"
        return
    busy = busy_shards(known)
    if busy:
        yield from table(
            SHARDS,
            [shard_row(shard) for shard in busy[:SHARDS_SHOWN]],
        )
    if len(busy) > SHARDS_SHOWN:
        yield f"{count(len(busy) - SHARDS_SHOWN, 'shard')} with less: --json has them all"
    if len(busy) < len(known):
        yield f"{count(len(known) - len(busy), 'shard')} with nothing to send"
    if queued := reply.get("queue_records"):  # a daemon of 0.1.0 does not send it
        yield plain(f"{reply['stream']}: {count(queued, 'record')} in the queue, retries included: {reply['reason']}")


def busy_shards(known: Sequence[Reply]) -> list[Reply]:
    """Return the shards for which anything waits or goes, those first for which most waits."""
    busy = [shard for shard in known if shard["waiting_records"] or shard["in_flight"] or shard["use"] >= 0.005]
    return sorted(busy, key=lambda shard: (shard["waiting_bytes"], shard["use"]), reverse=True)


def count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table.  Each column is as wide as its widest value, and numbers are aligned to the right."""
    columns = range(len(head))
    widths = [max(len(row[place]) for row in (head, *rows)) for place in columns]
    numbers = [rows[0][place][0].isdigit() for place in columns]
    for row in (head, *rows):
        cells = [(row[i].rjust if numbers[i] else row[i].ljust)(widths[i]) for i in columns]
        yield "  ".join(cells).rstrip()


def head(reply: Reply) -> str:
    """Return the line about the whole daemon."""
    used, limit = reply["node_queue_bytes"] / MIB, reply["node_queue_limit_bytes"] / MIB
    queues = f"queues {used:,.1f} of {limit:,.0f} MiB"
    level = f", log level {reply['log_level']}" if reply["log_level"] != "info" else ""
    host = f" on {reply['host']}" if "host" in reply else ""  # a daemon of 0.1.0 does not say it
    connections = count(reply["connections"], "connection")
    return f"producerd {reply['version']}{host}: {reply['state']}, {connections}, {queues}{level}"


def unready(reply: Reply) -> str | None:
    """Return why the daemon does not serve clients, or None while it does."""
    if "unready" not in reply:  # a daemon of 0.1.0, which says only its state
        return None if reply["state"] == "serving" else str(reply["state"])
    return None if reply["unready"] is None else str(reply["unready"])


def troubles(reply: Reply) -> list[str]:
    """Return what is wrong with the node: its credentials, its clock, clients that it turns away."""
    return [plain(one) for one in reply.get("troubles", ())]  # a daemon of 0.1.0 does not send it


def by_trouble(reply: Reply, before: Reply) -> list[Reply]:
    """Return the streams, those first that are in trouble now, or were since the earlier reply ``before``."""
    earlier = {stream["stream"]: stream for stream in before["streams"]}

    def trouble(stream: Reply) -> tuple[Any, ...]:
        refused = REFUSED.index(stream["health"]) if stream["health"] in REFUSED else len(REFUSED)
        then = earlier.get(stream["stream"], stream)
        failed, blocked = (stream[name] - then[name] for name in ("failed_records", "blocked_seconds"))
        calm = failed <= 0, not stream["paused"], -blocked, -stream["blocked_callers"], -full(stream)
        return refused, *calm, str(stream["stream"])

    return sorted(reply["streams"], key=trouble)


def health(stream: Reply) -> str:
    """Return a stream's health, or that it is paused."""
    return "paused" if stream["paused"] else str(stream["health"])


def full(stream: Reply) -> float:
    """Return how full a stream's queue is, from 0 to 1, by the limit that is nearer."""
    return float(
        max(
            stream["queue_records"] / stream["queue_limit_records"],
            stream["queue_bytes"] / stream["queue_limit_bytes"],
        )
    )


def why(streams: Sequence[Reply]) -> Iterator[str]:
    """Yield why records wait in these streams, what that means to their callers, and the last errors."""
    for stream in streams:
        for line in why_of(stream):
            yield plain(f"{stream['stream']}: {line}")


def why_of(stream: Reply) -> Iterator[str]:
    if stream["reason"]:
        yield stream["reason"]
    if effect := EFFECTS.get(health(stream)):
        is_used = stream.get("sessions", 1) or stream["queue_records"]  # a daemon of 0.1.0 does not send sessions
        yield effect if is_used else "no client has the stream open now"
    if left := stream.get("records_without_caller"):  # a daemon of 0.1.0 does not send it
        yield f"{count(left, 'record')} of callers that have left: lost if they are refused or the daemon stops first"
    if lost := stream.get("lost_records"):  # nor this
        yield f"{count(lost, 'record')} of callers that had left were lost, the last one as {stream['lost_as']}"
    if reasons := stream.get("failed_reasons"):
        named = ", ".join(f"{code} {number:,}" for code, number in reasons.items() if number)
        yield f"failed since the daemon's start, as their callers know: {named}"
    if stream["last_error"]:
        yield f"last error: {stream['last_error']}"


def plain(text: str) -> str:
    """Return a message of AWS without control characters, which a terminal would obey."""
    return "".join([character if character.isprintable() else " " for character in text])


def shard_row(shard: Reply) -> tuple[str, ...]:
    """Return the values of one shard in the columns `SHARDS`."""
    waits = shard["waits_for"] or "-"
    return (
        shard["shard_id"],
        f"{shard['waiting_records']:,}",
        f"{shard['waiting_bytes'] / MIB:.1f}",
        f"{shard['share']:.0%}",
        f"{shard['in_flight']:,}",
        f"{shard['rate_records']:,.0f}",
        f"{shard['rate_bytes'] / MIB:.2f}",
        f"{shard['use']:.0%}",
        f"{waits}, throttled" if shard["backs_off"] else waits,
    )
