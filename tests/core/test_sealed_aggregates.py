"""In `kpl` mode the daemon splits a payload that is an aggregate itself, so that a consumer gets every record in it.

If one of its records belonged to another shard than the first, Amazon's consumer would drop the payload as it is.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from random import Random

import pytest

from producerd.core.encoding.entries import encode
from producerd.core.kpl.aggregation import MAGIC, InnerRecord, parse, split
from producerd.core.lanes.lanes import as_raw
from producerd.core.rows import intake
from producerd.core.rows.frame import Frame
from producerd.core.sending.answers import RequestFailed
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.errors import Code, Outcome
from producerd.testing import Fault, deaggregate
from tests.core.given import HIGH, LOW, Service, Users, aggregate_of, body_of
from tests.core.rows import even_map, sorted_of
from tests.core.stories import INVALID, THROTTLED, Desk, Sent, ends_of, on_the_wire
from tests.simulation.setting import ADDRESS, make_rules

GOOD = {"SequenceNumber": "1", "ShardId": "shard-0"}
SLOW_DOWN = {"ErrorCode": THROTTLED, "ErrorMessage": "Rate exceeded"}


def framed_message(message: bytes) -> bytes:
    """Magic and digest are right, whatever the message."""
    return MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()


def some_users(random: Random, tag: str, count: int) -> Users:
    keys = [b"k%d" % random.randrange(10**6), "é€😀".encode(), b"x" * 256, b'"\\\x00']
    return [
        InnerRecord(
            random.choice([*keys, b"key %d" % i]),
            random.choice([None, None, LOW, b"%d" % random.getrandbits(128)]),
            f"{tag}/{i}:".encode() + random.randbytes(random.choice([0, 3, 300])),
        )
        for i in range(count)
    ]


def wanted(users: Users) -> Counter[tuple[str, bytes]]:
    return Counter((user.partition_key.decode(), user.data) for user in users)


# ---- what is taken


@pytest.mark.promise("kpl-mode-aggregate-taken")
def test_in_kpl_mode_an_aggregate_is_taken_and_elsewhere_it_is_refused_with_what_to_do() -> None:
    payloads = [
        b"plain",
        aggregate_of([InnerRecord(b"k", None, b"1")]),
        aggregate_of([InnerRecord(b"k", None, b"2")] * 3),
    ]
    taken = intake.check(body_of(payloads), 1 << 20, takes_aggregates=True)
    assert not taken.bad
    assert taken.aggregates is not None
    assert taken.aggregates.tolist() == [1, 2]
    checked = intake.check(body_of(payloads), 1 << 20)
    assert checked.aggregates is None, "what is refused is not split"
    (refused,) = checked.bad
    assert (refused.rows.tolist(), refused.code) == ([1, 2], Code.RECORD_INVALID)
    assert 'aggregation = "kpl"' in refused.message
    assert 'ordering = "none"' in refused.message


@pytest.mark.parametrize("takes_aggregates", [False, True])
def test_what_a_consumer_takes_for_a_plain_record_is_one(takes_aggregates: bool) -> None:
    blob = aggregate_of([InnerRecord(b"k", None, b"data")] * 2)
    damaged = blob[:10] + bytes([blob[10] ^ 1]) + blob[11:]
    payloads = [MAGIC, MAGIC + b"x" * 16, MAGIC + b"x" * 40, blob[:-1], blob[1:], blob + b"x", damaged]
    rows = intake.check(body_of(payloads), 1 << 20, takes_aggregates=takes_aggregates)
    assert (rows.bad, rows.aggregates) == ((), None)


NO_MESSAGE = {
    "nothing": b"",
    "no protobuf": b"\xff" * 9,
    "a field with the number 0": b"\x0a\x01k\x1a\x05\x08\x00\x1a\x01d\x00\x00",
    "a record without a key": b"\x1a\x03\x1a\x01d",
    "a record without data": b"\x0a\x01k\x1a\x02\x08\x00",
    "a tag without a key": b"\x0a\x01k\x1a\x07\x08\x00\x1a\x01d\x22\x00",
}


@pytest.mark.promise("kpl-mode-aggregate-taken")
@pytest.mark.parametrize("takes_aggregates", [False, True])
@pytest.mark.parametrize("message", NO_MESSAGE.values(), ids=NO_MESSAGE.keys())
def test_a_sealed_payload_without_a_message_is_a_plain_record_in_both_modes(
    message: bytes, takes_aggregates: bool
) -> None:
    """A consumer is handed it as it is: so it is never refused, and never taken apart."""
    payloads = [b"plain", framed_message(message)]
    rows = intake.check(body_of(payloads), 1 << 20, takes_aggregates=takes_aggregates)
    assert (rows.bad, rows.aggregates) == ((), None)
    service = Service(4, aggregate=takes_aggregates)
    service.deliver(service.submit(payloads))
    assert service.read() == Counter({("outer", payload): 1 for payload in payloads})


UNDELIVERABLE = {
    "a table without records": (b"\x0a\x01k", "it has no records"),
    "a key that is not in the table": (b"\x0a\x01k\x1a\x05\x08\x01\x1a\x01d", "that is not in it"),
    "a hash key that is not in the table": (b"\x0a\x01k\x1a\x07\x08\x00\x10\x00\x1a\x01d", "that is not in it"),
    "a hash key that is not a number": (b"\x0a\x01k\x12\x01x\x1a\x07\x08\x00\x10\x00\x1a\x01d", "not a number"),
    "an empty hash key": (b"\x0a\x01k\x12\x00\x1a\x07\x08\x00\x10\x00\x1a\x01d", "not a number"),
    "a hash key below 0": (b"\x0a\x01k\x12\x02-1\x1a\x07\x08\x00\x10\x00\x1a\x01d", "not from 0 to 2^128-1"),
    "a hash key of 2^128": (
        b"\x0a\x01k\x12\x27" + b"%d" % 2**128 + b"\x1a\x07\x08\x00\x10\x00\x1a\x01d",
        "not from 0 to 2^128-1",
    ),
}


@pytest.mark.promise("kpl-mode-aggregate-taken")
@pytest.mark.parametrize("takes_aggregates", [False, True])
@pytest.mark.parametrize(("message", "reason"), UNDELIVERABLE.values(), ids=UNDELIVERABLE.keys())
def test_an_aggregate_that_no_consumer_is_handed_is_refused_and_its_mates_are_good(
    message: bytes, reason: str, takes_aggregates: bool
) -> None:
    payloads = [b"plain", framed_message(message), b"plain too"]
    (bad,) = intake.check(body_of(payloads), 1 << 20, takes_aggregates=takes_aggregates).bad
    assert (bad.rows.tolist(), bad.code) == ([1], Code.RECORD_INVALID)
    assert reason in bad.message
    assert "rows of their own" in bad.message
    service = Service(4)
    service.deliver(service.submit(payloads, take_good=True))
    assert service.read() == Counter({("outer", b"plain"): 1, ("outer", b"plain too"): 1})


@pytest.mark.promise("long-keys-taken-up-64")
@pytest.mark.parametrize(("count", "taken"), [(32, True), (33, False)])
def test_long_keys_are_taken_up_to_64_kib_as_each_part_repeats_them(count: int, taken: bool) -> None:
    """A key may be longer in an aggregate than the service takes.  Without a bound, 500 parts would repeat a MiB."""
    key = b"k" * 2_048
    users = [InnerRecord(key, b"%d" % (i * 2**120), b"%d" % i) for i in range(count)]
    users.append(InnerRecord(b"k", None, bytes(64 * 1024)))  # its data does not count
    rows = intake.check(body_of([aggregate_of(users)]), 1 << 20, takes_aggregates=True)
    assert [bad.rows.tolist() for bad in rows.bad] == ([] if taken else [[0]])
    if taken:
        service = Service(4)
        service.deliver(service.submit([aggregate_of(users)]))
        assert service.read() == wanted(users)
    else:
        assert "67584 bytes of keys" in rows.bad[0].message


@pytest.mark.parametrize(("short", "long", "taken"), [(65, 0, True), (0, 63, True), (63, 1, True), (0, 64, False)])
def test_keys_are_long_from_where_the_service_takes_none_in_utf_8(short: int, long: int, taken: bool) -> None:
    keys = [b"k" * 1_024] * short + [b"l" * 1_025] * long
    users = [InnerRecord(key, b"%d" % i, b"") for i, key in enumerate(keys)]
    rows = intake.check(body_of([aggregate_of(users)]), 1 << 20, takes_aggregates=True)
    assert [bad.message for bad in rows.bad] == (
        []
        if taken
        else [
            (
                "data is an aggregated record that consumers are not handed: its records have 65600 bytes of keys and "
                "hash keys that are over 1024 bytes each, and 65536 are taken. Send its records as rows of their own"
            )
        ]
    )


ODD_TEXTS = [
    *(InnerRecord(key, None, b"odd key") for key in (b"", b"\xff", b"\xed\xa0\x80", b"k\xe2\x82")),
    *(InnerRecord(b"k", text.encode(), b"odd number") for text in ("007", "+5", "-0", "\u0665", "\uff11" * 30)),
]


@pytest.mark.promise("record-aggregate-read")
@pytest.mark.parametrize("user", ODD_TEXTS, ids=str)
@pytest.mark.parametrize("alone", [False, True])
def test_a_record_that_no_service_would_take_plain_stays_wrapped_and_is_read(user: InnerRecord, alone: bool) -> None:
    """Even where every record goes out alone: a consumer is handed the same key and hash key as before."""
    payload = aggregate_of([user, InnerRecord(b"other", HIGH, b"other")])
    service = Service(4)
    if alone:
        parts = split(payload, None)
        assert [len(parse(part.data) or ()) for part in parts] == [1, 0]
    service.deliver(service.submit([payload]))
    found = [record for record in service.stream.read().records if record.data != b"other"]
    assert found == [record for record in deaggregate(payload) or () if record.data != b"other"]


def test_the_largest_hash_key_and_the_longest_key_are_good() -> None:
    users = [InnerRecord("é".encode() * 256, HIGH, b"d"), InnerRecord(b"k", LOW, b"d")]
    assert not intake.check(body_of([aggregate_of(users)]), 1 << 20, takes_aggregates=True).bad


# ---- what a consumer reads


@pytest.mark.promise("record-aggregate-read")
@pytest.mark.parametrize("seed", range(40))
def test_every_record_of_every_aggregate_is_read_once_with_its_own_key(seed: int) -> None:
    random = Random(seed)
    service = Service(random.choice([1, 3, 16]), aggregate_max_bytes=random.choice([300, 51_200]))
    users: Users = []
    payloads = []
    for tag in range(random.randint(1, 12)):
        inside = some_users(random, f"{seed}/{tag}", random.choice([1, 2, 20, 120]))
        if random.random() < 0.3:
            inside = [InnerRecord(b"outer", None, b"plain %d" % tag)]
            payloads.append(inside[0].data)
        else:
            payloads.append(aggregate_of(inside))
        users += inside
    frame = service.submit(payloads)
    service.deliver(frame)
    assert service.read() == wanted(users)
    assert service.stream.read().dropped_aggregates == 0
    assert frame.result().stored == len(payloads)
    assert frame.result().possible_duplicates == 0
    assert service.desk.pipeline.stats.shard_mispredictions == 0
    assert service.desk.is_empty()


def test_each_shard_gets_one_entry_and_a_single_record_goes_plain_with_its_own_hash_key() -> None:
    service = Service(2)
    users = [InnerRecord(b"c", HIGH, b"3"), InnerRecord(b"a", LOW, b"1"), InnerRecord(b"b", b"7", b"2")]
    frame = service.submit([aggregate_of(users)])
    sent = service.desk.send()
    assert [lane.shard for lane in sent.request.lanes] == [service.map().shards[1]], "it waits where its first one does"
    assert [parse(data) for data in sent.data] == [None, users[1:]]
    assert sent.entries[0]["PartitionKey"] == "c"
    assert sent.entries[0]["ExplicitHashKey"] == HIGH.decode()
    service.answer(sent)
    assert frame.finished


def test_a_record_that_is_an_aggregate_itself_stays_wrapped() -> None:
    """A consumer takes apart one layer, as it would have done without us."""
    service = Service(4)
    nested = aggregate_of([InnerRecord(b"deep", None, b"1"), InnerRecord(b"deeper", HIGH, b"2")])
    users = [InnerRecord(b"a", LOW, nested), InnerRecord(b"b", HIGH, b"other"), InnerRecord(b"c", None, nested)]
    service.deliver(service.submit([aggregate_of(users)]))
    assert service.read() == wanted(users)


@pytest.mark.parametrize("seed", range(30))
def test_partial_failures_and_splits_lose_nothing_and_copies_are_told(seed: int) -> None:
    random = Random(seed)
    service = Service(random.choice([1, 4]))
    # A row is sent again whole until all of its parts are stored by one request.
    faults = [Fault("throttle", fraction=0.1), Fault("fail", fraction=0.1)]
    service.kinesis.standing += random.sample(faults, random.choice([0, 1, 2]))
    users: Users = []
    frames = []
    for tag in range(6):
        payloads = []
        for row in range(random.randint(1, 5)):
            inside = some_users(random, f"{seed}/{tag}/{row}", random.choice([1, 2, 8]))
            if random.random() < 0.5:
                inside = [InnerRecord(b"outer", None, b"plain %d/%d" % (tag, row))]
                payloads.append(inside[0].data)
            else:
                payloads.append(aggregate_of(inside))
            users += inside
        frames.append(service.submit(payloads))
        if random.random() < 0.5:
            shards = service.stream.open_shards
            if random.random() < 0.3 and len(shards) > 1:
                service.stream.merge_shards(shards[0].shard_id, shards[1].shard_id, now=service.desk.now)
            else:
                service.stream.split_shard(random.choice(shards).shard_id, now=service.desk.now)
        for sent in service.desk.send_all():
            service.answer(sent)
    service.deliver(*frames)
    read = service.read()
    assert set(read) == set(wanted(users))
    assert sum(frame.result().stored for frame in frames) == sum(frame.records for frame in frames)
    twice = sum(copies > 1 for copies in read.values())
    counted = service.desk.pipeline.stats.possible_duplicate_records.total()
    assert counted == sum(frame.result().possible_duplicates for frame in frames)
    assert counted or not twice
    assert service.desk.is_empty()


# ---- failures


def three_shards() -> tuple[Desk, Frame, Sent, Users]:
    """One row, of records in three shards."""
    service = Service(3)
    users = [InnerRecord(b"k", b"%d" % (i % 3 * (MAX_HASH_KEY // 3 + 1)), b"%d" % i) for i in range(9)]
    frame = service.submit([aggregate_of(users)])
    sent = service.desk.send()
    assert len(sent.entries) == 3
    return service.desk, frame, sent, users


def test_one_part_that_is_throttled_sends_the_row_again_whole_and_its_copies_are_counted() -> None:
    desk, frame, sent, users = three_shards()
    shards = [lane.shard_id for lane in desk.pipeline.shard_map.shards] if desk.pipeline.shard_map else []
    stored = [{"SequenceNumber": "1", "ShardId": shard} for shard in shards]
    sent.answer([stored[0], SLOW_DOWN, stored[2]])
    assert not frame.finished
    desk.now += 2
    again = desk.send()
    assert sorted(again.users) == sorted(user.data for user in users)
    again.answer(stored)
    assert (frame.result().stored, frame.result().possible_duplicates, frame.result().throttled) == (1, 1, 1)
    assert desk.pipeline.stats.throttled_records == 1
    assert desk.is_empty()


def test_when_no_part_was_stored_nothing_is_a_possible_duplicate() -> None:
    desk, frame, sent, _ = three_shards()
    sent.answer([SLOW_DOWN] * 3)
    desk.now += 2
    shards = [shard.shard_id for shard in desk.pipeline.shard_map.shards] if desk.pipeline.shard_map else []
    desk.send().answer([{"SequenceNumber": "1", "ShardId": shard} for shard in shards])
    assert (frame.result().stored, frame.result().possible_duplicates) == (1, 0)
    assert desk.is_empty()


@pytest.mark.parametrize(("names", "sent_again"), [(("unknown", "other"), False), (("other", "unknown"), True)])
def test_a_part_that_an_unknown_shard_stored_waits_for_the_map(names: tuple[str, str], sent_again: bool) -> None:
    """Its records are the lower child's: if the upper one has stored them, the row is sent again by the newest map."""
    desk, frame, sent, _ = three_shards()
    first, second, third = desk.pipeline.shard_map.shards if desk.pipeline.shard_map else ()
    sent.answer([{"SequenceNumber": "1", "ShardId": shard} for shard in (first.shard_id, "unknown", third.shard_id)])
    assert not frame.finished
    assert desk.try_send() is None
    middle = (second.start + second.end) // 2
    children = [Shard(names[0], second.start, middle), Shard(names[1], middle + 1, second.end)]
    desk.pipeline.set_shard_map(ShardMap([first, *children, third]), desk.now)
    assert frame.finished is not sent_again
    if sent_again:
        answer = [{"SequenceNumber": "1", "ShardId": shard} for shard in (first.shard_id, "other", third.shard_id)]
        desk.send().answer(answer)
    assert (frame.result().stored, frame.result().possible_duplicates) == (1, int(sent_again))
    assert desk.is_empty()


