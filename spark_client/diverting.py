"""Rows that can never be stored go to a Parquet file of their task, so that a batch can succeed without them.

A task gathers such rows in a file without a name, on its own disk, and copies it to its place when all other rows are
stored.  A file is therefore there whole or not at all.  Its name is the same when Spark repeats the task or the batch,
and the repeat replaces it.  No other write has that name, or it would replace the only copy of rows.

The place is a URI: ``file:///folder``, or ``s3://bucket/prefix`` with the parameters of Arrow's own URIs.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import mmap
import os
import re
import tempfile
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from producerd.errors import Outcome
from producerd.wire.columns import Columns
from producerd.wire.messages import RowCode
from spark_client.calls import Calls
from spark_client.tally import Tally

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs

ROW_GROUP_BYTES: Final = 8 * 1024 * 1024
"""How many bytes of bad rows a task holds at most, unless one row is larger."""
COLUMNS: Final = {
    "partition": "int32",
    "row": "int64",
    "code": "string",
    "message": "string",
    "maybe_stored": "bool_",
    "stream": "string",
    "partition_key": "binary",
    "explicit_hash_key": "binary",
    "data": "binary",
}
"""The columns of a file with their Arrow types.  The last four have the names that a writer takes by default."""
S3_SCHEMES: Final = ("s3", "s3a")
S3_PARAMETERS: Final = frozenset(("region", "endpoint_override", "scheme"))
PLACES: Final = (
    "give s3://BUCKET/PREFIX, where ?region=, endpoint_override= and scheme= may follow and keys of AWS may not, or "
    "file:///FOLDER"
)
"""What a place can be."""
PROCESS: Final = uuid.uuid4().hex[:8]
"""With the process's id, what tells its writes from all others, where no query has an id that a repeat shares."""


_FAILED_UPLOADS: Final[list[Any]] = []


class Place(NamedTuple):
    """Where the files of diverted rows are: in a folder if ``bucket`` is empty, otherwise under a prefix in S3."""

    bucket: str
    prefix: str
    parameters: Mapping[str, str]

    @staticmethod
    def of(uri: str) -> Place:
        """Return the place that a URI names.  Raises ValueError for any other text."""
        parts = urlsplit(uri)
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.fragment:  # a # must be written %23
            raise ValueError(PLACES)
        if parts.scheme in S3_SCHEMES and re.fullmatch("[a-z0-9.-]+", parts.netloc) and {*parameters} <= S3_PARAMETERS:
            return Place(parts.netloc, unquote(parts.path).strip("/"), parameters)
        if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/") and not parameters:
            return Place("", unquote(parts.path).rstrip("/"), {})
        raise ValueError(PLACES)

    def uri(self, name: str) -> str:
        """Return the URI of a file."""
        place = "/".join(part for part in (self.bucket, self.prefix) if part)
        return f"s3://{place}/{name}" if self.bucket else f"file://{place}/{name}"

    def copy(self, source: int, name: str) -> None:
        """Copy a file, by its descriptor, to a name at this place.  Raises OSError if that is not possible."""
        size = os.fstat(source).st_size
        with mmap.mmap(source, size, access=mmap.ACCESS_READ) as content:
            if self.bucket:
                key = f"{self.prefix}/{name}" if self.prefix else name
                # In the background it would copy the whole file into memory.
                _upload(self.s3(background_writes=False), f"{self.bucket}/{key}", content)
            else:
                os.makedirs(self.prefix or "/", exist_ok=True)
                _write(f"{self.prefix}/{name}", content)

    def s3(self, **options: Any) -> pyarrow.fs.S3FileSystem:
        """Return Arrow's file system of the bucket, with these options of Arrow's."""
        from pyarrow import fs

        region = self.parameters.get("region")
        if not region and "endpoint_override" not in self.parameters:
            with contextlib.suppress(OSError):  # without an answer, AWS's SDK looks for a region as usual
                region = fs.resolve_s3_region(self.bucket)
        return fs.S3FileSystem(**{**self.parameters, "region": region}, **options)


def _upload(files: pyarrow.fs.S3FileSystem, path: str, content: mmap.mmap) -> None:
    target = files.open_output_stream(path)
    try:
        target.write(content)
    except BaseException:
        # To close it, or to let it go, would complete the upload with the parts that it has.
        _FAILED_UPLOADS.append(target)
        raise
    target.close()


