"""What a batch's tasks report, and what follows for the batch: its result, or one clear line.

A task's report travels as one line of JSON.  Its error is a line with a marker, as Spark buries it in its own text.
Both name rows by their partition and their number in it, never by what they hold.
"""

from __future__ import annotations

import html
import itertools
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from producerd import __version__
from producerd.errors import (
    BackpressureTimeout,
    BadColumn,
    Code,
    ConnectionFailed,
    FlushTimeout,
    ProducerdError,
    ProtocolError,
    RecordsFailed,
    Refused,
    RowFailure,
)
from spark_client.dry_run import DryRunResult, StreamDryRun, merged, of_fields
from spark_client.reasons import kind_of
from spark_client.tally import MAX_ROWS_NAMED

COUNTED: Final = ("skipped", "left_out", "retries", "throttled", "possible_duplicates", "spread_keys", "resent")
MAX_LINE_CHARACTERS: Final = 2000
MAX_FAILURES_NAMED: Final = 5
MAX_HOSTS_NAMED: Final = 20
MARKER: Final = re.compile(r"PRODUCERD\[([^\]\s]+)\]: [^\n]*")
RAISED: Final = re.compile(rf"(?<=ProducerdError: ){MARKER.pattern}")
"""The marker as Python shows an error that a task raised.  Another error may quote a row that has the marker alone."""
ERRORS: Final[Mapping[str, type[ProducerdError]]] = {
    Code.BACKPRESSURE_TIMEOUT: BackpressureTimeout,
    Code.FLUSH_TIMEOUT: FlushTimeout,
    Code.BAD_COLUMN: BadColumn,
    Code.PROTOCOL: ProtocolError,
    Code.INTERNAL: ProducerdError,
    Code.CONFIGURATION: ProducerdError,
    Code.DIVERT_FAILED: ProducerdError,
    Code.ARROW_MISSING: ProducerdError,
    Code.SPECULATION_ENABLED: ProducerdError,
    **dict.fromkeys(
        (Code.DAEMON_ABSENT, Code.DAEMON_LOST, Code.VERSION_MISMATCH, Code.NOT_AUTHORIZED, Code.DRAINING),
        ConnectionFailed,
    ),
}
"""The error that a task's code becomes in the driver.  Any other code is a refusal by the daemon."""

_REPEAT: Final = "what is not acknowledged has to be sent again, as Spark does when it repeats a batch"
FIX_ROWS: Final = (
    'fix these rows, or leave them out with on_bad_record="skip", or "divert" to keep them (data source: onBadRecord)'
)
UPGRADE_DAEMON: Final = (
    "these rows were not left out: upgrade the daemon, which does not yet tell a bad row from a request that is refused"
)
SAME_CLIENT: Final = (
    "install the driver's producerd wheel on every node, or ship its client zip (--py-files, or "
    "spark.addArtifact(..., pyfile=True) under Connect); PYSPARK_PYTHON says which Python the executors run"
)
LACKS_CLIENT: Final = re.compile(r"ModuleNotFoundError: No module named '(?:spark_client|producerd)\b")
"""How a Python worker says that it cannot even unpickle a task of ours."""
LACKS_ARROW: Final = re.compile(r"ModuleNotFoundError: No module named '(pyarrow|pandas)'")
Error = TypeVar("Error", bound=ProducerdError)
ADVICE: Final[Mapping[str, str]] = {
    Code.STREAM_NOT_FOUND: "check the stream's name, and the region and account of the daemon",
    Code.ACCESS_DENIED: "allow it to the role that the daemon runs with",
    Code.CREDENTIALS: "the daemon needs its own, and does not use Spark's: give them to its process, or to the "
    "executors or the program that start it",
    Code.KMS: "allow the stream's key to the role that the daemon runs with",
    Code.REQUEST_REFUSED: "check the stream, and the daemon's settings of it, such as stream_arn",
    Code.PROXY_REFUSED: "see which proxy or firewall stands between the daemon and Kinesis, and what it refuses",
    Code.DAEMON_LOST: f"see the daemon's log on that host; {_REPEAT}",
    Code.DRAINING: f"once it is back, {_REPEAT}",
    Code.DIVERT_FAILED: "tasks write to divert_to with the rights of their own environment",
}
"""What to do about a code, if the daemon's message does not say so."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def quoted(given: object) -> str:
    """Return what an option was given as a message shows it: a Column's own text has no quotes."""
    return str(given) if type(given).__name__ == "Column" else repr(given)