@pytest.mark.law("ShardMap")
def test_of_two_rows_in_one_request_each_waits_for_the_shards_of_its_own_parts() -> None:
    service = Service(2)
    users = [InnerRecord(b"k", LOW, b"1"), InnerRecord(b"k", b"1", b"2"), InnerRecord(b"c", HIGH, b"3")]
    frame = service.submit([aggregate_of(users)] * 2)
    sent = service.desk.send()
    assert sent.encoded.ends.tolist() == [1, 1, 2, 2]
    low, high = service.map().shards
    names = ["unknown", high.shard_id, low.shard_id, high.shard_id]
    sent.answer([{"SequenceNumber": "1", "ShardId": shard_id} for shard_id in names])
    assert frame.unsettled == 1
    service.desk.pipeline.set_shard_map(ShardMap([Shard("unknown", 0, low.end), high]), service.desk.now)
    assert (frame.result().stored, frame.result().possible_duplicates) == (2, 0)
    assert service.desk.is_empty()


@pytest.mark.law("ShardMap")
def test_a_part_that_a_child_stored_of_which_some_is_the_other_child_s_is_not_believed() -> None:
    desk, frame, sent, _ = three_shards()
    first, second, third = desk.pipeline.shard_map.shards if desk.pipeline.shard_map else ()
    children = [Shard("low", first.start, 0), Shard("high", 1, first.end)]
    desk.pipeline.set_shard_map(ShardMap([*children, second, third]), desk.now)
    answer = [{"SequenceNumber": "1", "ShardId": shard} for shard in ("low", second.shard_id, third.shard_id)]
    sent.answer(answer)
    assert frame.result().stored == 1, "all of its records there have one hash key"
    users = [InnerRecord(b"k", b"%d" % i, b"%d" % i) for i in range(4)]
    service = Service(1)
    frame = service.submit([aggregate_of(users)])
    sent = service.desk.send()
    service.desk.pipeline.set_shard_map(ShardMap([Shard("low", 0, 1), Shard("high", 2, MAX_HASH_KEY)]), 100.0)
    sent.stored("low")
    assert not frame.finished
    again = service.desk.send()
    assert [len(parse(data) or ()) for data in again.data] == [2, 2]
    again.answer([{"SequenceNumber": "1", "ShardId": shard} for shard in ("low", "high")])
    assert frame.finished


