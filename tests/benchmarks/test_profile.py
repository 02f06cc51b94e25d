"""The profile gives each moment of the daemon to the step that it was spent on."""

from __future__ import annotations

import hashlib
import json
import linecache
import subprocess
import sys
from pathlib import Path

import pytest

import producerd
from benchmarks.daemon.run import Case
from benchmarks.profile.picture import draw
from benchmarks.profile.run import Figures, shared
from benchmarks.profile.steps import LINES, PLACES, ROOT, STEPS, Steps, step_of_file

REPOSITORY = Path(producerd.__file__).resolve().parents[1]


def test_each_part_of_the_daemon_that_is_named_is_there() -> None:
    files = [str(file.relative_to(ROOT).with_suffix("")) for file in ROOT.rglob("*.py")]
    assert {place for place in PLACES if not any(file.startswith(place) for file in files)} == set()
    source = "".join(file.read_text() for file in ROOT.rglob("*.py"))
    assert {part for part in LINES if part not in source} == set()
    assert set(STEPS) == {*PLACES.values(), *LINES.values(), STEPS[-1]}


def test_the_longest_beginning_of_a_path_decides() -> None:
    assert step_of_file(str(ROOT / "core/sending/answers.py")) == "read the answer"
    assert step_of_file(str(ROOT / "core/sending/sender.py")) == "choose rows for a request"
    assert step_of_file(str(ROOT / "runtime/aws/kinesis.py")) == "sign and address"
    assert step_of_file(str(ROOT / "demo/children.py")) == STEPS[-1]
    assert step_of_file(json.__file__) is None


@pytest.mark.parametrize(("line", "step"), [("look()", "write the body"), ("look(sha256(b''))", "SHA-256 of the body")])
def test_a_call_counts_for_who_made_it_and_a_hash_for_itself(line: str, step: str) -> None:
    file = ROOT / "core/encoding/no_such_file.py"
    linecache.cache[str(file)] = (0, None, [line + "\n"], str(file))
    found: list[str] = []
    names = {"look": lambda *_: found.append(Steps().of(sys._getframe())), "sha256": hashlib.sha256}
    exec(compile(line, str(file), "exec"), names)
    assert found == [step]
    assert Steps().of(None) == STEPS[-1]


def test_a_record_s_time_is_shared_by_samples_and_nothing_is_left_out() -> None:
    rows = shared(Case(100, "none", 1), 1_000.0, {"write the body": 30, "hash keys": 60, STEPS[-1]: 10})
    assert [row.step for row in rows] == list(STEPS)
    assert {row.step: row.cpu_ns_per_record for row in rows if row.samples} == {
        "hash keys": 600,
        "write the body": 300,
        STEPS[-1]: 100,
    }
    assert sum(row.share for row in rows) == pytest.approx(1)


def test_the_picture_has_each_case_and_each_step_and_is_the_same_again(tmp_path: Path) -> None:
    rows = [
        row
        for size in (100, 1_024)
        for row in shared(Case(size, "kpl", 1), 2_000.0, {"write the body": 50, "SHA-256 of the body": 50})
    ]
    for name in ("one.svg", "two.svg"):
        draw(rows, tmp_path / "new" / name)
    picture = (tmp_path / "new/one.svg").read_text()
    assert picture == (tmp_path / "new/two.svg").read_text()
    for text in (*STEPS, "100 B, kpl", "1,024 B, kpl", "2,000 ns", "1,000"):
        assert text in picture


@pytest.mark.slow
def test_a_run_gives_nearly_all_of_the_time_to_steps(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.profile", "--json", "--records", "400000", "--only", "100,kpl"]
    picture = tmp_path / "profile.svg"
    done = subprocess.run([*command, "--picture", picture], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [Figures(**row) for row in json.loads(done.stdout)]
    assert [row.step for row in rows] == list(STEPS)
    of = {row.step: row for row in rows}
    assert sum(row.samples for row in rows) >= 20, done.stderr
    assert of[STEPS[-1]].share < 0.05
    assert of["write the body"].cpu_ns_per_record > of["admit"].cpu_ns_per_record
    assert picture.read_text().startswith("<?xml")
