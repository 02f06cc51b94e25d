"""The backpressure benchmark's arithmetic is right, its pictures show every curve, and records that are lost end it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import benchmarks.backpressure.__main__ as command
from benchmarks.backpressure.__main__ import SECONDS
from benchmarks.backpressure.curves import NAMES, Curves, Sample, curves, increase, variation
from benchmarks.backpressure.kinesis import CountingStream, Stored
from benchmarks.backpressure.picture import draw
from benchmarks.backpressure.record import FILE, read, write
from benchmarks.backpressure.run import BATCHES, CASES, QUEUE_LIMIT, Bench, Figures, Run, parsed
from benchmarks.backpressure.spark_job import Batch
from benchmarks.daemon.run import RecordsWrong

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
ROWS = {
    "accepted": "records accepted from Spark",
    "stored": "records stored in Kinesis",
    "queue": "queue",
    "rss": "RSS",
    "blocked": "time blocked",
}
"""How the documents call the curves in their tables."""


def sample(at: float, accepted: float = 0, stored: float = 0, queue: float = 0, blocked: float = 0) -> Sample:
    return Sample(at, accepted, stored, queue, 100e6, blocked)


# --------------------------------------------------------------------------------------------------------- arithmetic


def test_a_flat_curve_does_not_vary_and_one_burst_in_n_seconds_varies_by_the_root_of_n_minus_1() -> None:
    assert variation([7.0] * 9) == 0.0
    assert variation([10.0] + [0.0] * 9) == pytest.approx(3.0)
    assert variation([1.0, 3.0]) == pytest.approx(0.5)


def test_what_has_no_mean_has_no_variation() -> None:
    assert variation([0.0, 0.0]) is None
    assert variation([]) is None


def test_rates_are_by_the_time_between_two_scrapes_and_levels_are_those_of_the_later() -> None:
    told = curves([sample(10.0), sample(11.0, 500, 100, 400, 0.25), sample(13.0, 1_500, 500, 1_000, 1.25)], start=10.5)
    assert told.seconds == [0.5, 2.5]
    assert (told.accepted, told.stored) == ([500, 500], [100, 200])
    assert (told.queue, told.rss) == ([400, 1_000], [100e6, 100e6])
    assert told.blocked == [0.25, 0.5]


def test_a_counter_that_falls_began_anew() -> None:
    assert increase(100, 130) == 30
    assert increase(100, 30) == 30
    assert curves([sample(0, 100, 90), sample(1, 30, 20)], 0).accepted == [30]


def test_the_steady_part_has_only_seconds_that_lie_wholly_in_it() -> None:
    whole = curves([sample(at, at * at) for at in range(6)], 0)
    assert whole.between(1.5, 4.5).seconds == [3.0, 4.0]
    assert whole.between(1.0, 4.0).accepted == [3, 5, 7]
    assert whole.between(9.0, 10.0) == Curves([], [], [], [], [], [])
    assert curves([], 0) == Curves([], [], [], [], [], [])


def test_a_stream_s_metrics_are_summed_over_other_labels() -> None:
    text = """# TYPE producerd_failed_records_total counter