@pytest.mark.parametrize("shards", [["nobody knows"] * 3, ["shard-0"] * 3])
def test_after_stores_in_vain_its_records_go_out_plain(shards: list[str]) -> None:
    """No fault of the map stores copies forever.  If no map comes at all, they go out plain after one store."""
    desk, frame, sent, users = three_shards()
    for _ in range(1 if shards[0] == "nobody knows" else 2):
        assert not frame.finished
        sent.answer([{"SequenceNumber": "1", "ShardId": shard} for shard in shards])
        desk.now += 11
        sent = desk.send()
    assert sent.data == [user.data for user in users], "none is wrapped"
    sent.answer([{"SequenceNumber": "1", "ShardId": "nobody knows"}] * 9)
    assert frame.result().stored == 1
    assert desk.is_empty()


def test_more_records_than_a_request_takes_stay_in_parts_and_are_given_up_as_unknown_at_last() -> None:
    """They cannot go out plain in one request.  So if the map stays wrong, the row ends as UNKNOWN."""
    service = Service(2)
    desk = service.desk
    frame = service.submit([aggregate_of([InnerRecord(b"k%d" % i, None, b"%d" % i) for i in range(600)])])
    requests = sends = 0
    while not frame.finished:
        requests += 1
        assert requests < 20
        if (sent := desk.try_send()) is None:
            continue  # it has just ended
        sends += 1
        assert len(sent.entries) == 2
        sent.answer([{"SequenceNumber": "1", "ShardId": "nobody knows"}] * 2)
        desk.now += 11
    assert sends == 5
    assert {end[:2] for end in ends_of(frame).values()} == {(Outcome.UNKNOWN, Code.SHARD_MAP_MISSING)}
    assert desk.is_empty()


