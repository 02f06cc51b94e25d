"""A batch's result adds up its tasks, and its error is one line: how many rows failed, which, and what helps."""

from __future__ import annotations

import logging

import pytest

from producerd.errors import Code, ConnectionFailed, RecordsFailed, RowFailure
from spark_client.dry_run import Packed, StreamDryRun
from spark_client.results import (
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


def test_the_figures_of_a_daemon_are_one_line() -> None:
    assert str(STARTED) == "daemon 7 on h1: started in 2.5 s, 1.0 s of CPU, at most 50 MiB, log /tmp/log"
    assert str(LATER) == "daemon 7 on h1: 3.0 s of CPU, at most 60 MiB, log /tmp/log"


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


def test_a_result_is_one_line() -> None:
    one = merge(None, "s", [result()], skip_bad_records=False)
    line = "s: 1500 records, 2000 bytes in 1 task, tasks waited 0% of their time (1.2 s blocked, 0.5 s flushing)"
    assert str(one) == line
    many = merge(7, "s", [result(0)._replace(retries=2, resent=3), result(1)], skip_bad_records=False)
    assert (
        str(many) == "s, batch 7: 3000 records, 4000 bytes in 2 tasks, tasks waited 0% of their time (2.5 s "
        "blocked, 1.0 s flushing), 2 retries, 3 resent"
    )


def test_what_a_prompt_shows_counts_the_files_and_the_daemons() -> None:
    tasks = [result(0)._replace(daemon=STARTED, diverted="file:///a"), result(1)._replace(diverted="file:///b")]
    assert repr(merge(None, "s", tasks, skip_bad_records=False)).endswith(
        ", resent=0, skipped_rows=(), partitions=<2>, daemons=<1>, diverted=<2>)"
    )


@pytest.mark.promise("client-asks-waits-why")
def test_a_result_fits_on_a_screen_however_many_tasks_it_has() -> None:
    """Its tasks were held for 1 s each by their shards, except the first, which waited for 1.5 s for an answer."""

    def of(tasks: int) -> BatchResult:
        held = [
            result(n)._replace(records=500_000, bytes=9, seconds=2.5, why=f"{n} shards take no more", why_seconds=1.0)
            for n in range(tasks)
        ]
        held[0] = held[0]._replace(failures=(INVALID,), why="answers are late", why_seconds=1.5)
        return merge(7, "s", held, skip_bad_records=True, seconds=3.0)

    assert repr(of(3)) == (
        "BatchResult(stream='s', batch_id=7, records=1500000, bytes=27, seconds=3.0, records_per_second=499999.667, "
        "waiting_share=0.7, seconds_blocked=3.75, seconds_flushing=1.5, why='1 shards take no more', skipped=1, "
        "retries=0, throttled=0, possible_duplicates=0, spread_keys=0, resent=0, "
        "skipped_rows=(SkippedRow(partition=0, row=3, code='RECORD_INVALID', maybe_stored=False),), partitions=<3>)"
    )
    assert str(of(3)) == (
        "s, batch 7: 1500000 records, 27 bytes in 3 tasks, 3.0 s (500,000 records per second), tasks waited 70% of "
        "their time (3.8 s blocked, 1.5 s flushing), 1 skipped; held by: 1 shards take no more"
    )
    assert len(repr(of(10_000))) < 500
    shown = of(30)._repr_html_().replace(LEFT, "")
    for row in ("<th>records per second</th><td>5,000,000</td>", "<th>held by</th><td>1 shards take no more</td>"):
        assert row in shown
    assert "<tr><th>tasks</th><td>30 on h0, h1, h10, " in shown
    assert len(shown) < 2_000


LEFT = ' style="text-align: left"'


def test_a_notebook_shows_a_table_of_all_figures() -> None:
    tasks = [result(0, INVALID)._replace(daemon=STARTED, diverted="file:///a?b&c")]
    rows = {
        "stream": "s",
        "batch id": "7",
        "records": "1,500",
        "bytes": "2,000",
        "tasks": "1 on h0",
        "waiting share": "0%",
        "seconds blocked": "1.2",
        "seconds flushing": "0.5",
        "skipped": "1",
        "skipped row": "0:3 RECORD_INVALID",
        "diverted to": "file:///a?b&amp;c",
        "daemon": "daemon 7 on h1: started in 2.5 s, 1.0 s of CPU, at most 50 MiB, log /tmp/log",
    }
    table = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
    shown = merge(7, "s", tasks, skip_bad_records=True)._repr_html_()
    assert shown.replace(LEFT, "") == f"<table>{table}</table>"


def test_a_batch_without_tasks_is_shown_too() -> None:
    shown = merge(None, "s", [], skip_bad_records=True)._repr_html_()
    assert shown.replace(LEFT, "").startswith("<table><tr><th>stream</th><td>s</td></tr>")
    assert "tasks" not in shown
    assert "batch id" not in shown
    odd = merge(None, "s", [], skip_bad_records=True)._replace(skipped_rows=(SkippedRow(0, 1, "<b>"),))
    assert "0:1 &lt;b&gt;" in odd._repr_html_()


def test_a_dry_run_is_one_line_and_a_table_however_many_streams_it_has() -> None:
    """The largest streams come first, after the most frequent reasons of bad rows."""
    some = tuple(
        StreamDryRun(
            f"s{size:02}", Packed(2, size, 2), Packed(1, size, 1), True, 4, {"shardId-0": 2}, {1024: 2}, 1 << 20
        )
        for size in range(1, 30)
    )
    bad = [RowFailure(Code.RECORD_INVALID, f"bad {kind}", kind, False, (), "s", True) for kind in range(1, 7)]
    found = merge(None, None, [result(0, *bad)._replace(dry_run=some)], skip_bad_records=True, dry_run=True)
    assert str(found) == (
        "dry run, nothing is stored: 1,479 of 1,500 records are good; 6 bad: RECORD_INVALID: bad 6; "
        "5 bad: RECORD_INVALID: bad 5; 4 bad: RECORD_INVALID: bad 4; 3 bad: RECORD_INVALID: bad 3; 2 more reasons; "
        + "; ".join(
            f"s{size}: plain: 2 PUT payload units of 2 records; aggregated: 1 PUT payload units of 1 records (as set); "
            "shards: 1 of 4, the fullest gets 100%; sizes: 2 up to 1 KiB"
            for size in (29, 28, 27, 26)
        )
        + "; 25 more streams"
    )
    assert found._repr_html_().count("PUT payload units of 2 records") == 20
    assert '>more streams</th><td style="text-align: left">9<' in found._repr_html_()
    empty = merge(None, "s", [], skip_bad_records=True, dry_run=True)
    assert str(empty) == "dry run, nothing is stored: 0 of 0 records are good"


def test_a_result_lists_the_first_20_skipped_rows_and_files() -> None:
    bad = INVALID._replace(records=20, rows=tuple(range(1, 21)))
    tasks = [result(0, INVALID._replace(maybe_stored=True, rows=(0,)), bad)] + [
        result(n)._replace(diverted=f"file:///{n}") for n in range(1, 22)
    ]
    merged = merge(None, "s", tasks, skip_bad_records=True)
    assert merged.skipped_rows == tuple(SkippedRow(0, row, Code.RECORD_INVALID, row == 0) for row in range(20))
    shown = merged._repr_html_().replace(LEFT, "")
    assert "<td>0:0 RECORD_INVALID (maybe stored)</td>" in shown
    assert "<td>file:///20</td>" in shown
    assert "file:///21" not in shown


def test_the_log_has_a_line_for_the_batch_and_one_for_each_daemon(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    line = "s: 1500 records, 2000 bytes in 1 task, tasks waited 0% of their time (1.2 s blocked, 0.5 s flushing)"
    rows = "0:3 RECORD_INVALID, 0:5 RECORD_INVALID"
    plain = merge(None, "s", [result()._replace(daemon=STARTED)], skip_bad_records=True)
    plain.log(logging.getLogger("producerd.client"))
    skipped = merge(None, "s", [result(0, INVALID._replace(records=2, rows=(3, 5)))], skip_bad_records=True)
    skipped._replace(diverted=("file:///a", "file:///b")).log(logging.getLogger("producerd.client"))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", line),
        ("INFO", str(STARTED)),
        (
            "WARNING",
            f"{line}, 2 skipped; skipped (partition:row): {rows}; 2 files have them, such as file:///a",
        ),
    ]


def test_hosts_are_named_once_in_order_and_only_the_first_20() -> None:
    names = [f"h{n:02}" for n in range(21)]
    assert names_of(["b", "a", "b"]) == "a, b"
    assert names_of(names[:20]) == ", ".join(names[:20])
    assert names_of(names) == ", ".join(names[:20]) + ", ..."


# ---- the error of a batch


def test_failures_of_one_kind_add_up_whichever_task_has_them() -> None:
    for maybe_stored in ((True, False), (False, True)):
        failures = [RowFailure(Code.EXPIRED, "too old", 3, maybe, (4,), "s") for maybe in maybe_stored]
        error = error_of(*failures)
        assert str(error) == (
            "PRODUCERD[EXPIRED]: host h0, partition 0, stream s: 6 records failed; named as partition:row: "
            "EXPIRED 6 (too old), rows 0:4, 1:4"
        )
        assert error.failures == (RowFailure(Code.EXPIRED, "too old", 6, True, (4,), "s"),)


def test_bad_rows_come_before_the_good_ones_that_were_refused_with_them() -> None:
    beside = RowFailure(Code.FRAME_REFUSED, "refused with the frame", 1, False, (0,), "s")
    assert str(error_of(beside, INVALID._replace(records=2, rows=(3, 5)))).startswith(
        "PRODUCERD[RECORD_INVALID]: host h0, partition 0, stream s: 2 records failed, 1 in the same frames were not "
        "taken; named as partition:row: RECORD_INVALID 2 (no <data>), rows 1:3, 1:5; FRAME_REFUSED 1 (refused with the "
        "frame); fix these rows, or leave them out "
    )


def test_a_stream_is_named_with_its_failure_where_each_row_has_its_own() -> None:
    of_many = RowFailure("OTHER", "more kinds", 1, False, ())
    assert str(error_of(of_many, UNJUDGED, stream=None)) == (
        "PRODUCERD[OTHER]: host h0, partition 0: 2 records failed; named as partition:row: OTHER 1 (more kinds); "
        "RECORD_INVALID 1 of stream s (no <data>), rows 1:3"
    )


def test_an_error_names_the_first_five_kinds_and_20_rows_of_each() -> None:
    kinds = [RowFailure(f"Code{n}", "no", 30 + n, False, tuple(range(21)), "s") for n in range(6)]
    rows = [", ".join(f"{n}:{row}" for row in range(20)) for n in range(5)]
    listed = "; ".join(f"Code{n} {30 + n} (no), rows {rows[n]}" for n in range(5))
    error = error_of(*reversed([one._replace(rows=()) for one in kinds]))
    assert str(error) == (
        "PRODUCERD[Code0]: host h0, partition 0, stream s: 195 records failed; named as partition:row: "
        "Code0 30 (no); Code1 31 (no); Code2 32 (no); Code3 33 (no); Code4 34 (no)"
    )
    assert [failure.code for failure in error.failures] == [f"Code{n}" for n in range(6)]
    assert str(error_of(*kinds)).endswith(f"named as partition:row: {listed}")


def test_what_may_be_skipped_is_not_listed_with_what_fails_the_batch() -> None:
    error = error_of(INVALID, RowFailure(Code.KMS, "no key", 1, False, (0,), "s"), skip=True)
    assert str(error) == (
        "PRODUCERD[KMS]: host h1, partition 1, stream s: 1 record failed; named as partition:row: "
        "KMS 1 (no key), rows 1:0; allow the stream's key to the role that the daemon runs with"
    )


@pytest.mark.promise("code-alone-lets-row")
def test_a_code_alone_lets_no_row_be_skipped_and_the_daemon_is_to_be_upgraded() -> None:
    """A daemon that does not say which rows were judged gives this code to good rows of a refused stream, too."""
    kms = RowFailure(Code.KMS, "no key", 1, False, (0,), "s")
    for failures in ([INVALID, UNJUDGED], [kms, UNJUDGED]):
        error = error_of(*failures, skip=True)
        assert "RECORD_INVALID 1 (no <data>), rows 1:3" in str(error)
        assert "these rows were not left out: upgrade the daemon" in str(error)
        assert INVALID not in error.failures
    assert "upgrade" not in str(error_of(kms, skip=True))
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


def test_an_error_is_found_with_its_kind_and_code() -> None:
    found = error_in("pyspark: producerd.errors.ProducerdError: PRODUCERD[DAEMON_LOST]: gone \n\tat java.base")
    assert type(found) is ConnectionFailed
    assert (str(found), found.code) == ("PRODUCERD[DAEMON_LOST]: gone", "DAEMON_LOST")
    assert error_in("PRODUCERD[DAEMON_LOST]: in a row") is None
