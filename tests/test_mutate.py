"""`./dev mutate` plants faults in a copy, names the test that notices each one, and fails when one survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import ROOT
from tools.mutation import trees
from tools.mutation.command import EQUIVALENTS, main
from tools.mutation.faults import faults, read_equivalents
from tools.mutation.trees import failure_in, files_for

MODULE = "toy/limit.py"
SOURCE = """
LARGEST = 5


def limited(value):
    return min(value, 9)
"""
TEST = """
from toy.limit import limited


def test_a_small_value_stays():
    assert limited(3) == 3
"""
EQUIVALENT = """
[[equivalent]]
module = "toy/limit.py"
function = "limited"
statement = "return min(value, 9)"
fault = "9 -> 10"
reason = "nobody has a value above 8"
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with one module, which has two faults, and one test."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # faster
    for name, text in {MODULE: SOURCE, "tests/toy/test_limit.py": TEST, EQUIVALENTS: ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def verdicts(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    return {row["fault"]: (row["verdict"], row["by"]) for row in json.loads(capsys.readouterr().out)}


CAUGHT = ("caught", "tests/toy/test_limit.py::test_a_small_value_stays")


def test_a_survivor_fails_the_command_but_no_fault_that_changes_nothing(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (toy / EQUIVALENTS).write_text(EQUIVALENT)
    assert main(["toy", "--json", "--workers", "1"], toy) == 1
    assert verdicts(capsys) == {
        "9 -> 10": ("equivalent", "nobody has a value above 8"),
        "min -> max": CAUGHT,
        "5 -> 6": ("SURVIVED", ""),
    }
    assert (toy / MODULE).read_text() == SOURCE
    (toy / MODULE).write_text(SOURCE.replace("LARGEST = 5", ""))
    assert main([MODULE, "--workers", "1"], toy) == 0


def test_an_equivalent_that_cannot_be_planted_any_more_is_named(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toy / EQUIVALENTS).write_text(EQUIVALENT.replace("9", "8"))
    main(["toy", "--count", "0"], toy)
    assert "toy/limit.py limited: `return min(value, 8)`: 8 -> 10" in capsys.readouterr().err


def test_a_test_that_fails_without_a_fault_notices_none(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toy / "tests/toy/test_limit.py").write_text(TEST.replace("== 3", "== 4"))
    assert main(["toy", "--json", "--workers", "1", "--count", "1"], toy) == 1
    assert "fails without a fault, too" in capsys.readouterr().err


def test_a_test_that_fails_by_chance_notices_none_and_the_others_are_asked(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    has_run = toy / "has_run"
    by_chance = f"import pathlib\n\n\ndef test_once():\n    seen = pathlib.Path({str(has_run)!r})\n"
    by_chance += "    if not seen.exists():\n        seen.touch()\n        raise AssertionError\n"
    (toy / "tests/toy/test_limit.py").write_text(by_chance + TEST)
    main(["toy", "--json", "--workers", "1"], toy)
    assert has_run.exists()
    assert verdicts(capsys) == {"9 -> 10": ("SURVIVED", ""), "min -> max": CAUGHT, "5 -> 6": ("SURVIVED", "")}


IN_A_PROCESS = """
import subprocess
import sys

import toy.limit


def test_in_a_process():
    code = "from toy.limit import limited; raise SystemExit(limited(3) != 3)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_nothing_of_the_module():
    pass
"""
"""The module is loaded, so that faults are planted in memory, and only the process calls its function."""


def test_a_process_that_a_test_starts_has_the_fault_too(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toy / "tests/toy/test_limit.py").write_text(IN_A_PROCESS)
    main(["toy", "--json", "--workers", "1"], toy)
    found = verdicts(capsys)
    assert found["min -> max"] == ("caught", "tests/toy/test_limit.py::test_in_a_process")
    assert found["9 -> 10"] == ("SURVIVED", "")


TWICE = """
class Limit:
    @property
    def value(self):
        return 1

    @value.setter
    def value(self, value):
        self.set_to = [each * 2 for each in value]
"""


def test_a_fault_stands_in_the_function_of_its_line_and_in_what_is_inside_it(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A property's two functions have one name."""
    (toy / MODULE).write_text(TWICE)
    (toy / "tests/toy/test_limit.py").write_text(
        "from toy.limit import Limit\n\n\ndef test_it_is_set():\n"
        "    limit = Limit()\n    limit.value = [4]\n    assert limit.set_to == [8]\n"
    )
    main(["toy", "--json", "--workers", "1"], toy)
    by = "tests/toy/test_limit.py::test_it_is_set"
    assert verdicts(capsys) == {
        "1 -> 2": ("SURVIVED", ""),
        "deleted": ("caught", by),
        "* -> //": ("caught", by),
        "2 -> 3": ("caught", by),
    }


def test_tests_that_cannot_be_collected_catch_nothing(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toy / "tests/toy/test_limit.py").write_text(f"import a_package_that_is_missing\n{TEST}")
    assert main(["toy", "--workers", "1"], toy) == 2
    shown = capsys.readouterr()
    assert "the tests cannot be collected, also without a fault: tests/toy/test_limit.py" in shown.err
    assert shown.out == ""


def test_an_interrupt_ends_the_tests(toy: Path) -> None:
    started = toy / "started"
    slow = f"import os, pathlib, time\npathlib.Path({str(started)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    (toy / "tests/toy/test_limit.py").write_text(f"{TEST}    pass\n{slow}")
    driver = f"from tools.mutation import command; command.run_alone(['toy'], command.Path({str(toy)!r}))"
    with subprocess.Popen([sys.executable, "-c", driver], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while not started.exists() or not started.read_text():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 128 + signal.SIGINT
        finally:
            process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("source", "planted"),
    [
        ("def f(a, b):\n    return a < b", ["< -> <=", "< -> >"]),
        ("def f(a, b):\n    return a and not b", ["operand dropped: a", "operand dropped: not b", "not dropped"]),
        ("def f(a: bool) -> bool:\n    return a", ["not"]),
        ("def f(a) -> int | None:\n    return a", ["result None"]),
        ("def f(a, b=0.5):\n    if a:\n        a.go()", ["0.5 -> 5.0", "never taken", "deleted"]),
        ("class A:\n    def __init__(self, a):\n        self.a = a", []),
        ("class A:\n    def f(self):\n        self.a = None", ["deleted"]),
        ("@g(1)\ndef f(a: Literal[1]) -> g[1]:\n    'Text.'", []),
        ("if TYPE_CHECKING:\n    a = 1", []),
        ("a = zip(b, c, strict=True)", []),
    ],
)
def test_faults_are_those_that_somebody_may_make(source: str, planted: list[str]) -> None:
    found = list(faults("a.py", source))
    assert sorted(each.fault.fault for each in found) == sorted(planted)
    sources = {each.source(source) for each in found}
    assert len(sources) == len(found)
    for changed in sources:
        compile(changed, "a.py", "exec")


def test_the_tests_that_import_a_module_come_first() -> None:
    first, then, daemon = files_for("producerd/wire/columns.py", ROOT)
    assert first[0] == "tests/wire/test_columns.py"
    places = [file.startswith("tests/wire/") for file in (*first, *then)]
    assert places == sorted(places, reverse=True), "then the files of its package, then all others"
    assert False in places
    assert {file.rpartition("/")[0] for file in daemon} >= {"tests/runtime", "tests/runtime/aws"}, "then a whole daemon"
    assert len({*first, *then, *daemon}) == len(places) + len(daemon)
    assert files_for("spark_client/columns.py", ROOT)[2] == [], "the daemon does not run the client"


def test_a_test_that_hangs_is_named_too(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trees, "TEST_SECONDS", 1)
    (toy / MODULE).write_text(
        "def limited(value):\n    going = True\n    while not going:\n        pass\n    return value\n"
    )
    main(["toy", "--json", "--workers", "1"], toy)
    assert verdicts(capsys)["True -> False"] == CAUGHT


def test_a_test_is_named_with_its_parameters() -> None:
    assert failure_in("FAILED tests/a.py::test_b[1 - 2] - assert 1\n") == "tests/a.py::test_b[1 - 2]"
    assert (
        failure_in("tests/a.py::test_b[1 2] PASSED [ 1%]\ntests/a.py::test_b[2 3] Timeout") == "tests/a.py::test_b[2 3]"
    )


def test_each_fault_that_changes_nothing_has_a_reason_and_a_module() -> None:
    """A file that a merge has spoilt would let no fault be planted."""
    known = read_equivalents(ROOT / EQUIVALENTS)
    assert known
    assert all(known.values())
    assert not [fault.module for fault in known if not (ROOT / fault.module).is_file()]
