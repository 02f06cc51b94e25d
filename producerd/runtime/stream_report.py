"""What a stream tells people: its log lines, the cause of each wait and its seconds, and its status."""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import Any, Final

from producerd.core.budget import QueueBudget
from producerd.core.gate import AdmissionGate
from producerd.core.holding import Facts, Holding, Limit, sentence
from producerd.core.pipeline import Pipeline
from producerd.core.sending.health import HealthState
from producerd.errors import Code
from producerd.runtime.logs import get_logger
from producerd.runtime.outage import request_values
from producerd.wire import messages

log = get_logger("producerd.stream")

SLOW_SECONDS: Final = 30.0
"""Age of the oldest record from which the daemon logs that the stream is slow.

Callers that waited this long within `SLOW_WITHIN_SECONDS` cause the same line.
"""
SLOW_WITHIN_SECONDS: Final = 60.0
TELL_AGAIN_SECONDS: Final = 300.0
BODY_LIMIT_SECONDS: Final = 10.0
"""How long only smaller requests pass a proxy before the daemon logs that."""
LOOK_SECONDS: Final = 0.5
"""Least time between two looks at what holds the queue.  Each look reads every span."""


class StreamReport:
    """Describes one stream to its clients, the operator and the log, and counts for how long what has held its queue.

    It only reads the pipeline, the gate and the budget.
    """

    def __init__(self, name: str, pipeline: Pipeline, gate: AdmissionGate, budget: QueueBudget) -> None:
        self.name = name
        self._pipeline, self._diagnosis = pipeline, pipeline.diagnosis
        self._gate = gate
        self._budget = budget
        self.capacity_mode = ""  # as the stream's summary showed it last
        self.cause_seconds: dict[str, float] = defaultdict(float)  # in which a caller waited, by the cause
        self.record_rate_bound_seconds = 0.0  # the part in which shards took no more records, but more bytes
        self.slow_seconds: dict[str, float] = defaultdict(float)  # in which a record waited, by `Holding.held_by`
        self._active_seconds = 0.0  # the sum of `cause_seconds`
        self._oldest: tuple[float, float] | None = None  # when the stream settled last, and how old its oldest row was
        self._holding = Holding("daemon")  # since the stream settled last
        self._seen = Holding("daemon")  # as the last look found it
        self._looked_at = -inf
        self._waits_before: tuple[float, float] = -inf, 0.0  # when, and how long callers had waited until then
        self._told_slow_at = -inf
        self._told_health = HealthState.UNPROVEN
        self._went_plain_at: float | None = None
        self._told_format = False
        self._told_body_limit = False
        self._told_lost_records = 0

    def learn_capacity_mode(self, capacity_mode: str) -> None:
        """Note the capacity mode that the stream's summary shows."""
        self.capacity_mode = capacity_mode

    def settled(self, now: float) -> None:
        """Count and log what has changed, because the stream has settled."""
        self._tell_health()
        self._tell_plain(now)
        self._tell_format()
        self._tell_body_limit(now)
        self._tell_losses()
        self._look_what_holds(now)

    def refusal_forgotten(self) -> None:
        """Log that a refusal of the stream is forgotten."""
        self._told_health = self._pipeline.health.state
        log.info("a refusal is forgotten, as nobody uses the stream", stream=self.name)

    def paused(self, now: float) -> None:
        """Log that the operator has paused the stream, which is what holds it from now on."""
        self._look_anew(now)
        log.info("stream paused", stream=self.name)

    def resumed(self, now: float) -> None:
        """Log that the operator has resumed the stream, and find out what holds it now."""
        self._look_anew(now)
        log.info("stream resumed", stream=self.name)

    def _look_anew(self, now: float) -> None:
        self._looked_at = -inf
        self._look_what_holds(now)

    @property
    def health(self) -> str:
        """The state of its health.

        It is "outage" if nothing gets through although the service does not refuse the stream.
        """
        state = self._pipeline.health.state
        refused = state in (HealthState.SUSPECT, HealthState.BROKEN)
        return "outage" if self._diagnosis.in_outage and not refused else state.value

    @property
    def is_up(self) -> bool:
        """Whether the service takes records, as far as the daemon knows."""
        return self.health not in ("suspect", "broken", "outage")

    def takes_records(self, now: float) -> bool:
        """Return whether records get through: the service takes them, and none fails because the shards are unknown."""
        return self.is_up and self._pipeline.map_missing(now) is None

    # ---- what holds the queue

    def _look_what_holds(self, now: float) -> None:
        active_seconds = self._gate.active_seconds(now)
        self.cause_seconds[self._holding.cause] += active_seconds - self._active_seconds
        if self._holding.by_records:
            self.record_rate_bound_seconds += active_seconds - self._active_seconds
        self._active_seconds = active_seconds
        self._count_slow(now)
        self._holding = self._look(now)

    def _count_slow(self, now: float) -> None:
        """Count the time since the stream settled last in which its oldest row had waited for `SLOW_SECONDS`."""
        if self._oldest is not None:
            then, seconds = self._oldest
            passed = now - then
            self.slow_seconds[self._holding.held_by] += min(passed, max(0.0, seconds + passed - SLOW_SECONDS))
        self._oldest = None if self._pipeline.idle else (now, self._diagnosis.oldest_seconds(now))

    def _look(self, now: float) -> Holding:
        if now >= self._looked_at + LOOK_SECONDS:
            self._looked_at, self._seen = now, self._diagnosis.holding(now)
            self._tell_slow(now)
        return Holding("node_limit") if self._waits_for_node else self._seen

    @property
    def _waits_for_node(self) -> bool:
        """Whether a caller waits only because the node is full, and not because this stream is paused."""
        holds_by_pause = self._pipeline.paused and not self._pipeline.idle
        return self._budget in self._budget.node.wanted_by and not holds_by_pause

    def _tell_slow(self, now: float) -> None:
        """Log one line if rows stay for long, even if no single wait of a caller was that long."""
        began_at, seconds_before = self._waits_before
        waited_seconds = self._active_seconds - seconds_before
        if now >= began_at + SLOW_WITHIN_SECONDS:
            self._waits_before = now, self._active_seconds
        oldest_seconds = self._diagnosis.oldest_seconds(now)
        if max(waited_seconds, oldest_seconds) >= SLOW_SECONDS and now >= self._told_slow_at + TELL_AGAIN_SECONDS:
            self._told_slow_at = now
            log.warning(
                "stream is slow",
                stream=self.name,
                oldest_record_seconds=round(oldest_seconds),
                callers_waited_seconds=round(waited_seconds),
                why=self.describe(now),
            )

    def blocked(self, stream_id: int, seconds: float, now: float) -> messages.Blocked:
        """Return why rows of this stream wait, with the numbers."""
        stats = self._pipeline.stats
        holding = self._look(now)
        return messages.Blocked(
            stream_id,
            seconds,
            self._reason(holding),
            self._budget.used_records,
            self._budget.limit_records,
            self._budget.used_bytes,
            self._budget.limit_bytes,
            self._diagnosis.requests_in_flight,
            stats.last_error,
            holding.shard_id,
            holding.share,
            capacity_mode=self.capacity_mode,
            aggregates=int(self._pipeline.rules.entries.aggregate),
            delivered_records=stats.delivered_records,
            delivered_bytes=stats.delivered_bytes,
            kinesis_records=stats.delivered_kinesis_records,
            delivering_seconds=0.0 if stats.delivering_from is None else now - stats.delivering_from,
        )

    def _reason(self, holding: Holding) -> str:
        """Return one sentence for people about what holds the queue."""
        budget, pipeline = self._budget, self._pipeline
        health, in_flight = pipeline.health, pipeline.sender.in_flight
        facts = Facts(
            stream=self.name,
            refused_as=(health.code, health.message) if health.state is HealthState.BROKEN else None,
            failed_as=in_flight.failed_as or pipeline.sender.rows_refused_as,
            shards=len(pipeline.shard_map or ()),
            silent_shards=self._diagnosis.silent_shards,
            map_error=self._diagnosis.map_error,
            aggregates=pipeline.rules.entries.aggregate,
            goes_plain=pipeline.goes_plain,
            is_full=self._gate.wants_room(),
            used_records=budget.used_records,
            used_bytes=budget.used_bytes,
            queues=Limit(budget.node.used_bytes, budget.node.limit_bytes),
            in_flight=Limit(in_flight.node.used_bytes, in_flight.node.limit_bytes) if pipeline.held_by_node else None,
        )
        return sentence(holding, facts)

    def describe(self, now: float) -> str:
        """Return the state in one line: what holds the queue, then its numbers, as the client shows BLOCKED."""
        budget, stats = self._budget, self._pipeline.stats
        return (
            f"{self._reason(self._look(now))}; queue {budget.used_records:,} of {budget.limit_records:,} records, "
            f"{budget.used_bytes:,} of {budget.limit_bytes:,} bytes, "
            f"{self._diagnosis.requests_in_flight} requests in flight"
            f"{f', last error: {stats.last_error}' if stats.last_error else ''}"
        )

    def status(self, now: float) -> dict[str, Any]:
        """Return the state for `producerctl`, as JSON's values."""
        budget, pipeline = self._budget, self._pipeline
        return {
            "stream": self.name,
            "health": self.health,
            "paused": pipeline.paused,
            "queue_records": pipeline.queued_records,
            "records_without_caller": self._diagnosis.records_without_caller,
            "queue_limit_records": budget.limit_records,
            "queue_bytes": budget.used_bytes,
            "queue_limit_bytes": budget.limit_bytes,
            "blocked_callers": self._gate.blocked_callers,
            "sessions": self._gate.sessions,
            "requests_in_flight": self._diagnosis.requests_in_flight,
            "shards_open": len(pipeline.shard_map or ()),
            "wire_format": self._diagnosis.wire_format,
            **self._holds(now),
            "last_error": pipeline.stats.last_error,
        }

    def _holds(self, now: float) -> dict[str, Any]:
        cause, shard_id, share, *_ = holding = self._look(now)
        if (end := self._pipeline.map_missing(now)) is not None:
            return {"cause": "shard_map", "shard_id": "", "share": 0.0, "reason": f"refused: {end.message}"}
        if self._pipeline.idle and not self._waits_for_node:
            return {"cause": "", "shard_id": "", "share": 0.0, "reason": ""}
        return {"cause": cause, "shard_id": shard_id, "share": share, "reason": self._reason(holding)}

    def shards(self, now: float) -> dict[str, Any]:
        """Return each open shard for `producerctl`.

        Hash keys are decimal text, because most JSON readers round such numbers.
        """
        shards = []
        for state in self._diagnosis.shards(now):
            values = state._asdict()
            shard = values.pop("shard")
            ends = {"starting_hash_key": str(shard.start), "ending_hash_key": str(shard.end)}
            shards.append({"shard_id": shard.shard_id, **ends, **values})
        waits = {"queue_records": self._pipeline.queued_records, "reason": self._holds(now)["reason"]}
        return {"stream": self.name, **waits, "shards": shards}

    def _tell_health(self) -> None:
        health = self._pipeline.health
        if health.state is self._told_health:
            return
        self._told_health = health.state
        request = request_values(health.request_id)
        if health.state is HealthState.BROKEN and health.code == Code.UNREACHABLE:
            log.error("stream cannot be reached", stream=self.name, message=health.message)
        elif health.state is HealthState.BROKEN:
            log.error(
                "stream is refused by the service",
                stream=self.name,
                code=health.code,
                message=health.message,
                **request,
            )
        elif health.state is HealthState.SUSPECT:
            log.warning("stream looks refused", stream=self.name, code=health.code, message=health.message, **request)
        elif health.state is HealthState.WORKING:
            log.info("stream works", stream=self.name)

    def _tell_plain(self, now: float) -> None:
        """Log when records begin to go plain because the shards are unknown, and when aggregation resumes."""
        pipeline = self._pipeline
        if pipeline.goes_plain and self._went_plain_at is None:
            self._went_plain_at = now
            log.warning(
                "records go plain until the shards are known",
                stream=self.name,
                why=f"ListShards: {self._diagnosis.map_error or 'no answer'}",
            )
        elif self._went_plain_at is not None and not pipeline.goes_plain:
            seconds, self._went_plain_at = round(now - self._went_plain_at, 1), None
            if pipeline.shard_map is not None:  # otherwise nothing was sent for long, and no row needs the list
                log.info("records are aggregated again", stream=self.name, plain_seconds=seconds)

    def _tell_format(self) -> None:
        """Log once that the service has refused CBOR."""
        refusal = self._diagnosis.cbor_refused_as
        if refusal is not None and not self._told_format:
            self._told_format = True
            log.warning(
                "the service refuses CBOR; requests go in JSON from now on",
                stream=self.name,
                code=refusal.code,
                message=refusal.message,
                **request_values(refusal.request_id),
            )

    def _tell_losses(self) -> None:
        """Log how many records more are lost, because they ended after their callers had gone."""
        stats = self._pipeline.stats
        if lost := stats.discarded_records["abandoned"] - self._told_lost_records:
            self._told_lost_records += lost
            log.error("records were lost: their callers had gone", stream=self.name, records=lost, code=stats.lost_as)

    def _tell_body_limit(self, now: float) -> None:
        """Log that a proxy refuses large requests, once only smaller ones pass for a while, and when that has ended."""
        limit = self._diagnosis.body_limit
        if limit.lasts_since is None:
            if self._told_body_limit:
                log.info("large requests pass again", stream=self.name)
            self._told_body_limit = False
        elif not self._told_body_limit and now >= limit.lasts_since + BODY_LIMIT_SECONDS:
            self._told_body_limit = True
            log.warning(
                "a proxy refuses large requests; they are cut to the size that passes",
                stream=self.name,
                refused_bytes=limit.refused_body_bytes,
                passed_bytes=limit.passed_body_bytes,
            )
