"""`./dev mutate` plants faults in a copy, names the test that notices each one, and fails when one survives."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools import ROOT, copy_tree
from tools.mutation import trees
from tools.mutation.command import EQUIVALENTS, MODULES, main
from tools.mutation.equivalents import Found, find
from tools.mutation.faults import Fault, faults, read_equivalents
from tools.mutation.trees import failure_in, files_for

TOY = {
    "toy/limit.py": """
LARGEST = 5


def limited(value):
    return min(value, 9)
""",
    "tests/toy/test_limit.py": """
import pathlib

from toy.limit import limited

RUNS = pathlib.Path("runs_of_test_limit")


def test_a_small_value_stays():
    assert limited(3) == 3


def test_that_fails_by_chance_in_its_second_run():
    limited(3)
    with RUNS.open("a") as runs:
        runs.write("x")
    assert RUNS.stat().st_size != 2


def test_that_always_fails():
    assert limited(3) == 4
""",
    "toy/twice.py": """
class Limit:
    @property
    def value(self):
        return 1

    @value.setter
    def value(self, value):
        self.set_to = [each * 2 for each in value]
""",
    "tests/toy/test_twice.py": """
from toy.twice import Limit


def test_it_is_set():
    limit = Limit()
    limit.value = [4]
    assert limit.set_to == [8]
""",
    "toy/process.py": """
def limited(value):
    return min(value, 9)
""",
    "tests/toy/test_process.py": """
import subprocess
import sys

import toy.process


def test_in_a_process():
    code = "from toy.process import limited; raise SystemExit(limited(3) != 3)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_nothing_of_the_module():
    pass
""",
    "toy/loop.py": """
import time


def ended():
    going = True
    while not going:
        time.sleep(0.05)
""",
    "tests/toy/test_loop.py": """
from toy.loop import ended


def test_it_ends():
    ended()
""",
    EQUIVALENTS: """
[[equivalent]]
module = "toy/limit.py"
function = "limited_to_nine"
statement = "return min(number, 9)"
fault = "9 -> 10"
reason = "no caller has a value above 8"

[[equivalent]]
module = "toy/limit.py"
function = ""
statement = "SMALLEST = 2"
fault = "2 -> 3"
reason = "gone"
""",
}


def write_tree(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@dataclass
class Run:
    status: int
    verdicts: dict[tuple[str, str], tuple[str, str]]  # verdict and test by module and fault
    errors: str


def run(arguments: list[str], tree: Path) -> Run:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main([*arguments, "--json", "--workers", "1"], tree)
    verdicts = {
        (row["module"], row["fault"]): (row["verdict"], row["by"]) for row in json.loads(out.getvalue() or "[]")
    }
    return Run(status, verdicts, err.getvalue())


@pytest.fixture(scope="module", autouse=True)
def fewer_plugins() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # faster
        yield patch


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, fewer_plugins: pytest.MonkeyPatch) -> Run:
    """One run over a tree with a module and a test file for each way in which a fault may end."""
    write_tree(tree := tmp_path_factory.mktemp("toy"), TOY)
    with fewer_plugins.context() as patch:
        patch.setattr(trees, "TEST_SECONDS", 3)
        found = run(["toy"], tree)
    assert {name: (tree / name).read_text() for name in TOY} == TOY, "faults are planted in copies"
    return found


LIMIT, TWICE, PROCESS, LOOP = "toy/limit.py", "toy/twice.py", "toy/process.py", "toy/loop.py"


def test_a_test_that_notices_a_fault_is_named(toy: Run) -> None:
    assert toy.verdicts[LIMIT, "min -> max"] == ("caught", "tests/toy/test_limit.py::test_a_small_value_stays")


def test_a_survivor_fails_the_command(toy: Run) -> None:
    assert toy.verdicts[LIMIT, "5 -> 6"] == ("SURVIVED", "")
    assert toy.status == 1


def test_a_fault_that_changes_nothing_is_passed_over_with_its_reason(toy: Run) -> None:
    assert toy.verdicts[LIMIT, "9 -> 10"] == ("equivalent", "no caller has a value above 8")


def test_a_new_name_and_an_entry_without_a_fault_are_reported(toy: Run) -> None:
    assert "taken for a new name: toy/limit.py limited_to_nine -> limited\n" in toy.errors
    assert "cannot be planted any more: toy/limit.py (module): `SMALLEST = 2`: 2 -> 3\n" in toy.errors


def test_tests_that_fail_without_a_fault_notice_none(toy: Run) -> None:
    named = {by for _, by in toy.verdicts.values()}
    assert not [by for by in named if "always_fails" in by or "by_chance" in by]
    assert "test_that_always_fails fails without a fault, too" in toy.errors


def test_a_process_that_a_test_starts_has_the_fault_too(toy: Run) -> None:
    assert toy.verdicts[PROCESS, "min -> max"] == ("caught", "tests/toy/test_process.py::test_in_a_process")
    assert toy.verdicts[PROCESS, "9 -> 10"] == ("SURVIVED", "")


def test_a_fault_stands_in_the_function_of_its_line_and_in_what_is_inside_it(toy: Run) -> None:
    """A property's two functions have one name."""
    caught = ("caught", "tests/toy/test_twice.py::test_it_is_set")
    assert toy.verdicts[TWICE, "1 -> 2"] == ("SURVIVED", "")
    assert {toy.verdicts[TWICE, fault] for fault in ("deleted", "* -> //", "2 -> 3")} == {caught}


