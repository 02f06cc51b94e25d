"""What must come out is known from the files alone, to the byte."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from producerd.demo import ALL_ROWS, flights
from producerd.demo.spark_job import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_files_together_hold_each_of_the_first_rows_once(tmp_path: Path) -> None:
    flights.write_files(tmp_path, 1_001, 4)
    files = sorted(tmp_path.iterdir())
    lines = [path.read_text().splitlines() for path in files]
    assert [len(each) - 1 for each in lines] == [250, 250, 250, 251]
    assert {each[0] for each in lines} == {",".join(flights.COLUMNS)}
    assert len({line for each in lines for line in each[1:]}) == 1_001


@pytest.mark.slow
def test_all_flights_are_there_and_some_have_no_tail_number(tmp_path: Path) -> None:
    flights.write_files(tmp_path, ALL_ROWS, 2)
    lines = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()[1:]]
    keys = Counter(line.split(",")[flights.COLUMNS.index(flights.KEY)] for line in lines)
    assert len(lines) == len(set(lines)) == 336_776
    assert (keys[flights.MISSING], len(keys)) == (2_512, 4_044)


def test_an_expected_record_is_the_row_without_its_nulls(tmp_path: Path) -> None:
    header, values = (
        ",".join(flights.COLUMNS),
        "2013,1,2,NA,515,-3,,819,NA,UA,15,NA,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    )
    (tmp_path / "x.csv").write_text(f"{header}\n{values}\n{values}\n")
    (((key, data), count),) = flights.expected(tmp_path).items()
    assert (key, count) == ("-", 2)
    assert data.startswith(b'{"year":2013,"month":1,"day":2,"sched_dep_time":515,"dep_delay":-3,"sched_arr_time":819,')


@pytest.mark.spark
@pytest.mark.slow
def test_spark_writes_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    flights.write_files(tmp_path, 10_000, 3)
    rows = spark.read.csv(str(tmp_path), schema=SCHEMA, header=True, nullValue=flights.MISSING)
    by_spark = Counter(
        (row[0] if row[0] is not None else flights.SPREAD_KEY, row[1].encode())
        for row in rows.select(flights.KEY, f.to_json(f.struct("*"))).collect()
    )
    assert by_spark == flights.expected(tmp_path)
