"""`producerctl` shows each number that the daemon answers in its column, and says what is missing in words."""

from __future__ import annotations

from typing import Any

import pytest

from producerd.ctl.tables import rates, shards, status
from tests.ctl_asking import node, shard, stream
from tests.snapshots import Snapshot


def test_tables_show_each_number_in_its_column_and_what_is_wrong_below(snapshot: Snapshot) -> None:
    queue_full = stream(paused=True, reason="the queue is full", last_error="no\x1b[31m such\nstream")
    calm, broken = stream(stream="a", blocked_callers=0), stream(stream="z", health="broken")
    lost = {"records_without_caller": 1, "lost_records": 1_003, "lost_as": "ACCESS_DENIED"}
    left = stream(blocked_callers=0, failed_reasons={"KMS": 1_000, "EXPIRED": 2}, **lost)
    counts = {"ingest_records": 10_000, "delivered_records": 15_000, "delivered_bytes": 0, "record_retries": 20}
    before = node(stream(**counts, blocked_seconds=2.0), uptime_seconds=16.0)
    new = stream(stream="new", queue_records=0, queue_bytes=0, reason="it has just begun")
    shown = {
        "streams in trouble come first": status(node(calm, stream(stream="b"), queue_full, broken)),
        "records whose caller has left, lost and failed ones": status(node(left)),
        "a refused stream that nobody uses": status(node(stream(health="broken", sessions=0, queue_records=0))),
        "no stream": status(node()),
        "a node without credentials": status(node(unready="it has no credentials")),
        "a node in trouble": status(node(troubles=["its clock\nis off"])),
        "a node that drains, once": status(
            node(state="draining", unready="draining", log_level="debug", connections=1_002)
        ),
        "rates since the reply before": rates(node(new, stream()), before),
        "rates without a stream": rates(node(troubles=["its clock\nis off"]), before),
    }
    snapshot("ctl_tables", "\n\n".join("\n".join([f"# {what}", *lines]) for what, lines in shown.items()) + "\n")


def test_rates_are_not_negative_and_no_caller_is_blocked_for_longer_than_always() -> None:
    before = node(stream(ingest_records=40_000, blocked_seconds=0.0), uptime_seconds=19.0)
    _, head, row = rates(node(stream()), before)
    values = dict(zip(head.replace(" S ", "-S ").replace("OF TIME", "OF-TIME").split(), row.split(), strict=True))
    assert (values["IN/S"], values["OF-TIME"]) == ("0", "100%")


def test_shards_are_shown_with_those_first_for_which_most_waits(snapshot: Snapshot) -> None:
    hot: dict[str, Any] = {"waiting_records": 2_000, "waiting_bytes": 5 << 19, "share": 0.9, "use": 1.0}
    several = [
        shard(0),
        shard(1, in_flight=1_003),
        shard(3, use=0.005),
        shard(2, waits_for="its rate", backs_off=True, **hot),
        shard(4, use=0.004),
        shard(5, waiting_records=1),
    ]
    of_retries = {"queue_records": 3_200, "reason": "the service does not take them"}
    replies: list[dict[str, Any]] = [
        {"shards": several},
        {"shards": []},
        {"shards": [shard(0)]},
        {**of_retries, "shards": [shard(0)]},
    ]
    shown = ["\n".join(shards({"stream": "flights", **reply})) for reply in replies]
    snapshot("ctl_shards", "\n\n".join(shown) + "\n")


@pytest.mark.parametrize(("more", "said"), [(0, []), (1, ["1 shard with less: --json has them all"])])
def test_of_many_shards_the_busiest_are_shown_and_the_others_counted(more: int, said: list[str]) -> None:
    busy = [shard(number, waiting_records=1, waiting_bytes=number) for number in range(20 + more)]
    _, *lines = shards({"stream": "flights", "shards": busy})
    assert [line.split()[0] for line in lines[:20]] == [
        f"shardId-{number:03}" for number in range(19 + more, more - 1, -1)
    ]
    assert lines[20:] == said
