"""The requests of a stream that are on their way, and whether one more may be sent.

A request that has waited for long should hold back others as little as possible: its lanes share no further requests
with other shards.  While no request succeeds at all, it no longer counts and others may be sent in its place.  Once one
of these succeeds, those that were sent before it are probably lost: they wait no longer than a first attempt does.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final

from producerd.core.budget import NodeInFlight
from producerd.core.lanes.lane import ANY_BYTES, Lane
from producerd.core.rules import PipelineRules
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.backoff import InFlightWindow, RetryPolicy
from producerd.core.sending.requests import Request

FAILURES_TO_HOLD: Final = 3
"""Failures of whole requests in a row after which the whole stream waits, and not only the requests' rows."""
PROBE_SECONDS: Final = 6.0
"""Time after which, while no request succeeds, a request becomes overdue and no longer holds back others.

Time-outs grow to a minute.  Without this limit the first request after an outage would wait for the last one in it.
"""
LATELY_SECONDS: Final = 5.0
"""Time after an answer in which suspected rows that fail again do not count as a failure of the stream."""
BRIEF_SECONDS: Final = 0.2
"""The pause between requests with rows that were refused before, while nothing is stored."""
SLOW_SECONDS: Final = 1.0
"""Shortest time after which a request is slow."""
SLOW_FACTOR: Final = 4.0
"""Factor of the stream's typical answer time after which a request is slow."""
SLOW_SHARE: Final = 0.5
"""Largest share of the window for requests of slow lanes, so that shards that hang leave the rest to the others."""


