"""In `kpl` mode the daemon splits a payload that is an aggregate itself, so that a consumer gets every record in it.

If one of its records belonged to another shard than the first, Amazon's consumer would drop the payload as it is.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.core.encoding.entries import encode
from producerd.core.kpl.aggregation import InnerRecord, parse, split
from producerd.core.lanes.lanes import as_raw
from producerd.core.rows import intake
from producerd.core.rows.frame import Frame
from producerd.core.sending.answers import RequestFailed
from producerd.core.shards.hash_keys import MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.errors import Code, Outcome
from producerd.testing import Fault, deaggregate
from tests.core.given import Service, Users, aggregate_of, body_of
from tests.core.mutants import framed
from tests.core.rows import even_map, sorted_of
from tests.core.stories import HIGH, INVALID, LOW, SLOW_DOWN, Desk, Sent, ends_of, on_the_wire
from tests.core.strategies import inner_records
from tests.simulation.setting import ADDRESS, make_rules
from tests.simulation.story import first_broken


def stored_by(*shard_ids: str) -> list[dict[str, str]]:
    """The results of an answer in which these shards store one entry each."""
    return [{"SequenceNumber": "1", "ShardId": shard_id} for shard_id in shard_ids]


def checked(*payloads: bytes, takes_aggregates: bool = True) -> intake.CheckedRows:
    return intake.check(body_of([*payloads]), 1 << 20, takes_aggregates=takes_aggregates)


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
    taken = checked(*payloads)
    assert not taken.bad
    assert taken.aggregates is not None
    assert taken.aggregates.tolist() == [1, 2]
    elsewhere = checked(*payloads, takes_aggregates=False)
    assert elsewhere.aggregates is None, "what is refused is not split"
    (refused,) = elsewhere.bad
    assert (refused.rows.tolist(), refused.code, refused.judged) == ([1, 2], Code.CONFIGURATION, False)
    assert 'aggregation = "kpl"' in refused.message
    assert 'ordering = "none"' in refused.message
    for keeps_order, refuses in ((False, {}), (True, {Code.FRAME_REFUSED: len(payloads) - 2})):
        ended = Frame("caller", 1, elsewhere, 1_000, takes_good=True).end_bad_rows(keeps_order=keeps_order)
        assert ended == {Code.CONFIGURATION: 2, **refuses}, "a setting judges no row, and nothing overtakes one"


NOT_IN_IT, NO_NUMBER, OUT_OF_RANGE = "that is not in it", "not a number", "not from 0 to 2^128-1"
BY_HASH_KEY = b"\x1a\x07\x08\x00\x10\x00\x1a\x01d"
"""A record with the first key and the first hash key of the tables."""


@pytest.mark.promise("kpl-mode-aggregate-taken")
@pytest.mark.parametrize("takes_aggregates", [False, True])
@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(b"\x0a\x01k", "it has no records", id="a table without records"),
        pytest.param(b"\x0a\x01k\x1a\x05\x08\x01\x1a\x01d", NOT_IN_IT, id="a key that is not in the table"),
        pytest.param(b"\x0a\x01k" + BY_HASH_KEY, NOT_IN_IT, id="a hash key that is not in the table"),
        pytest.param(b"\x0a\x01k\x12\x01x" + BY_HASH_KEY, NO_NUMBER, id="a hash key that is not a number"),
        pytest.param(b"\x0a\x01k\x12\x02-1" + BY_HASH_KEY, OUT_OF_RANGE, id="a hash key below 0"),
        pytest.param(b"\x0a\x01k\x12\x27%d" % 2**128 + BY_HASH_KEY, OUT_OF_RANGE, id="a hash key of 2^128"),
    ],
)
def test_an_aggregate_that_no_consumer_is_handed_is_refused_and_its_mates_are_good(
    message: bytes, reason: str, takes_aggregates: bool
) -> None:
    payloads = [b"plain", framed(message), b"plain too"]
    (bad,) = checked(*payloads, takes_aggregates=takes_aggregates).bad
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
    rows = checked(aggregate_of(users))
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
    rows = checked(aggregate_of(users))
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


# ---- what a consumer reads


@st.composite
def payloads_with_users(draw: st.DrawFn) -> list[tuple[bytes, Users]]:
    """Rows that are aggregates or plain, each with the records that a consumer is to be handed for it."""
    found: list[tuple[bytes, Users]] = []
    for tag, is_plain in enumerate(draw(st.lists(st.sampled_from([False, False, True]), min_size=1, max_size=8))):
        users = [InnerRecord(b"outer", None, b"plain %d" % tag)]
        if not is_plain:
            users = draw(inner_records(tag=b"%d" % tag, max_runs=4))
        found.append((users[0].data if is_plain else aggregate_of(users), users))
    return found


@pytest.mark.promise("record-aggregate-read")
@settings(max_examples=40)
@given(rows=payloads_with_users(), shards=st.sampled_from([1, 3, 16]), most=st.sampled_from([300, 51_200]))
def test_every_record_of_every_aggregate_is_read_once_with_its_own_key(
    rows: list[tuple[bytes, Users]], shards: int, most: int
) -> None:
    service = Service(shards, aggregate_max_bytes=most)
    frame = service.submit([payload for payload, _ in rows])
    service.deliver(frame)
    assert service.read() == wanted([user for _, users in rows for user in users])
    assert service.stream.read().dropped_aggregates == 0
    assert (frame.result().stored, frame.result().possible_duplicates) == (len(rows), 0)
    assert service.desk.pipeline.stats.shard_mispredictions == 0
    assert service.desk.is_empty()


def test_partial_failures_and_splits_lose_nothing_and_copies_are_told() -> None:
    """A row is sent again whole until all of its parts are stored by one request."""
    faults = [Fault("throttle", fraction=0.1), Fault("fail", fraction=0.1)]
    mixed: dict[str, Any] = {"kind": "mixed", "reshards": True, "made_again": False, "ending": "idle", "faults": faults}
    broken = first_broken(range(8), aggregate=True, per_key=False, aggregates=True, **mixed)
    assert broken is None, broken


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


# ---- failures


def three_shards() -> tuple[Desk, Frame, Sent, Users]:
    """One row, of records in three shards."""
    service = Service(3)
    users = [InnerRecord(b"k", b"%d" % (i % 3 * (MAX_HASH_KEY // 3 + 1)), b"%d" % i) for i in range(9)]
    frame = service.submit([aggregate_of(users)])
    sent = service.desk.send()
    assert len(sent.entries) == 3
    return service.desk, frame, sent, users


def known_shards(desk: Desk) -> tuple[Shard, ...]:
    assert desk.pipeline.shard_map is not None
    return tuple(desk.pipeline.shard_map.shards)


@pytest.mark.parametrize("some_stored", [True, False])
def test_a_row_of_which_a_part_is_throttled_goes_again_whole_and_its_copies_are_counted(some_stored: bool) -> None:
    desk, frame, sent, users = three_shards()
    stored = stored_by(*[shard.shard_id for shard in known_shards(desk)])
    sent.answer([stored[0], SLOW_DOWN, stored[2]] if some_stored else [SLOW_DOWN] * 3)
    assert not frame.finished
    desk.now += 2
    again = desk.send()
    assert sorted(again.users) == sorted(user.data for user in users)
    again.answer(stored)
    assert (frame.result().stored, frame.result().possible_duplicates, frame.result().throttled) == (1, some_stored, 1)
    assert desk.pipeline.stats.throttled_records == 1
    assert desk.is_empty()


@pytest.mark.parametrize(("names", "sent_again"), [(("unknown", "other"), False), (("other", "unknown"), True)])
def test_a_part_that_an_unknown_shard_stored_waits_for_the_map(names: tuple[str, str], sent_again: bool) -> None:
    """Its records are the lower child's: if the upper one has stored them, the row is sent again by the newest map."""
    desk, frame, sent, _ = three_shards()
    first, second, third = known_shards(desk)
    sent.answer(stored_by(first.shard_id, "unknown", third.shard_id))
    assert not frame.finished
    assert desk.try_send() is None
    middle = (second.start + second.end) // 2
    children = [Shard(names[0], second.start, middle), Shard(names[1], middle + 1, second.end)]
    desk.pipeline.set_shard_map(ShardMap([first, *children, third]), desk.now)
    assert frame.finished is not sent_again
    if sent_again:
        desk.send().answer(stored_by(first.shard_id, "other", third.shard_id))
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
    sent.answer(stored_by("unknown", high.shard_id, low.shard_id, high.shard_id))
    assert frame.unsettled == 1
    service.desk.pipeline.set_shard_map(ShardMap([Shard("unknown", 0, low.end), high]), service.desk.now)
    assert (frame.result().stored, frame.result().possible_duplicates) == (2, 0)
    assert service.desk.is_empty()


