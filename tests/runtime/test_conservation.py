"""Whatever fails, each scrape conserves records, has histograms that agree with counters, and adds no series.

A usual scrape adds the errors of the service that have occurred, and remains small."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import pytest

from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer
from tests.daemon import DaemonProcess, conserved, until
from tests.runtime.under_faults import STREAMS, daemon_under_faults

SCRAPES: Final = 50
"""Scrapes of each kind."""
MOST_SERIES: Final = 81
"""Series of a stream in a usual scrape, at most."""
SAMPLE: Final = re.compile(r'^producerd_(\w+)\{(?:.*,)?stream="(\w+)".*\} (\S+)$', re.MULTILINE)
NEVER_FALL: Final = ("_total", "_count", "_sum", "_bucket")


def by_stream(running: DaemonProcess, query: str = "") -> dict[str, dict[str, float]]:
    """One scrape: of each stream the value of each family, summed over its other labels."""
    status, text = running.get(f"/metrics{query}")
    assert status == 200
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, stream, value in SAMPLE.findall(text):
        found[stream][name] += float(value)
        found[stream]["series"] += 1
    return found


def histograms_agree(scraped: Mapping[str, float]) -> bool:
    """A record that is delivered is in two histograms once, a request in three, and its Kinesis records in a fourth.

    The dashboard reads the fourth's count in place of the Kinesis records.
    """
    requests = scraped["put_requests_total"]
    return (
        scraped["delivery_latency_seconds_count"] == scraped["delivered_records_total"]
        and scraped["record_attempts_count"] == scraped["delivered_records_total"]
        and scraped["put_request_duration_seconds_count"] == requests
        and scraped["put_request_size_bytes_count"] == requests
        and scraped["put_request_records_count"] == requests
        and scraped["aggregation_user_records_count"] == scraped["put_request_records_sum"]
    )


@pytest.mark.promise("records-conserved-scrape")
@pytest.mark.law("Row")
def test_records_are_conserved_at_every_scrape_while_everything_fails(kinesis: FakeKinesis, server: FakeServer) -> None:
    usual: list[dict[str, dict[str, float]]] = []
    scrapes: list[dict[str, dict[str, float]]] = []

    def enough() -> bool:
        usual.append(by_stream(running))
        scrapes.append(by_stream(running, "?collect=all"))
        last = scrapes[-1]
        if len(last) < len(STREAMS):  # one is not opened yet
            return False
        failed, killed = last["impatient"]["failed_records_total"], last["flights"]["discarded_records_total"]
        return bool(failed and killed and len(scrapes) >= SCRAPES)

    with daemon_under_faults(kinesis, server) as running:
        until(enough, "rows delivered, failed and discarded in 100 scrapes, of two kinds", 60)
        during = len(scrapes)
    assert during >= SCRAPES
    for scraped in usual:
        for name, metrics in scraped.items():
            assert conserved(metrics), (name, metrics)
            assert metrics["series"] <= MOST_SERIES
    for scraped in scrapes:
        for name, metrics in scraped.items():
            assert conserved(metrics), (name, metrics)
            assert histograms_agree(metrics), (name, metrics)
    for before, after in pairwise(scrapes):
        for name, metrics in before.items():
            assert after[name]["series"] == metrics["series"], "every label was there before"
            fell = [m for m, value in metrics.items() if m.endswith(NEVER_FALL) and after[name][m] < value]
            assert not fell, (name, fell)
    assert any(scraped["flights"]["queue_records"] for scraped in scrapes)
