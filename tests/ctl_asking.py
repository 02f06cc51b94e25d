"""`producerctl` in a test's own process, and answers of a daemon to it, with a different number for each thing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from producerd import ctl
from tests.daemon import DaemonProcess, until


class Asking:
    """Runs `producerctl` on the admin socket of one daemon."""

    def __init__(self, capsys: pytest.CaptureFixture[str], where: DaemonProcess | Path) -> None:
        self._capsys = capsys
        self.admin = str(where if isinstance(where, Path) else where.socket.with_suffix(".admin.sock"))

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = ctl.main(["--admin-socket", self.admin, *map(str, arguments)])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err

    def succeeds(self, *arguments: object) -> str:
        code, out, err = self(*arguments)
        assert (code, err) == (0, "")
        return out

    def stream(self, name: str = "flights") -> dict[str, Any]:
        """Return the status of one stream."""
        streams = json.loads(self.succeeds("status", "--json"))["streams"]
        return next(stream for stream in streams if stream["stream"] == name)

    def until_queued(self, records: int, stream: str = "flights") -> None:
        until(lambda: self.stream(stream)["queue_records"] == records, f"{records} records in the queue")


class Replies:
    """Stands for the way to a daemon: replies by target, else in turn, of which the last stays.  An error is raised."""

    def __init__(self, *in_turn: object, by_target: Mapping[str, object] | None = None) -> None:
        self._in_turn = list(in_turn)
        self._by_target = by_target or {}
        self.asked: list[tuple[Any, ...]] = []
        self.may_take_seconds: float | None = None  # the last order

    def serve(self, monkeypatch: pytest.MonkeyPatch) -> Replies:
        """Let `producerctl` ask these replies instead of a daemon."""
        monkeypatch.setattr("producerd.ctl.commands.AdminClient", lambda _: self)
        return self

    def get(self, target: str) -> Any:
        self.asked.append((target,))
        return self._reply(target)

    def post(
        self,
        target: str,
        given: object = None,
        meanwhile: Callable[[], None] | None = None,
        *,
        seconds: float | None = None,
        until_end: bool = False,
    ) -> Any:
        self.asked.append((target, given, True) if until_end else (target, given))
        self.may_take_seconds = seconds
        if meanwhile is not None:
            meanwhile()
        return self._reply(target)

    def _reply(self, target: str) -> Any:
        reply = self._by_target.get(target)
        if reply is None:
            reply = self._in_turn.pop(0) if len(self._in_turn) > 1 else self._in_turn[0]
        if isinstance(reply, Exception):
            raise reply
        return reply


def stream(**other: object) -> dict[str, Any]:
    queue = {"queue_records": 1_500, "queue_limit_records": 6_000, "queue_bytes": 3 << 19, "queue_limit_bytes": 3 << 20}
    waits = {"blocked_callers": 2_001, "requests_in_flight": 1_007, "shards_open": 1_004, "oldest_record_seconds": 8.25}
    counts = {"ingest_records": 30_000, "delivered_records": 20_000, "delivered_bytes": 10 << 20, "record_retries": 40}
    lost = {"failed_records": 1_002, "blocked_seconds": 3.0}
    words = {"stream": "flights", "health": "working", "paused": False, "reason": "", "last_error": ""}
    return {**words, **queue, **waits, **counts, **lost, **other}


def node(*streams: dict[str, Any], **other: object) -> dict[str, Any]:
    words = {"version": "1.2", "host": "n7", "state": "serving", "unready": None, "log_level": "info", "connections": 1}
    queues = {"node_queue_bytes": 3 << 19, "node_queue_limit_bytes": 2_048 << 20}
    return {**words, **queues, "uptime_seconds": 20.0, "streams": list(streams), **other}


def shard(number: int, **other: object) -> dict[str, Any]:
    waits = {
        "waiting_records": 0,
        "waiting_bytes": 0,
        "share": 0.0,
        "in_flight": 0,
        "waits_for": "",
        "backs_off": False,
    }
    rate = {"rate_records": 1_000.0, "rate_bytes": 3 << 19, "use": 0.0}
    return {"shard_id": f"shardId-{number:03}", **waits, **rate, **other}