def test_a_test_that_hangs_is_named_too(toy: Run) -> None:
    assert toy.verdicts[LOOP, "True -> False"] == ("caught", "tests/toy/test_loop.py::test_it_ends")


def test_tests_that_cannot_be_collected_catch_nothing(tmp_path: Path) -> None:
    write_tree(tmp_path, {LIMIT: TOY[LIMIT], "tests/toy/test_limit.py": "import a_package_that_is_missing\n"})
    found = run(["toy"], tmp_path)
    assert (found.status, found.verdicts) == (2, {})
    assert "the tests cannot be collected, also without a fault: tests/toy/test_limit.py" in found.errors


def test_an_interrupt_ends_the_tests(tmp_path: Path) -> None:
    started = tmp_path / "started"
    slow = f"import os, pathlib, time\npathlib.Path({str(started)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    write_tree(tmp_path, {LIMIT: TOY[LIMIT], "tests/toy/test_limit.py": slow})
    driver = f"from tools.mutation import command; command.run_alone(['toy'], command.Path({str(tmp_path)!r}))"
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
        ("def f(a, b):\n    return a and not b", ["operand 1 dropped", "operand 2 dropped", "not dropped"]),
        ("a = b and (c or d)", [f"operand {number} dropped" for number in (1, 2, 3, 4)]),
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
def test_faults_are_those_that_a_programmer_may_make(source: str, planted: list[str]) -> None:
    found = list(faults("a.py", source))
    assert sorted(each.fault.fault for each in found) == sorted(planted)
    sources = {each.source(source) for each in found}
    assert len(sources) == len(found)
    for changed in sources:
        compile(changed, "a.py", "exec")


QUEUE = """
class Queue:
    def __init__(self):
        self._rows = 0
        self._bytes = 0
        self.open = True

    def take(self, row):
        if self.open and row.size < 5:
            self._rows += row.count
            row.left = 1

    def ends(self):
        return self._rows == 0


def first(rows):
    try:
        return rows[0]
    except (1 or rows):
        return None
"""


def found_after(*renames: tuple[str, str], without: tuple[str, ...] = ()) -> Found:
    """Return what becomes of entries for all faults of ``QUEUE``, but some, when words of it change."""
    entries = {each.fault: "" for each in faults("a.py", QUEUE) if each.fault.statement not in without}
    text = QUEUE
    for old, new in renames:
        assert old in text
        text = text.replace(old, new)
    found = find(entries, [each.fault for each in faults("a.py", text)], {"a.py": text})
    assert len(found.reasons) + len(found.stale) == len(entries)
    return found


@pytest.mark.parametrize(
    "renames",
    [
        (),
        (("row.", "line."), ("(self, row)", "(self, line)")),
        (("_rows", "_lines"), ("_bytes", "_octets")),
        (("take", "accept"),),
        (("Queue", "Line"),),
        (("Queue", "Line"), ("_rows", "_records"), ("first", "oldest")),
    ],
    ids=["nothing", "a variable", "attributes", "a method", "a class", "several at once"],
)
def test_equivalents_survive_a_rename_of(renames: tuple[tuple[str, str], ...]) -> None:
    assert not found_after(*renames).stale


