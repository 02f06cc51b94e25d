"""What a batch's tasks report, and what that means for the batch: its result, or one clear line.

A task's report travels as one line of JSON, as its error does behind a marker that Spark buries in its own text.
Rows are named by partition and number within it, never by what they hold.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

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
from spark_client.tally import MAX_ROWS_NAMED

SKIPPED_CODES: Final = frozenset((Code.RECORD_INVALID, Code.RECORD_TOO_LARGE))
"""What ``on_bad_record="skip"`` covers: rows that no attempt could ever store."""
MAX_LINE_CHARACTERS: Final = 2000
MAX_FAILURES_TOLD: Final = 5
MAX_HOSTS_TOLD: Final = 20
MARKER: Final = re.compile(r"PRODUCERD\[([^\]\s]+)\]: [^\n]*")
RAISED: Final = re.compile(rf"(?<=ProducerdError: ){MARKER.pattern}")
"""As Python names what a task raised.  The mark alone may stand in a row that another error quotes."""
ERRORS: Final[Mapping[str, type[ProducerdError]]] = {
    Code.BACKPRESSURE_TIMEOUT: BackpressureTimeout,
    Code.FLUSH_TIMEOUT: FlushTimeout,
    Code.BAD_COLUMN: BadColumn,
    Code.PROTOCOL: ProtocolError,
    Code.INTERNAL: ProducerdError,
    Code.CONFIGURATION: ProducerdError,
    Code.ARROW_MISSING: ProducerdError,
    Code.SPECULATION_ENABLED: ProducerdError,
    **dict.fromkeys(
        (Code.DAEMON_ABSENT, Code.DAEMON_LOST, Code.VERSION_MISMATCH, Code.NOT_AUTHORIZED, Code.DRAINING),
        ConnectionFailed,
    ),
}
"""Which error a task's code becomes in the driver; any other code is the daemon's refusal."""


_REPEAT: Final = "what is not acknowledged has to be sent again, as Spark does when it repeats a batch"
MEND: Final = 'mend these rows, or leave them out with on_bad_record="skip" (data source: onBadRecord)'
Error = TypeVar("Error", bound=ProducerdError)
ADVICE: Final[Mapping[str, str]] = {
    Code.STREAM_NOT_FOUND: "check the stream's name, and the region and account of the daemon",
    Code.ACCESS_DENIED: "allow it to the role that the daemon runs with",
    Code.CREDENTIALS: "the daemon's own are meant, not Spark's: give them to its process",
    Code.KMS: "allow the stream's key to the role that the daemon runs with",
    Code.DAEMON_LOST: f"see the daemon's log on that host; {_REPEAT}",
    Code.DRAINING: f"once it is back, {_REPEAT}",
    Code.BACKPRESSURE_TIMEOUT: "put_timeout_seconds is how long a task waits for that",
    Code.FLUSH_TIMEOUT: "flush_timeout_seconds is how long a task waits for that",
}
"""What to do about a code, where the daemon's message does not say it."""


def names_of(hosts: Iterable[str]) -> str:
    """The hosts in order, each once, and not all of them where they are many."""
    ordered = sorted(set(hosts))
    return ", ".join(ordered[:MAX_HOSTS_TOLD]) + (", ..." if len(ordered) > MAX_HOSTS_TOLD else "")


class SkippedRow(NamedTuple):
    """A row that ``on_bad_record="skip"`` left out, by its number in its partition."""

    partition: int
    row: int
    code: str


class PartitionResult(NamedTuple):
    """What one task sent.

    ``records`` are all rows, of which ``failures`` counts those that are not STORED, skipped ones too; ``bytes`` are
    those of stored rows.
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

    def failed(self, skip_bad_records: bool) -> list[RowFailure]:
        """The failures that fail the batch."""
        return [failure for failure in self.failures if not (skip_bad_records and failure.code in SKIPPED_CODES)]

    def to_line(self) -> str:
        return json.dumps(self)

    @staticmethod
    def from_line(line: str) -> PartitionResult:
        *plain, failures = json.loads(line)
        return PartitionResult._make([*plain, tuple(map(_failure, failures))])


def _failure(told: list[Any]) -> RowFailure:
    failure = RowFailure._make(told)
    return failure._replace(rows=tuple(failure.rows))


class BatchResult(NamedTuple):
    """A batch that is stored whole, skipped rows aside.

    ``records`` are all of the batch, of which ``skipped`` were left out; ``skipped_rows`` names the first 20 of these.
    ``bytes`` are the keys, data and hash keys of the records that were stored.  ``retries`` and ``throttled`` count by
    row, ``spread_keys`` are null or empty keys, ``resent`` went to a second daemon as the first one was lost or gave
    them back.  All tasks together waited ``seconds_blocked`` for room, and ``seconds_flushing`` for their last
    acknowledgements.
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

    def __str__(self) -> str:
        """What a log line and a notebook show."""
        batch = "" if self.batch_id is None else f"batch {self.batch_id}: "
        told = ("skipped", "retries", "throttled", "possible_duplicates", "spread_keys", "resent")
        counts = "".join(f", {value} {name.replace('_', ' ')}" for name in told if (value := getattr(self, name)))
        tasks = f"{len(self.partitions)} task{'' if len(self.partitions) == 1 else 's'}"
        waited = f"{self.seconds_blocked:.1f} s blocked, {self.seconds_flushing:.1f} s flushing"
        return f"{batch}{self.records} records, {self.bytes} bytes in {tasks}, {waited}{counts}"

    def log(self, logger: logging.Logger) -> None:
        """One line; a warning where rows were left out."""
        level = logging.WARNING if self.skipped else logging.INFO
        rows = ", ".join(f"{row.partition}:{row.row} {row.code}" for row in self.skipped_rows)
        logger.log(level, "%s%s", self, f"; skipped (partition:row): {rows}" if rows else "")