def test_more_records_than_a_request_takes_are_read_all_the_same() -> None:
    service = Service(8)
    users = [InnerRecord(b"k%d" % i, None, b"%d" % i) for i in range(1_500)]
    service.deliver(service.submit([aggregate_of(users)]))
    assert service.read() == wanted(users)


def test_of_more_shards_than_a_request_has_entries_only_that_row_fails() -> None:
    service = Service(8, request_max_records=5)
    users = [InnerRecord(b"k%d" % i, None, b"%d" % i) for i in range(100)]
    desk = service.desk
    frame = service.submit([b"plain", aggregate_of(users), b"plain too"])
    internal = 0
    while not frame.finished:
        assert internal < 10
        request = desk.pipeline.take_request(desk.now)
        assert request is not None
        try:
            sent = Sent(desk, request)
        except ValueError as error:
            internal += 1
            failed = RequestFailed(Code.INTERNAL, str(error), maybe_stored=False)
            desk.pipeline.complete(request, failed, desk.now)
        else:
            service.answer(sent)
    assert "8 shards" in on_the_wire(frame.result()).codes[0].message
    assert ends_of(frame) == {1: (Outcome.NOT_STORED, Code.INTERNAL, False)}
    assert service.read() == Counter({("outer", b"plain"): 1, ("outer", b"plain too"): 1})
    assert desk.is_empty()


