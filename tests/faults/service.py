"""The fake Kinesis in a process of its own, steered over its control path and by boto3."""

from __future__ import annotations

import contextlib
import json
import os
import random
import ssl
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config

from tests.daemon import CREDENTIALS, START_SECONDS, until
from tests.forks import Forked

REGION: Final = "us-east-1"
ANSWER_SECONDS: Final = 60.0


class Service:
    """The fake's process.  ``client`` is for its streams' owner: it splits, merges, deletes and reads."""

    def __init__(self, url: str, certificate: Path | None) -> None:
        self.url = url
        self.certificate = certificate
        self.client = boto3.client(
            "kinesis",
            endpoint_url=url,
            region_name=REGION,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"total_max_attempts": 5}, proxies={}, read_timeout=ANSWER_SECONDS),
            verify=str(certificate) if certificate else None,
        )

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def control(self, path: str, **body: Any) -> dict[str, Any]:
        """POST to the control path: docs/use/testing.md lists what there is."""
        return self._ask(path, json.dumps(body).encode())

    def requests(self, action: str) -> int:
        """Return how many requests for an action have come."""
        return int(self._ask("counters")["requests"].get(action, 0))

    def _ask(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}/_fake/{path}", body)
        trusting: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.certificate:
            context = ssl.create_default_context(cafile=self.certificate)
            trusting.append(urllib.request.HTTPSHandler(context=context))
        with urllib.request.build_opener(*trusting).open(request, timeout=ANSWER_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def fails(self, *faults: Mapping[str, Any]) -> None:
        """Standing faults from now on, instead of those that there were."""
        self.control("faults", standing=list(faults))

    def calm(self) -> None:
        """End every fault and latency, and answer what hangs."""
        self.control("faults", standing=[], script=[])
        self.control("settings", latency_seconds=0.0)
        self.control("release")

    def open_shards(self, stream: str) -> list[dict[str, Any]]:
        """Return the open shards in the order of their ranges."""
        pages = self.client.get_paginator("list_shards").paginate(StreamName=stream)
        shards = [shard for page in pages for shard in page["Shards"]]
        still_open = [each for each in shards if "EndingSequenceNumber" not in each["SequenceNumberRange"]]
        return sorted(still_open, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))

    def split(self, stream: str, chance: random.Random) -> None:
        """Split one of the open shards in its middle."""
        shard = chance.choice(self.open_shards(stream))
        hashes = shard["HashKeyRange"]
        middle = (int(hashes["StartingHashKey"]) + int(hashes["EndingHashKey"]) + 1) // 2
        self.client.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))

    def merge(self, stream: str, chance: random.Random) -> None:
        """Merge two neighbours, where there are two."""
        shards = self.open_shards(stream)
        if len(shards) > 1:
            place = chance.randrange(len(shards) - 1)
            low, high = shards[place : place + 2]
            self.client.merge_shards(
                StreamName=stream, ShardToMerge=low["ShardId"], AdjacentShardToMerge=high["ShardId"]
            )


@contextlib.contextmanager
def serving(streams: list[str], shards: int, seed: int, folder: Path, *, tls: bool = False) -> Iterator[Service]:
    """A service with these streams, until the end of the block.  It logs to ``folder``."""
    options = [*(f"--stream={name}" for name in streams), f"--shards={shards}", f"--seed={seed}", *["--tls"] * tls]
    log = folder / "kinesis"
    log.touch()
    process = Forked(sys.executable, options, {"PATH": os.environ["PATH"]}, log, "kinesis")
    try:
        until(lambda: log.read_text().count("\n") > tls, f"the service serves: {log.read_text()}", START_SECONDS)
        url, *certificate = log.read_text().splitlines()
        yield Service(url, Path(certificate[0]) if tls else None)
    finally:
        process.kill()
        process.wait()
