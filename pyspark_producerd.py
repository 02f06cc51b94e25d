"""Where Spark 4 looks for the data source of ``format("producerd")``: in modules named ``pyspark_*``, by this name."""

from spark_client.datasource import ProducerdDataSource as DefaultSource

__all__ = ["DefaultSource"]