def test_halving_ends_with_the_row_alone_however_many_entries_it_was_cut_into() -> None:
    """Most of the entries may be of the last row: the halves are of rows."""
    service = Service(4)
    desk = service.desk
    users = [InnerRecord(b"k", HIGH, b"bad"), *(InnerRecord(b"k%d" % i, None, b"bad") for i in range(40))]
    frame = service.submit([b"good", aggregate_of(users)])
    requests = 0
    while not frame.finished:
        requests += 1
        assert requests < 10, "halved forever"
        sent = desk.send()
        if requests == 1:
            assert sent.encoded.ends.tolist() == [1, 2, 2, 2, 2]
        if b"bad" in sent.users:
            sent.fail(INVALID)
        else:
            sent.stored()
    assert ends_of(frame) == {1: (Outcome.NOT_STORED, Code.RECORD_INVALID, False)}
    assert desk.is_empty()


def test_a_row_of_which_some_was_stored_is_not_told_as_not_stored() -> None:
    service = Service(2, fail_if_throttled=True)
    users = [InnerRecord(b"a", LOW, b"1"), InnerRecord(b"b", HIGH, b"2")]
    frame = service.submit([aggregate_of(users)])
    sent = service.desk.send()
    table = [shard.shard_id for shard in service.map().shards]
    sent.answer([{"SequenceNumber": "1", "ShardId": table[0]}, SLOW_DOWN])
    assert ends_of(frame) == {0: (Outcome.UNKNOWN, Code.THROTTLED, True)}
    frame = service.submit([aggregate_of(users)])
    service.desk.now += 2
    service.desk.send().answer([SLOW_DOWN, SLOW_DOWN])
    assert ends_of(frame) == {0: (Outcome.NOT_STORED, Code.THROTTLED, False)}
    assert service.desk.is_empty()


