"""producerd's Spark client: it writes records from Spark to Kinesis, through the daemon of each executor's node.

Importing this package needs only the standard library.  It imports pyspark, pyarrow and pandas when they are used.
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
from spark_client.dry_run import DryRunResult, Packed, StreamDryRun
from spark_client.gathering import PutFuture
from spark_client.results import BatchResult, PartitionResult, SkippedRow
from spark_client.writer import KinesisBatchWriter, write_batch

__all__ = [
    "BackpressureTimeout",
    "BadColumn",
    "BatchResult",
    "Code",
    "ConfigurationError",
    "ConnectionFailed",
    "DryRunResult",
    "FlushTimeout",
    "KinesisBatchWriter",
    "KinesisClient",
    "Packed",
    "PartitionResult",
    "ProducerdError",
    "ProtocolError",
    "PutFuture",
    "Record",
    "RecordsFailed",
    "Refused",
    "RowFailure",
    "SkippedRow",
    "StreamDryRun",
    "__version__",
    "check",
    "write_batch",
]
