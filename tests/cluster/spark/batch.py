"""Batches, each row a record with its number: ``batch.py STREAM NAME ROWS BATCHES [PAUSE_SECONDS [GREEDY_MIB]]``.

Each line ``ACKNOWLEDGED NAME N`` says that the first N records are stored.  The first attempt at the first task of the
second batch takes GREEDY_MIB of memory.
"""

import sys
import time
from collections.abc import Iterator

from pandas import DataFrame
from pyspark import TaskContext
from pyspark.sql import SparkSession

from spark_client import check, write_batch

stream, name = sys.argv[1:3]
rows, batches = map(int, sys.argv[3:5])
pause_seconds, greedy_mib = (*map(int, sys.argv[5:7]), 0, 0)[:2]
spark = SparkSession.builder.getOrCreate()
print(check(spark, stream=stream))


def take_memory(tables: Iterator[DataFrame]) -> Iterator[DataFrame]:
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        taken = []
        for _ in range(greedy_mib):
            taken.append(b"x" * 2**20)
            time.sleep(0.005)
    yield from tables


for batch in range(batches):
    ids = spark.range(batch * rows, (batch + 1) * rows, 1, 8)
    if greedy_mib and batch == 1:
        ids = ids.mapInPandas(take_memory, "id long")
    df = ids.selectExpr("cast(id % 1000 as string) as k", f"concat('{name}:', id, ':', repeat('x', 200)) as d")
    print(write_batch(df, stream=stream, partition_key="k", data="d", connect_timeout_seconds=120, progress=False))
    print(f"ACKNOWLEDGED {name} {(batch + 1) * rows}")
    time.sleep(pause_seconds)
spark.stop()
