"""InFlight: the requests that are on their way, for how long they have been, and whether one more may be sent.

A request that has had no answer for long holds up others as little as can be: its lanes are set apart from those of
other shards before it is answered; and while nothing gets through at all, others are sent beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final

from producerd.core.budget import NodeInFlight
from producerd.core.lanes.lane import Lane
from producerd.core.rules import PipelineRules
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.backoff import InFlightWindow, RetryPolicy
from producerd.core.sending.requests import Request

FAILURES_TO_HOLD: Final = 3
"""Whole-request failures in a row after which the stream, and not only some rows, waits."""
PROBE_SECONDS: Final = 6.0
"""While nothing gets through, requests that are out for longer hold up no other.  Time-outs grow to a minute, and the
first request after the end of an outage must not wait for the last one of before it."""
LATELY_SECONDS: Final = 5.0
"""So long after an answer, rows that failed before, and fail again, are their own trouble and not the stream's."""
SLOW_SECONDS: Final = 1.0
SLOW_FACTOR: Final = 4.0
"""An answer that took longer than both, of the stream's typical time, is slow: its lanes share no request."""
SLOW_SHARE: Final = 0.5
"""Of the requests that may be in flight, those of slow lanes: shards that hang leave the others the rest."""
ANY_BYTES: Final = 2**62


