"""A guarded task leaves out what an earlier run has stored, sends everything else, and no store holds it up."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from producerd.errors import Code, ProducerdError
from producerd.wire import messages
from spark_client.replay import guard, recorder, store
from spark_client.replay.driver import prune
from spark_client.replay.guard import GuardPlan
from spark_client.results import PartitionResult
from spark_client.task import Plan, send_partition
from tests.daemon import until
from tests.spark_client.fake_daemon import INVALID, FakeDaemon, Row, Session

pytestmark = pytest.mark.law("TaskGuard")

HERE: dict[str, Any] = {"endpoint_host": "here", "stream_arn": "arn", "created_milliseconds": 1}
ROWS_A_CHUNK = 10_000
FOLDER = "query=q/batch=7/0"


def rows(ids: range | list[int], **columns: list[Any]) -> pa.RecordBatch:
    keys = [f"k{i}" for i in ids]
    return pa.RecordBatch.from_pydict({"partition_key": keys, "data": [f"row {i}" for i in ids], **columns})


class Node:
    """Runs guarded tasks, each in a session of its own with a daemon that does as ``runs`` says."""

    def __init__(self, daemon: FakeDaemon, folder: Path) -> None:
        self.daemon, self.folder = daemon, folder
        self.runs()

    def runs(self, bad: Any = lambda _: None, **opened: Any) -> None:
        def script(session: Session) -> None:
            session.welcome()
            session.serve(bad, **{**HERE, **opened})

        self.daemon.runs(script)

    def plan(self, **changed: Any) -> GuardPlan:
        uri = self.folder.as_uri()
        found = tuple(int(path.name) for path in (self.folder / FOLDER).glob("*"))
        plan = GuardPlan(uri, FOLDER, store.Store(uri).mark(), "token", 10.0, found, time.time())
        return plan._replace(**changed)

    def task(
        self, *batches: pa.RecordBatch, stream: str | None = "s", guard: GuardPlan | None = None, **options: Any
    ) -> PartitionResult:
        """Run a task; ``sent`` are then the data of the rows that its daemons got."""
        before = len(self.daemon.sessions)
        plan = Plan(stream, self.daemon.path, guard=guard or self.plan())._replace(**options)
        (made,) = send_partition(plan, iter(batches))
        sessions = self.daemon.sessions[before:]
        self.sent = [row[1] for session in sessions for _, row in session.rows]
        return PartitionResult.from_line(made.column(0)[0].as_py())

    @property
    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*.json") if path.is_file()]

    def records(self) -> list[list[Any]]:
        return sorted(chunk for path in self.files for chunk in json.loads(path.read_text())["chunks"])


@pytest.fixture
def node(daemon: FakeDaemon, tmp_path: Path) -> Node:
    return Node(daemon, tmp_path / "guard")


def test_what_a_task_has_stored_its_repeat_leaves_out_in_arrow_batches_of_any_size(node: Node) -> None:
    first = node.task(rows(range(25_000)))
    assert (first.records, first.left_out, first.guard_problem, len(node.sent)) == (25_000, 0, "", 25_000)
    assert [chunk[:2] for chunk in node.records()] == [["s", 0], ["s", 1], ["s", 2]]
    (made,) = node.files
    assert made.parent == node.folder / FOLDER / "0"
    assert made.name.startswith("token-")
    again = node.task(*[rows(range(at, at + 2_500)) for at in range(0, 25_000, 2_500)])
    assert (again.records, again.left_out, node.sent, again.bytes) == (25_000, 25_000, [], 0)
    assert node.files == [made], "it is recorded already"


def test_only_chunks_that_are_the_same_are_left_out(node: Node) -> None:
    ids = list(range(35_000))
    node.task(rows(ids))
    ids[15_000] = -1
    again = node.task(rows([*ids, 35_000]), put_timeout_seconds=30.0)
    assert again.left_out == 20_000, "the last chunk has one more row, and the second another one"
    assert node.sent == [f"row {i}".encode() for i in [*ids[10_000:20_000], *range(30_000, 35_001)]]


def test_with_per_key_only_the_first_chunks_are_left_out(node: Node) -> None:
    ids = list(range(40_000))
    node.task(rows(ids))
    ids[15_000] = -1
    node.runs(per_key=1)
    assert node.task(rows(ids)).left_out == 10_000
    assert len(node.sent) == 30_000


def test_after_a_repeat_the_last_value_of_each_key_is_the_last(node: Node) -> None:
    """Where keys keep their order, and the record of a chunk in the middle was lost."""
    node.runs(per_key=1)
    batch = pa.RecordBatch.from_pydict(
        {"partition_key": [f"k{i % 7}" for i in range(40_000)], "data": [f"{i}" for i in range(40_000)]}
    )
    node.task(batch)
    (made,) = node.files
    told = json.loads(made.read_text())
    made.write_text(json.dumps({**told, "chunks": [chunk for chunk in told["chunks"] if chunk[1] != 1]}))
    assert node.task(batch).left_out == 10_000
    last = {key: data for session in node.daemon.sessions for _, (key, data, _) in session.rows}
    assert last == {f"k{i % 7}".encode(): f"{i}".encode() for i in range(39_993, 40_000)}


@pytest.mark.parametrize("ends_first", [True, False])
def test_an_attempt_that_goes_on_beside_the_next_one_costs_no_row(node: Node, ends_first: bool) -> None:
    """As where Spark has given an executor up that still runs."""
    half_put, goes_on = threading.Event(), threading.Event()
    reports: list[pa.RecordBatch] = []

    def zombie() -> None:
        plan = node.plan(interval_seconds=0.02)
        reports.extend(send_partition(Plan("s", node.daemon.path, guard=plan), batches()))

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(range(25_000))
        half_put.set()
        assert goes_on.wait(20)
        yield rows(range(25_000, 30_000))

    thread = threading.Thread(target=zombie)
    thread.start()
    assert half_put.wait(20)
    until(lambda: node.files)
    plan = node.plan(found=None)
    if ends_first:
        goes_on.set()
        thread.join()
    result = node.task(rows(range(30_000)), guard=plan)
    goes_on.set()
    thread.join()
    stored = {row[1] for session in node.daemon.sessions for _, row in session.rows}
    assert stored == {f"row {i}".encode() for i in range(30_000)}
    assert len(reports) == 1
    assert result.left_out >= 10_000
    assert node.task(rows(range(30_000))).left_out == 30_000


def test_in_s3_a_repeat_leaves_out_what_a_task_has_stored(node: Node, s3: str) -> None:
    plan = node.plan(uri=f"s3://kept/guard{s3}", mark="")
    assert node.task(rows(range(100)), guard=plan).guard_problem == ""
    assert node.task(rows(range(100)), guard=plan._replace(found=(0,))).left_out == 100


@pytest.mark.parametrize(
    "elsewhere", [{"endpoint_host": "there"}, {"stream_arn": "other"}, {"created_milliseconds": 2}]
)
def test_a_stream_that_is_another_one_gets_everything(node: Node, elsewhere: dict[str, Any]) -> None:
    node.task(rows(range(100)))
    node.runs(**elsewhere)
    assert node.task(rows(range(100))).left_out == 0
    assert len(node.sent) == 100
    assert node.task(rows(range(100))).left_out == 100, "it was recorded, too"


@pytest.mark.parametrize("unknown", [{"stream_arn": ""}, {"created_milliseconds": 0}])
def test_where_a_stream_is_unknown_nothing_is_recorded_and_nothing_left_out(
    node: Node, unknown: dict[str, Any]
) -> None:
    node.runs(**unknown)
    result = node.task(rows(range(100)))
    assert (node.files, len(node.sent), result.guard_problem) == ([], 100, guard.UNKNOWN.format("s"))
    node.runs()
    node.task(rows(range(100)))
    node.runs(**unknown)
    assert node.task(rows(range(100))).left_out == 0
    assert len(node.sent) == 100


def test_each_stream_has_chunks_of_its_own_and_the_daemon_is_told_how_many_rows_were_left_out(node: Node) -> None:
    names = [f"s{i % 3}" for i in range(30_000)]
    batches = [rows(range(at, at + 6_000), stream=names[at : at + 6_000]) for at in range(0, 30_000, 6_000)]
    node.task(*batches, stream=None)
    assert [chunk[:2] for chunk in node.records()] == [["s0", 0], ["s1", 0], ["s2", 0]]
    again = node.task(*batches, stream=None)
    assert (again.left_out, node.sent) == (30_000, [])
    told = [messages.Flush(number, 10_000) for number in (1, 2, 3)]
    until(lambda: [flush for flush in node.daemon.sessions[-1].flushes if flush.left_out] == told)


def test_a_chunk_with_a_row_that_is_not_stored_goes_again_whole(node: Node) -> None:
    def bad(row: Row) -> messages.RowCode | None:
        return INVALID if row[1] == b"row 12345" else None

    node.runs(bad)
    for _ in range(2):
        result = node.task(rows(range(30_000)), skip_bad_records=True)
        assert [failure.rows for failure in result.failures] == [(12_345,)]
    assert (result.left_out, len(node.sent), result.records) == (20_000, 10_000, 30_000)


def test_a_chunk_of_which_rows_may_have_gone_to_another_place_is_not_recorded(node: Node) -> None:
    def script(session: Session) -> None:
        lost_one = len(node.daemon.sessions) == 1
        session.welcome()
        if lost_one:
            session.opened(**HERE)
            session.ack(session.take_frame())
            session.take_frame()
            session.socket.close()
        else:
            session.serve(**{**HERE, "stream_arn": "other"})

    node.daemon.runs(script)
    result = node.task(rows(range(30_000)), reconnect_timeout_seconds=20.0)
    assert (result.records, result.resent) == (30_000, 10_000)
    assert [chunk[:2] for chunk in node.records()] == [["s", 0]], "it alone was stored by the first daemon"


def test_a_task_that_fails_records_what_it_has_stored(node: Node) -> None:
    def script(session: Session) -> None:
        session.welcome()
        session.opened(**HERE)
        session.ack(session.take_frame())
        session.take_frame()
        session.socket.close()

    node.daemon.runs(script)
    with pytest.raises(ProducerdError) as lost:
        node.task(rows(range(30_000)), reconnect_timeout_seconds=0.0)
    assert lost.value.code == Code.DAEMON_LOST
    assert [chunk[:2] for chunk in node.records()] == [["s", 0]]
    node.runs()
    assert node.task(rows(range(30_000))).left_out == 10_000


def test_a_task_holds_no_more_than_its_bound_and_sends_the_rest(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"s{i % 4}" for i in range(4_000)]
    batch = rows(range(4_000), stream=names)
    node.task(batch, stream=None)
    monkeypatch.setattr(guard, "MOST_HELD_BYTES", 150_000 + 3 * guard.PART_BYTES)
    again = node.task(batch, stream=None)
    assert (again.left_out, len(node.sent)) == (3_000, 1_000)


def test_what_is_no_longer_held_makes_room(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list(range(80_000))
    node.task(rows(ids))
    ids[:40_000] = range(-40_000, 0)
    monkeypatch.setattr(guard, "MOST_HELD_BYTES", 15_000 * 64)
    assert node.task(rows(ids)).left_out == 40_000, "all that are the same"


@pytest.mark.parametrize("columns", [{}, {"explicit_hash_key": [None, "7", "", "8"] * 25}])
def test_rows_that_were_held_back_are_sent_as_they_are(node: Node, columns: dict[str, Any]) -> None:
    data = [None if i % 5 == 0 else f"row {i}" for i in range(100)]
    keys = [None if i % 3 == 0 else f"k{i}" for i in range(100)]
    batch = pa.RecordBatch.from_pydict({"data": pa.array(data), "partition_key": pa.array(keys), **columns})
    node.task(rows(range(100)))
    result = node.task(batch.slice(0, 30), batch.slice(30))
    assert result.left_out == 0
    hash_keys = [(key or "").encode() for key in columns["explicit_hash_key"]] if columns else [None] * 100
    sent = [(k, d, h) for _, (k, d, h) in node.daemon.sessions[-1].rows]
    assert sent == [
        ((key or "").encode(), value if value is None else value.encode(), hash_key)
        for key, value, hash_key in zip(keys, data, hash_keys)
    ]


def test_files_that_are_torn_foreign_or_newer_are_passed_over_with_a_warning(node: Node) -> None:
    node.task(rows(range(100)))
    (made,) = node.files
    (made.parent / "torn.json").write_bytes(made.read_bytes()[:-1])
    (made.parent / "newer.json").write_text(json.dumps({"producerd_replay": 2}))
    (made.parent / ".hidden.json").write_text("of a write that was cut short")
    result = node.task(rows(range(100)))
    assert result.left_out == 100
    assert result.guard_problem.startswith("2 files of records are ignored, such as query=q/batch=7/0/0/")


@pytest.mark.parametrize(
    ("attempt", "found", "seconds_ago", "reads"),
    [
        (0, (), 0, False),
        (1, (), 0, True),
        (0, (0,), 0, True),
        (0, (), 11, True),
        (0, None, 0, True),
        (0, (1,), 0, False),
    ],
)
def test_a_task_looks_for_records_where_there_may_be_some(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    attempt: int,
    found: tuple[int, ...] | None,
    seconds_ago: float,
    reads: bool,
) -> None:
    """The driver found some, an attempt came before this one, or may have come since the driver looked."""
    node.task(rows(range(100)))
    task: Any = SimpleNamespace(
        stageId=lambda: 1, partitionId=lambda: 0, attemptNumber=lambda: attempt, getLocalProperty=lambda _: None
    )
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: task)
    guard = node.plan(found=found, looked_at=time.time() - seconds_ago)
    assert node.task(rows(range(100)), guard=guard).left_out == 100 * reads


def test_a_folder_that_a_node_does_not_share_is_not_used(node: Node) -> None:
    plan = node.plan()
    shutil.rmtree(node.folder)
    result = node.task(rows(range(100)), guard=plan)
    assert (len(node.sent), result.guard_problem, node.files) == (100, guard.NOT_SHARED, [])


def test_a_task_that_looks_itself_ignores_the_records_of_a_changed_checkpoint(node: Node) -> None:
    node.task(rows(range(100)))
    (node.folder / "query=q" / "batch=12").mkdir()
    result = node.task(rows(range(100)), guard=node.plan(found=None))
    assert (len(node.sent), result.guard_problem) == (100, guard.CHANGED.format(7))


class StuckStore(store.Store):
    """A store of which a call hangs until ``free`` is set."""

    free = threading.Event()

    def write(self, path: str, content: bytes) -> None:
        self.free.wait(60)

    def files(self, folder: str) -> list[str]:
        self.free.wait(60)
        return []


@pytest.mark.parametrize("found", [(), (0,)])
def test_a_store_that_hangs_delays_no_put_and_a_task_only_a_little(
    node: Node, monkeypatch: pytest.MonkeyPatch, found: tuple[int, ...]
) -> None:
    monkeypatch.setattr(StuckStore, "free", threading.Event())
    plan = node.plan(found=found)
    for module in (guard, recorder):
        monkeypatch.setattr(module, "MOST_SECONDS", 0.5)
    for module in (guard, recorder):
        monkeypatch.setattr(module, "Store", StuckStore)
    try:
        result = node.task(rows(range(30_000)), guard=plan)
    finally:
        StuckStore.free.set()
    assert (len(node.sent), result.records) == (30_000, 30_000)
    assert result.guard_problem == "its store has not answered within 0.5 s, and the last records are missing"


def test_records_that_could_not_be_written_are_written_with_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Flaky(store.Store):
        fails = True

        def write(self, path: str, content: bytes) -> None:
            if Flaky.fails:
                Flaky.fails = False
                writing.set()
                assert more_came.wait(20)
                raise OSError("no room")
            super().write(path, content)

    writing, more_came = threading.Event(), threading.Event()
    monkeypatch.setattr(recorder, "Store", Flaky)
    plan = node.plan(interval_seconds=0.05)

    def batches() -> Any:
        yield rows(range(20_000))
        assert writing.wait(20)
        yield rows(range(20_000, 60_000))
        yield rows(range(60_000, 60_010))  # what comes before has been acknowledged in part
        more_came.set()

    (made,) = send_partition(Plan("s", node.daemon.path, guard=plan), batches())
    result = PartitionResult.from_line(made.column(0)[0].as_py())
    assert [chunk[:2] for chunk in node.records()] == [["s", number] for number in range(7)]
    assert result.guard_problem == "records cannot be written: OSError: no room"


def test_a_record_counts_for_a_day_from_its_first_row_on_also_while_a_task_runs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = began = time.time()
    monkeypatch.setattr(time, "time", lambda: now)

    def batches(waits: float) -> Iterator[pa.RecordBatch]:
        nonlocal now
        yield rows(range(15_000))
        now += waits
        yield rows(range(15_000, 30_000))

    def left_out(waits: float) -> int:
        plan = node.plan(found=(0,), looked_at=now)
        (made,) = send_partition(Plan("s", node.daemon.path, guard=plan), batches(waits))
        return PartitionResult.from_line(made.column(0)[0].as_py()).left_out

    assert left_out(3600.0) == 0
    assert [chunk[3] - began for chunk in node.records()] == [0.0, 0.0, 3600.0]
    now = began + 23 * 3600
    assert left_out(0.0) == 30_000
    now = began + 23 * 3600
    assert left_out(3600.0) == 20_000, "the second chunk is too old when its last row comes"
    for path in node.files:
        path.unlink()
    assert left_out(0.0) == 0


def test_what_was_read_before_the_store_hung_counts(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.task(rows(range(10_000)))
    plan = node.plan(found=(0,))

    class Stuck(store.Store):
        def files(self, folder: str) -> list[str]:
            return [*super().files(folder), "stuck"]

        def read(self, path: str) -> bytes:
            if path == "stuck":
                free.wait(60)
            return super().read(path)

    free = threading.Event()
    monkeypatch.setattr(guard, "MOST_SECONDS", 0.5)
    monkeypatch.setattr(guard, "Store", Stuck)
    result = node.task(rows(range(10_000)), guard=plan)
    free.set()
    assert (result.left_out, "TimeoutError" in result.guard_problem) == (10_000, True)


def test_a_later_call_of_the_batch_leaves_nothing_out_where_keys_keep_their_order(node: Node) -> None:
    node.task(rows(range(100)))
    plan = node.plan(found=(0,), follows_sent=True)
    assert node.task(rows(range(100)), guard=plan).left_out == 100
    node.runs(per_key=1)
    assert node.task(rows(range(100)), guard=plan).left_out == 0


def test_with_per_key_a_chunk_of_which_runs_have_stored_other_rows_is_sent(node: Node) -> None:
    node.runs(per_key=1)
    first, other = rows(range(100)), rows(range(50, 150))
    node.task(first)
    node.task(other)
    assert node.task(first).left_out == 0, "its rows are not the last that were stored"


def test_without_a_thread_nothing_is_recorded_and_no_row_fails(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    plan = node.plan(mark="")
    threads = SimpleNamespace(Thread=type("Thread", (threading.Thread,), {"start": start}), Lock=threading.Lock)
    monkeypatch.setattr(recorder, "threading", SimpleNamespace(**vars(threads), Event=threading.Event))
    result = node.task(rows(range(100)), guard=plan)
    assert (result.records, result.guard_problem) == (100, "records cannot be written: can't start new thread")


def test_a_daemon_that_looks_for_long_where_streams_are_uses_up_no_time_out(node: Node) -> None:
    def script(session: Session) -> None:
        session.welcome()
        if len(node.daemon.sessions) == 1:
            session.opened(**HERE)
            session.take_frame()
            session.socket.close()
        else:
            session.expect(messages.Open)
            time.sleep(2.5)
            session.send(messages.Opened(1, 1 << 20, 10_000, **HERE))
            session.serve(**HERE)

    node.daemon.runs(script)
    result = node.task(rows(range(20_000)), put_timeout_seconds=2.0, reconnect_timeout_seconds=20.0)
    assert result.records == 20_000


def test_a_task_asks_for_no_more_when_it_has_waited_for_long(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_client.session.MOST_WHERE_SECONDS", 0.1)
    asked: list[int] = []

    def script(session: Session) -> None:
        session.welcome()
        for _ in range(3):
            opened = session.expect(messages.Open)
            asked.append(opened.asks_where)
            time.sleep(0.2)
            session.send(messages.Opened(opened.stream_id, 1 << 20, 10_000))
            session.ack(session.take_frame())
        session.serve()

    node.daemon.runs(script)
    assert node.task(rows(range(3), stream=["s1", "s2", "s3"]), stream=None).records == 3
    assert asked == [1, 0, 0]


def test_old_batches_are_pruned(node: Node) -> None:
    node.task(rows(range(100)))
    uri = node.folder.as_uri()
    assert (prune(uri), len(node.files)) == (0, 1)
    assert (prune(uri, older_than_seconds=-1), node.files) == (1, [])