def names_of(hosts: Iterable[str]) -> str:
    """Return the hosts in order, each once, but only the first of many."""
    ordered = sorted(set(hosts))
    return ", ".join(ordered[:MAX_HOSTS_NAMED]) + (", ..." if len(ordered) > MAX_HOSTS_NAMED else "")


class SkippedRow(NamedTuple):
    """A row that ``on_bad_record="skip"`` left out, its number in its partition, and why.

    ``maybe_stored``: an earlier attempt may have stored it.
    """

    partition: int
    row: int
    code: str
    maybe_stored: bool = False
    reason: str = ""

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"{self.partition}:{self.row} {self.code}{why}{' (maybe stored)' if self.maybe_stored else ''}"


class DaemonFigures(NamedTuple):
    """What a daemon that tasks started has used until a task's end.

    ``pid`` is its process on ``host``, and ``log`` the path of its log there.  ``started_seconds`` is how long its
    start took, or None if it ran already.
    """

    host: str
    pid: int
    started_seconds: float | None
    peak_rss_bytes: int
    cpu_seconds: float
    log: str

    def __str__(self) -> str:
        started = "" if self.started_seconds is None else f"started in {self.started_seconds:.1f} s, "
        used = f"{self.cpu_seconds:.1f} s of CPU, at most {self.peak_rss_bytes / (1 << 20):.0f} MiB"
        return f"daemon {self.pid} on {self.host}: {started}{used}, log {self.log}"


class PartitionResult(NamedTuple):
    """The result of one task.

    ``records`` counts all rows.  ``failures`` has the rows that are not STORED, and the skipped rows.  ``bytes`` counts
    stored rows only.  ``daemon`` is the one that tasks started, if they did.  ``diverted`` is the URI of the file with
    the rows that can never be stored, if the task has written one.

    ``dry_run`` has what a dry run found, for each stream.

    ``left_out`` counts the rows that the replay guard found stored.  ``guard_problem`` is what kept it from more.

    ``seconds`` is how long the task took.  ``why`` is what held it longest, in the daemon's words, and ``why_seconds``
    for how long.
    """

    partition: int
    host: str
    records: int
    bytes: int
    retries: int
    throttled: int
    possible_duplicates: int
    spread_keys: int
    resent: int
    seconds_blocked: float
    seconds_flushing: float
    failures: tuple[RowFailure, ...] = ()
    daemon: DaemonFigures | None = None
    diverted: str | None = None
    seconds: float = 0.0
    why: str = ""
    why_seconds: float = 0.0
    dry_run: tuple[StreamDryRun, ...] = ()
    left_out: int = 0
    guard_problem: str = ""

    def failed(self, skip_bad_records: bool) -> list[RowFailure]:
        """Return the failures that fail the batch: all, or with ``skip_bad_records`` those that are not judged."""
        return [failure for failure in self.failures if not (skip_bad_records and failure.judged)]

    def to_line(self) -> str:
        return json.dumps(self)

    @staticmethod
    def from_line(line: str) -> PartitionResult:
        told = PartitionResult._make(json.loads(line))
        figures = None if told.daemon is None else DaemonFigures._make(told.daemon)
        dry_run = tuple(map(of_fields, told.dry_run))
        return told._replace(failures=tuple(map(_failure, told.failures)), daemon=figures, dry_run=dry_run)


def _failure(fields: Iterable[Any]) -> RowFailure:
    failure = RowFailure._make(fields)
    return failure._replace(rows=tuple(failure.rows))


