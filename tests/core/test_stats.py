"""Counting requests and stored records in bulk gives the same numbers as counting them one by one."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from producerd.core import stats
from producerd.core.sending.answers import RequestFailed
from producerd.core.stats import DELIVERY_SECONDS_BOUNDS, Histogram
from producerd.errors import Code
from tests.core.stories import BROKEN, Desk


def told(histogram: Histogram) -> tuple[int, float]:
    """How many values, and their sum."""
    return sum(histogram.counts), histogram.sum


def test_values_added_together_count_as_each_alone() -> None:
    random = Random(1)
    together, apart = Histogram((1, 2, 5, 10)), Histogram((1, 2, 5, 10))
    values = [random.randrange(15) for _ in range(200)]
    together.observe_each(np.array(values))
    for value in values:
        apart.observe(value)
    assert (together.counts, together.sum) == (apart.counts, apart.sum)
    together.observe(5, 3)
    assert together.counts[2] == apart.counts[2] + 3, "a value that is a bound is within it"


def test_two_histograms_merged_count_what_each_of_them_did() -> None:
    one, other = Histogram((1, 2)), Histogram((1, 2))
    one.observe(1)
    one.observe(7)
    other.observe(2, 3)
    one.merge(other)
    assert (one.counts, one.sum) == ([1, 3, 1], 14)


def test_stored_records_are_in_as_many_kinesis_records_as_those_that_were_sent() -> None:
    counted = stats.StreamStats()
    assert counted.delivered_kinesis_records == 0
    counted.user_records.observe(20, 4)
    counted.delivered(60, 6_000, 1.0)
    assert counted.delivered_kinesis_records == 3


def test_of_a_record_that_was_split_each_part_counts_as_an_entry_and_one_as_the_record() -> None:
    counted = stats.StreamStats()
    counted.request_ended(100, np.array([1, 1, 3], np.int32), 0.1, split=True)
    assert (counted.user_records.counts[:2], counted.user_records.sum) == ([2, 1], 3)


@pytest.mark.parametrize("name", [name for name in vars(stats) if name.endswith("_BOUNDS")])
def test_the_bounds_of_a_histogram_rise_by_at_most_five_times(name: str) -> None:
    """Prometheus estimates quantiles between two bounds, so a gap among them would hide much."""
    bounds = np.array(getattr(stats, name), float)
    assert np.all(bounds[1:] > bounds[:-1])
    assert np.all(bounds[1:] <= 5 * bounds[:-1])


def test_a_request_counts_once_with_its_kinesis_records_and_the_records_in_them() -> None:
    desk = Desk(aggregate=True, aggregate_max_bytes=200)
    frame = desk.submit(40)
    stats = desk.stats
    assert (stats.ingest_records, stats.ingest_bytes) == (40, frame.charge_bytes)
    desk.sort()
    sent = desk.send()
    encoded = sent.request.encoded
    assert encoded is not None
    assert encoded.entries > 2
    assert told(stats.request_seconds) == (0, 0), "it has no answer yet"
    desk.now += 0.7
    sent.stored()
    assert stats.request_seconds.sum == pytest.approx(0.7)
    assert told(stats.request_bytes) == (1, len(encoded.body))
    assert told(stats.request_records) == (1, encoded.entries)
    assert told(stats.user_records) == (encoded.entries, 40)


def test_without_aggregation_each_kinesis_record_has_one() -> None:
    desk = Desk()
    desk.put(40).stored()
    assert desk.stats.user_records.counts[0] == 40
    assert told(desk.stats.user_records) == (40, 40)


def test_a_request_without_an_answer_counts_like_others_and_one_that_was_not_made_does_not() -> None:
    desk = Desk()
    desk.put(3).fail(RequestFailed(Code.UNREACHABLE, "reset", maybe_stored=True))
    assert told(desk.stats.request_records) == (1, 3)
    desk.queue(3)
    request = desk.take_request()
    desk.pipeline.complete(request, RequestFailed(Code.INTERNAL, "not encoded", maybe_stored=False), desk.now)
    assert told(desk.stats.request_records) == (1, 3)


@pytest.mark.parametrize("frames", [3, 40])
def test_each_row_of_a_request_counts_with_the_age_of_its_own_frame(frames: int) -> None:
    desk, accepted = Desk(), {}
    for number in range(frames):
        accepted[desk.now] = rows = number % 4 + 1
        desk.submit(rows)
        desk.now += 0.07
    desk.sort()
    sent = desk.send()
    assert sent.request.records == sum(accepted.values())
    desk.now += 1.0
    sent.stored()
    expected = Histogram(DELIVERY_SECONDS_BOUNDS)
    for at, rows in accepted.items():
        expected.observe(desk.now - at, rows)
    assert desk.stats.delivery_seconds.counts == expected.counts
    assert desk.stats.delivery_seconds.sum == pytest.approx(expected.sum)


@pytest.mark.parametrize("aggregate", [False, True])
def test_records_count_as_delivered_with_their_bytes_and_age_once_they_are_stored(aggregate: bool) -> None:
    """Also those that were sent twice: from when they were accepted."""
    rules: dict[str, Any] = {"aggregate": aggregate, "aggregate_max_bytes": 150}
    desk = Desk(**rules)
    first = desk.submit([(b"key", b"0123456789", None)] * 20)
    desk.now += 2.0
    sent = desk.put([(b"another", b"0123456789", None)] * 10)
    encoded = sent.request.encoded
    assert encoded is not None
    desk.now += 1.0
    stored = {"SequenceNumber": "1", "ShardId": sent.request.lanes[0].shard.shard_id}
    sent.answer([BROKEN, *[stored] * (encoded.entries - 1)])
    late = first.unsettled
    assert late
    stats = desk.stats
    desk.now += 5.0
    for again in desk.send_all():
        again.stored_as_predicted()
    assert stats.delivered_records == 30
    assert stats.delivered_bytes == 20 * 13 + 10 * 17
    assert (stats.delivering_from, stats.delivered_at) == (desk.now - 5.0, desk.now)
    assert sum(stats.delivery_seconds.counts) == 30
    assert stats.delivery_seconds.sum == pytest.approx(late * 8.0 + (20 - late) * 3.0 + 10 * 1.0)
    assert told(stats.attempts) == (30, 30 + late)