class InFlight:
    """The requests of a stream that are on their way; iteration yields them.

    ``bytes``: the size of all of them.  ``hold_until``: until when nothing is sent; 0 if nothing holds it back.
    """

    def __init__(self, rules: PipelineRules, policy: RetryPolicy, node: NodeInFlight | None = None) -> None:
        self.bytes = 0
        self.node = NodeInFlight() if node is None else node
        self.hold_until = 0.0
        self.failed_as = ""  # the code of the latest failure of a whole request, "" after an answer
        self.window = InFlightWindow(
            rules.max_in_flight_requests, rules.max_in_flight_bytes, rules.entries.request_max_bytes
        )
        self._request_max_bytes = rules.entries.request_max_bytes
        self._policy = policy
        self._requests: dict[Request, None] = {}
        self._overdue: dict[Request, None] = {}  # requests that no longer hold back others
        self._watched: dict[Request, None] = {}  # requests that are sent and not known to be slow, in order
        self._typical_seconds = 0.0
        self._prompt_sent_at = -inf  # when the latest request was sent that was answered in time
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
        """Whether `FAILURES_TO_HOLD` requests or more failed as a whole since the last answer."""
        return self._failures >= FAILURES_TO_HOLD

    def fails(self, now: float) -> bool:
        """Return whether no request succeeds, or one failed as a whole in the last `PROBE_SECONDS`."""
        return self.nothing_passes or (self._failures > 0 and now < self._failed_at + PROBE_SECONDS)

    def has_room(self, *, for_one: bool, row_bytes: int = 0) -> bool:
        """Return whether the limits on requests and bytes allow one more request with a row of ``row_bytes``.

        ``for_one``: only one request at a time may be in flight.  With others in flight there must be room for a full
        request, because the small rest of a nearly full node is not worth a request.
        """
        return (
            len(self._requests) - len(self._overdue) < (1 if for_one else self.window.size)
            and len(self._requests) < self.window.most
            and max(self._request_max_bytes if self._requests else 0, row_bytes) <= self.bytes_left
        )

    @property
    def bytes_left(self) -> int:
        """The bytes that may still be sent.

        With nothing in flight this is `ANY_BYTES` for a single row, unless another stream's larger row blocks that.
        """
        if not self._requests:
            return self.node.room(self) if self.waits_with_larger else ANY_BYTES
        left = min(self.window.most_bytes - self.bytes, self.node.room(self))
        if len(self._overdue) == len(self._requests):
            return left
        awaited_bytes = self.bytes - sum([request.bytes for request in self._overdue])
        return min(self.window.bytes - awaited_bytes, left)

    @property
    def request_bytes(self) -> int:
        """The most bytes of a next request with several rows.  With nothing in flight, at least the stream's floor."""
        return min(self._request_max_bytes, self.node.room(self))

    @property
    def waits_with_larger(self) -> bool:
        """Whether, with nothing in flight, a row larger than its room must wait for requests of other streams."""
        return not self._requests and not self.node.takes_larger

    @property
    def held_by_node(self) -> bool:
        """Whether the requests of all streams leave no room for another one of this stream, or for a larger row."""
        if not self._requests:
            return self.waits_with_larger
        return self.node.room(self) < self._request_max_bytes

    @property
    def takes_slow(self) -> bool:
        """Whether one more request of a slow lane may be sent.

        Only requests of a single lane count, because in any other it is not known which lane is slow.
        """
        alone = [r for r in self._requests if len(r.aggregate_bytes) == 1 and r.pieces[0].lane.alone]
        slow = sum([request not in self._overdue for request in alone])
        return slow < max(1, self.window.size * SLOW_SHARE)

    def next_time(self) -> float:
        """Return when `find_slow` must be called because a request becomes slow or overdue; ``inf`` if none will."""
        oldest = next(iter(self._watched), None)
        due = inf if oldest is None else oldest.sent_at + self._patience_seconds
        if self.nothing_passes:
            out = [request.sent_at for request in self._requests if self._may_become_overdue(request)]
            due = min(due, min(out, default=inf) + PROBE_SECONDS)
        return due

    # ---- events

    def set_rules(self, rules: PipelineRules) -> None:
        """Follow new limits from now on."""
        self._request_max_bytes = rules.entries.request_max_bytes
        self.window.set_limits(rules.max_in_flight_requests, rules.max_in_flight_bytes, self._request_max_bytes)

    def add_request(self, request: Request) -> None:
        """Add a request that will be encoded and sent."""
        for lane in request.lanes:
            lane.request_began()
        self._requests[request] = None
        self.bytes += request.bytes
        self.node.count_sent(self, request.bytes)

    def request_sent(self, request: Request) -> None:
        """Note that a request is encoded and on its way."""
        self._watched[request] = None

    def remove_request(self, request: Request) -> None:
        """Remove a request that was answered or has failed."""
        del self._requests[request]
        self.bytes -= request.bytes
        self.node.count_ended(self, request.bytes)
        overdue = request in self._overdue
        for lane in request.lanes:
            lane.request_left(slow=request.slow, overdue=overdue)
        self._overdue.pop(request, None)
        self._watched.pop(request, None)

    def find_slow(self, now: float) -> list[Lane]:
        """Find requests that have become slow or overdue.  Returns the lanes that may send again because of that."""
        lanes: list[Lane] = []
        while (request := next(iter(self._watched), None)) is not None:
            if now < request.sent_at + self._patience_seconds:
                break
            del self._watched[request]
            request.slowed()
            for lane in request.lanes:
                lane.slowed()
            lanes += request.lanes
        for each in self._requests if self.nothing_passes else ():
            if self._may_become_overdue(each) and now >= each.sent_at + PROBE_SECONDS:
                self._overdue[each] = None
                for lane in each.lanes:
                    lane.passed_over()
                lanes += each.lanes
        return lanes

    def overtaken(self, sent_at: float) -> list[Request]:
        """Return the requests sent before this time, with the time-out of first attempts: a later one has succeeded."""
        overtaken = []
        for each in self._requests:
            if each.encoded is not None and each.sent_at < sent_at:
                each.wait_at_most(self._policy.timeout(len(each.encoded.body), 0))
                overtaken.append(each)
        return overtaken

    def request_answered(self, request: Request, now: float) -> None:
        """Note a request's answer.  Lanes that were alone and answer in time may share requests again."""
        self._failures, self.failed_as, self.hold_until, self._answered_at = 0, "", 0.0, now
        seconds = now - request.sent_at
        late = request.slow or seconds >= self._patience_seconds
        if not late:
            self._prompt_sent_at = max(self._prompt_sent_at, request.sent_at)
        self.window.measure(seconds, request.timeout_seconds)
        self._typical_seconds += (seconds - self._typical_seconds) / 16
        for lane in request.lanes:
            lane.answer_came(late=late)

    def request_failed(
        self, request: Request, failed: RequestFailed, code: str, now: float, *, of_rows: bool = False
    ) -> None:
        """Note that a request failed as a whole, perhaps without an answer.  Callers see the failure under ``code``.

        ``of_rows``: its rows are suspected from now on.
        """
        if failed.timed_out:
            for lane in request.lanes:
                lane.timed_out()
        known = of_rows or all(span.failing for _, span in request.pieces)
        its_own = known and now < self._answered_at + LATELY_SECONDS
        one_shard_hangs = failed.timed_out and request.sent_at < self._prompt_sent_at
        if not its_own and not one_shard_hangs:
            self._failures += 1
            self.failed_as, self._failed_at = code, now
            if failed.timed_out:
                self.window.timed_out()
        if self.nothing_passes:
            self.window.hold()
            self.hold_all(now)

    def hold_all(self, now: float) -> None:
        """Send nothing for a while."""
        self.hold_until = now + self._policy.hold()

    def hold_briefly(self, now: float) -> None:
        """Send nothing for a moment, so that rows that were refused before are not sent in a hot loop."""
        self.hold_until = max(self.hold_until, now + BRIEF_SECONDS)

    def stop_holding(self) -> None:
        """Send again at once.  Something else, such as probes, now sets the pace."""
        self.hold_until = 0.0

    def may_send(self, now: float) -> bool:
        """Return whether requests may be sent now.  Ends a hold whose time is over."""
        if now < self.hold_until:
            return False
        self.hold_until = 0.0  # otherwise this past time would stay the next one and hide later ones
        return True

    # ---- inside

    @property
    def _patience_seconds(self) -> float:
        return max(SLOW_SECONDS, SLOW_FACTOR * self._typical_seconds)

    def _may_become_overdue(self, request: Request) -> bool:
        return request.encoded is not None and request not in self._overdue
