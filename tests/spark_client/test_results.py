"""A batch's result adds up its tasks, and its error is one line: how many rows failed, which, and what helps."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from producerd.errors import (
    BackpressureTimeout,
    Code,
    ConnectionFailed,
    ProducerdError,
    RecordsFailed,
    Refused,
    RowFailure,
)
from spark_client.dry_run import Packed, StreamDryRun
from spark_client.results import (
    ADVICE,
    BatchResult,
    DaemonFigures,
    PartitionResult,
    SkippedRow,
    as_line,
    error_in,
    marked,
    merge,
    names_of,
)
from tests.snapshots import Snapshot

INVALID = RowFailure(Code.RECORD_INVALID, "no <data>", 1, False, (3,), "s", judged=True)
UNJUDGED = INVALID._replace(judged=False)
STARTED = DaemonFigures("h1", 7, 2.5, 50 << 20, 1.0, "/tmp/log")
LATER = STARTED._replace(started_seconds=None, peak_rss_bytes=60 << 20, cpu_seconds=3.0)


def result(partition: int = 0, *failures: RowFailure) -> PartitionResult:
    return PartitionResult(partition, f"h{partition}", 1_500, 2_000, 0, 0, 0, 0, 0, 1.25, 0.5, failures)


def error_of(*failures: RowFailure, stream: str | None = "s", skip: bool = False) -> RecordsFailed:
    """The error of a batch, each of whose tasks has one of these failures."""
    with pytest.raises(RecordsFailed) as caught:
        merge(None, stream, [result(n, one) for n, one in enumerate(failures)], skip_bad_records=skip)
    return caught.value


# ---- what a task reports


def test_a_report_travels_with_the_figures_of_its_daemon_and_its_file() -> None:
    for daemon in (STARTED, LATER):
        report = result(3, INVALID)._replace(daemon=daemon, diverted="file:///bad/3.parquet")
        assert PartitionResult.from_line(report.to_line()) == report


@pytest.mark.parametrize(("skip", "left"), [(False, [INVALID, UNJUDGED]), (True, [UNJUDGED])])
def test_only_judged_rows_fail_no_batch_that_may_skip_them(skip: bool, left: list[RowFailure]) -> None:
    assert result(0, INVALID, UNJUDGED).failed(skip) == left


# ---- the result of a batch


def test_each_daemon_counts_once_with_its_latest_figures_and_its_start() -> None:
    other = LATER._replace(host="h2")
    seen = [LATER, None, other, STARTED]
    merged = merge(
        None,
        "s",
        [result(n)._replace(daemon=daemon) for n, daemon in enumerate(seen)],
        skip_bad_records=False,
    )
    assert merged.daemons == (LATER._replace(started_seconds=2.5), other)
    started_late = [result(0)._replace(daemon=LATER._replace(cpu_seconds=0.5)), result(1)._replace(daemon=STARTED)]
    assert merge(None, "s", started_late, skip_bad_records=False).daemons == (STARTED,)


def held(tasks: int) -> BatchResult:
    """Return a batch whose tasks their shards held for 1 s each, except the first, which waited 1.5 s for an answer."""
    each = [
        result(n)._replace(records=500_000, bytes=9, seconds=2.5, why=f"{n} shards take no more", why_seconds=1.0)
        for n in range(tasks)
    ]
    each[0] = each[0]._replace(failures=(INVALID,), why="answers are late", why_seconds=1.5)
    return merge(7, "s", each, skip_bad_records=True, seconds=3.0)


def dry_run(streams: int) -> BatchResult:
    """Return what a dry run found: streams of one frame, and six kinds of bad rows."""
    some = tuple(
        StreamDryRun(
            f"s{size:02}", Packed(2, size, 2), Packed(1, size, 1), True, 4, {"shardId-0": 2}, {1024: 2}, 1 << 20
        )
        for size in range(1, streams + 1)
    )
    bad = [RowFailure(Code.RECORD_INVALID, f"bad {kind}", kind, False, (), "s", True) for kind in range(1, 7)]
    return merge(None, None, [result(0, *bad)._replace(dry_run=some)], skip_bad_records=True, dry_run=True)


def batch(*tasks: PartitionResult, batch_id: int | None = None) -> BatchResult:
    return merge(batch_id, "s", tasks, skip_bad_records=True)


SHOWN = {
    "one task": batch(result()),
    "two tasks of a batch": batch(result(0)._replace(retries=2, resent=3), result(1), batch_id=7),
    "no tasks": batch(),
    "a skipped row, a file and a daemon": batch(
        result(0, INVALID)._replace(daemon=STARTED, diverted="file:///a?b&c"),
        result(1)._replace(daemon=LATER._replace(host="<h2>"), diverted="file:///b"),
        batch_id=7,
    ),
    "tasks that were held": held(3),
    "a dry run of 5 streams and of six kinds of bad rows": dry_run(5),
    "a dry run of no rows": merge(None, "s", [], skip_bad_records=True, dry_run=True),
}


def html_of(shown: BatchResult) -> str:
    return shown._repr_html_().replace(' style="text-align: left"', "")


def test_a_result_is_shown_as_a_line_a_prompt_and_a_table(snapshot: Snapshot) -> None:
    texts = [
        f"# {what}\n{shown}\n{shown!r}\n{html_of(shown).replace('</tr>', '</tr>' + chr(10))}\n"
        for what, shown in SHOWN.items()
    ]
    snapshot("batch_results", "\n".join(texts))


def test_a_table_has_the_first_20_of_skipped_rows_files_and_streams() -> None:
    maybe_stored = INVALID._replace(maybe_stored=True, rows=(0,))
    bad = INVALID._replace(records=20, rows=tuple(range(1, 21)))
    many = batch(result(0, maybe_stored, bad), *(result(n)._replace(diverted=f"file:///{n}") for n in range(1, 22)))
    assert many.skipped_rows == tuple(
        SkippedRow(0, row, Code.RECORD_INVALID, row == 0, INVALID.message) for row in range(20)
    )
    table = html_of(many)
    assert "<td>0:0 RECORD_INVALID: no &lt;data&gt; (maybe stored)</td>" in table
    assert table.count("<th>skipped row</th>") == table.count("<th>diverted to</th>") == 20
    table = html_of(dry_run(22))
    assert table.count("<th>stream</th>") == 20
    assert "<th>more streams</th><td>2</td>" in table


@pytest.mark.promise("client-asks-waits-why")
def test_a_result_says_what_held_most_of_its_tasks_and_fits_on_a_screen() -> None:
    assert held(3).why == "1 shards take no more"
    assert str(held(3)).endswith("; held by: 1 shards take no more")
    assert len(repr(held(10_000))) < 500
    assert len(html_of(held(30))) < 2_000


def test_the_log_has_a_line_for_the_batch_and_one_for_each_daemon(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    line = "s: 1500 records, 2000 bytes in 1 task, tasks waited 0% of their time (1.2 s blocked, 0.5 s flushing)"
    rows = "0:3 RECORD_INVALID: no <data>, 0:5 RECORD_INVALID: no <data>"
    plain = merge(None, "s", [result()._replace(daemon=STARTED)], skip_bad_records=True)
    plain.log(logging.getLogger("producerd.client"))
    skipped = merge(None, "s", [result(0, INVALID._replace(records=2, rows=(3, 5)))], skip_bad_records=True)
    skipped._replace(diverted=("file:///a", "file:///b")).log(logging.getLogger("producerd.client"))
    merge(None, "s", [result()], skip_bad_records=True)._replace(guard_problem="of the driver").log(
        logging.getLogger("producerd.client")
    )
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", line),
        ("INFO", str(STARTED)),
        (
            "WARNING",
            f"{line}, 2 skipped; skipped (partition:row): {rows}; 2 files have them, such as file:///a",
        ),
        ("INFO", line),
        ("WARNING", "replay guard: the driver could not use it fully: of the driver"),
    ]


def test_hosts_are_named_once_in_order_and_only_the_first_20() -> None:
    names = [f"h{n:02}" for n in range(21)]
    assert names_of(["b", "a", "b"]) == "a, b"
    assert names_of(names[:20]) == ", ".join(names[:20])
    assert names_of(names) == ", ".join(names[:20]) + ", ..."


# ---- the error of a batch


KINDS = [RowFailure(f"Code{n}", "no", 30 + n, False, tuple(range(21)), "s") for n in range(6)]
KMS = RowFailure(Code.KMS, "no key", 1, False, (0,), "s")
OLD = RowFailure(Code.EXPIRED, "too old", 3, True, (4,), "s")
ERRORS: dict[str, tuple[list[RowFailure], dict[str, Any]]] = {
    "two tasks with one kind": ([OLD, OLD], {}),
    "bad rows, and good ones in the same frame": (
        [
            RowFailure(Code.FRAME_REFUSED, "refused with the frame", 1, False, (0,), "s"),
            INVALID._replace(records=2, rows=(3, 5)),
        ],
        {},
    ),
    "each row has its own stream": ([RowFailure("OTHER", "more kinds", 1, False, ()), UNJUDGED], {"stream": None}),
    "five of six kinds, without rows": ([one._replace(rows=()) for one in reversed(KINDS)], {}),
    "20 of 21 rows of each kind": (KINDS, {}),
    "what may be skipped is not listed": ([INVALID, KMS], {"skip": True}),
}


def test_an_error_is_one_line_with_the_counts_the_rows_and_what_helps(snapshot: Snapshot) -> None:
    texts = [f"# {what}\n{error_of(*failures, **options)}\n" for what, (failures, options) in ERRORS.items()]
    snapshot("batch_errors", "".join(texts))


def test_an_error_has_all_kinds_the_rarest_first() -> None:
    assert [failure.code for failure in error_of(*reversed(KINDS)).failures] == [f"Code{n}" for n in range(6)]


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_failures_of_one_kind_add_up_whichever_task_has_them(order: tuple[bool, bool]) -> None:
    error = error_of(*(OLD._replace(maybe_stored=maybe) for maybe in order))
    assert error.failures == (OLD._replace(records=6),)


@pytest.mark.promise("code-alone-lets-row")
def test_a_code_alone_lets_no_row_be_skipped_and_the_daemon_is_to_be_upgraded() -> None:
    """A daemon that does not say which rows were judged gives this code to good rows of a refused stream, too."""
    for failures in ([INVALID, UNJUDGED], [KMS, UNJUDGED]):
        error = error_of(*failures, skip=True)
        assert "RECORD_INVALID 1 (no <data>), rows 1:3" in str(error)
        assert "these rows were not left out: upgrade the daemon" in str(error)
        assert INVALID not in error.failures
    assert "upgrade" not in str(error_of(KMS, skip=True))
    assert "upgrade" not in str(error_of(UNJUDGED))
    assert {*error_of(INVALID, UNJUDGED).failures} == {INVALID, UNJUDGED}


# ---- a marked line


def test_a_line_has_2000_characters_at_most() -> None:
    assert marked("X", "x" * 2_000) == f"PRODUCERD[X]: {'x' * 2_000}"
    assert marked("X", "x" * 2_001) == f"PRODUCERD[X]: {'x' * 2_000} ..."


def test_an_error_is_marked_once() -> None:
    error = ConnectionFailed("no\n daemon", code=Code.DAEMON_ABSENT)
    for _ in range(2):
        assert as_line(error) is error
        assert str(error) == "PRODUCERD[DAEMON_ABSENT]: no daemon"


def test_a_sentence_of_others_joins_the_line_without_its_full_stop() -> None:
    line = marked(Code.KMS, "The key is disabled.; request id ...; as before.")
    assert line == f"PRODUCERD[KMS]: The key is disabled; request id ...; as before; {ADVICE[Code.KMS]}"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.DAEMON_ABSENT, ConnectionFailed),
        (Code.DAEMON_LOST, ConnectionFailed),
        (Code.DRAINING, ConnectionFailed),
        (Code.BACKPRESSURE_TIMEOUT, BackpressureTimeout),
        (Code.STREAM_NOT_FOUND, Refused),
        ("SomeNewException", Refused),
    ],
)
def test_a_marked_line_is_found_in_what_spark_wraps_around_it(code: str, kind: type[ProducerdError]) -> None:
    line = marked(code, "host h, partition 3:\n  no room")
    text = f"Job aborted: PythonException:\nTraceback\n  x.ProducerdError: {line} \n\n\tat java.base\n{line}"
    error = error_in(text)
    assert type(error) is kind
    advice = f"; {ADVICE[code]}" if code in ADVICE else ""
    assert (str(error), error.code) == (f"PRODUCERD[{code}]: host h, partition 3: no room{advice}", code)


def test_a_worker_that_lacks_pyarrow_is_told_of_in_one_line() -> None:
    error = error_in("PythonException: \n  import pyarrow as pa\nModuleNotFoundError: No module named 'pyarrow'\n")
    assert str(error).startswith("PRODUCERD[ARROW_MISSING]: pyarrow is missing on the executors: pip install")


@pytest.mark.parametrize(
    "text",
    [
        "PRODUCERD[DAEMON_LOST]: in a row",
        "org.apache.spark.SparkException: Job 3 cancelled",
        "ModuleNotFoundError: No module named 'pyarrow_of_mine'",
        "[CAST_INVALID_INPUT] The value 'PRODUCERD[X]: SECRET' of the type STRING cannot be cast to BIGINT",
    ],
)
def test_other_text_has_no_error_in_it(text: str) -> None:
    assert error_in(text) is None