def test_as_many_records_as_a_request_takes_go_out_plain_where_the_map_is_not_believed() -> None:
    users = [InnerRecord(b"k%d" % i, None, b"%d" % i) for i in range(3)]
    rows = intake.check(body_of([aggregate_of(users)]), 1 << 20, takes_aggregates=True)
    ((_, span),) = sorted_of([rows], even_map(1)).spans
    (plain,) = as_raw([span])
    rules = make_rules(aggregate=True, request_max_records=3).entries
    encoded = encode(ADDRESS, [(0, plain)], rules, shard_map=even_map(1))
    assert encoded.entries == 3


@pytest.mark.parametrize(("fewer_entries", "fewer_bytes", "fits"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_the_parts_of_a_row_fill_a_request_to_its_last_entry_and_byte_or_go_with_the_next_one(
    fewer_entries: int, fewer_bytes: int, fits: bool
) -> None:
    payload = aggregate_of([InnerRecord(b"k", LOW, b"low"), InnerRecord(b"key", HIGH, b"high")])
    rows = intake.check(body_of([b"plain", payload]), 1 << 20, takes_aggregates=True)
    spans = sorted_of([rows], even_map(1)).spans
    whole = encode(ADDRESS, spans, make_rules(aggregate=True).entries, shard_map=even_map(2))
    assert whole.sizes.tolist() == [10, 4, 7]
    rules = make_rules(
        aggregate=True, request_max_records=3 - fewer_entries, request_max_bytes=21 - fewer_bytes
    ).entries
    encoded = encode(ADDRESS, spans, rules, shard_map=even_map(2))
    assert encoded.ends.tolist() == ([1, 2, 2] if fits else [1])
    assert encoded.fragments == ({1: None, 2: None} if fits else {})


def test_a_row_is_split_wherever_it_lies_in_its_buffer() -> None:
    payload = aggregate_of([InnerRecord(b"k", LOW, b"low"), InnerRecord(b"k", HIGH, b"high")])
    payloads = [bytes(100_000)] * 3 + [payload, b"after"]
    spans = sorted_of([intake.check(body_of(payloads), 1 << 20, takes_aggregates=True)], even_map(1)).spans
    assert [(span.buffer.first, span.first, span.last) for _, span in spans] == [(0, 0, 2), (2, 2, 5)]
    encoded = encode(ADDRESS, spans, make_rules(aggregate=True).entries, shard_map=even_map(2))
    assert encoded.ends.tolist() == [1, 2, 3, 4, 4, 5]
    assert encoded.fragments == {3: None, 4: None}


def test_records_that_do_not_fit_a_request_one_by_one_go_by_shard_with_an_entry_for_each() -> None:
    users = [InnerRecord(b"k", b"%d" % number, b"%d" % number) for number in (0, 1, 2**127, 2**127 + 1)]
    rows = intake.check(body_of([aggregate_of(users)]), 1 << 20, takes_aggregates=True)
    ((lane, span),) = sorted_of([rows], even_map(1)).spans
    (plain,) = as_raw([span])
    for most, entries in ((4, 4), (3, 2), (2, 2)):
        rules = make_rules(aggregate=True, request_max_records=most).entries
        assert encode(ADDRESS, [(lane, plain)], rules, shard_map=even_map(2)).entries == entries
        assert encode(ADDRESS, [(lane, span)], rules, shard_map=even_map(2)).entries == 2
    rules = make_rules(aggregate=True, request_max_records=1).entries
    with pytest.raises(ValueError, match=r"^an aggregate of 2 shards in a request of 1 entries$"):
        encode(ADDRESS, [(lane, span)], rules, shard_map=even_map(2))
