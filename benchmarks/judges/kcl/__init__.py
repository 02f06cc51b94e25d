"""Judge a stream with `AggregatorUtil` of the official Kinesis Client Library, shard by shard."""

from __future__ import annotations

import base64
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Final

import orjson

from benchmarks import maven
from benchmarks.judges import Handed
from producerd.testing import FakeStream, UserRecord

NAME: Final = "KCL 3.0.2"
JUDGE_SECONDS: Final = 120.0


def command() -> list[str]:
    """Return the judge's command line.  Raise `maven.Unavailable`."""
    return maven.command(Path(__file__).parent, "Judge", *maven.SHORT_RUN)


def hand_over(stream: FakeStream) -> list[Handed]:
    """Return the judge's verdict.  Raise `maven.Unavailable`, or CalledProcessError if the judge itself fails."""
    entries = stream.entries()
    done = subprocess.run(command(), input=_question(stream), capture_output=True, timeout=JUDGE_SECONDS, check=True)
    records: dict[str, list[UserRecord]] = defaultdict(list)
    failures: dict[str, str] = {}
    for line in map(orjson.loads, done.stdout.splitlines()):
        if "error" in line:
            failures[line["sequence"]] = line["error"]
        else:
            record = UserRecord(line["key"], line["hash_key"], base64.b64decode(line["data"]))
            records[line["sequence"]].append(record)
    return [Handed(e, records[e.sequence_number], failures.get(e.sequence_number, "")) for e in entries]


def _question(stream: FakeStream) -> bytes:
    ranges = {shard.shard_id: {"start": str(shard.start), "end": str(shard.end)} for shard in stream.shards}
    return b"\n".join(
        orjson.dumps(
            {
                **ranges[entry.shard_id],
                "sequence": entry.sequence_number,
                "key": entry.partition_key,
                "data": base64.b64encode(entry.data).decode(),
            }
        )
        for entry in stream.entries()
    )
