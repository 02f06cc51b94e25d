"""Sorting puts each good row exactly once into its shard, in the order of its key, in small buffers."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producerd.core.kpl.aggregation import InnerRecord
from producerd.core.rows import intake, sorting
from producerd.core.rows.buffers import JOB_CHARGE_BYTES
from producerd.core.rows.frame import Frame
from producerd.core.rows.intake import CheckedRows
from producerd.core.rows.job import IN_REQUEST, QUEUED, SETTLED, Job
from producerd.core.rows.sorting import SHARED_BYTES, SPAN_BYTES, SortedRows
from producerd.core.rows.spans import (
    explicit_hash_key_of,
    hash_key_of,
    place,
    records_of,
    runs_of,
)
from producerd.core.shards import hash_keys as hash_keys_module
from producerd.core.shards import md5
from producerd.core.shards.hash_keys import I32, U64
from producerd.core.shards.shard_map import ShardMap
from producerd.testing import hash_of
from producerd.wire.columns import RECORD_CHARGE_BYTES
from tests.core.given import aggregate_of, body_of
from tests.core.rows import Row, content, even_map, rows_of, sorted_of
from tests.core.strategies import EACH_ITS_OWN, HASH_KEYS, some_rows

GOOD_OR_BAD_ROWS = some_rows(
    keys=st.sampled_from([None, b"", b"k0", b"k1", EACH_ITS_OWN, b"\xff", b"x" * 300]),
    sizes=st.sampled_from([0, 1, 50, 500, 90_000, SPAN_BYTES - 100, SPAN_BYTES]),
    hash_keys=st.sampled_from([None, None, b"", b"0", b"007", b"%d" % 2**128]) | HASH_KEYS,
)
MAPS = st.sampled_from([1, 2, 5, 64]).map(even_map)


@settings(max_examples=60)
@given(frames=st.lists(GOOD_OR_BAD_ROWS, min_size=1, max_size=3), shard_map=MAPS)
def test_each_good_row_is_once_in_its_shard_whole_and_in_order(frames: list[list[Row]], shard_map: ShardMap) -> None:
    checked = [rows_of(rows) for rows in frames]
    result = sorted_of(checked, shard_map)
    flat = [row for rows in frames for row in rows]
    starts = np.cumsum([0, *map(len, frames)])
    bad = {int(starts[i]) + row for i, rows in enumerate(checked) for one in rows.bad for row in one.rows.tolist()}
    assert sorted(result.job.order.tolist()) == sorted(set(range(len(flat))) - bad)
    edges = [0, *(span.last for _, span in result.spans)]
    assert [(span.first, span.last) for _, span in result.spans] == [*pairwise(edges)], "spans follow each other"
    assert edges[-1] == len(result.job.order)
    for index, span in result.spans:
        for position in range(span.first, span.last):
            key, data, number, explicit = content(span, position)
            wanted_key, wanted_data, wanted_hash = flat[int(result.job.order[position])]
            assert (key, data) == (wanted_key or b"", wanted_data)
            if wanted_hash:
                assert (number, explicit) == (int(wanted_hash), True)
            elif wanted_key:
                assert (number, explicit) == (hash_of(wanted_key.decode(), None), False)
            else:
                assert explicit, "a null key's hash is its own"
        assert span.lies_in(shard_map.shards[index])
    for shard in range(len(shard_map)):
        there = [row for at, span in result.spans if at == shard for row in result.job.order[span.first : span.last]]
        assert there == sorted(there), "in their order of arrival"
    buffers_are_small(checked, result)


def buffers_are_small(checked: list[CheckedRows], result: SortedRows) -> None:
    """Buffers have whole spans, memory of their own, and the charge of their rows."""
    buffers = result.job.buffers
    assert sum(buffer.live for buffer in buffers) == len(result.job.order)
    for buffer in buffers:
        rows, spans = len(buffer.key_offsets) - 1, [span for _, span in result.spans if span.buffer is buffer]
        own_bytes = (RECORD_CHARGE_BYTES - JOB_CHARGE_BYTES) * rows
        assert buffer.charge_bytes == len(buffer.keys) + len(buffer.data) + own_bytes
        assert buffer.charge_bytes <= SPAN_BYTES or rows == 1
        assert isinstance(buffer.data, bytes), "memory of its own, and no view that pins its job"
        assert all(array.base is None for array in (*buffer.hashes, buffer.key_offsets, buffer.data_offsets))
        assert (spans[0].first, spans[-1].last) == (buffer.first, buffer.first + rows), "whole spans"
        assert buffer.charge_bytes <= SHARED_BYTES or len(spans) == 1, "which a lagging shard keeps for others"
    charges = [(at, span.bytes + RECORD_CHARGE_BYTES * span.records, span) for at, span in result.spans]
    for _, charge, span in charges:
        assert charge <= SPAN_BYTES or span.records == 1
    for (a, charge, _), (b, _, after) in pairwise(charges):
        first = int(after.sizes()[1]) + RECORD_CHARGE_BYTES
        assert a != b or charge + first > SPAN_BYTES, "neighbours of one shard that would fit one span are one"
    row_charge = sum(
        len(rows.keys) + len(rows.data) + len(rows.hash_keys or b"") + RECORD_CHARGE_BYTES * rows.records
        for rows in checked
    )
    assert sum(buffer.charge_bytes for buffer in buffers) <= row_charge


def test_null_keys_are_spread_over_all_shards_by_the_seed() -> None:
    rows: list[Row] = [(None, b"%d" % i, None) for i in range(2_000)]
    shard_map = even_map(8)
    result = sorted_of([rows_of(rows)], shard_map, 1)
    counts = [sum(span.records for place, span in result.spans if place == shard) for shard in range(8)]
    assert min(counts) > 2_000 / 8 / 2
    again = sorted_of([rows_of(rows)], shard_map, 1)
    assert (again.job.order == result.job.order).all()
    assert (sorted_of([rows_of(rows)], shard_map, 2).job.order != result.job.order).any()


def test_null_keys_of_one_job_have_hash_keys_anywhere_in_128_bits_and_each_its_own() -> None:
    result = sorted_of([rows_of([(None, b"d", None)] * 250)] * 2, even_map(1), 3)
    numbers = [content(span, at)[2] for _, span in result.spans for at in range(span.first, span.last)]
    assert len(set(numbers)) == 500
    assert max(number & 2**64 - 1 for number in numbers) > 2**63
    assert max(numbers) > 2**127


def a_job(frames: int, rows: int, shards: int = 4) -> tuple[Job, SortedRows, tuple[Frame, ...]]:
    checked = [rows_of([(b"k%d" % i, b"%d/%d" % (frame, i), None) for i in range(rows)]) for frame in range(frames)]
    result = sorted_of(checked, even_map(shards), charge_bytes=5_000)
    return result.job, result, result.job.frames


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_job_finds_each_row_s_frame_and_number_again(count: int) -> None:
    job, result, frames = a_job(count, 50)
    seen = []
    for _, span in result.spans:
        for at in range(span.first, span.last):
            ((frame, rows),) = job.frames_of(slice(at, at + 1))
            assert content(span, at)[1] == b"%d/%d" % (frame.frame_id, rows[0])
        for frame, rows in job.frames_of(slice(span.first, span.last)):
            seen += [(frame.frame_id, row) for row in rows.tolist()]
    assert sorted(seen) == [(frame, row) for frame in range(count) for row in range(50)]
    for frame in frames:
        positions = job.positions_of(frame)
        assert len(positions) == 50
        ((found, rows),) = job.frames_of(positions)
        assert found is frame
        assert sorted(rows.tolist()) == list(range(50))


def test_a_job_counts_its_rows_by_buffer() -> None:
    checked = [rows_of([(b"k%d" % i, b"x" * 60_000, None) for i in range(40)])]
    job = sorted_of(checked, even_map(4)).job
    assert len(job.buffers) > 8
    picked = np.array([0, 1, 5, 20, 39])
    live = [buffer.live for buffer in job.buffers]
    charges = [buffer.charge_bytes for buffer in job.buffers]
    charge = job.end_queued(picked)
    assert charge == sum(charges) - sum(buffer.charge_bytes for buffer in job.buffers)
    for buffer, before in zip(job.buffers, live, strict=True):
        assert before - buffer.live == sum(buffer.first <= at < buffer.first + before for at in picked)
    assert np.flatnonzero(job.state == SETTLED).tolist() == picked.tolist()
    assert job.has_gaps


def test_only_rows_in_a_request_settle_and_each_of_them_once() -> None:
    job, _, _ = a_job(1, 50)
    job.begin(10, 30)
    job.settle_rows(10, 20)
    for first, last in ((19, 21), (29, 31), (0, 50)):
        with pytest.raises(AssertionError, match="twice"):
            job.settle_rows(first, last)
    job.settle_rows(20, 30)
    assert [job.count(0, 50, state) for state in (QUEUED, IN_REQUEST, SETTLED)] == [30, 0, 20]


def test_a_buffer_that_is_let_go_holds_nothing_and_tells_its_charge_once() -> None:
    job, _, _ = a_job(1, 50)
    (buffer,) = job.buffers
    charge = buffer.charge_bytes
    assert job.release(buffer, 49) == 0
    assert job.release(buffer, 1) == charge + JOB_CHARGE_BYTES * 50, "and of its job, as it was the last one"
    assert buffer.charge_bytes == job.charge_bytes == 0
    assert not buffer.data
    assert not buffer.keys
    assert len(buffer.hashes[0]) == 0


def test_a_span_finds_its_rows_wherever_they_lie_in_a_buffer_and_its_buffer_in_a_job() -> None:
    random, shard_map = Random(1), even_map(2)
    hash_keys = [random.choice([None, b"%d" % random.getrandbits(128)]) for _ in range(40)]
    result = sorted_of([rows_of([(b"k", bytes(20_000 + i), key) for i, key in enumerate(hash_keys)])], shard_map)
    assert any(span.buffer.first for _, span in result.spans)
    for shard, whole in result.spans:
        for span in whole.cut(whole.first + whole.records // 2):
            rows = [content(span, at) for at in range(span.first, span.last)]
            numbers = [number for _, _, number, _ in rows]
            sizes = [0, *accumulate(len(key) + len(data) for key, data, _, _ in rows)]
            assert [span.sizes(most).tolist() for most in (None, 2, 99)] == [sizes, sizes[:3], sizes]
            assert [span.bytes_to(at) for at in range(span.first, span.last + 1)] == sizes
            assert span.bytes == sizes[-1]
            assert span.hash_range() == (min(numbers), max(numbers))
            assert [span.lies_in(other) for other in shard_map.shards] == [shard == 0, shard == 1]
            places = range(span.first, span.last)
            assert [hash_key_of(span, at) for at in places] == [b"%d" % number for number in numbers]
            given = [b"%d" % number if explicit else None for _, _, number, explicit in rows]
            assert [explicit_hash_key_of(span, at) for at in places] == given
            span.reorder(np.arange(span.records)[::-1])
            assert [content(span, at) for at in places] == rows[::-1]
            assert all(part.lies_in(even_map(7).shards[index]) for index, part in place(span, even_map(7)))
            assert sorted(content(span, at) for at in places) == sorted(rows)


def test_neighbouring_spans_are_one_run_if_they_are_of_one_job() -> None:
    (job, one, _), (other, two, _) = a_job(1, 50), a_job(1, 50)
    (a, b, _, d), (_, f, g, _) = [[span for _, span in result.spans] for result in (one, two)]
    assert a.last == f.first, "neighbours of two jobs"
    assert runs_of([]) == []
    assert runs_of([d, a, b, d]) == [(job, d.first, d.last), (job, 0, b.last), (job, d.first, d.last)]
    assert runs_of([a, f, g]) == [(job, 0, a.last), (other, f.first, g.last)]
    assert records_of([a, f, g]) == a.records + f.records + g.records


# ---- rows in another order, in place


MARKED_ROWS = some_rows(
    keys=st.sampled_from([None, b"k0", b"k1", b"k2", EACH_ITS_OWN]), sizes=st.sampled_from([8, 9, 900])
)


class MarkedRows:
    """A job whose rows have every mark that rows can have, what each of them was before, and some rows of one span."""

    def __init__(self, draw: st.DrawFn) -> None:
        frames = draw(st.lists(MARKED_ROWS, min_size=1, max_size=2))
        result = sorted_of([rows_of(rows) for rows in frames], even_map(draw(st.sampled_from([1, 3]))))
        self.job = result.job
        self.spans = [span for _, span in result.spans]
        rows, numbers = len(result.job.order), np.arange(len(result.job.order))
        for buffer in result.job.buffers if draw(st.booleans()) else ():
            buffer.aggregates = np.arange(len(buffer.key_offsets) - 1) % 3 == 0
        self.job.state[:] = (numbers * 7 % 11) % 3
        if draw(st.booleans()):
            self.job.mark_maybe_stored(0, rows // 2, "connection")
        self.before = self.rows()
        span = draw(st.sampled_from(self.spans))
        first, last = sorted(draw(st.tuples(*[st.integers(span.first, span.last)] * 2)))
        self.some = span.cut(first)[1].cut(max(last, first + (first < span.last)))[0]

    def rows(self) -> list[tuple[object, ...]]:
        """All there is to know of each row, by its position."""
        job, found = self.job, list[tuple[object, ...]]()
        for span in self.spans:
            buffer = span.buffer
            for position in range(span.first, span.last):
                ((frame, numbers),) = job.frames_of(slice(position, position + 1))
                aggregate = buffer.aggregates is not None and bool(buffer.aggregates[position - buffer.first])
                maybe = int(job.maybe_stored[position]) if job.maybe_stored is not None else 0
                state = int(job.state[position])
                found.append((frame.frame_id, int(numbers[0]), *content(span, position), aggregate, state, maybe))
        return found


MARKED = st.composite(MarkedRows)()


@settings(max_examples=60)
@given(world=MARKED, random=st.randoms(use_true_random=True))
def test_rows_put_in_another_order_stay_what_they_are_and_the_others_where_they_are(
    world: MarkedRows, random: Random
) -> None:
    span, buffer = world.some, world.some.buffer
    arrays = (buffer.key_offsets, buffer.data_offsets, *buffer.hashes, buffer.explicit, buffer.aggregates)
    as_read = [None if array is None else array.copy() for array in arrays]
    order = np.array(random.sample(range(span.records), span.records), np.intp)
    a, b = span.first, span.last
    numbers = buffer.key_numbers(a - buffer.first, b - buffer.first).tolist()
    span.reorder(order)
    assert buffer.key_numbers(a - buffer.first, b - buffer.first).tolist() == [numbers[place] for place in order]
    after = world.rows()
    assert after[a:b] == [world.before[a + place] for place in order.tolist()]
    assert after[:a] + after[b:] == world.before[:a] + world.before[b:]
    for read, array in zip(as_read, arrays, strict=True):
        assert (read is None and array is None) or np.array_equal(read, array), "a worker may be reading them"  # type: ignore[arg-type]


@settings(max_examples=60)
@given(world=MARKED, shards=st.sampled_from([1, 2, 7]))
def test_rows_placed_by_another_map_are_spans_of_one_shard_each_and_keep_their_order_in_it(
    world: MarkedRows, shards: int
) -> None:
    span, shard_map = world.some._replace(attempts=2, timeouts=1, wrong_counts=1, strays=1), even_map(shards)
    placed = place(span, shard_map)
    indexes = [index for index, _ in placed]
    assert indexes == sorted(set(indexes)), "each once, in the shards' order"
    edges = [span.first, *(part.last for _, part in placed)]
    assert [(part.first, part.last) for _, part in placed] == [*pairwise(edges)]
    assert edges[-1] == span.last
    after, a, b = world.rows(), span.first, span.last
    for index, part in placed:
        assert part.lies_in(shard_map.shards[index])
        assert (part.attempts, part.timeouts, part.wrong_counts, part.strays) == (2, 1, 1, 1)
        mine = after[part.first : part.last]
        assert mine == [row for row in world.before[a:b] if row in mine]
    assert sorted(map(repr, after[a:b])) == sorted(map(repr, world.before[a:b]))
    assert after[:a] + after[b:] == world.before[:a] + world.before[b:]


def test_rows_that_are_all_of_one_shard_are_placed_without_being_touched() -> None:
    ((_, span),) = sorted_of([rows_of([(b"k", b"d", None)] * 9)], even_map(1)).spans
    keys = span.buffer.keys
    assert place(span, even_map(1)) == [(0, span)]
    assert span.buffer.keys is keys


def test_the_range_of_a_span_s_hash_keys_counts_both_halves() -> None:
    """The lowest of the low halves among the lowest high ones, and the highest among the highest."""
    numbers = [(7 << 64) + 5, (7 << 64) + 3, (9 << 64) + 1, (9 << 64) + 8, (8 << 64) + 99]
    result = sorted_of([rows_of([(b"k", b"d", b"%d" % number) for number in numbers])], even_map(1))
    ((_, span),) = result.spans
    assert span.hash_range() == (min(numbers), max(numbers))


def charged(charge_bytes: int, rows: int, hash_keys: list[bytes | None] | None = None) -> list[Row]:
    """Rows that are charged this many bytes each."""
    data = bytes(charge_bytes - RECORD_CHARGE_BYTES - len(b"k"))
    return [(b"k", data, hash_key) for hash_key in hash_keys or [None] * rows]


@pytest.mark.parametrize(("charge_bytes", "records"), [(32 << 10, [8, 8, 4]), ((32 << 10) + 1, [7, 7, 6])])
def test_a_span_has_as_many_rows_as_fit_256_kib(charge_bytes: int, records: list[int]) -> None:
    result = sorted_of([rows_of(charged(charge_bytes, 20))], even_map(1))
    assert [span.records for _, span in result.spans] == records
    assert [buffer.live for buffer in result.job.buffers] == records


@pytest.mark.parametrize(("charge_bytes", "records"), [(32 << 10, [2, 2, 1]), ((32 << 10) + 1, [1] * 5)])
def test_spans_of_several_shards_share_a_buffer_of_up_to_64_kib(charge_bytes: int, records: list[int]) -> None:
    hash_keys: list[bytes | None] = [b"%d" % shard.start for shard in even_map(5).shards]
    result = sorted_of([rows_of(charged(charge_bytes, 5, hash_keys))], even_map(5))
    assert [(shard, span.records) for shard, span in result.spans] == [(shard, 1) for shard in range(5)]
    assert [buffer.live for buffer in result.job.buffers] == records


def test_shards_are_told_apart_however_many_there_are() -> None:
    for shards in (2, 255, 256, 257, 1_000):
        shard_map = even_map(shards)
        rows: list[Row] = [(b"k", b"d", b"%d" % shard.end) for shard in reversed(shard_map.shards)]
        assert [shard for shard, _ in sorted_of([rows_of(rows)], shard_map).spans] == list(range(shards))


def test_only_buffers_with_such_rows_have_marks_of_given_hash_keys_and_aggregates() -> None:
    payload = aggregate_of([InnerRecord(b"k", b"0", b"inside")])
    rows = intake.check(body_of([bytes(200_000), bytes(100_000), payload]), 1 << 20, takes_aggregates=True)
    first, second = sorted_of([rows], even_map(1)).job.buffers
    assert (first.explicit, first.aggregates) == (None, None)
    for marks in (second.explicit, second.aggregates):
        assert marks is not None
        assert marks.tolist() == [False, True]
    (plain,) = sorted_of([rows_of([(b"k", b"d", None)])], even_map(1)).job.buffers
    assert (plain.explicit, plain.aggregates) == (None, None)


def test_a_row_that_is_taken_for_an_aggregate_and_is_none_is_a_failure_of_ours() -> None:
    rows = replace(rows_of([(b"k", b"plain", None)]), aggregates=np.array([0], np.int32))
    with pytest.raises(AssertionError, match="intake names only rows that can be split"):
        sorted_of([rows], even_map(1))


@pytest.mark.parametrize(
    ("small_records", "mean_bytes", "at_once"),
    [
        (0, md5.MOST_BYTES, [12, 10, 10, 5]),
        (5, md5.MOST_BYTES, [12, 10, 9, 6]),
        (10, md5.MOST_BYTES, [37]),
        (0, 2, [12, 10, 9, 1, 5]),
    ],
)
def test_frames_are_hashed_together_up_to_a_number_of_rows_and_of_bytes(
    monkeypatch: pytest.MonkeyPatch, small_records: int, mean_bytes: int, at_once: list[int]
) -> None:
    """Each row has the hash key of its own key all the same, also where one of them is long."""
    hashed: list[int] = []

    def hash_keys(keys: memoryview, offsets: I32) -> tuple[U64, U64]:
        hashed.append(len(offsets) - 1)
        return hash_keys_module.hash_keys(keys, offsets)

    monkeypatch.setattr(sorting, "hash_keys", hash_keys)
    monkeypatch.setattr(sorting, "TEXTS_AT_ONCE", 12)
    monkeypatch.setattr(sorting, "MOST_BYTES", mean_bytes)
    monkeypatch.setattr(sorting, "SMALL_RECORDS", small_records)
    monkeypatch.setattr(md5, "LEAST_TEXTS", 10)
    keys = [b"%d" % number * (1 + 8 * (number % 9 == 8)) for number in range(37)]
    ends = [*accumulate((9, 1, 2, 10, 9, 1, 5))]
    frames = [rows_of([(key, b"data", None) for key in keys[a:b]]) for a, b in pairwise([0, *ends])]
    result = sorted_of(frames, even_map(3))
    assert hashed == at_once
    each = [content(span, at) for _, span in result.spans for at in range(span.first, span.last)]
    assert {key: number for key, _, number, _ in each} == {key: hash_of(key.decode(), None) for key in keys}


@settings(max_examples=60)
@given(
    states=st.lists(st.sampled_from([QUEUED, QUEUED, IN_REQUEST, SETTLED]), min_size=30, max_size=30),
    ends=st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
def test_a_job_finds_the_runs_of_its_queued_rows(states: list[int], ends: tuple[int, int]) -> None:
    job, _, _ = a_job(1, 30)
    job.state[:] = states
    first, last = sorted(ends)
    queued = [at for at in range(first, last) if states[at] == QUEUED]
    runs = [
        (at, next(end for end in range(at, last + 1) if end not in queued)) for at in queued if at - 1 not in queued
    ]
    assert job.queued_runs(first, last) == runs
    assert job.first_queued_run(first, last) == [*runs, (last, last)][0]
    assert job.count(first, last, QUEUED) == len(queued)


def test_a_job_finds_a_frame_s_rows_from_a_number_on_and_the_queued_ones_among_them() -> None:
    job, _, frames = a_job(3, 20)
    for frame in frames:
        assert sorted(job.rows_of(frame, job.queued_positions_of(frame)).tolist()) == list(range(20))
        positions = job.positions_of(frame, 15)
        assert sorted(job.rows_of(frame, positions).tolist()) == list(range(15, 20))
        assert job.queued_positions_of(frame, 15).tolist() == positions.tolist()
        job.begin(int(positions[0]), int(positions[0]) + 1)
        assert job.queued_positions_of(frame, 15).tolist() == positions[1:].tolist()
