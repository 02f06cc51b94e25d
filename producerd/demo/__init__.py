"""``producerd demo``: real flights from Spark through a real daemon into an embedded Kinesis, then compared.

What it says holds because others say so: the input files say what is expected, boto3 and aws-kinesis-agg say what the
stream holds, and the daemon's own GET /metrics has to agree on the queue.  Whatever happens, nothing is left running
and nothing is left on disk.

``flights`` has the input, ``embedded_kinesis`` (or, at an endpoint that is there already, ``stream``), ``spark_job``
and ``readback`` are processes of their own,
``children`` starts and ends them, ``progress`` shows what /metrics says, and ``scenario`` is the whole walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Aggregation = Literal["kpl", "none"]
Tamper = Literal["drop", "duplicate", "corrupt"]

ALL_ROWS: Final = 336_776
LEAST_ROWS: Final = 100
"""Fewer make no four micro-batches that could fill a queue."""
ROWS_UNAGGREGATED: Final = 30_000
"""One record per row, the embedded Kinesis needs 144 s for the first 180,000, and more for each later one."""
BATCHES: Final = 4
QUEUE_LIMIT: Final = 5_000


@dataclass(frozen=True)  # no slots: the command loads it on Python 3.9, too, to say which one it needs
class Options:
    """What to show.  ``tamper`` is for tests: it spoils what was read back."""

    records: int
    shards: int
    queue_limit: int
    aggregation: Aggregation
    endpoint_url: str | None = None
    """Of a Kinesis that is there already; None: an embedded one."""
    tamper: Tamper | None = None

    @classmethod
    def chosen(
        cls,
        records: int | None = None,
        shards: int = 4,
        queue_limit: int | None = None,
        aggregation: Aggregation = "kpl",
        endpoint_url: str | None = None,
        tamper: Tamper | None = None,
    ) -> Options:
        """Fills in what depends on something else.  Raises ValueError where nothing could be shown."""
        if records is None:
            records = ALL_ROWS if aggregation == "kpl" else ROWS_UNAGGREGATED
        if queue_limit is None:
            queue_limit = min(QUEUE_LIMIT, max(1, records // BATCHES // 2))
        if queue_limit >= records // BATCHES:
            raise ValueError(
                f"--queue-limit {queue_limit:,}: allowed: less than {records // BATCHES:,}, a quarter of --records, "
                "which are sent in four micro-batches: with room for a whole one no caller would ever wait"
            )
        return cls(records, shards, queue_limit, aggregation, endpoint_url, tamper)


def run(options: Options) -> int:
    """Exit code 0 only if every record arrived and every check held."""
    from producerd.demo import scenario  # not for the command's --help

    return scenario.run(options)
