"""The curves of `./dev bench scale`: every point is walked, and a curve that should be flat and is not is reported."""

from __future__ import annotations

import json

import pytest

from benchmarks.counter import Counter
from benchmarks.instructions import qemu
from benchmarks.scale import __main__ as command
from benchmarks.scale import run
from benchmarks.scale.points import AGGREGATIONS, DIMENSIONS, Point, case
from benchmarks.scale.run import Figures, compared, not_flat
from benchmarks.walk import walk


def point(value: int, per_record: float, dimension: str = "shards") -> Point:
    return Point(dimension, "kpl", value, "instructions", per_record, 50_000)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(
    ("dimension", "value"),
    [("shards", 64), ("clients", 16), ("queue_percent", 2), ("keys", 100), ("frame_records", 10)],
)
def test_a_point_of_each_dimension_is_walked(dimension: str, value: int, aggregation: str) -> None:
    what, _ = case(dimension, aggregation, value)
    cost = walk(what, Counter(), 3_000, 1_000)
    assert cost.records > 1_000
    assert cost.per_record > 0
    assert cost.mean_entry_bytes == 116 if aggregation == "none" else cost.mean_entry_bytes > 116


def test_every_curve_begins_with_its_reference_and_holds_what_is_promised_to_be_flat() -> None:
    for dimension in DIMENSIONS.values():
        assert dimension.values[0] == dimension.reference
        assert dimension.flat == 0 or dimension.flat in dimension.values


def test_each_point_is_compared_with_the_reference() -> None:
    rows = compared([point(1, 1_000.4), point(256, 1_160.0), point(1_000, 2_000.0)])
    assert [row.ratio for row in rows] == [1.0, 1.16, 2.0]
    assert rows[0] == Figures("shards", "kpl", 1, 1_000, "instructions", 50_000, 1.0)
    assert [row.value for row in not_flat(rows)] == [256], "nothing is promised of 1,000 shards"
    assert not_flat(compared([point(1, 1_000.0), point(4, 860.0), point(16, 1_150.0)])) == []
    assert not_flat(compared([point(1, 100.0, "frame_records"), point(10, 900.0, "frame_records")])) == []


def test_the_command_prints_its_keys_and_tells_what_is_not_flat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_points", lambda _: [point(1, 100.0), point(4, 130.0)])
    assert command.main(["--json", "--only", "shards", "--aggregation", "kpl"]) == 0
    told = capsys.readouterr()
    (first, _) = json.loads(told.out)
    assert list(first) == [
        "dimension",
        "aggregation",
        "value",
        "instructions_or_cpu_ns_per_record",
        "unit",
        "mean_entry_bytes",
        "ratio",
    ]
    assert "shards, kpl ..." in told.err
    assert "NOT FLAT: shards kpl 4: 1.3 of the reference" in told.err


def test_a_walk_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def failed(_: object) -> list[Point]:
        raise qemu.Failed("no")

    monkeypatch.setattr(run, "_points", failed)
    assert command.main(["--only", "keys"]) == 1
    assert "FAILED: no" in capsys.readouterr().err


@pytest.mark.slow
def test_without_qemu_processor_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu, "missing", lambda: "needs qemu")
    rows = list(run.figures(["frame_records"], ["none"], lambda _: None, ["1000", "10"]))
    assert [(row.value, row.unit) for row in rows] == [(1_000, "cpu_ns"), (10, "cpu_ns")]
    assert rows[1].ratio > 1
