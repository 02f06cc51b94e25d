"""Run the fake Kinesis with the limits of real shards, and count each stored record without keeping it.

The process prints its URL and the path of its certificate.  It answers each line on stdin with a line of JSON, a
`Stored`: ``hang`` leaves all requests from now on without an answer, ``answer`` ends that, and a number is the number
of records to look for::

    python -m benchmarks.backlog.kinesis SHARDS RECORDS
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from benchmarks.backlog.spark_job import ID_DIGITS, STREAM
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import serve_in_thread
from producerd.testing.streams import FIRST_SEQUENCE, FakeShard, FakeStream, equal_edges

MAX_RECORD_KIB: Final = 1_024
ID: Final = re.compile(rb"<(\d{%d})>" % ID_DIGITS)
"""Pattern of a record's id.  Nothing else in a record or an aggregate looks like it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """How many records were stored, copies included, and how many of the first records are missing."""

    records: int
    missing: int


class CountingStream(FakeStream):
    """A stream that finds each record, plain or in an aggregate, by the id in its data."""

    def __init__(self, shards: int, records: int) -> None:
        super().__init__(STREAM, equal_edges(shards), MAX_RECORD_KIB, 0.0, FIRST_SEQUENCE)
        self.keeps_entries = False
        self._times = np.zeros(records, np.int64)

    def store(
        self, shard: FakeShard, partition_key: str, explicit_hash_key: str | None, data: bytes, now: float
    ) -> str:
        np.add.at(self._times, np.array(ID.findall(data), "S").astype(np.int64), 1)
        return super().store(shard, partition_key, explicit_hash_key, data, now)

    def stored(self, first: int) -> Stored:
        return Stored(int(self._times.sum()), int((self._times[:first] == 0).sum()))


def main(shards: int, records: int) -> None:
    kinesis = FakeKinesis()
    kinesis.enforce_limits = True
    kinesis.streams[STREAM] = stream = CountingStream(shards, records)
    with serve_in_thread(kinesis, tls=True) as server:
        print(server.url, flush=True)
        print(server.certificate, flush=True)
        for line in sys.stdin:
            match line.strip():
                case "hang":
                    kinesis.standing.append(Fault("hang", action="*"))
                    first = 0
                case "answer":
                    kinesis.standing.clear()
                    first = 0
                case number:
                    first = int(number)
            print(json.dumps(asdict(stream.stored(first))), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
