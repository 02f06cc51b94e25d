"""Copies of the tree, in which the tests run with a fault."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from tools import copy_tree
from tools.mutation.faults import Planted
from tools.mutation.loaded import STARTS_PROCESSES, Loaded, Ran, kill

NOT_ASKED = ("tests/benchmarks/", "tests/end_to_end/", "tests/faults/", "tests/releases/", "tests/system/")
"""Tests that are too slow, or whose subject is another."""
DAEMON = ("producerd/", "tests/runtime/")
"""Code that the daemon is made of, and the tests that run a daemon whole."""
DOCUMENTS = "tests/test_docs.py"
"""It compares the documents with the settings, options and metrics of every package."""
LIKELY = 8
"""How many of the tests that have noticed most faults of a function run first: in nine cases of ten one notices."""
TEST_SECONDS, FAULT_SECONDS = 180, 1_800
"""Longest time for one test, and for one run of pytest.  A fault that makes them take longer is caught."""


def files_for(module: str, root: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the test files for a module: its package's that import it, the package's others, and the daemon's."""
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    folder, _, last = name.rpartition(".")
    imported = re.compile(
        rf"^\s*(from|import) {re.escape(name)}\b|^\s*from {re.escape(folder)} import .*\b{last}\b", re.MULTILINE
    )
    package = name.removeprefix("producerd.").split(".")[0]
    own: tuple[str, ...] = (f"tests/{package}/", f"tests/test_{package}")
    files = [path.relative_to(root).as_posix() for path in sorted((root / "tests").rglob("test_*.py"))]
    files = [file for file in files if not file.startswith(NOT_ASKED)]
    importing = [file for file in files if file == DOCUMENTS or imported.search((root / file).read_text())]
    if folder == "producerd":  # cli, errors, printing: such a module serves both commands
        own = (*own, "tests/test_cli", "tests/test_ctl")
    first = [file for file in importing if file.startswith(own)]
    first.sort(key=lambda file: not file.endswith(f"/test_{last}.py"))
    then = [file for file in files if (file.startswith(own) or file in importing) and file not in first]
    then.sort(key=lambda file: not file.startswith(own))
    code, tests = DAEMON
    last_of_all = [file for file in files if file.startswith(tests) and file not in (*first, *then)]
    return first, then, last_of_all if module.startswith(code) else []


class FirstFailing(Protocol):
    """Runs tests, with the fault or without, and returns the first that fails or hangs, or an empty string."""

    def __call__(self, tests: list[str], left_out: list[str], *, faulty: bool = True) -> str: ...


class Reach:
    """Which tests call which function, how long each takes, and which have noticed faults.

    A file's tests are traced when first asked for.
    """

    def __init__(self) -> None:
        self._traced: dict[str, Ran] = {}
        self._lock = threading.Lock()
        self._noticed: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # by module and function

    def note(self, planted: Planted, test: str) -> None:
        """Note that a test has noticed a fault."""
        with self._lock:
            self._noticed[planted.fault.module, planted.fault.function][test] += 1

    def likely(self, planted: Planted) -> list[str]:
        """Return the tests that have noticed most of the other faults in this fault's function, or in its module."""
        with self._lock:
            of_function = self._noticed[planted.fault.module, planted.fault.function]
            of_module = sum(
                [count for (module, _), count in self._noticed.items() if module == planted.fault.module],
                start=Counter(),
            )
        return [test for test, _ in (of_function or of_module).most_common(LIKELY)]

    def tests(self, loaded: Loaded, files: list[str], planted: Planted) -> list[str]:
        """Return the tests of these files that may notice a fault, the quickest first."""
        with self._lock:
            for file in files:
                if file not in self._traced:
                    tests = [test for test in loaded.tests if test.startswith(f"{file}::")]
                    self._traced[file] = loaded.run(tests, TEST_SECONDS, traces=True)
                    for test in self._traced[file].failed:
                        print(f"{test} fails without a fault, too", file=sys.stderr)
        module, function = planted.fault.module, planted.fault.function

        def may_notice(reached: list[tuple[str, str]]) -> bool:
            return any(
                where == STARTS_PROCESSES or (where == module and f"{function}.".startswith(f"{name}."))
                for where, name in reached
            )

        found: dict[str, float] = {}
        for file in files:
            ran = self._traced[file]
            found |= {test: ran.seconds[test] for test, reached in ran.reached.items() if may_notice(reached)}
        return sorted(found, key=lambda test: found[test])