@pytest.mark.law("ShardMap")
def test_a_part_that_a_child_stored_of_which_some_is_the_other_child_s_is_not_believed() -> None:
    desk, frame, sent, _ = three_shards()
    first, second, third = known_shards(desk)
    children = [Shard("low", first.start, 0), Shard("high", 1, first.end)]
    desk.pipeline.set_shard_map(ShardMap([*children, second, third]), desk.now)
    sent.answer(stored_by("low", second.shard_id, third.shard_id))
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
    again.answer(stored_by("low", "high"))
    assert frame.finished


@pytest.mark.parametrize("shards", [["unknown"] * 3, ["shard-0"] * 3])
def test_after_stores_in_vain_its_records_go_out_plain(shards: list[str]) -> None:
    """No fault of the map stores copies forever.  If no map comes at all, they go out plain after one store."""
    desk, frame, sent, users = three_shards()
    for _ in range(1 if shards[0] == "unknown" else 2):
        assert not frame.finished
        sent.answer(stored_by(*shards))
        desk.now += 11
        sent = desk.send()
    assert sent.data == [user.data for user in users], "none is wrapped"
    sent.answer(stored_by("unknown") * 9)
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
        sent.answer(stored_by("unknown") * 2)
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
    sent.answer([*stored_by(table[0]), SLOW_DOWN])
    assert ends_of(frame) == {0: (Outcome.UNKNOWN, Code.THROTTLED, True)}
    frame = service.submit([aggregate_of(users)])
    service.desk.now += 2
    service.desk.send().answer([SLOW_DOWN, SLOW_DOWN])
    assert ends_of(frame) == {0: (Outcome.NOT_STORED, Code.THROTTLED, False)}
    assert service.desk.is_empty()


