"""A Spark job that writes to Kinesis through the producerd of its node: ``python job.py [STREAM] [ROWS]``.

It stands for yours: 1,000 rows arrive each second, each micro-batch goes to `foreachBatch`, and the batch ends when
Kinesis has stored its rows.  The job ends after ROWS (default: 60,000).
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from spark_client import KinesisBatchWriter


def main(stream: str = "flights", rows: str = "60000") -> None:
    # Spark keeps what it says of the last 100 micro-batches, unless it is asked to keep more.
    spark = SparkSession.builder.config("spark.sql.streaming.numRecentProgressUpdates", 100_000).getOrCreate()
    arriving = spark.readStream.format("rate").option("rowsPerSecond", 1_000).load()
    records = arriving.selectExpr("CAST(value % 100 AS STRING) AS partition_key", "to_json(struct(*)) AS data")
    query = records.writeStream.foreachBatch(KinesisBatchWriter(stream=stream, data="data")).start()
    written = 0
    while written < int(rows) and not query.awaitTermination(1):
        written = sum(progress["numInputRows"] for progress in query.recentProgress)
    query.stop()
    print(f"{written:,} rows are in {stream}")


if __name__ == "__main__":
    main(*sys.argv[1:])
