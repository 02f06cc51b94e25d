"""Spark 4 finds the data source of ``format("producerd")`` here: it looks for ``DefaultSource`` in ``pyspark_*``."""

from spark_client.datasource import ProducerdDataSource as DefaultSource

__all__ = ["DefaultSource"]
