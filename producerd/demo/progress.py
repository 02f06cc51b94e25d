"""Watch the daemon's GET /metrics while the demo runs: show the progress, and check that the numbers add up."""

from __future__ import annotations

import re
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

if TYPE_CHECKING:
    from rich.progress import Progress

PLAIN_SECONDS: Final = 2.0
PHASE_SECONDS: Final = 10.0
_SAMPLE: Final = re.compile(r"^producerd_(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The records and callers of one stream in one scrape."""

    ingested: int
    delivered: int
    failed: int
    discarded: int
    queued: int
    limit: int
    peak: int
    blocked: int
    waits: int

    @property
    def adds_up(self) -> bool:
        return self.ingested == self.delivered + self.failed + self.discarded + self.queued


def parse(text: str, stream: str) -> Snapshot:
    """Return the numbers of a stream in Prometheus' text format.  A metric that is missing counts as 0."""
    sums: dict[str, float] = defaultdict(float)
    for family, labels, value in _SAMPLE.findall(text):
        if f'stream="{stream}"' in labels.split(","):
            sums[family] += float(value)
    return Snapshot(
        ingested=int(sums["ingest_records_total"]),
        delivered=int(sums["delivered_records_total"]),
        failed=int(sums["failed_records_total"]),
        discarded=int(sums["discarded_records_total"]),
        queued=int(sums["queue_records"]),
        limit=int(sums["queue_limit_records"]),
        peak=int(sums["queue_peak_records"]),
        blocked=int(sums["backpressure_blocked_clients"]),
        waits=int(sums["backpressure_wait_seconds_count"]),
    )


@dataclass(slots=True)
class Watch:
    """A scraper that remembers the highest numbers, and the first scrape that did not add up."""

    url: str
    stream: str
    scrapes: int = field(default=0, init=False)
    peak: int = field(default=0, init=False)
    most_blocked: int = field(default=0, init=False)
    uneven: Snapshot | None = field(default=None, init=False)
    last: Snapshot = field(default_factory=lambda: parse("", ""), init=False)
    # The opener ignores a proxy in the environment: the daemon is at 127.0.0.1.
    _open: urllib.request.OpenerDirector = field(
        default_factory=lambda: urllib.request.build_opener(urllib.request.ProxyHandler({})), init=False
    )

    def ready(self) -> bool:
        try:
            with self._open.open(f"{self.url}/-/ready", timeout=2) as answer:
                return int(answer.status) == 200
        except OSError:  # not listening yet, or 503
            return False

    def scrape(self) -> Snapshot:
        with self._open.open(f"{self.url}/metrics?collect=all", timeout=10) as answer:
            self.note(parse(answer.read().decode(), self.stream))
        return self.last

    def note(self, snapshot: Snapshot) -> None:
        self.scrapes += 1
        self.last = snapshot
        self.peak = max(self.peak, snapshot.queued, snapshot.peak)
        self.most_blocked = max(self.most_blocked, snapshot.blocked)
        if self.uneven is None and not snapshot.adds_up:
            self.uneven = snapshot


class Display(Protocol):
    """A context that shows the progress."""

    def show(self, snapshot: Snapshot) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def display(total: int) -> Display:
    """Return a bar if the output is a terminal, otherwise a display with a line every 2 s."""
    return ProgressBar(total) if sys.stdout.isatty() else ProgressLines(total)


@dataclass(slots=True)
class ProgressLines:
    """A display that prints a line every 2 s, or every 10 s until the first record is delivered."""

    total: int
    _started: float = field(default_factory=time.monotonic, init=False)
    _next: float = field(default=0.0, init=False)
    _phase: str = field(default="", init=False)

    def show(self, snapshot: Snapshot) -> None:
        now, state = time.monotonic(), _state(snapshot, self.total)
        phase = "delivers" if snapshot.delivered else state
        if now < self._next and phase == self._phase:
            return
        self._phase = phase
        self._next = now + (PLAIN_SECONDS if snapshot.delivered else PHASE_SECONDS)
        delivered = f"delivered {snapshot.delivered:,} of {self.total:,}  " if snapshot.delivered else ""
        print(f"  {now - self._started:5.1f} s  {delivered}{state}", flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@dataclass(slots=True)
class ProgressBar:
    """A display with a bar, for a terminal."""

    total: int
    _progress: Progress = field(init=False)

    def __enter__(self) -> Self:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("  delivered"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        self._progress.add_task("", total=self.total)
        self._progress.start()
        return self

    def show(self, snapshot: Snapshot) -> None:
        self._progress.update(
            self._progress.task_ids[0], completed=snapshot.delivered, description=_state(snapshot, self.total)
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _state(snapshot: Snapshot, total: int) -> str:
    if snapshot.ingested == 0:
        return "Spark plans the first micro-batch and starts its Python workers ..."
    if snapshot.delivered == 0:
        return "the first requests are on their way ..."
    if snapshot.queued == 0 and snapshot.delivered < total:
        return "queue empty: Spark plans the next micro-batch ..."
    return f"queue {snapshot.queued:,} of {snapshot.limit:,}  callers blocked {snapshot.blocked}"