def test_another_constant_operator_or_form_makes_an_equivalent_stale() -> None:
    for change in (("size < 5", "size < 6"), ("_rows += row", "_rows -= row"), ("= 1", "= row.one = 1")):
        assert found_after(change).stale


def test_a_function_that_has_gone_is_stale_unless_exactly_one_takes_its_place() -> None:
    ends = "    def ends(self):\n        return self._rows == 0\n"
    twice = ends.replace("ends", "starts") + ends.replace("ends", "stops")
    assert {fault.function for fault in found_after((ends, "")).stale} == {"Queue.ends"}
    assert {fault.function for fault in found_after((ends, twice)).stale} == {"Queue.ends"}


def test_a_statement_with_another_of_its_shape_is_known_by_its_own_words() -> None:
    bytes_only = "self._bytes = 0"
    found = found_after(without=(bytes_only,))
    assert bytes_only not in {fault.statement for fault in found.reasons}
    assert not found.stale
    renamed = found_after(("_rows", "_lines"), without=(bytes_only,))
    assert {fault.statement for fault in renamed.stale} == {"self._rows = 0"}
    assert not {bytes_only, "self._lines = 0"} & {fault.statement for fault in renamed.reasons}


def test_each_entry_has_a_reason_and_can_be_planted() -> None:
    """A file that a merge has spoilt would let no fault be planted."""
    entries = read_equivalents(ROOT / EQUIVALENTS)
    assert entries
    assert all(entries.values())
    texts = {module: (ROOT / module).read_text() for module in {entry.module for entry in entries}}
    assert find(entries, planted_in(texts), texts).stale == []


def planted_in(texts: dict[str, str]) -> list[Fault]:
    return [each.fault for module, text in texts.items() for each in faults(module, text)]


def test_the_tests_that_import_a_module_come_first() -> None:
    first, then, daemon = files_for("producerd/wire/columns.py", ROOT)
    assert first[0] == "tests/wire/test_columns.py"
    places = [file.startswith("tests/wire/") for file in (*first, *then)]
    assert places == sorted(places, reverse=True), "then the files of its package, then all others"
    assert False in places
    assert {file.rpartition("/")[0] for file in daemon} >= {"tests/runtime", "tests/runtime/aws"}, "then a whole daemon"
    assert len({*first, *then, *daemon}) == len(places) + len(daemon)
    assert files_for("spark_client/columns.py", ROOT)[2] == [], "the daemon does not run the client"


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("producerd/cli.py", "tests/test_cli.py"),
        ("producerd/errors.py", "tests/test_ctl.py"),
        ("producerd/printing.py", "tests/test_ctl.py"),
        ("producerd/ctl/live.py", "tests/test_ctl.py"),
    ],
)
def test_a_command_is_tested_by_the_files_that_are_named_after_it(module: str, expected: str) -> None:
    first, then, _ = files_for(module, ROOT)
    assert expected in (*first, *then)
    assert module in MODULES or module.rpartition("/")[0] in MODULES


def test_a_test_is_named_with_its_parameters() -> None:
    assert failure_in("FAILED tests/a.py::test_b[1 - 2] - assert 1\n") == "tests/a.py::test_b[1 - 2]"
    assert (
        failure_in("tests/a.py::test_b[1 2] PASSED [ 1%]\ntests/a.py::test_b[2 3] Timeout") == "tests/a.py::test_b[2 3]"
    )


def test_a_copy_of_the_tree_has_the_sources_in_folders_named_build(tmp_path: Path) -> None:
    names = ["build/lib/a.py", "dist/a.whl", "docs/build/a.md", ".git/a", "a/__pycache__/a.pyc"]
    write_tree(tmp_path / "tree", dict.fromkeys(names, ""))
    copy_tree(tmp_path / "tree", tmp_path / "copy")
    assert [file.name for file in (tmp_path / "copy").rglob("*.*") if file.is_file()] == ["a.md"]
