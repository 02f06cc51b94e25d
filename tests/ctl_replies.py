"""Answers of a daemon to `producerctl`, with a different number for each thing."""

from __future__ import annotations

from typing import Any


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
