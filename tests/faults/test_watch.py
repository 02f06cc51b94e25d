"""The watch records all that the laws need: a queue above its limit, a process that ended, and peaks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from producerd.runtime.metrics import PREFIX, STREAM_FAMILIES
from tests.faults.watch import Life, Process, Scrape, Watch, look, scrape, wait_for_level

PAGE = """\
# TYPE producerd_queue_records gauge
producerd_queue_records{stream="a"} 11
producerd_queue_records{stream="b"} 4
# TYPE producerd_queue_bytes gauge
producerd_queue_bytes{stream="a"} 900
producerd_queue_bytes{stream="b"} 90
# TYPE producerd_queue_limit_records gauge
producerd_queue_limit_records{stream="a"} 10
producerd_queue_limit_records{stream="b"} 10
# TYPE producerd_queue_limit_bytes gauge
producerd_queue_limit_bytes{stream="a"} 1000
producerd_queue_limit_bytes{stream="b"} 1000
# TYPE producerd_possible_duplicate_records counter
producerd_possible_duplicate_records_total{stream="a",cause="timeout"} 3
producerd_possible_duplicate_records_total{stream="b",cause="service"} 4
# TYPE producerd_record_retries counter
producerd_record_retries_total{stream="a"} 20
producerd_record_retries_total{stream="b"} 5
"""


class Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def seen(records: float = 0, bytes_: float = 0, duplicates: float = 0, retries: float = 0) -> Scrape:
    """One stream, whose limits are 10 records and 1,000 bytes."""
    return Scrape({"a": records}, {"a": bytes_}, {"a": 10}, {"a": 1_000}, duplicates, retries)


def ended() -> int:
    """The id of a process that has ended, and been waited for."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_scrape_has_what_each_stream_holds_and_the_sums_over_all(url: str) -> None:
    assert scrape(url) == Scrape(
        {"a": 11, "b": 4}, {"a": 900, "b": 90}, {"a": 10, "b": 10}, {"a": 1_000, "b": 1_000}, 7, 25
    )


def test_the_daemon_has_every_metric_that_a_scrape_reads() -> None:
    names = {family.name for family in STREAM_FAMILIES}
    assert PREFIX == "producerd_"
    assert {*Scrape._fields} <= names


@pytest.mark.parametrize(
    ("scraped", "found"),
    [
        (seen(10, 1_000), []),
        (seen(11, 1_000), ["a: 11 records of 10"]),
        (seen(10, 1_001), ["a: 1,001 bytes of 1,000"]),
    ],
    ids=["at its limit", "in records", "in bytes"],
)
def test_a_queue_above_its_limit_is_found(scraped: Scrape, found: list[str]) -> None:
    life = Life(1, "")
    life.add_scrape(scraped)
    life.add_scrape(seen())
    assert life.beyond_limit == found


def test_peaks_outlast_what_comes_after_them_and_the_queue_is_that_of_the_last_look() -> None:
    life = Life(1, "")
    for process in (Process(5, 60, 7), Process(50, 6, 70), Process(1, 1, 1)):
        life.add(process)
    for scraped in (seen(9, 500, duplicates=2, retries=5), seen(1, 30, duplicates=3, retries=8)):
        life.add_scrape(scraped)
    assert (life.peak_rss_bytes, life.peak_descriptors, life.peak_threads) == (50, 60, 70)
    assert (life.peak_queue_records, life.queued_bytes) == (9, 30)
    assert (life.counted_duplicates, life.retries) == (3, 8)


def test_the_watch_samples_the_daemon_that_runs_now(url: str) -> None:
    watch = Watch()
    assert watch.look_now() is None
    first, second = watch.begin(ended(), url), watch.begin(os.getpid(), url)
    process = watch.look_now()
    assert process is not None
    assert process.rss_bytes > 1 << 20
    assert (first.samples, second.samples, second.scrapes) == (0, 1, 1)
    assert second.beyond_limit == ["a: 11 records of 10"]


def test_a_daemon_that_does_not_answer_is_sampled_all_the_same() -> None:
    watch = Watch()
    life = watch.begin(os.getpid(), "http://127.0.0.1:1")
    assert watch.look_now() is not None
    assert (life.samples, life.scrapes) == (1, 0)


def test_a_process_that_ended_has_no_sample_also_before_anybody_has_waited_for_it() -> None:
    assert look(ended()) is None
    with subprocess.Popen([sys.executable, "-S", "-c", ""], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert look(process.pid) is None


def test_a_level_is_reached_or_said_to_be_missed() -> None:
    now = look(os.getpid())
    assert now is not None
    assert wait_for_level(os.getpid(), now, 10) is not None
    above = wait_for_level(os.getpid(), Process(0, 0, 0), 0)
    assert above is not None
    assert above.descriptors > 0
    assert wait_for_level(ended(), now, 10) is None
