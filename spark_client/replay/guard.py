"""One task's part of the replay guard: it leaves out the chunks that are stored, and records those that become stored.

A chunk is held back only if there are records of its place.  Every other chunk is sent at once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from producerd.wire.messages import Hello, Opened
from spark_client.batches import Batch, BatchPart
from spark_client.replay.chunks import ChunkPart, Cutter, Digest
from spark_client.replay.recorder import Recorder
from spark_client.replay.records import BadFile, Known, StoredChunk, Where, from_file
from spark_client.replay.store import MOST_SECONDS, Store, within
from spark_client.tally import PartTally, Tally

if TYPE_CHECKING:
    from spark_client.connection import Connection

MOST_HELD_BYTES: Final = 8 << 20
"""How much a task holds back at most, by the charge of its rows and what Arrow needs for each part of a chunk."""
PART_BYTES: Final = 8192
BATCH: Final = re.compile(r"batch=(\d+)")
"""How the folder of a numbered batch is called, in the folder of its query or key."""
CHANGED: Final = (
    "there are records of later batches than {}: the checkpoint was changed, so all records of this query are ignored "
    "and removed"
)
NOT_SHARED: Final = "a node does not see the driver's folder: give one that all nodes share, or s3://"
UNKNOWN: Final = (
    "the daemon does not say where stream {} is: it needs kinesis:DescribeStreamSummary, and a release that is as new "
    "as the client's"
)


class GuardPlan(NamedTuple):
    """What a task must know, in plain values, because it travels to the workers.

    ``folder`` is of one call, ``NAME/batch=NUMBER/ORDINAL``, and has one for each partition.  ``found`` are the
    partitions of which there were files at ``looked_at``, since 1970, or None if the driver has not looked.
    ``follows_sent``: an earlier call of the batch has sent rows, which rows of the same keys must follow.
    """

    uri: str
    folder: str
    mark: str
    token: str
    interval_seconds: float
    found: tuple[int, ...] | None = None
    looked_at: float = 0.0
    follows_sent: bool = False


def batches_of(store: Store, name: str) -> list[int]:
    """Return the numbers of the batches of which there may be records."""
    return [int(match[1]) for folder in store.folders(name) if (match := BATCH.fullmatch(folder))]


def _check(plan: GuardPlan) -> str:
    """Return why a task may neither leave out nor record chunks, or ""."""
    store = Store(plan.uri)
    if not store.has(plan.mark):
        return NOT_SHARED
    name, number = plan.folder.split("/")[:2]
    match = BATCH.fullmatch(number)
    if plan.found is None and match and max(batches_of(store, name), default=0) > int(match[1]):
        return CHANGED.format(match[1])
    return ""


def _read(plan: GuardPlan, folder: str, records: list[StoredChunk]) -> str:
    """Add the records of a folder, file by file, and return what is wrong with its files, or ""."""
    store, ignored, why = Store(plan.uri), 0, ""
    for path in store.files(folder):
        try:
            records += from_file(store.read(path))
        except BadFile as bad:
            ignored, why = ignored + 1, f"{path}: {bad}"
    return f"{ignored} files of records are ignored, such as {why}" if ignored else ""


class _Chunk:
    """The chunk of a stream that is being put.  ``held`` has its rows while they are held back.

    ``record`` is called with its record when all of its rows are put and STORED.
    """

    def __init__(
        self, stream: str, number: int, whole: Tally, record: Callable[[StoredChunk], None], *, holds: bool
    ) -> None:
        self.stream = stream
        self.number = number
        self.rows = 0
        self.began_seconds = time.time()
        self.digest = Digest(stream)
        self.tally = PartTally(whole, self._look)
        self.held: list[tuple[Batch, Sequence[int]]] | None = [] if holds else None
        self.held_bytes = 0
        self._record = record
        self._to_record: StoredChunk | None = None

    def end(self, to_record: StoredChunk) -> None:
        """Take the record of the chunk, of which the last row was put."""
        self._to_record = to_record
        self._look()

    def _look(self) -> None:
        if self._to_record is not None and self.tally.stored == self.rows:
            self._record(self._to_record)


class Places:
    """Where each stream is, or None, and whether it keeps the order of its keys.  ``problem`` says what is unknown.

    Give `opened` to the `Connection`, which calls it with each OPENED.
    """

    def __init__(self) -> None:
        self.where: dict[str, Where | None] = {}
        self.per_key: dict[str, bool] = {}
        self.problem = ""

    def opened(self, stream: str, opened: Opened) -> None:
        """Note where a stream is.  If a later daemon says otherwise, nothing more of it is recorded or left out."""
        where = Where(opened.endpoint_host, opened.stream_arn, opened.created_milliseconds)
        known = where if opened.stream_arn and opened.created_milliseconds else None
        if known is None:
            self.problem = UNKNOWN.format(stream)
        self.where[stream] = known if self.where.get(stream, known) == known else None
        self.per_key[stream] = self.per_key.get(stream, False) or bool(opened.per_key)


class TaskGuard:
    """Puts a task's batches by way of a connection, without the chunks that are stored."""

    def __init__(
        self, plan: GuardPlan, places: Places, connection: Connection, task: Hello, put_timeout_seconds: float | None
    ) -> None:
        self._places = places
        self._connection = connection
        self._put_timeout_seconds = put_timeout_seconds
        self._cutters: dict[str, Cutter] = {}
        self._chunks: dict[str, _Chunk] = {}
        self._held_bytes = 0
        self._is_on = False
        partition, folder = task.partition, f"{plan.folder}/{task.partition}"
        self._recorder = Recorder(plan.uri, folder, plan.token, plan.interval_seconds)
        self._problem = ""
        records: list[StoredChunk] = []
        looks_late = time.time() - plan.looked_at > plan.interval_seconds  # an earlier attempt may have written some
        try:
            if plan.mark or plan.found is None:
                self._problem = within(lambda: _check(plan), MOST_SECONDS / 3)
            self._is_on = not self._problem
            if self._is_on and (plan.found is None or partition in plan.found or task.attempt > 0 or looks_late):
                self._problem = within(lambda: _read(plan, folder, records), MOST_SECONDS * 2 / 3)
        except Exception as error:  # what was read until then counts
            self._problem = f"records cannot be read: {type(error).__name__}: {error}"
        self._known = Known([*records], places.per_key, follows_sent=plan.follows_sent)

    @property
    def problem(self) -> str:
        """What keeps chunks from being recorded or left out, or ""."""
        return self._recorder.problem or self._problem or self._places.problem

    def put_batch(self, stream: str, batch: Batch, timeout_seconds: float | None, *, rows: Sequence[int]) -> None:
        """Put a batch as `Connection.put_batch` does; ``rows`` are the numbers of its rows."""
        self._connection.open(stream, timeout_seconds)
        if stream not in self._cutters:
            if not self._is_on or self._places.where[stream] is None:
                self._connection.put_batch(stream, batch, timeout_seconds, rows=rows)
                return
            self._cutters[stream] = Cutter()
        for part in self._cutters[stream].cut(batch):
            self._put(stream, batch, part, rows[part.start : part.stop])

    def end(self) -> None:
        """Send or leave out what is held back, as no more rows come."""
        for chunk in self._chunks.values():
            self._end(chunk)

    def close(self) -> None:
        """Write the last records, for which the task waits a little."""
        self._recorder.close()

    def _put(self, stream: str, batch: Batch, part: ChunkPart, rows: Sequence[int]) -> None:
        chunk = self._chunks.get(stream)
        if chunk is None or chunk.number != part.number:
            if chunk is not None:
                self._end(chunk)
            holds = self._known.may_match(stream, part.number)
            chunk = _Chunk(stream, part.number, self._connection.tally, self._record, holds=holds)
            self._chunks[stream] = chunk
            if not holds:
                self._known.sends(stream)
        columns = batch.columns(part.start, part.stop)
        chunk.digest.add(columns)
        chunk.rows += len(rows)
        charge_bytes = columns.layout.charge_bytes + PART_BYTES
        if self._held_bytes + charge_bytes > MOST_HELD_BYTES:
            self._release(chunk)
        if chunk.held is None:
            self._send(chunk, BatchPart(batch, part.start, len(rows)), rows)
        else:
            chunk.held.append((Batch.copied(columns), rows))
            chunk.held_bytes += charge_bytes
            self._held_bytes += charge_bytes

    def _end(self, chunk: _Chunk) -> None:
        """Leave a whole chunk out, or send what is held of it.  Then it is recorded when its rows are STORED."""
        where, digest = self._places.where[chunk.stream], chunk.digest.value()
        if chunk.held is not None and self._known.has(chunk.stream, chunk.number, digest, where, time.time()):
            self._held_bytes -= chunk.held_bytes
            self._connection.tally.add_left_out(chunk.rows)
            self._connection.note_left_out(chunk.stream, chunk.rows)
            return
        self._release(chunk)
        if where is not None:
            chunk.end(StoredChunk(chunk.stream, chunk.number, digest, where, chunk.began_seconds))

    def _record(self, record: StoredChunk) -> None:
        """Record a chunk, unless rows of it may have gone elsewhere."""
        if self._places.where[record.stream] == record.where:
            self._recorder.add(record)

    def _release(self, chunk: _Chunk) -> None:
        held, chunk.held = chunk.held or [], None
        self._known.sends(chunk.stream)
        for batch, rows in held:
            self._send(chunk, batch, rows)
        self._held_bytes -= chunk.held_bytes
        chunk.held_bytes = 0

    def _send(self, chunk: _Chunk, batch: Batch | BatchPart, rows: Sequence[int]) -> None:
        self._connection.put_batch(chunk.stream, batch, self._put_timeout_seconds, rows=rows, tally=chunk.tally)