class Trees:
    """Copies of the tree, one for each worker, and the tests that run in them.

    Each run of tests has a process group of its own, of which nothing is left when the run ends.
    """

    def __init__(self, root: Path, folder: Path, workers: int, modules: list[str]) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._loaded: dict[Path, Loaded] = {}
        self._groups: set[int] = set()
        self._stopped = False
        self._reach = Reach()
        self._without_fault: dict[str, bool] = {}  # by test, whether it holds
        self._lock = threading.Lock()
        self._files = sorted({file for module in modules for files in files_for(module, root) for file in files})
        for number in range(workers):
            copy_tree(root, folder / str(number))
            self._free.put(folder / str(number))

    def uncollected(self) -> str:
        """Return what keeps the tests from being collected without a fault, or an empty string.

        Each fault would seem to be caught, for instance where a package is missing.
        """
        tree = self._free.get()
        try:
            return self._failing(tree, ["--collect-only", "tests"])
        finally:
            self._free.put(tree)

    def outcome(self, planted: Planted) -> tuple[Planted, str, float]:
        """Return the test that notices the fault, or an empty string, and the time that it took."""
        began = time.monotonic()
        return planted, self._noticed(planted), time.monotonic() - began

    def _noticed(self, planted: Planted) -> str:
        tree = self._free.get()
        path = tree / planted.fault.module
        text = path.read_text()
        source = planted.source(text)
        try:
            loaded = self._loaded_in(tree)
            in_memory = loaded.run([], TEST_SECONDS, planted, text).planted

            def first_failing(tests: list[str], left_out: list[str], *, faulty: bool = True) -> str:
                write(path, source if faulty else text)
                if in_memory:
                    left = [test for test in tests if test not in left_out]
                    fault = planted if faulty else None
                    return next(iter(loaded.run(left, TEST_SECONDS, fault, text).failed), "")
                return self._failing(tree, [*tests, *(f"--deselect={test}" for test in left_out)])

            likely = self._reach.likely(planted) if in_memory else []
            for files in [*([likely] if likely else []), *files_for(planted.fault.module, tree)]:
                tests = self._reach.tests(loaded, files, planted) if in_memory and files is not likely else files
                if noticed := self._first_by_the_fault(tests, first_failing):
                    self._reach.note(planted, noticed)
                    return noticed
                write(path, text)
            return ""
        finally:
            write(path, text)
            self._free.put(tree)

    def _first_by_the_fault(self, tests: list[str], first_failing: FirstFailing) -> str:
        """Return the first test that fails with the fault once more, and holds without it.  Others fail by chance."""
        left_out: list[str] = []
        while tests and (noticed := first_failing(tests, left_out)) and noticed not in left_out:
            if "::" not in noticed or (first_failing([noticed], []) and self._holds(noticed, first_failing)):
                return noticed
            left_out.append(noticed)
        return ""

    def _holds(self, test: str, first_failing: FirstFailing) -> bool:
        """Return whether a test holds without a fault."""
        with self._lock:
            if test not in self._without_fault:
                self._without_fault[test] = not first_failing([test], [], faulty=False)
                if not (self._without_fault[test] or self._stopped):
                    print(f"{test} fails without a fault, too", file=sys.stderr)
            return self._without_fault[test]

    def _loaded_in(self, tree: Path) -> Loaded:
        if tree not in self._loaded:
            self._loaded[tree] = Loaded(tree, self._files, tree.with_suffix(".tmp"))
        return self._loaded[tree]

    def _failing(self, tree: Path, tests: list[str]) -> str:
        """Return the first test that fails or hangs, or an empty string."""
        if not tests:
            return ""
        quiet = ["-x", "-v", "--tb=no", "-rfE", "-m", "not slow", "-p", "no:cacheprovider"]
        limit = ["-o", f"faulthandler_timeout={TEST_SECONDS}", "-o", "faulthandler_exit_on_timeout=true"]
        command = [sys.executable, "-m", "pytest", *quiet, *limit, *tests]
        env = dict(os.environ, PYTHONPATH=str(tree))
        with (
            tempfile.TemporaryFile() as output,
            subprocess.Popen(command, cwd=tree, env=env, stdout=output, stderr=output, process_group=0) as run,
        ):
            self._groups.add(run.pid)
            try:
                if self._stopped:
                    return "interrupted"
                code = run.wait(FAULT_SECONDS)
            except subprocess.TimeoutExpired:
                return f"no end in {FAULT_SECONDS} s"
            finally:
                kill(run.pid)
                self._groups.discard(run.pid)
            output.seek(0)
            return "" if code in PASSED else failure_in(output.read().decode(errors="replace")) or f"exit code {code}"

    def stop(self) -> None:
        """End all runs, and let none begin."""
        self._stopped = True
        for group in list(self._groups):
            kill(group)
        for loaded in self._loaded.values():
            loaded.close()


PASSED = (0, 5)
"""Exit codes of pytest: all tests passed, and no test was selected."""


def failure_in(output: str) -> str:
    """Return the test that failed by what pytest printed, or the last that began, if it hung or crashed."""
    if failed := re.search(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", output, re.MULTILINE):
        return failed[1]
    began = re.findall(r"^(tests/\S+?::\S+?(?:\[.*?\])?) ", output, re.MULTILINE)
    return began[-1] if began else ""


def write(path: Path, text: str) -> None:
    """Write a module.  Byte code is known by the second of the last change, and many runs are shorter."""
    path.write_text(text)
    os.utime(path, (0, random.randrange(2**31)))