producerd_failed_records_total{reason="EXPIRED",stream="flights"} 2.0
producerd_failed_records_total{reason="INTERNAL",stream="flights"} 3.0
producerd_failed_records_total{reason="INTERNAL",stream="others"} 9.0
# TYPE producerd_ready gauge
producerd_ready 1.0
"""
    said = parsed(text)
    assert said == {"failed_records_total": 5.0}
    assert said["delivered_records_total"] == 0


# ------------------------------------------------------------------------------------------------------- what is lost


def stored(*batches: list[int], records: int = 10) -> Stored:
    stream = CountingStream(2, records)
    for ids in batches:
        data = b"".join(b"\x0a\x0e%d<%010d>....." % (i % 10, i) for i in ids)
        stream.store(stream.shards[0], "a", None, data, 0.0)
    return stream.stored


def test_kinesis_counts_each_record_of_an_aggregate() -> None:
    assert stored([0, 1, 2], [3], [4, 5, 6, 7, 8, 9]) == Stored(10, 0, 0)
    assert stored([0, 1, 1], [1]) == Stored(4, 8, 0)
    assert stored([0, 10]) == Stored(1, 9, 1)
    assert stored([]) == Stored(0, 10, 0)


def said(**values: float) -> defaultdict[str, float]:
    whole = {"ingest_records_total": 480_000.0, "delivered_records_total": 480_000.0, "queue_peak_records": 90_000.0}
    return defaultdict(float, whole | values)


BENCH = Bench(120_000, lambda _: None)
WRITTEN = [Batch(10.0 * i, 10.0 * i + 9, 120_000, 0.0, 0) for i in range(BATCHES)]


def test_a_run_in_which_all_counts_agree_is_good() -> None:
    BENCH.check("with_limit", WRITTEN, said(), Stored(480_000, 0, 0))
    BENCH.check("with_limit", WRITTEN, said(possible_duplicate_records_total=5.0), Stored(480_005, 0, 0))
    BENCH.check("without_limit", WRITTEN, said(queue_peak_records=120_000.0), Stored(480_000, 0, 0))


@pytest.mark.parametrize(
    ("written", "told", "found", "problem"),
    [
        (WRITTEN, said(), Stored(479_999, 1, 0), "1 of 480,000 records are not in Kinesis"),
        (WRITTEN, said(), Stored(480_000, 1, 0), "1 of 480,000 records are not in Kinesis"),
        (WRITTEN, said(), Stored(480_000, 0, 2), "2 strangers are"),
        (WRITTEN, said(possible_duplicate_records_total=4.0), Stored(480_005, 0, 0), "5 duplicates"),
        (WRITTEN[1:], said(), Stored(480_000, 0, 0), "Spark wrote 360,000 records of 480,000"),
        (WRITTEN, said(delivered_records_total=479_999.0), Stored(480_000, 0, 0), "'delivered': 479999"),
        (WRITTEN, said(ingest_records_total=480_001.0), Stored(480_000, 0, 0), "'ingest': 480001"),
        (WRITTEN, said(failed_records_total=1.0), Stored(480_000, 0, 0), "'failed': 1"),
        (WRITTEN, said(discarded_records_total=1.0), Stored(480_000, 0, 0), "'discarded': 1"),
        (WRITTEN, said(queue_records=1.0), Stored(480_000, 0, 0), "1 queued"),
        (WRITTEN, said(queue_peak_records=100_001.0), Stored(480_000, 0, 0), "100,001 records were queued"),
    ],
)
def test_records_that_are_lost_or_miscounted_end_it(
    written: list[Batch], told: defaultdict[str, float], found: Stored, problem: str
) -> None:
    with pytest.raises(RecordsWrong, match=f"^with_limit: .*{problem}"):
        BENCH.check("with_limit", written, told, found)


def test_the_limits_differ_in_queue_limit_alone_and_one_holds_a_whole_micro_batch() -> None:
    without, limited = map(BENCH.limits, CASES)
    assert limited == without | {"queue_limit": QUEUE_LIMIT}
    assert without["queue_limit"] > BENCH.batch_records > QUEUE_LIMIT


@pytest.mark.parametrize(("blocked", "told"), [(0.0, True), (0.1, False)])
def test_a_run_whose_queue_never_reached_its_limit_is_told(
    blocked: float, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = runs()
    for run in found:
        monkeypatch.setitem(run.figures.totals, "blocked_seconds", blocked)
    monkeypatch.setattr(Bench, "run", lambda _, case: found[CASES.index(case)])
    command.measure(BENCH, tmp_path)
    assert ("NEVER BLOCKED: with_limit" in capsys.readouterr().err) == told


# ------------------------------------------------------------------------------------------------- figures, pictures


def runs() -> list[Run]:
    """Four micro-batches of 10 s: in the one run all is accepted in the first second of each, in the other evenly."""
    found = []
    for case, burst in zip(CASES, (True, False), strict=True):
        samples = [sample(0.0)]
        for second in range(40):
            accepted = 120_000 * (1 + second // 10) if burst else 12_000 * (second + 1)
            delivered = 12_000 * (second + 1)
            blocked = 0.0 if burst else 0.5 * second
            samples.append(sample(second + 1.0, accepted, delivered, accepted - delivered, blocked))
        spans = [Batch(10.0 * i, 10.0 * (i + 1), 120_000, 0.0, 0) for i in range(BATCHES)]
        found.append(BENCH.result(case, spans, samples, said(), 300_000_000))
    return found


def test_figures_tell_of_the_steady_part_and_peaks_of_the_whole_run() -> None:
    bursts, even = (run.figures for run in runs())
    assert bursts.coefficients_of_variation["accepted"] == 3.0
    assert even.coefficients_of_variation["accepted"] == bursts.coefficients_of_variation["stored"] == 0.0
    assert bursts.coefficients_of_variation["blocked"] is None
    assert bursts.means["accepted"] == even.means["accepted"] == 12_000
    assert bursts.peaks == {"accepted": 120_000, "stored": 12_000, "queue": 90_000, "rss": 300_000_000, "blocked": 0}
    assert (bursts.totals["records"], bursts.totals["seconds"], bursts.totals["steady_seconds"]) == (480_000, 40, 30)


def test_a_run_is_kept_and_read_again(tmp_path: Path) -> None:
    write(runs(), "a machine", tmp_path / "new")
    assert read(tmp_path / "new") == runs()
    assert json.loads((tmp_path / "new" / FILE).read_text().splitlines()[0]) == {"conditions": "a machine"}


def paths(picture: Path) -> dict[str, list[list[float]]]:
    """The points of each curve in an SVG."""
    found = {}
    for group in ET.parse(picture).iter(f"{SVG}g"):
        if group.get("id") in NAMES:
            (path,) = group.iter(f"{SVG}path")
            found[str(group.get("id"))] = [
                [float(number) for number in point.split()] for point in re.split("[ML]", path.get("d", ""))[1:]
            ]
    return found


# ----------------------------------------------------------------------------------------------------- what is shown


def figures_of_the_readme() -> list[Figures]:
    return [run.figures for run in read(PICTURES)]


def test_the_pictures_of_the_readme_are_drawn_from_the_data_beside_them(tmp_path: Path) -> None:
    for path in draw(read(PICTURES), tmp_path):
        shown = PICTURES / path.name
        for name, points in paths(path).items():
            assert np.allclose(points, paths(shown)[name], atol=1.0), name  # in points: fonts may differ
        assert f"docs/pictures/{path.name}" in (ROOT / "README.md").read_text()
        assert shown.stat().st_size < 150_000
    assert (PICTURES / FILE).stat().st_size < 50_000


def test_the_coefficients_of_variation_are_those_of_the_data() -> None:
    text = (ROOT / "docs/understand/performance.md").read_text()
    without, limited = (run.coefficients_of_variation for run in figures_of_the_readme())
    for name, words in ROWS.items():
        shown = ["-" if value is None else f"{value:.2f}" for value in (without[name], limited[name])]
        assert f"| {words} | {' | '.join(shown)} |" in text


def test_the_data_are_of_a_run_of_the_command_as_it_comes() -> None:
    for run in figures_of_the_readme():
        assert run.limits == Bench.lasting(SECONDS, print).limits(run.case)
        assert run.totals["records"] == BATCHES * run.totals["batch_records"]