def merge(
    batch_id: int | None, stream: str | None, results: Iterable[PartitionResult], *, skip_bad_records: bool
) -> BatchResult:
    """All tasks' results in one; raises RecordsFailed, one line, where rows failed that the batch may not skip.

    ``stream`` is None where each row named its own.
    """
    partitions = tuple(sorted(results))
    failed = [(p, failure) for p in partitions for failure in p.failed(skip_bad_records)]
    if failed:
        raise _records_failed(stream, failed)
    skipped = [(p.partition, failure) for p in partitions for failure in p.failures]
    rows = [SkippedRow(partition, row, failure.code) for partition, failure in skipped for row in failure.rows]
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
    )


def _records_failed(stream: str | None, failed: Sequence[tuple[PartitionResult, RowFailure]]) -> RecordsFailed:
    """One line: counts by code, and the first rows as partition:row."""
    merged: dict[tuple[str, str, str], RowFailure] = {}
    named: dict[tuple[str, str, str], list[str]] = {}
    for p, failure in failed:
        kind = failure.code, failure.message, failure.stream
        known = merged.get(kind, failure._replace(records=0))
        merged[kind] = known._replace(
            records=known.records + failure.records, maybe_stored=known.maybe_stored or failure.maybe_stored
        )
        named.setdefault(kind, []).extend(f"{p.partition}:{row}" for row in failure.rows)
    # As in a Tally: bad rows before the good ones that they took with them, then the rarest.
    kinds = sorted(merged, key=lambda kind: (kind[0] == Code.FRAME_REFUSED, merged[kind].records))
    told = "; ".join(
        f"{code} {merged[kind].records}"
        + (f" of stream {of}" if of and stream is None else "")
        + f" ({message})"
        # Which good rows shared a frame with bad ones helps nobody.
        + (f", rows {', '.join(named[kind][:MAX_ROWS_NAMED])}" if code != Code.FRAME_REFUSED else "")
        for kind in kinds[:MAX_FAILURES_TOLD]
        for code, message, of in [kind]
    )
    bad = sum(failure.records for _, failure in failed if failure.code != Code.FRAME_REFUSED)
    beside = sum(failure.records for _, failure in failed) - bad
    count = f"{bad} record{'' if bad == 1 else 's'} failed" + (
        f", {beside} beside them were not taken" if beside else ""
    )
    first = failed[0][0]
    where = f"host {first.host}, partition {first.partition}" + (f", stream {stream}" if stream else "")
    mend = f"; {MEND}" if kinds[0][0] in SKIPPED_CODES else ""
    return RecordsFailed(
        marked(kinds[0][0], f"{where}: {count}; named as partition:row: {told}{mend}"),
        [merged[kind] for kind in kinds],
    )


def marked(code: str, text: str) -> str:
    """One line that `error_in` finds again in whatever Spark wraps around it; it ends with what to do."""
    line = " ".join(text.split()) + (f"; {ADVICE[code]}" if code in ADVICE else "")
    return f"PRODUCERD[{code}]: " + (line if len(line) <= MAX_LINE_CHARACTERS else line[:MAX_LINE_CHARACTERS] + " ...")


def as_line(error: Error) -> Error:
    """The same error, its message one marked line."""
    if not MARKER.match(str(error)):
        error.args = (marked(error.code, str(error)),)
    return error


def error_in(text: str) -> ProducerdError | None:
    """The error of the task whose line is in this text."""
    found = RAISED.search(text)
    return ERRORS.get(found[1], Refused)(found[0].strip(), code=found[1]) if found else None
