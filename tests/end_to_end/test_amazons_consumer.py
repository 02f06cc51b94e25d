"""What the official Kinesis Client Library is handed: all that was acknowledged, and what the fake Kinesis says it is.

So the fake's reading rule, by which most tests judge, is itself judged by Amazon's code.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict

import pytest

from benchmarks import maven
from benchmarks.delivery.figures import deliveries
from benchmarks.delivery.producerd import producerd
from benchmarks.delivery.run import run
from benchmarks.delivery.scenarios import Scenario, keys_for, merge, split
from benchmarks.judges import fake, kcl
from producerd.testing import FakeKinesis, UserRecord
from producerd.testing.aggregates import MAGIC
from tests.core import kcl_verdicts as verdicts
from tests.core.mutants import mutants, named

pytestmark = pytest.mark.slow

LAST_HASH = 2**128 - 1
MIDDLE = 2**127
"""Where the second of two shards begins."""
LOW, HIGH = UserRecord("low", "7", b"low"), UserRecord("high", str(MIDDLE), b"high")


@pytest.fixture(scope="module", autouse=True)
def _judge() -> None:
    """The library, built by Maven if it was not yet."""
    try:
        kcl.command()
    except maven.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.promise("accepted-row-ends-once")
@pytest.mark.parametrize("scenario", [split("kpl"), merge("kpl")], ids=lambda scenario: scenario.name)
def test_it_is_handed_every_acknowledged_row_when_shards_change_under_a_backlog(scenario: Scenario) -> None:
    done = run(scenario, producerd)
    assert done.failures == []
    assert len(done.acknowledged) == sum(load.rows for load in scenario.loads)
    handed = kcl.hand_over(done.stream)
    found, _ = deliveries(handed)
    lost = len(done.acknowledged - {delivery.row for delivery in found})
    assert lost == 0
    ours = fake.hand_over(done.stream)
    assert [each.entry.sequence_number for each, our in zip(handed, ours, strict=True) if each != our] == []
    rows_after = [len(each.records) for each in handed if each.entry.stored_at > done.fault.ends]
    assert sum(rows_after) > 1_000, "there was a backlog"
    assert max(rows_after) > 1, "aggregates went on"


# --- records made by hand ----------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    head, rest = number & 0x7F, number >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])


def field(number: int, value: bytes | int) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def sealed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()


def message_of(*users: UserRecord) -> bytes:
    keys = b"".join(field(1, user.partition_key.encode()) for user in users)
    hash_keys = b"".join(field(2, (user.explicit_hash_key or "0").encode()) for user in users)
    rows = [
        field(1, i) + (b"" if user.explicit_hash_key is None else field(2, i)) + field(3, user.data)
        for i, user in enumerate(users)
    ]
    return keys + hash_keys + b"".join(field(3, row) for row in rows)


def aggregate(*users: UserRecord) -> bytes:
    return sealed(message_of(*users))


def at(hash_key: int) -> UserRecord:
    return UserRecord("any", str(hash_key), b"%d" % hash_key)


def spoiled(payload: bytes) -> bytes:
    return payload[:-1] + bytes([payload[-1] ^ 1])


ROW = field(1, 0) + field(2, 0) + field(3, b"")
NESTED = aggregate(LOW, UserRecord("low", "8", aggregate(LOW, LOW)))
BY_KEY = UserRecord(keys_for(2, [0])[0].decode(), None, b"by its key")

# name: the shard that stored it, the data, and how many records are handed on (None: itself, as it is)
BY_HAND: dict[str, tuple[int, bytes, int | None]] = {
    "an aggregate": (0, aggregate(LOW, LOW, LOW), 3),
    "of one record": (0, aggregate(LOW), 1),
    "by its key's hash": (0, aggregate(BY_KEY, LOW), 2),
    "by its key's hash in the other shard": (1, aggregate(BY_KEY, HIGH), 0),
    "the first record is out of range": (0, aggregate(HIGH, LOW, LOW), 0),
    "the middle one": (0, aggregate(LOW, HIGH, LOW), 0),
    "the last one": (0, aggregate(LOW, LOW, HIGH), 0),
    "all of them": (1, aggregate(LOW, LOW), 0),
    "both ends of the first range": (0, aggregate(at(0), at(MIDDLE - 1)), 2),
    "one beyond the first range": (0, aggregate(at(0), at(MIDDLE)), 0),
    "both ends of the second range": (1, aggregate(at(MIDDLE), at(LAST_HASH)), 2),
    "one before the second range": (1, aggregate(at(MIDDLE - 1), at(LAST_HASH)), 0),
    "a hash beyond all ranges": (1, aggregate(at(LAST_HASH + 1), at(LAST_HASH)), 0),
    "a range that has been split": (2, aggregate(at(MIDDLE // 2 - 1), at(MIDDLE // 2)), 0),
    "the half of it": (2, aggregate(at(0), at(MIDDLE // 2 - 1)), 2),
    "a plain record": (0, b"plain", None),
    "no data": (0, b"", None),
    "the magic alone": (0, MAGIC, None),
    "the magic and a text": (0, MAGIC + b"a text that is longer than a digest", None),
    "the magic and a digest of nothing": (0, sealed(b""), None),
    "another magic": (0, b"\xf3\x89\x9a\xc3" + aggregate(LOW, LOW)[4:], None),
    "without its last byte": (0, aggregate(LOW, LOW)[:-1], None),
    "without its digest": (0, aggregate(LOW, LOW)[:-16], None),
    "a wrong digest": (0, spoiled(aggregate(LOW, LOW)), None),
    "a wrong digest, out of range": (1, spoiled(aggregate(LOW, LOW)), None),
    "a truncated message": (0, sealed(message_of(LOW, LOW)[:-1]), None),
    "a number that does not end": (0, sealed(message_of(LOW) + b"\xff" * 11), None),
    "a record without a key": (0, sealed(message_of(LOW) + field(3, field(3, b"data"))), None),
    "a record without data": (0, sealed(message_of(LOW) + field(3, field(1, 0))), None),
    "no records": (0, sealed(field(1, b"key")), 0),
    "a tag": (0, sealed(message_of(LOW) + field(3, ROW + field(4, field(1, b"t")))), 2),
    "an unknown field": (0, sealed(message_of(LOW) + field(9, 1) + field(10, b"new")), 1),
    "tables behind the records": (0, sealed(field(3, ROW) + message_of(LOW)), 2),
    "beyond the table of keys": (0, sealed(message_of(LOW) + field(3, field(1, 9) + field(3, b""))), 0),
    "beyond the table of hash keys": (0, sealed(message_of(LOW) + field(3, ROW + field(2, 9))), 0),
    "an aggregate in an aggregate": (0, NESTED, 2),
    "an aggregate of another shard in an aggregate": (0, aggregate(UserRecord("low", "9", aggregate(HIGH, HIGH))), 1),
}  # fmt: skip


@pytest.mark.promise("acknowledged-record-read")
def test_its_verdict_on_records_made_by_hand_is_that_of_the_fake() -> None:
    stream = FakeKinesis().create_stream("flights", shards=2)
    stream.split_shard(stream.shards[0].shard_id)  # the third shard owns the first quarter
    for shard, data, _ in BY_HAND.values():
        stream.store(stream.shards[shard], "entry", "3", data, now=0.0)
    ours, theirs = (dict(zip(BY_HAND, judge(stream), strict=True)) for judge in (fake.hand_over, kcl.hand_over))
    for name, (_, data, count) in BY_HAND.items():
        expected = [UserRecord("entry", None, data)] if count is None else count
        found = theirs[name].records
        assert (found if count is None else len(found)) == expected, name
        assert ours[name].records == found, name


@pytest.mark.promise("throws-aggregate-record")
def test_it_throws_at_a_record_outside_the_tables_and_hands_on_a_nested_aggregate_as_data() -> None:
    stream = FakeKinesis().create_stream("flights", shards=1)
    for data in (BY_HAND["beyond the table of keys"][1], NESTED):
        stream.store(stream.shards[0], "entry", None, data, now=0.0)
    thrown, nested = kcl.hand_over(stream)
    assert thrown.records == []
    assert thrown.failure.startswith("java.lang.NoClassDefFoundError")
    assert nested.records[1].data == aggregate(LOW, LOW)


# --- mutants: sealed payloads of every odd shape -------------------------------------------------------------------


@pytest.mark.promise("throws-aggregate-record")
def test_its_verdicts_that_are_kept_as_data_are_still_its_own() -> None:
    kept, found = verdicts.frozen()
    assert found == [verdicts.verdict(*each) for each in kcl.hand_over(verdicts.stored(kept))]


@pytest.mark.promise("throws-aggregate-record")
def test_of_10_000_mutants_each_is_taken_split_or_refused_as_it_takes_it() -> None:
    """Named ones first.  It is then handed the same records of the parts that producerd makes of the aggregates."""
    made = [*named(), *mutants(seed=1, count=10_000)]
    stream = verdicts.stored(made)
    handed = kcl.hand_over(stream)
    assert fake.hand_over(stream) == [each._replace(failure="") for each in handed], "the fake reads them likewise"
    found = [verdicts.verdict(*each) for each in handed]
    assert verdicts.disagreements(made, found) == []
    kinds = Counter(each if isinstance(each, str) else bool(each) for each in found)
    assert min(kinds.values()) > 150, kinds
    split = verdicts.to_split(made, found)
    parts, numbers = verdicts.split_up(mutant.payload for mutant, _ in split)
    read: dict[int, list[UserRecord]] = defaultdict(list)
    for number, each in zip(numbers, kcl.hand_over(parts), strict=True):
        read[number] += verdicts.as_written(each.entry, each.records)
    wrong = [mutant.name for n, (mutant, users) in enumerate(split) if read[n] != verdicts.by_shard(parts, users)]
    assert wrong == []
