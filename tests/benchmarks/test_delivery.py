"""The delivery benchmark's sessions know which rows are stored, and its table and its JSON say the same."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

import benchmarks.delivery.producerd
import benchmarks.delivery.run
from benchmarks import maven
from benchmarks.delivery import __main__ as command
from benchmarks.delivery.figures import FaultTimes, Figures, data_of
from benchmarks.delivery.producerd import Session, StoredRows
from benchmarks.delivery.run import Run, Start, judged, run
from benchmarks.delivery.scenarios import Load, Scenario, Stage, slow_shard, slow_uplink, split
from benchmarks.judges import Handed
from producerd.errors import ConnectionFailed, Outcome
from producerd.testing import Entry, FakeKinesis, UserRecord
from producerd.wire.columns import Columns, lay_out
from producerd.wire.frames import Ack, RowCode

ROW = Figures("producerd", "split", "kpl", "fake Kinesis", 30_000, 30_000, 1, 12, recovery_seconds=0.5, recovered=True)
LOST = replace(ROW, readable=29_591, verdict="LOST 409")


def rows_of(records: int) -> Columns:
    return lay_out([b""] * records, [b"x"] * records)


def test_a_session_knows_which_of_its_rows_are_stored() -> None:
    stored = StoredRows()
    stored.settle(Ack(1, 3, 3, 0, 0, 0), range(3), "s", rows_of(3))
    failed = RowCode(Outcome.NOT_STORED, "RECORD_INVALID", "")
    stored.settle(Ack(2, 4, 2, 2, 0, 0, bitmap=b"\x05", codes=(failed,)), range(3, 7), "s", rows_of(4))
    assert stored.rows == {0, 1, 2, 4, 6}
    assert stored.stored == 5


def test_a_session_that_connects_late_does_so_when_its_load_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_daemon(*_: object) -> NoReturn:
        raise ConnectionFailed("no daemon")

    monkeypatch.setattr(benchmarks.delivery.producerd, "Connection", no_daemon)
    session = Session(0, Load(begins=0.01, connects_late=True), "bench", Path("/nowhere"))
    session.begin(time.monotonic())
    session.join()
    assert session.failure == "session 0: ConnectionFailed: no daemon"
    with pytest.raises(ConnectionFailed):
        Session(0, Load(), "bench", Path("/nowhere"))


def a_run(acknowledged: set[int], scenario: Scenario) -> Run:
    stream = FakeKinesis().create_stream("bench", shards=scenario.shards)
    return Run("producerd", acknowledged, lambda row: row < 5, [], 7, FaultTimes(0.0, 1.0, 2.0), stream)


def read_at(at: float, *ids: int) -> Handed:
    entry = Entry("shardId-000000000000", "a", None, b"", "1", at)
    return Handed(entry, [UserRecord("key", None, data_of(row, 1_000)) for row in ids])


def test_a_row_that_was_acknowledged_and_cannot_be_read_is_missing() -> None:
    scenario = split("kpl")
    found = judged(a_run({1, 2, 3}, scenario), scenario, [read_at(0.5, 1, 9), read_at(1.5, 1)], "a judge")
    assert (found.acknowledged, found.readable, found.duplicates, found.requests) == (3, 1, 1, 7)
    assert found.verdict == "LOST 2, NEVER SENT 1"
    assert (found.others_throughput_ratio, found.others_longest_gap_seconds, found.goodput_ratio) == (None, None, None)


def test_what_was_stored_before_the_loads_began_is_none_of_theirs() -> None:
    scenario = split("kpl")
    done, handed = a_run({1}, scenario), [read_at(0.1, 9), read_at(0.5, 1)]
    assert judged(done, scenario, handed, "a judge").verdict == "NEVER SENT 1"
    assert judged(done._replace(entries_before=1), scenario, handed, "a judge").verdict == "ok"


def test_throughput_is_that_of_the_others_where_one_shard_is_at_fault() -> None:
    scenario = slow_shard()
    own, other = 0, 1_000_000_000  # the first ids of the first two sessions
    handed = [read_at(0.5, own, own + 1, other, other + 1), read_at(1.5, other + 2), read_at(2.5, own + 2, own + 3)]
    found = judged(a_run(set(), scenario), scenario, handed, "a judge")
    assert (found.others_throughput_ratio, found.others_longest_gap_seconds) == (0.5, 0.5)
    assert (found.recovery_seconds, found.recovered) == (None, False)


def test_goodput_is_what_the_rows_need_in_base64_of_what_the_uplink_carries() -> None:
    scenario = slow_uplink()
    handed = [read_at(1.5, *range(936)), read_at(1.6, *range(936))]  # 1,336 characters each, in a second; no copies
    found = judged(a_run(set(), scenario), scenario, handed, "a judge")
    assert found.goodput_ratio == 0.5
    assert (found.recovery_seconds, found.recovered) == (None, None)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scenario runs."""
    monkeypatch.setattr(command.Bench, "_row", lambda *_, **__: ROW)


@pytest.mark.usefixtures("stand_in")
def test_json_is_one_array_with_the_same_keys_in_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--json", "--scenario", "split", "outage"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 3  # split twice: aggregated and not
    asked = "producer scenario acknowledged readable duplicates requests recovery_seconds"
    assert all(set(row) == set(rows[0]) > set(asked.split()) for row in rows)


@pytest.mark.parametrize(("lost_by", "code"), [("producerd", 1), ("kpl", 0)])
def test_a_row_that_producerd_lost_fails_the_command_and_one_of_a_rival_is_told(
    lost_by: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(_bench: object, _scenario: Scenario, start: Start, *, official: bool) -> Figures:
        return LOST if start.__name__ == lost_by else ROW

    monkeypatch.setattr(command.Bench, "_row", row)
    assert command.main(["--with-kpl", "--scenario", "split"]) == code
    assert "LOST 409" in capsys.readouterr().out


class Mute:
    """A producer that puts nothing, and ends when somebody has told of it."""

    name = "mute"

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.told: list[str] = []
        self.was_told = threading.Event()

    def begin(self) -> None:
        pass

    def sent(self, row: int) -> bool:
        return False

    def acknowledged(self) -> set[int]:
        self.was_told.wait(10.0)
        return set()

    def note(self, line: str) -> None:
        self.told.append(line)
        self.was_told.set()


@pytest.mark.parametrize("early", [True, False])
def test_a_fault_may_stand_before_the_producer_starts(early: bool) -> None:
    met: list[str] = []
    producer = Mute()
    producer.was_told.set()

    @contextlib.contextmanager
    def mute(stage: Stage, scenario: Scenario) -> Iterator[Mute]:
        met.append("start")
        yield producer

    scenario = Scenario("nothing", "none", 1, (), begins=0.0, ends=0.0, begin=lambda _: met.append("fault"))
    run(replace(scenario, begins_before_start=early), mute)
    assert met == (["fault", "start"] if early else ["start", "fault"])


def test_what_cannot_be_run_is_told_and_leaves_no_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def producerd(*_: object) -> NoReturn:
        raise maven.Unavailable("why")

    monkeypatch.setattr(command, "producerd", producerd)
    assert command.main(["--json", "--scenario", "outage"]) == 1
    out, err = capsys.readouterr()
    assert "why" in err
    assert out == ""
