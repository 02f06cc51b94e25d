"""``producerd demo``: send real flights from Spark through a real daemon into an embedded Kinesis, and compare.

The comparison uses independent sources.  The input files say which records are expected, boto3 and aws-kinesis-agg read
the stream, and the daemon's GET /metrics must agree about the queue.  The demo leaves no process and no file behind.

``flights`` has the input.  ``embedded_kinesis``, ``spark_job`` and ``readback`` are processes of their own; ``stream``
replaces the first one if the user names an endpoint.  ``children`` starts and ends them, ``progress`` shows the
metrics, ``ports`` has free ports, and ``scenario`` runs the demo from start to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Aggregation = Literal["kpl", "none"]
Tamper = Literal["drop", "duplicate", "corrupt"]

ALL_ROWS: Final = 336_776
LEAST_ROWS: Final = 100
"""Fewest rows that make four micro-batches that fill a queue."""
ROWS_UNAGGREGATED: Final = 30_000
"""Default rows without aggregation.  The embedded Kinesis then needs 144 s for 180,000 rows, and ever more per row."""
BATCHES: Final = 4
QUEUE_LIMIT: Final = 5_000


@dataclass(frozen=True)  # without slots: Python 3.9 loads this module before the command refuses to run on it
class DemoOptions:
    """The options of the demo.  ``tamper`` is for tests: it changes the records that were read back."""

    records: int
    shards: int
    queue_limit: int
    aggregation: Aggregation
    endpoint_url: str | None = None
    """Address of an existing Kinesis, or None for an embedded one."""
    tamper: Tamper | None = None
    tasks_start_daemon: bool = False
    """Whether Spark's tasks start the daemon, as where it cannot be installed."""

    @classmethod
    def chosen(
        cls,
        records: int | None = None,
        shards: int = 4,
        queue_limit: int | None = None,
        aggregation: Aggregation = "kpl",
        endpoint_url: str | None = None,
        tamper: Tamper | None = None,
        tasks_start_daemon: bool = False,
    ) -> DemoOptions:
        """Return options with their defaults.  Raise ValueError if the queue could never be full."""
        if records is None:
            records = ALL_ROWS if aggregation == "kpl" else ROWS_UNAGGREGATED
        if queue_limit is None:
            queue_limit = min(QUEUE_LIMIT, max(1, records // BATCHES // 2))
        if queue_limit >= records // BATCHES:
            raise ValueError(
                f"--queue-limit {queue_limit:,}: allowed: less than {records // BATCHES:,}, a quarter of --records, "
                "which are sent in four micro-batches: with room for a whole one no caller would ever wait"
            )
        return cls(records, shards, queue_limit, aggregation, endpoint_url, tamper, tasks_start_daemon)


def run(options: DemoOptions) -> int:
    """Run the demo and return its exit code: 0 only if every record arrived and every check passed."""
    from producerd.demo import scenario  # here, because the command's --help does not need it

    return scenario.run(options)
