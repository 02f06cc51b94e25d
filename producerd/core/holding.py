"""Holding: what keeps a stream's queue from emptying, and the words in which users read it.

The log, the status page, `producerctl` and the documentation take the words from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from producerd.errors import Code

Cause = Literal["hot_shard", "shard_rate", "service", "shard_map", "in_flight", "node_limit", "paused", "daemon"]
HeldBy = Literal["quota", "throttles", "other"]
"""What makes records wait for long: see `Holding.held_by`."""

ADVICE: Final[Mapping[Cause, str]] = {
    "hot_shard": "Other shards have room: spread the keys of the shard that is named, or split it. If it throttles "
    "below its quota, find out what else writes to it. `producerctl shards {stream}` shows each shard.",
    "shard_rate": 'All shards are full alike: add shards. With many small records set `aggregation = "kpl"`. If the '
    "shards throttle below their quota, find out what else writes to the stream.",
    "service": "The last error says why the service takes nothing: permissions, credentials, the network, an outage. "
    "One request that fails as a whole makes this the cause for 6 s, three in a row until the next answer.",
    "shard_map": "The list of shards has not come: check whether `kinesis:ListShards` is allowed, or throttled. "
    "Meanwhile `kpl` sends plain records at one shard's pace. After a split the list comes within seconds.",
    "in_flight": "Answers are late: check the network on the way to the service, and look for slow shards with "
    "`producerctl shards {stream}`. `max_in_flight_requests` and, for all streams together, "
    "`node_max_in_flight_bytes` bound what waits for answers.",
    "node_limit": "All streams together are at `node_queue_limit_bytes`, and this one waits for nothing else. "
    "`producerctl status` shows which stream holds most of it: fix that one, or raise the limit if there is memory.",
    "paused": "An operator has paused the stream: `producerctl resume {stream}` sends again what it holds.",
    "daemon": "Only the daemon's own work holds it. If it stays so, the daemon has too little CPU.",
}
"""Advice by cause, in which ``{stream}`` stands for the stream's name."""


class Holding(NamedTuple):
    """What holds the queue: the cause, and with ``hot_shard`` the shard and its share of the waiting bytes.

    ``by_records``: the shards refuse more records, but would take more bytes.  ``throttled``: the shards throttle below
    their quota.
    """

    cause: Cause
    shard_id: str = ""
    share: float = 0.0
    by_records: bool = False
    throttled: bool = False

    @property
    def held_by(self) -> HeldBy:
        """What makes records wait for long.

        - "quota": shards store as much as this node may send, so there is more than they take.
        - "throttles": shards throttle although this node sends less than their quota.  Others write to them, too.
        - "other": the shards would store more.
        """
        if self.cause not in ("hot_shard", "shard_rate"):
            return "other"
        return "throttles" if self.throttled else "quota"


class Limit(NamedTuple):
    """A limit of the whole node, and how much of it is used, in bytes."""

    used_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that the sentence about a stream's queue quotes.

    ``refused_as``: the code and message of a stream that is BROKEN.  ``failed_as``: the code of the last request that
    failed as a whole or was refused, or "".  ``shards``: how many are open, or 0 while they are unknown.
    ``silent_shards``: how many of them do not answer, though rows wait for them.  ``in_flight``: the bytes that all
    streams have in flight, if they leave no room for more.
    """

    stream: str
    refused_as: tuple[str, str] | None
    failed_as: str
    shards: int
    silent_shards: int
    map_error: str
    aggregates: bool
    goes_plain: bool
    is_full: bool
    used_records: int
    used_bytes: int
    queues: Limit
    in_flight: Limit | None


def sentence(holding: Holding, facts: Facts) -> str:
    """Return one sentence for people: what holds the queue, with the known numbers, and usually what to do about it."""
    if facts.refused_as is not None:
        code, message = facts.refused_as
        verb = "cannot be reached" if code == Code.UNREACHABLE else "is refused by the service"
        return f"the stream {verb}: {code}: {message}"
    if holding.cause == "paused":
        return f"paused by the operator: producerctl resume {facts.stream}"
    if holding.cause == "node_limit":
        return (
            f"the queues of all streams together are at their limit, {facts.queues.used_bytes:,} of "
            f"node_queue_limit_bytes = {facts.queues.limit_bytes:,}: `producerctl status` shows which streams hold most"
        )
    if not facts.used_records and holding.cause in ("daemon", "service"):  # what failed last holds nothing now
        return "the queue is empty: the daemon waits for records"
    return ("the queue is at its limit: " if facts.is_full else "") + _what_holds(holding, facts)


def _what_holds(holding: Holding, facts: Facts) -> str:
    cause, shard_id, share, by_records, throttled = holding
    if cause == "hot_shard":
        holds = f"{shard_id} holds {share:.0%} of what waits"
        if throttled:
            return f"{holds} and throttles below 1 MiB/s and 1,000 records/s: see what else writes to it, or split it"
        return f"{holds}: spread its keys, or split the shard"
    if cause == "shard_rate" and throttled:
        return "the shards throttle below 1 MiB/s and 1,000 records/s each, as if others wrote to them: add shards"
    if cause == "shard_rate":
        aggregate = _advice_to_aggregate(facts) if by_records else ""
        return f"the shards take no more, each 1 MiB/s and 1,000 records/s: add shards{aggregate}"
    if cause == "shard_map":
        error = f" (ListShards: {facts.map_error})" if facts.map_error else ""
        if facts.goes_plain:
            return f"no list of the shards came{error}: until one does, records go plain, at one shard's pace"
        return f"the stream's shards are not known, or have changed{error}"
    if cause == "service":
        return _service_holds(facts)
    if cause == "in_flight" and facts.in_flight is not None:
        return (
            f"the requests of all streams together are at their limit, {facts.in_flight.used_bytes:,} of "
            f"node_max_in_flight_bytes = {facts.in_flight.limit_bytes:,}"
        )
    return "records wait for their answers" if cause == "in_flight" else "records are on their way"


def _service_holds(facts: Facts) -> str:
    failed_as, silent = facts.failed_as, facts.silent_shards
    if failed_as == Code.UNREACHABLE and 0 < silent < facts.shards:
        return f"{silent:,} of {facts.shards:,} shards do not answer: producerctl shards {facts.stream}"
    if failed_as == Code.UNREACHABLE:
        return "the service cannot be reached: look at region, endpoint_url and this host's network"
    if failed_as == Code.THROTTLED:
        return "the service throttles whole requests: see what else calls it in this account"
    if failed_as == Code.PROXY_REFUSED:
        return (
            "a proxy, a firewall or another service than Kinesis refuses the requests: look at endpoint_url and proxies"
        )
    return "the service does not take them"


def _advice_to_aggregate(facts: Facts) -> str:
    """Return how much more aggregation would send, if the shards refuse the number of records."""
    records, bytes_ = facts.used_records, facts.used_bytes
    times = 1024 * records // bytes_ if bytes_ else 0
    if facts.aggregates or times < 2:
        return ""
    return f'; aggregation = "kpl" would send up to {times} times more'