def _write(path: str, content: mmap.mmap) -> None:
    folder, name = os.path.split(path)
    part = f"{folder}/.{name}.{uuid.uuid4().hex}"  # readers of a folder pass over such a name
    try:
        with open(part, "wb") as target:
            target.write(content)
            target.flush()
            os.fsync(target.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


class DivertedRows:
    """The rows of a task that can never be stored, until it ends.

    It holds `ROW_GROUP_BYTES` of them and has the others on disk.  Nothing raises before `write`.
    """

    def __init__(self, to: str, name: str, partition: int) -> None:
        self.records = 0
        self._place = Place.of(to)
        self._name = f"{name}-{partition:05d}.parquet"
        self._partition = partition
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._file: Any = None
        self._writer: Any = None
        self._error: Exception | None = None

    @property
    def uri(self) -> str:
        return self._place.uri(self._name)

    def keep(self, row: int, why: RowCode, stream: str, columns: Columns, place: int) -> None:
        """Keep the row at a place in a frame's columns; ``row`` is its number in the partition."""
        key, data, hash_key = columns.row(place)
        size = sum(len(value) for value in (why.message, stream, key, data or b"", hash_key or b""))
        if self._rows and self._bytes + size > ROW_GROUP_BYTES:
            self._write_group()
        self.records += 1
        self._bytes += size
        maybe_stored = why.maybe_stored or why.outcome == Outcome.UNKNOWN
        self._rows.append((self._partition, row, why.code, why.message, maybe_stored, stream, key, hash_key, data))

    def write(self) -> None:
        """Write the file to its place.  Raises OSError if that, or something before, was not possible."""
        self._write_group()
        try:
            if self._error is None:
                self._writer.close()
                self._file.flush()
                self._place.copy(self._file.fileno(), self._name)
        except Exception as error:  # ImportError, too, where a PyArrow was built without S3
            self._error = error
        finally:
            if self._file is not None:
                self._file.close()
        if self._error is not None:
            raise OSError(f"{type(self._error).__name__}: {self._error}")

    def _write_group(self) -> None:
        """Move what is held to the disk.  After an error, drop it: the batch fails anyway."""
        try:
            if self._error is None:
                table = self._table()
                if self._writer is None:
                    from pyarrow import parquet

                    scratch = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]  # /tmp may be small
                    self._file = tempfile.TemporaryFile(dir=scratch or None)  # noqa: SIM115 - `write` closes it
                    self._writer = parquet.ParquetWriter(self._file, table.schema)
                self._writer.write_table(table, row_group_size=len(self._rows))
        except Exception as error:
            self._error = error
        self._rows, self._bytes = [], 0

    def _table(self) -> pa.Table:
        import pyarrow as pa

        types = [getattr(pa, kind)() for kind in COLUMNS.values()]
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*self._rows), types)]
        return pa.Table.from_arrays(arrays, names=[*COLUMNS])


class DivertingTally(Tally):
    """A tally that keeps the rows that can never be stored."""

    def __init__(self, diverted: DivertedRows) -> None:
        super().__init__()
        self._diverted = diverted

    def _fail(self, row: int, why: RowCode, stream: str, columns: Columns, place: int, named: str) -> None:
        super()._fail(row, why, stream, columns, place, named)
        if why.judged:
            self._diverted.keep(row, why, stream, columns, place)


_CALLS: Final = Calls()
_OTHERS: Final = itertools.count()


def name_of_call(
    query_id: str | None, run_id: str | None, batch_id: int | None, application_id: str | None, write: str
) -> str:
    """Return what the names of a write's files begin with.

    In a query that is the query, the batch, the write by its stream and columns (``write`` is any text that differs if
    these do), and how often the batch has made this write before.  A repeat of the batch has the same names, because it
    is made in another run.  Where any of this is unknown, repeats cannot be recognised, and each write has a name of
    its own.
    """
    if query_id and batch_id is not None and is_run(run_id):
        digest = hashlib.sha256(write.encode()).hexdigest()[:8]
        ordinal, _ = _CALLS.take(f"{query_id}-{digest}", run_id, batch_id)
        _CALLS.end(f"{query_id}-{digest}", run_id, batch_id, ordinal, failed=False, sent=True)
        return f"{query_id}-{batch_id}-{digest}-{ordinal}"
    return f"{application_id or 'python'}-{PROCESS}-{os.getpid()}-{next(_OTHERS)}"


def is_run(job_group: str | None) -> bool:
    """Whether Spark has set this job group: a query's is the id of its run.  A user may set another one."""
    try:
        return str(uuid.UUID(job_group)) == job_group
    except (TypeError, ValueError):
        return False