@pytest.mark.parametrize(("fewer_entries", "fewer_bytes", "fits"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_the_parts_of_a_row_fill_a_request_to_its_last_entry_and_byte_or_go_with_the_next_one(
    fewer_entries: int, fewer_bytes: int, fits: bool
) -> None:
    payload = aggregate_of([InnerRecord(b"k", LOW, b"low"), InnerRecord(b"key", HIGH, b"high")])
    rows = checked(b"plain", payload)
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
    spans = sorted_of([checked(*payloads)], even_map(1)).spans
    assert [(span.buffer.first, span.first, span.last) for _, span in spans] == [(0, 0, 2), (2, 2, 5)]
    encoded = encode(ADDRESS, spans, make_rules(aggregate=True).entries, shard_map=even_map(2))
    assert encoded.ends.tolist() == [1, 2, 3, 4, 4, 5]
    assert encoded.fragments == {3: None, 4: None}


def test_records_that_do_not_fit_a_request_one_by_one_go_by_shard_with_an_entry_for_each() -> None:
    users = [InnerRecord(b"k", b"%d" % number, b"%d" % number) for number in (0, 1, 2**127, 2**127 + 1)]
    rows = checked(aggregate_of(users))
    ((lane, span),) = sorted_of([rows], even_map(1)).spans
    (plain,) = as_raw([span])
    for most, entries in ((4, 4), (3, 2), (2, 2)):
        rules = make_rules(aggregate=True, request_max_records=most).entries
        assert encode(ADDRESS, [(lane, plain)], rules, shard_map=even_map(2)).entries == entries
        assert encode(ADDRESS, [(lane, span)], rules, shard_map=even_map(2)).entries == 2
    rules = make_rules(aggregate=True, request_max_records=1).entries
    with pytest.raises(ValueError, match=r"^an aggregate of 2 shards in a request of 1 entries$"):
        encode(ADDRESS, [(lane, span)], rules, shard_map=even_map(2))
