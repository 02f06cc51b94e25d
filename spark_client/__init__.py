"""producerd's Spark client: records from Spark into Kinesis, through the daemon of each executor's node.

Importing this needs only the standard library; pyspark, pyarrow and pandas are imported where a DataFrame is at hand.
"""

from producerd import __version__
from producerd.errors import (
    BackpressureTimeout,
    BadColumn,
    Code,
    ConfigurationError,
    ConnectionFailed,
    FlushTimeout,
    ProducerdError,
    ProtocolError,
    RecordsFailed,
    Refused,
    RowFailure,
)
from spark_client.checks import check
from spark_client.client import KinesisClient, Record
from spark_client.results import BatchResult, PartitionResult, SkippedRow
from spark_client.writer import KinesisBatchWriter, write_batch

__all__ = [
    "BackpressureTimeout",
    "BadColumn",
    "BatchResult",
    "Code",
    "ConfigurationError",
    "ConnectionFailed",
    "FlushTimeout",
    "KinesisBatchWriter",
    "KinesisClient",
    "PartitionResult",
    "ProducerdError",
    "ProtocolError",
    "Record",
    "RecordsFailed",
    "Refused",
    "RowFailure",
    "SkippedRow",
    "__version__",
    "check",
    "write_batch",
]
