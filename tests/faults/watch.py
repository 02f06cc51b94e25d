"""Sample a daemon from outside while it runs: its metrics, and what /proc says of its process."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

PERIOD_SECONDS: Final = 0.1
SAMPLES_PER_SCRAPE: Final = 12
"""The daemon renders its metrics once a second, and a scrape that comes sooner waits for it."""
SCRAPE_SECONDS: Final = 2.0
"""How long an answer may take; a daemon that is stopped by a signal gives none."""
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """What /proc says of a process at one moment."""

    rss_bytes: int
    descriptors: int
    threads: int


class Scrape(NamedTuple):
    """What one answer of /metrics says: what waits in each stream, and sums over all streams."""

    queue_records: dict[str, float]
    queue_bytes: dict[str, float]
    queue_limit_records: dict[str, float]
    queue_limit_bytes: dict[str, float]
    possible_duplicate_records_total: float
    record_retries_total: float


def look(pid: int) -> Process | None:
    """None where the process has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        pages = int((folder / "statm").read_text().split()[1])
        threads = len(os.listdir(folder / "task"))
        return Process(pages * PAGE_BYTES, len(os.listdir(folder / "fd")), threads) if pages else None
    except OSError:
        return None


def scrape(url: str) -> Scrape:
    """Raises OSError where there is no answer in time."""
    with urllib.request.urlopen(f"{url}/metrics?collect=all", timeout=SCRAPE_SECONDS) as answer:
        text = answer.read().decode()
    by_stream: dict[str, dict[str, float]] = {name: {} for name in Scrape._fields[:-2]}
    duplicates = retries = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("producerd_")
            if name in by_stream:
                by_stream[name][sample.labels["stream"]] = sample.value
            elif name == "possible_duplicate_records_total":
                duplicates += sample.value
            elif name == "record_retries_total":
                retries += sample.value
    return Scrape(**by_stream, possible_duplicate_records_total=duplicates, record_retries_total=retries)


class Life:
    """One daemon process, from its start to its end: the peaks of what was sampled."""

    def __init__(self, pid: int, url: str) -> None:
        self.pid = pid
        self.url = url
        self.samples = 0
        self.scrapes = 0
        self.peak_queue_records = 0.0
        self.peak_rss_bytes = 0
        self.peak_descriptors = 0
        self.peak_threads = 0
        self.counted_duplicates = 0.0
        self.retries = 0.0
        self.queued_bytes = 0.0
        """In the last scrape, over all streams; also what is granted to callers and has not come."""
        self.peak_node_bytes = 0.0
        self.beyond_limit: list[str] = []
        """Samples in which a queue held more than its limit, in words."""

    def add(self, process: Process) -> None:
        self.samples += 1
        self.peak_rss_bytes = max(self.peak_rss_bytes, process.rss_bytes)
        self.peak_descriptors = max(self.peak_descriptors, process.descriptors)
        self.peak_threads = max(self.peak_threads, process.threads)

    def add_scrape(self, seen: Scrape) -> None:
        self.scrapes += 1
        self.queued_bytes = sum(seen.queue_bytes.values())
        self.peak_node_bytes = max(self.peak_node_bytes, self.queued_bytes)
        self.counted_duplicates = max(self.counted_duplicates, seen.possible_duplicate_records_total)
        self.retries = max(self.retries, seen.record_retries_total)
        self.peak_queue_records = max([self.peak_queue_records, *seen.queue_records.values()])
        for kind in ("records", "bytes"):
            held, limits = getattr(seen, f"queue_{kind}"), getattr(seen, f"queue_limit_{kind}")
            for stream, value in held.items():
                if value > limits[stream]:
                    self.beyond_limit.append(f"{stream}: {value:,.0f} {kind} of {limits[stream]:,.0f}")


class Watch:
    """Samples the daemon that runs, in a thread.

    ``lives`` has one entry for each daemon that was started.  ``failure`` says why the thread ended early.
    """

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.failure = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def begin(self, pid: int, url: str) -> Life:
        """Watch this daemon from now on."""
        life = Life(pid, url)
        self.lives.append(life)
        return life

    def look_now(self) -> Process | None:
        """Sample the daemon that runs, scrape it too, and return what /proc says."""
        return self._look(self.lives[-1], scrapes=True) if self.lives else None

    def _look(self, life: Life, *, scrapes: bool) -> Process | None:
        process = look(life.pid)
        if process is not None:
            life.add(process)
        if process is not None and scrapes:
            with contextlib.suppress(OSError, http.client.HTTPException):  # it is frozen, or was killed meanwhile
                life.add_scrape(scrape(life.url))
        return process

    def _run(self) -> None:
        try:
            for sample in itertools.count():
                if self._ended.wait(PERIOD_SECONDS):
                    return
                if self.lives:
                    self._look(self.lives[-1], scrapes=sample % SAMPLES_PER_SCRAPE == 0)
        except Exception as error:  # whatever it is, no law was judged from here on
            self.failure = repr(error)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()


def wait_for_level(pid: int, at_most: Process, seconds: float) -> Process | None:
    """Wait until the process has no more descriptors and threads than ``at_most``; return what it has then."""
    deadline = time.monotonic() + seconds
    while (now := look(pid)) is not None and time.monotonic() < deadline:
        if now.descriptors <= at_most.descriptors and now.threads <= at_most.threads:
            break
        time.sleep(PERIOD_SECONDS)
    return now
