"""The service throttles, fails, loses answers and is late."""

from __future__ import annotations

import hashlib
import time
from itertools import pairwise
from typing import Final

from tests.faults.oracle import Law
from tests.faults.records import Id, Shape
from tests.faults.scenarios import scenario
from tests.faults.senders import Sender
from tests.faults.stage import STREAMS, Stage

MIXED: Final = (
    *("InternalFailure", "ServiceUnavailable", "KMSThrottlingException", "ThrottlingException"),
    *("LimitExceededException", "KMSDisabledException", "AccessDeniedException", "ACodeOfTheFuture"),
)
SLOW_SECONDS: Final = 1.5
"""Below the time-out of a request."""
LONGEST_GAP_SECONDS: Final = 3.0
"""Between two acknowledgements of a sender whose shard is well, on a machine that is busy."""


@scenario("every entry throttled for three minutes", patient=True, recovers_within=10.0)
def throttled(stage: Stage) -> None:
    stage.service.fails({"kind": "throttle"})
    stage.wait(180, 3)
    stage.must_have_filled_a_queue()


@scenario("each answer comes after 0.2 s and mixes nine error codes, in four entries of ten, for 30 s", patient=True)
def mixed_codes(stage: Stage) -> None:
    stage.service.control("settings", latency_seconds=0.2)  # the next rows of a key are there before the answer
    entries = [{"kind": "fail", "code": code, "message": "a mixture", "fraction": 0.05} for code in MIXED]
    stage.service.fails({"kind": "throttle", "fraction": 0.05}, *entries)
    stage.wait(30, 3)


@scenario("one request in three is stored and its answer lost, for 20 s", patient=True)
def lost_answers(stage: Stage) -> None:
    stage.service.fails({"kind": "lost", "fraction": 0.3})
    stage.wait(20, 2)


@scenario("every request is stored, and answered after the daemon has given it up, for 30 s", patient=True)
def late_answers(stage: Stage) -> None:
    stage.service.fails({"kind": "answer", "delay_seconds": stage.of(5, 2.5)})
    stage.wait(30, 3)


@scenario("latency goes from 10 ms to 6 s and back within a minute", patient=True)
def latency(stage: Stage) -> None:
    rising = 0.01, 0.1, 1.0, 6.0
    for seconds in (*rising, *reversed(rising)):
        stage.service.control("settings", latency_seconds=seconds)
        stage.wait(7.5, 0.4)


@scenario("an uplink of 1.6 Mbit/s, a quarter of what is sent, for a minute", patient=True, resends=False)
def slow_uplink(stage: Stage) -> None:
    stage.service.control("settings", uplink_bytes_per_second=stage.of(200_000, 100_000))
    stage.wait(60, 3)
    stage.must_have_filled_a_queue()
    stage.service.control("settings", uplink_bytes_per_second=None)


@scenario(
    "one shard throttles everything and one answers after 1.5 s, for a minute",
    settings={'streams."ordered".aggregation': "kpl"},  # without, a key has one record on its way
    shards=8,
    senders=5,
    shape=Shape(keys=1),
    records_per_second=100.0,
    patient=True,
)
def hot_and_slow_shard(stage: Stage) -> None:
    shards = {sender: _shard_of(stage, sender) for sender in stage.senders}
    hot = shards[stage.senders[0]]
    slow = next(shard for shard in shards.values() if shard != hot)
    stage.service.fails({"kind": "throttle", "shard_id": hot})
    stage.service.control("settings", shard_delay_seconds={stream: {slow: SLOW_SECONDS} for stream in STREAMS})
    began = time.monotonic()
    stage.wait(60, 4)
    well = [sender for sender, shard in shards.items() if shard not in (hot, slow)]
    gap, stream = max((longest_gap(sender, began), sender.stream) for sender in well)
    stage.service.control("settings", shard_delay_seconds={stream: {slow: 0.0} for stream in STREAMS})
    stage.notes.append(f"senders of other shards waited {gap:.2f} s at most for an acknowledgement (of {stream!r})")
    stage.must(Law.OTHERS, gap <= LONGEST_GAP_SECONDS, f"{gap:.2f} s between two acknowledgements of {stream!r}")


def _shard_of(stage: Stage, sender: Sender) -> str:
    """The shard of a sender's only key."""
    key = stage.book.key_of(Id(sender.number, 0))
    place = int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")
    shards = stage.service.open_shards(sender.stream)
    return str(next(s["ShardId"] for s in shards if place <= int(s["HashKeyRange"]["EndingHashKey"])))


def longest_gap(sender: Sender, began: float) -> float:
    """The longest time since ``began`` in which nothing was acknowledged to a sender."""
    ends = [call.began + call.seconds for call in [*sender.calls] if call.began + call.seconds > began]
    return max(later - sooner for sooner, later in pairwise([began, *sorted(ends), time.monotonic()]))