class InFlight:
    """See the module's text.  Iterates over the requests; ``bytes``: of all of them."""

    def __init__(self, rules: PipelineRules, policy: RetryPolicy, node: NodeInFlight | None = None) -> None:
        self.bytes = 0
        self.node = NodeInFlight() if node is None else node
        self.hold_until = 0.0
        self.failed_as = ""  # the code of the latest failure of a whole request, while nothing was answered since
        self.window = InFlightWindow(
            rules.max_in_flight_requests, rules.max_in_flight_bytes, rules.entries.request_max_bytes
        )
        self._request_max_bytes = rules.entries.request_max_bytes
        self._policy = policy
        self._requests: dict[Request, None] = {}
        self._overdue: dict[Request, None] = {}  # those that hold up no other
        self._watched: dict[Request, None] = {}  # those that were sent and are not known to be slow, in order
        self._typical_seconds = 0.0
        self._prompt_sent_at = -inf  # the latest of the requests that were answered in time
        self._answered_at = -inf
        self._failures = 0
        self._failed_at = -inf

    # ---- questions

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def nothing_passes(self) -> bool:
        """Whether the last requests failed as a whole, one after the other."""
        return self._failures >= FAILURES_TO_HOLD

    def fails(self, now: float) -> bool:
        """Whether nothing passes, or the latest request failed as a whole a moment ago."""
        return self.nothing_passes or (self._failures > 0 and now < self._failed_at + PROBE_SECONDS)

    def has_room(self, *, for_one: bool, row_bytes: int = 0) -> bool:
        """Whether one more may be sent, as far as its number and bytes decide; ``for_one``: one at a time.

        Beside others a full one (what a nearly full node has left is not worth a request), and always one with a row of
        ``row_bytes``.
        """
        return (
            len(self._requests) - len(self._overdue) < (1 if for_one else self.window.size)
            and len(self._requests) < self.window.most
            and max(self._request_max_bytes if self._requests else 0, row_bytes) <= self.bytes_left
        )

    @property
    def bytes_left(self) -> int:
        """What may still be sent; with nothing on its way, one row of any size, or what the node has room for."""
        if not self._requests:
            return self.node.room(self) if self.waits_with_larger else ANY_BYTES
        left = min(self.window.most_bytes - self.bytes, self.node.room(self))
        if len(self._overdue) == len(self._requests):
            return left
        awaited_bytes = self.bytes - sum([request.bytes for request in self._overdue])
        return min(self.window.bytes - awaited_bytes, left)

    @property
    def request_bytes(self) -> int:
        """What the next request of several rows may have: with nothing on its way, the stream's floor or more."""
        return min(self._request_max_bytes, self.node.room(self))

    @property
    def waits_with_larger(self) -> bool:
        """Whether a row larger than its room, which nothing of its own holds up, waits for another stream's to end."""
        return not self._requests and not self.node.takes_larger

    @property
    def held_by_node(self) -> bool:
        """Whether what all streams have on their way leaves no room for one more of this one, or for a larger row."""
        if not self._requests:
            return self.waits_with_larger
        return self.node.room(self) < self._request_max_bytes

    @property
    def takes_slow(self) -> bool:
        """Whether one more of a slow lane may be sent.  Requests of several lanes say nothing of which one is slow."""
        alone = [r for r in self._requests if len(r.aggregate_bytes) == 1 and r.pieces[0].lane.alone]
        slow = sum([request not in self._overdue for request in alone])
        return slow < max(1, self.window.size * SLOW_SHARE)

    def next_time(self) -> float:
        """When a request will have been out for long; ``inf`` if none will."""
        due = min([request.sent_at for request in self._watched], default=inf) + self._patience_seconds
        if self.nothing_passes:
            out = [request.sent_at for request in self._requests if self._may_become_overdue(request)]
            due = min(due, min(out, default=inf) + PROBE_SECONDS)
        return due

    # ---- stimuli

    def set_rules(self, rules: PipelineRules) -> None:
        """Other limits, from now on."""
        self._request_max_bytes = rules.entries.request_max_bytes
        self.window.set_limits(rules.max_in_flight_requests, rules.max_in_flight_bytes, self._request_max_bytes)

    def start(self, request: Request) -> None:
        """A request is made, to be encoded and sent."""
        for lane in request.lanes:
            lane.sent()
        self._requests[request] = None
        self.bytes += request.bytes
        self.node.take(self, request.bytes)

    def sent(self, request: Request) -> None:
        """It is encoded, and on its way."""
        self._watched[request] = None

    def end(self, request: Request) -> None:
        """It has its answer, or has failed."""
        del self._requests[request]
        self.bytes -= request.bytes
        self.node.release(self, request.bytes)
        overdue = request in self._overdue
        for lane in request.lanes:
            lane.ended(slow=request.slow, overdue=overdue)
        self._overdue.pop(request, None)
        self._watched.pop(request, None)

    def look(self, now: float) -> list[Lane]:
        """Set requests apart that have been out for long; returns lanes that may send again because of it."""
        lanes: list[Lane] = []
        for request in [other for other in self._watched if now >= other.sent_at + self._patience_seconds]:
            del self._watched[request]
            request.slowed()
            for lane in request.lanes:
                lane.slowed()
            lanes += request.lanes
        for request in self._requests if self.nothing_passes else ():
            if self._may_become_overdue(request) and now >= request.sent_at + PROBE_SECONDS:
                self._overdue[request] = None
                for lane in request.lanes:
                    lane.passed_over()
                lanes += request.lanes
        return lanes

    def answered(self, request: Request, now: float) -> None:
        """Its answer has come.  Lanes that answer in time alone may share requests again."""
        self._failures, self.failed_as, self.hold_until, self._answered_at = 0, "", 0.0, now
        seconds = now - request.sent_at
        late = request.slow or seconds >= self._patience_seconds
        if not late:
            self._prompt_sent_at = max(self._prompt_sent_at, request.sent_at)
        self.window.answered(seconds, request.timeout_seconds)
        self._typical_seconds += (seconds - self._typical_seconds) / 16
        for lane in request.lanes:
            lane.answered(late=late)

    def failed(self, request: Request, failed: RequestFailed, now: float) -> None:
        """It failed as a whole, maybe with no answer at all."""
        if failed.timed_out:
            for lane in request.lanes:
                lane.timed_out()
        known = all(span.failing for _, span in request.pieces)
        its_own = known and now < self._answered_at + LATELY_SECONDS
        one_shard_hangs = failed.timed_out and request.sent_at < self._prompt_sent_at
        if not its_own and not one_shard_hangs:
            self._failures += 1
            self.failed_as, self._failed_at = failed.code, now
            if failed.timed_out:
                self.window.timed_out()
        if self.nothing_passes:
            self.window.hold()
            self.hold(now)

    def hold(self, now: float) -> None:
        """Send nothing for a while."""
        self.hold_until = now + self._policy.hold()

    def stop_holding(self) -> None:
        """Hold nothing back any more: something else sets the pace."""
        self.hold_until = 0.0

    def may_send(self, now: float) -> bool:
        """Whether nothing is to be held back any more."""
        if now < self.hold_until:
            return False
        self.hold_until = 0.0  # else it would be named as due for ever, and hide what is due later
        return True

    # ---- inside

    @property
    def _patience_seconds(self) -> float:
        return max(SLOW_SECONDS, SLOW_FACTOR * self._typical_seconds)

    def _may_become_overdue(self, request: Request) -> bool:
        return request.encoded is not None and request not in self._overdue
