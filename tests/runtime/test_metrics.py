"""A scrape is whole from the first one on, and remembers no stream that is gone."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from producerd.config import StreamSettings
from producerd.core import retry
from producerd.core.retry import meaning_of
from producerd.runtime.gate import Refusal, Ticket
from producerd.runtime.metrics import DISCARD_REASONS, ERROR_CODES, FAILURE_REASONS, Metrics
from producerd.runtime.stream import Stream
from producerd.wire.columns import Layout


def stream(name: str) -> Stream:
    return Stream(name, StreamSettings(), 1 << 20, 10_000)


def samples(metrics: Metrics, *streams: Stream, now: float = 0.0) -> dict[tuple[str, frozenset[str]], float]:
    text = metrics.render(streams, ready=True, connections=3, now=now).decode()
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_label_of_a_stream_is_there_before_anything_happened() -> None:
    found = samples(Metrics(), stream("flights"))
    for reason in FAILURE_REASONS:
        assert found["producerd_failed_records_total", frozenset(("flights", reason))] == 0
    for reason in DISCARD_REASONS:
        assert found["producerd_discarded_records_total", frozenset(("flights", reason))] == 0
    assert found["producerd_client_connections", frozenset()] == 3
    assert found["producerd_ready", frozenset()] == 1


def test_waits_are_counted_once_each() -> None:
    metrics, flights = Metrics(), stream("flights")
    flights.gate.waits_seconds.extend([0.005, 0.05, 100.0])
    for _ in range(2):
        found = samples(metrics, flights)
        assert found["producerd_backpressure_wait_seconds_count", frozenset(("flights",))] == 3
        assert found["producerd_backpressure_wait_seconds_sum", frozenset(("flights",))] == 100.055
        assert found["producerd_backpressure_wait_seconds_bucket", frozenset(("flights", "0.01"))] == 1
        assert found["producerd_backpressure_wait_seconds_bucket", frozenset(("flights", "600.0"))] == 3


def test_streams_that_are_gone_are_forgotten() -> None:
    metrics = Metrics()
    for number in range(50):
        gone = stream(f"stream-{number}")
        gone.gate.waits_seconds.append(1.0)
        samples(metrics, gone)
    back = stream("stream-0")
    found = samples(metrics, back)
    assert found["producerd_backpressure_wait_seconds_count", frozenset(("stream-0",))] == 0


def test_a_name_in_any_letters_is_one_label() -> None:
    found = samples(Metrics(), stream('a"b\\c\nd'))
    assert found["producerd_queue_records", frozenset(('a"b\\c\nd',))] == 0


def test_every_decision_on_a_failure_has_its_label() -> None:
    assert {meaning.code for meaning in (*retry._MEANINGS.values(), meaning_of("whatever"))} == set(ERROR_CODES)


def test_records_are_counted_by_how_often_they_were_sent() -> None:
    flights = stream("flights")
    for attempts, records in ((1, 10), (4, 3), (51, 2)):
        flights.pipeline.stats.stored_after(attempts, records)
    found = samples(Metrics(), flights)
    buckets = {
        bound: found["producerd_record_attempts_bucket", frozenset(("flights", bound))]
        for bound in ("1.0", "3.0", "5.0", "50.0", "+Inf")
    }
    assert buckets == {"1.0": 10, "3.0": 10, "5.0": 13, "50.0": 13, "+Inf": 15}
    assert found["producerd_record_attempts_sum", frozenset(("flights",))] == 10 + 12 + 102


def test_what_held_the_queue_is_counted_in_the_time_that_callers_waited() -> None:
    """The causes' seconds are those of backpressure_active_seconds, apart."""
    flights = stream("flights")
    member = flights.gate.join(Blocked())
    flights.budget.take(flights.budget.limit_records, 0)
    flights.gate.ask(member, 1, Layout(1, 1, 1), 10.0)
    flights.settle(10.0)
    flights.settle(13.5)
    found = samples(Metrics(), flights, now=13.5)
    seconds = [value for (name, _), value in found.items() if name == "producerd_backpressure_cause_seconds_total"]
    assert sum(seconds) == found["producerd_backpressure_active_seconds_total", frozenset(("flights",))] == 3.5


class Blocked:
    """A caller that waits."""

    def may_receive(self, charge_bytes: int) -> bool:
        return True

    def granted(self, ticket: Ticket) -> None:
        raise AssertionError("there was no room")

    def refused(self, ticket: Ticket, refusal: Refusal) -> None:
        raise AssertionError(refusal.message)