class BatchResult(NamedTuple):
    """A batch that is stored whole, except for skipped rows.

    Attributes:
        batch_id: The number that the writer was given.
        records: All records of the batch, ``skipped`` ones included.
        bytes: The keys, data and hash keys of the records that were stored.
        skipped: How many bad records were left out.  ``skipped_rows`` has the first 20.
        retries: How often rows were sent again.
        throttled: How often rows were throttled.
        possible_duplicates: Surplus copies that may be in the stream.
        spread_keys: Rows with a null or empty key.
        resent: Records that a second daemon took, because the first one was lost or gave them back.
        seconds_blocked: How long tasks waited for room, added up over all tasks, which run at once.
        seconds_flushing: How long they waited for their last acknowledgements, added up alike.
        skipped_rows: The first 20 of the skipped rows.
        partitions: The result of each task.
        daemons: The daemons that tasks started, with what each has used until the batch's end.
        diverted: The URIs of the files to which ``on_bad_record="divert"`` wrote the skipped rows.
        seconds: How long the write took.
        why: What held the tasks longest, in the daemon's words, or "" if they waited for less than a second.
        waiting_share: The share of the tasks' time in which they waited for either, from 0 to 1.
        stream: The stream's name, or None if each row named its own.
        dry_run: What a dry run found, or None if the batch is stored.  The counts are then of what would be stored.
        left_out: How many records were not sent again, because the replay guard found them stored.
        guard_problem: What kept the replay guard from working, or "".
    """

    batch_id: int | None
    records: int
    bytes: int
    skipped: int
    retries: int
    throttled: int
    possible_duplicates: int
    spread_keys: int
    resent: int
    seconds_blocked: float
    seconds_flushing: float
    skipped_rows: tuple[SkippedRow, ...]
    partitions: tuple[PartitionResult, ...]
    daemons: tuple[DaemonFigures, ...] = ()
    diverted: tuple[str, ...] = ()
    seconds: float = 0.0
    why: str = ""
    waiting_share: float = 0.0
    stream: str | None = None
    dry_run: DryRunResult | None = None
    left_out: int = 0
    guard_problem: str = ""

    @property
    def sent(self) -> int:
        """How many records this write has stored."""
        return self.records - self.skipped - self.left_out

    @property
    def records_per_second(self) -> float:
        """How many records were stored per second of the write."""
        return self.sent / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        """Return the line that a log and a notebook show."""
        if self.dry_run is not None:
            good = f"{self.records - self.skipped:,} of {self.records:,} records are good"
            return "; ".join(filter(None, (f"dry run, nothing is stored: {good}", str(self.dry_run))))
        batch = "" if self.batch_id is None else f"batch {self.batch_id}"
        of = ", ".join(filter(None, (self.stream, batch)))
        of = f"{of}: " if of else ""
        counts = "".join(f", {value} {name.replace('_', ' ')}" for name, value in self._counted())
        tasks = f" in {counted(len(self.partitions), 'task')}" if self.partitions else ""
        took = f", {self.seconds:.1f} s ({self.records_per_second:,.0f} records per second)" if self.seconds else ""
        waited = f"{self.seconds_blocked:.1f} s blocked, {self.seconds_flushing:.1f} s flushing"
        if self.seconds_blocked + self.seconds_flushing >= 1:
            waited = f"tasks waited {self.waiting_share:.0%} of their time ({waited})"
        why = f"; held by: {self.why}" if self.why else ""
        return f"{of}{self.records} records, {self.bytes} bytes{tasks}{took}, {waited}{counts}{why}"

    def __repr__(self) -> str:
        """Return every figure, but not the result of each task."""
        took = ("seconds", "records_per_second", "waiting_share", "seconds_blocked", "seconds_flushing", "why")
        names = ("stream", "batch_id", "records", "bytes", *took, *COUNTED, "skipped_rows")
        fields = [f"{name}={_rounded(getattr(self, name))!r}" for name in names]
        lists = ("partitions", "daemons", "diverted")
        fields += [] if self.dry_run is None else [f"dry_run=<{self.dry_run}>"]
        fields += [f"{name}=<{len(some)}>" for name in lists if (some := getattr(self, name))]
        return f"BatchResult({', '.join(fields)})"

    def _repr_html_(self) -> str:
        """Return a table of the figures, which notebooks show."""
        of = (("stream", self.stream), ("batch id", self.batch_id))
        shown: list[tuple[str, object]] = [(name, value) for name, value in of if value is not None]
        shown += [("records", self.records), ("bytes", self.bytes)]
        if self.dry_run is not None:
            shown += [("dry run", "nothing is stored")]
            for one in self.dry_run.streams[:MAX_ROWS_NAMED]:
                shown += [*([("stream", one.stream)] if self.stream is None else []), *one.lines()]
            if (more := len(self.dry_run.streams) - MAX_ROWS_NAMED) > 0:
                shown += [("more streams", more)]
            shown += [("bad", f"{count:,} {reason}") for reason, count in self.dry_run.bad.items()]
        if self.partitions:
            hosts = names_of(partition.host for partition in self.partitions)
            shown += [("tasks", f"{len(self.partitions)} on {hosts}")]
        if self.seconds:
            shown += [("seconds", self.seconds)]
        if self.dry_run is None:  # whose time says nothing about a write's
            shown += [("records per second", round(self.records_per_second))] if self.seconds else []
            shown += [("waiting share", f"{self.waiting_share:.0%}"), ("seconds blocked", self.seconds_blocked)]
            shown += [("seconds flushing", self.seconds_flushing), *([("held by", self.why)] if self.why else [])]
        shown += [(name.replace("_", " "), value) for name, value in self._counted()]
        shown += [("skipped row", str(row)) for row in self.skipped_rows]
        shown += [("diverted to", uri) for uri in self.diverted[:MAX_ROWS_NAMED]]
        shown += [("daemon", str(daemon)) for daemon in self.daemons]
        left = 'style="text-align: left"'
        rows = "".join(f"<tr><th {left}>{name}</th><td {left}>{_shown(value)}</td></tr>" for name, value in shown)
        return f"<table>{rows}</table>"

    def _counted(self) -> Iterator[tuple[str, int]]:
        """Yield what is counted by row and is not 0."""
        return ((name, value) for name in COUNTED if (value := getattr(self, name)))

    def log(self, logger: logging.Logger) -> None:
        """Log one line, as a warning if rows were left out, and one for each daemon that tasks started."""
        level = logging.WARNING if self.skipped else logging.INFO
        rows = ", ".join(map(str, self.skipped_rows))
        rows = f"; skipped (partition:row): {rows}" if rows else ""
        files = f"; {len(self.diverted)} files have them, such as {self.diverted[0]}" if self.diverted else ""
        logger.log(level, "%s%s%s", self, rows, files)
        if self.guard_problem:
            tasks = sum(bool(one.guard_problem) for one in self.partitions)
            who = counted(tasks, "task") if tasks else "the driver"
            logger.warning("replay guard: %s could not use it fully: %s", who, self.guard_problem)
        for daemon in self.daemons:
            logger.info("%s", daemon)


