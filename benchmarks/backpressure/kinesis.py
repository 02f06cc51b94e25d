"""Run the fake Kinesis with the limits of real shards, and count each stored record without keeping it.

The process prints its URL.  For each line on stdin it prints, as a line of JSON, how often records have been stored::

    python -m benchmarks.backpressure.kinesis SHARDS RECORDS
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from benchmarks.backpressure.spark_job import ID_DIGITS, STREAM
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import serve_in_thread
from producerd.testing.streams import FIRST_SEQUENCE, FakeShard, FakeStream, equal_edges

MAX_RECORD_KIB: Final = 1_024
ID: Final = re.compile(rb"<(\d{%d})>" % ID_DIGITS)
"""Pattern of a record's id.  Nothing else in a record or an aggregate looks like it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Counts of the records 0 to RECORDS - 1.  ``records`` has how often each was stored."""

    records: int
    missing: int
    strangers: int


class CountingStream(FakeStream):
    """A stream that finds each record, plain or in an aggregate, by the id in its data."""

    def __init__(self, shards: int, records: int) -> None:
        super().__init__(STREAM, equal_edges(shards), MAX_RECORD_KIB, 0.0, FIRST_SEQUENCE)
        self.keeps_entries = False
        self._times = np.zeros(records, np.int64)
        self._strangers = 0

    def store(
        self, shard: FakeShard, partition_key: str, explicit_hash_key: str | None, data: bytes, now: float
    ) -> str:
        ids = np.array(ID.findall(data), "S").astype(np.int64)
        known = ids < len(self._times)
        np.add.at(self._times, ids[known], 1)
        self._strangers += int((~known).sum())
        return super().store(shard, partition_key, explicit_hash_key, data, now)

    @property
    def stored(self) -> Stored:
        return Stored(int(self._times.sum()), int((self._times == 0).sum()), self._strangers)


def main(shards: int, records: int) -> None:
    kinesis = FakeKinesis()
    kinesis.enforce_limits = True
    kinesis.streams[STREAM] = stream = CountingStream(shards, records)
    with serve_in_thread(kinesis) as server:
        print(server.url, flush=True)
        for _ in sys.stdin:
            print(json.dumps(asdict(stream.stored)), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
