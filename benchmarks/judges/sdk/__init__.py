"""Amazon's SDK for Java 2, as it comes: it writes PutRecords in CBOR, and reads answers, errors and records in CBOR."""

from __future__ import annotations

import base64
import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks import maven

END_SECONDS: Final = 20.0

Row = tuple[str, bytes, str | None]
"""Partition key, data, explicit hash key."""


class Failed(Exception):
    """The service refused a request: its status, code, message and request id, as the SDK read them."""

    def __init__(self, status: int, code: str, message: str, request_id: str) -> None:
        super().__init__(status, code, message, request_id)


class Sdk:
    """A process with the SDK's client."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def put(self, stream: str, rows: Sequence[Row]) -> list[tuple[str, str]]:
        """Send a PutRecords.  Return (sequence number, shard id) or (code, message) of each entry.  Raise `Failed`."""
        words = [word for key, data, hash_key in rows for word in (_coded(key.encode()), _coded(data), hash_key or "-")]
        results = [result.split(":") for result in self._ask("put", stream, *words)]
        return [(one, other if one.isdecimal() else _text(other)) for one, other in results]

    def get(self, stream: str, shard_id: str) -> list[tuple[str, bytes, str, int]]:
        """Return (key, data, sequence number, milliseconds since 1970) of each record of a shard."""
        records = [record.split(":") for record in self._ask("get", stream, shard_id)]
        return [(_text(key), base64.b64decode(data), number, int(at)) for key, data, number, at in records]

    def _ask(self, *words: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("the SDK's process has ended")
        found = line.rstrip("\n").split("\t")
        if found[0] == "error":
            status, code, message, request_id = found[1].split(":")
            raise Failed(int(status), code, _text(message), request_id)
        return [word for word in found if word]


@contextlib.contextmanager
def sdk(endpoint_url: str) -> Iterator[Sdk]:
    """Provide the SDK until the block ends.  Raise `maven.Unavailable`."""
    command = [*maven.command(Path(__file__).parent, "Sdk", *maven.SHORT_RUN), endpoint_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Sdk(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _text(coded: str) -> str:
    return base64.b64decode(coded).decode()
