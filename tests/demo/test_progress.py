"""What /metrics says is read right, and the highest queue is remembered."""

from __future__ import annotations

import dataclasses

import pytest

from producerd.demo.progress import ProgressLines, Snapshot, Watch, parse

TEXT = """\
# HELP producerd_queue_records Records taken on and not settled.
# TYPE producerd_queue_records gauge
producerd_queue_records{stream="flights"} 30.0
producerd_queue_records{stream="other"} 9000.0
producerd_queue_limit_records{stream="flights"} 50.0
producerd_queue_peak_records{stream="flights"} 45.0
producerd_ingest_records_total{stream="flights"} 100.0
producerd_delivered_records_total{stream="flights"} 60.0
producerd_failed_records_total{reason="INTERNAL",stream="flights"} 1.0
producerd_failed_records_total{reason="EXPIRED",stream="flights"} 2.0
producerd_discarded_records_total{stream="flights",reason="returned"} 7.0
producerd_backpressure_blocked_clients{stream="flights"} 2.0
producerd_backpressure_wait_seconds_bucket{le="0.1",stream="flights"} 11.0
producerd_backpressure_wait_seconds_count{stream="flights"} 12.0
producerd_backpressure_wait_seconds_sum{stream="flights"} 3.5
producerd_client_connections 4.0
"""
READ = Snapshot(ingested=100, delivered=60, failed=3, discarded=7, queued=30, limit=50, peak=45, blocked=2, waits=12)


def test_a_scrape_is_read_for_one_stream_and_summed_over_other_labels() -> None:
    assert parse(TEXT, "flights") == READ
    assert parse(TEXT, "absent") == Snapshot(0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_the_peak_is_the_highest_seen_and_the_highest_told() -> None:
    watch = Watch("http://127.0.0.1:1", "flights")
    watch.note(dataclasses.replace(READ, queued=48, peak=0))
    watch.note(dataclasses.replace(READ, queued=30, peak=45))
    assert watch.peak == 48
    watch.note(dataclasses.replace(READ, peak=51))
    assert watch.peak == 51


def test_the_first_scrape_that_does_not_add_up_is_kept() -> None:
    watch = Watch("http://127.0.0.1:1", "flights")
    watch.note(READ)
    assert watch.uneven is None
    uneven = dataclasses.replace(READ, delivered=59)
    watch.note(uneven)
    watch.note(READ)
    assert watch.uneven == uneven


def test_a_daemon_that_does_not_listen_is_not_ready() -> None:
    assert not Watch("http://127.0.0.1:1", "flights").ready()


def test_without_a_terminal_progress_is_lines_and_not_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLines(200) as lines:
        lines.show(READ)
        lines.show(READ)
    assert capsys.readouterr().out == "    0.0 s  delivered 60 of 200  queue 30 of 50  callers blocked 2\n"


def test_while_spark_starts_a_line_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = parse("", "flights")
    queued = dataclasses.replace(nothing, ingested=30, queued=30)
    with ProgressLines(200) as lines:
        for snapshot in (nothing, nothing, queued, queued, READ):
            lines.show(snapshot)
    planning, first, delivered = capsys.readouterr().out.splitlines()
    assert planning == "    0.0 s  Spark plans the first micro-batch and starts its Python workers ..."
    assert first == "    0.0 s  the first requests are on their way ..."
    assert delivered.startswith("    0.0 s  delivered 60 of 200 ")


def test_between_micro_batches_a_line_says_that_spark_plans(capsys: pytest.CaptureFixture[str]) -> None:
    for total in 200, READ.delivered:
        with ProgressLines(total) as lines:
            lines.show(dataclasses.replace(READ, queued=0))
    between, at_the_end = capsys.readouterr().out.splitlines()
    assert between.endswith("delivered 60 of 200  queue empty: Spark plans the next micro-batch ...")
    assert at_the_end.endswith("delivered 60 of 60  queue 0 of 50  callers blocked 2")
