"""A scrape is whole from the first one on, and remembers no stream that is gone."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from producerd.config import StreamSettings
from producerd.runtime.metrics import DISCARD_REASONS, FAILURE_REASONS, Metrics
from producerd.runtime.stream import Stream


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