def _rounded(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value


def _shown(value: object) -> str:
    if isinstance(value, (int, float)):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return html.escape(str(value))


def merge(
    batch_id: int | None,
    stream: str | None,
    results: Iterable[PartitionResult],
    *,
    skip_bad_records: bool,
    seconds: float = 0.0,
    dry_run: bool = False,
) -> BatchResult:
    """Return all tasks' results in one.  Raises RecordsFailed, one line, if rows failed that the batch may not skip.

    ``stream`` is None if each row named its own.  ``seconds`` is how long the write took, or 0 if that is unknown.
    """
    partitions = tuple(sorted(results))
    failed = [(p, failure) for p in partitions for failure in p.failed(skip_bad_records)]
    if failed:
        raise _records_failed(stream, failed, skip_bad_records)
    skipped = [(p.partition, failure) for p in partitions for failure in p.failures]
    rows = [
        SkippedRow(partition, row, failure.code, failure.maybe_stored, failure.message)
        for partition, failure in skipped
        for row in failure.rows
    ]
    return BatchResult(
        batch_id,
        records=sum(p.records for p in partitions),
        bytes=sum(p.bytes for p in partitions),
        skipped=sum(failure.records for _, failure in skipped),
        retries=sum(p.retries for p in partitions),
        throttled=sum(p.throttled for p in partitions),
        possible_duplicates=sum(p.possible_duplicates for p in partitions),
        spread_keys=sum(p.spread_keys for p in partitions),
        resent=sum(p.resent for p in partitions),
        seconds_blocked=sum(p.seconds_blocked for p in partitions),
        seconds_flushing=sum(p.seconds_flushing for p in partitions),
        skipped_rows=tuple(rows[:MAX_ROWS_NAMED]),
        partitions=partitions,
        daemons=_daemons(partition.daemon for partition in partitions if partition.daemon is not None),
        diverted=tuple(partition.diverted for partition in partitions if partition.diverted is not None),
        seconds=seconds,
        why=_longest_reason(partitions),
        stream=stream,
        dry_run=merged(itertools.chain(*(p.dry_run for p in partitions)), (failure for _, failure in skipped))
        if dry_run
        else None,
        left_out=sum(p.left_out for p in partitions),
        guard_problem=next((p.guard_problem for p in partitions if p.guard_problem), ""),
        waiting_share=_share(
            sum(p.seconds_blocked + p.seconds_flushing for p in partitions), sum(p.seconds for p in partitions)
        ),
    )


def _share(seconds: float, of_seconds: float) -> float:
    return min(1.0, seconds / of_seconds) if of_seconds else 0.0


def _longest_reason(partitions: Iterable[PartitionResult]) -> str:
    """Return the reason that held all tasks together for the longest, in the words of the task that it held most."""
    seconds: dict[str, float] = {}
    longest: dict[str, PartitionResult] = {}
    for partition in partitions:
        if partition.why:
            kind = kind_of(partition.why)
            seconds[kind] = seconds.get(kind, 0.0) + partition.why_seconds
            longest[kind] = max(longest.get(kind, partition), partition, key=lambda one: one.why_seconds)
    return longest[max(seconds, key=lambda kind: seconds[kind])].why if seconds else ""


def _daemons(seen: Iterable[DaemonFigures]) -> tuple[DaemonFigures, ...]:
    """Return each daemon once, with its latest figures.  One of its tasks has started it, or none."""
    latest: dict[tuple[str, int], DaemonFigures] = {}
    for one in sorted(seen, key=lambda one: (one.host, one.pid, one.cpu_seconds)):
        before = latest.get((one.host, one.pid), one)
        started = before.started_seconds if one.started_seconds is None else one.started_seconds
        latest[one.host, one.pid] = one._replace(started_seconds=started)
    return tuple(latest.values())


def _records_failed(
    stream: str | None, failed: Sequence[tuple[PartitionResult, RowFailure]], skip_bad_records: bool
) -> RecordsFailed:
    """Return an error of one line, with counts by code and the first rows as partition:row."""
    by_kind: dict[tuple[str, str, str, bool], RowFailure] = {}
    named: dict[tuple[str, str, str, bool], list[str]] = {}
    for p, failure in failed:
        kind = failure.code, failure.message, failure.stream, failure.judged
        known = by_kind.get(kind, failure._replace(records=0))
        by_kind[kind] = known._replace(
            records=known.records + failure.records, maybe_stored=known.maybe_stored or failure.maybe_stored
        )
        named.setdefault(kind, []).extend(f"{p.partition}:{row}" for row in failure.rows)
    # In a Tally's order: bad rows before the good rows that were refused with them, then the rarest.
    kinds = sorted(by_kind, key=lambda kind: (kind[0] == Code.FRAME_REFUSED, by_kind[kind].records))
    listed = "; ".join(
        f"{code} {by_kind[kind].records}"
        + (f" of stream {of}" if of and stream is None else "")
        + f" ({message})"
        # It does not help to name good rows that shared a frame with bad ones.
        + (f", rows {', '.join(named[kind][:MAX_ROWS_NAMED])}" if named[kind] and code != Code.FRAME_REFUSED else "")
        for kind in kinds[:MAX_FAILURES_NAMED]
        for code, message, of, _ in [kind]
    )
    bad = sum(failure.records for _, failure in failed if failure.code != Code.FRAME_REFUSED)
    in_same_frames = sum(failure.records for _, failure in failed) - bad
    count = f"{counted(bad, 'record')} failed" + (
        f", {in_same_frames} in the same frames were not taken" if in_same_frames else ""
    )
    first = failed[0][0]
    where = f"host {first.host}, partition {first.partition}" + (f", stream {stream}" if stream else "")
    advice = ""
    if by_kind[kinds[0]].judged:
        advice = f"; {FIX_ROWS}"
    elif skip_bad_records and any(kind[0] in (Code.RECORD_INVALID, Code.RECORD_TOO_LARGE) for kind in kinds):
        advice = f"; {UPGRADE_DAEMON}"
    return RecordsFailed(
        marked(kinds[0][0], f"{where}: {count}; named as partition:row: {listed}{advice}"),
        [by_kind[kind] for kind in kinds],
    )


def marked(code: str, text: str) -> str:
    """Return one line that ends with what to do, and that `error_in` finds in whatever text Spark wraps around it."""
    line = " ".join(text.split()) + (f"; {ADVICE[code]}" if code in ADVICE else "")
    line = re.sub(r"(?<![.])[.](?=; )", "", line)  # what others wrote may be whole sentences
    return f"PRODUCERD[{code}]: " + (line if len(line) <= MAX_LINE_CHARACTERS else line[:MAX_LINE_CHARACTERS] + " ...")


def as_line(error: Error) -> Error:
    """Return the same error, with one marked line as its message."""
    if not MARKER.match(str(error)):
        error.args = (marked(error.code, str(error)),)
    return error


def error_in(text: str) -> ProducerdError | None:
    """Return the error of the task whose line is in this text, or that had no client to run, or None."""
    found = RAISED.search(text)
    if found is None and LACKS_CLIENT.search(text):
        line = marked(Code.CONFIGURATION, f"no client {__version__} on the executors: {SAME_CLIENT}")
        return ProducerdError(line, code=Code.CONFIGURATION)
    if found is None and (lacks := LACKS_ARROW.search(text)):
        text = f"{lacks[1]} is missing on the executors: pip install {lacks[1]} for the Python of PYSPARK_PYTHON"
        return ProducerdError(marked(Code.ARROW_MISSING, text), code=Code.ARROW_MISSING)
    return ERRORS.get(found[1], Refused)(found[0].strip(), code=found[1]) if found else None
