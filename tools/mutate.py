"""``./dev mutate [MODULE ...] [--seed S] [--count N] [--workers N] [--json]``: whether the tests notice small faults.

Each fault is planted alone, in a copy of the tree.  The tests that import the faulty module run first, then the other
tests of its package, then the tests that run a whole daemon, until one fails.  A fault that no test notices survives:
either a test is missing, or the fault changes nothing that anybody could see.  The second kind stands in
``tools/equivalents.toml``, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

from tools import ROOT

MODULES = ["producerd/core", "producerd/runtime", "producerd/wire", "producerd/config", "spark_client"]
NOT_ASKED = ("tests/benchmarks/", "tests/end_to_end/", "tests/faults/", "tests/releases/", "tests/system/")
"""Tests that are too slow, or whose subject is another."""
DAEMON = ("producerd/", "tests/runtime/")
"""Code that the daemon is made of, and the tests that run a daemon whole."""
DOCUMENTS = "tests/test_docs.py"
"""It compares the documents with the settings, options and metrics of every package."""
EQUIVALENTS = "tools/equivalents.toml"
TEST_SECONDS, FAULT_SECONDS = 180, 1_800
"""Longest time for one test, and for all tests of one fault.  A fault that makes them take longer is caught."""

# ------------------------------------------------------------------------------------------------------------- faults


@dataclass(frozen=True)
class Fault:
    """One fault, which its module, function and statement identify.  Line numbers change too often for that."""

    module: str
    function: str
    statement: str
    fault: str

    def __str__(self) -> str:
        return f"{self.module} {self.function or '(module)'}: `{self.statement}`: {self.fault}"


@dataclass(frozen=True)
class Site:
    """A node in which a fault may stand, with the function and the statement around it."""

    node: ast.AST
    function: str
    result: str  # the type that the function returns, as it is annotated
    statement: str  # its first line


@dataclass(frozen=True)
class Planted:
    """A fault and where it stands."""

    fault: Fault
    line: int
    site: int  # its number among the module's `sites`
    change: int  # its number among the `changes` of that site

    def source(self, text: str) -> str:
        """Return the whole module with the fault in it."""
        tree = ast.parse(text)
        _, change = list(changes(list(sites(tree))[self.site]))[self.change]
        change()
        return ast.unparse(ast.fix_missing_locations(tree))


COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
# fmt: off
SIGNS: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.BitOr: "|", ast.BitAnd: "&",
}
# fmt: on
NOT_PLANTED = {"annotation", "returns", "decorator_list", "type_params"}


def faults(module: str, text: str) -> Iterator[Planted]:
    """Yield every fault that can be planted in a module."""
    for number, site in enumerate(sites(ast.parse(text))):
        for change, (what, _) in enumerate(changes(site)):
            line = getattr(site.node, "lineno", 0)
            yield Planted(Fault(module, site.function, site.statement, what), line, number, change)


def sites(tree: ast.Module) -> Iterator[Site]:
    """Yield every node in which a fault may stand: none in annotations, decorators or what only type checkers read."""

    def below(node: ast.AST, function: str, result: str, statement: str) -> Iterator[Site]:
        if isinstance(node, ast.Import | ast.ImportFrom) or is_for_type_checkers(node):
            return
        if isinstance(node, ast.stmt):
            statement = first_line(node)
        yield Site(node, function, result, statement)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            result = ast.unparse(node.returns) if node.returns else ""
        for field, value in ast.iter_fields(node):
            if field not in NOT_PLANTED:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST) and not (isinstance(child, ast.keyword) and child.arg == "strict"):
                        yield from below(child, function, result, statement)

    return below(tree, "", "", "")


def first_line(statement: ast.stmt) -> str:
    """Return the statement as Python writes it, without what is indented under it."""
    alone = copy.copy(statement)
    if "body" in alone._fields:
        alone.body = [ast.Pass()]  # type: ignore[attr-defined]  # a compound statement
    return ast.unparse(alone).partition(":\n    pass")[0]


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


Change = tuple[str, Callable[[], object]]
"""What a fault is, and the function that plants it in its tree."""


def changes(site: Site) -> Iterator[Change]:
    """Yield the faults that may stand in this node."""
    match node := site.node:
        case ast.Compare(ops=[operator]):
            for other in COMPARISONS[type(operator)]:
                yield swapped(operator, other), partial(setattr, node, "ops", [other()])
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if opposite := OPERATORS.get(type(operator)):
            yield swapped(operator, opposite), partial(setattr, node, "op", opposite())
        case ast.BoolOp():
            for at, operand in enumerate(node.values):
                yield f"operand dropped: {ast.unparse(operand)}", partial(node.values.pop, at)
        case ast.UnaryOp(op=ast.Not()):
            yield "not dropped", partial(setattr, node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.Constant(value=bool() as flag):
            yield f"{flag} -> {not flag}", partial(setattr, node, "value", not flag)
        case ast.Constant(value=int() | float() as number):
            near = number + 1 if isinstance(number, int) and number < 100 else number * 10 or 1.0
            yield f"{number} -> {near}", partial(setattr, node, "value", near)
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            other_end = "max" if name == "min" else "min"
            yield f"{name} -> {other_end}", partial(setattr, node.func, "id", other_end)
        case ast.If() | ast.IfExp():
            yield "never taken", partial(setattr, node, "test", ast.Constant(False))
        case ast.Return(value=ast.expr() as value):
            if site.result == "bool":
                yield "not", partial(setattr, node, "value", ast.UnaryOp(ast.Not(), value))
            elif site.result in ("int", "float"):
                yield "result + 1", partial(setattr, node, "value", ast.BinOp(value, ast.Add(), ast.Constant(1)))
            elif site.result.endswith("| None") and ast.unparse(value) != "None":
                yield "result None", partial(setattr, node, "value", ast.Constant(None))
    if isinstance(node, ast.stmt) and runs_without(node, site.function):
        yield "deleted", partial(setattr, node, "__class__", ast.Pass)


def swapped(old: ast.AST, new: type[ast.AST]) -> str:
    return f"{SIGNS[type(old)]} -> {SIGNS[new]}"


def runs_without(statement: ast.stmt, function: str) -> bool:
    """Return whether the function would run without this statement, so that only a test could miss it."""
    match statement:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
            return bool(function)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return not function.endswith("__init__")  # else no attribute
    return False


def read_equivalents(path: Path) -> dict[Fault, str]:
    """Return the faults that change nothing, with the reasons."""
    rows = tomllib.loads(path.read_text()).get("equivalent", []) if path.exists() else []
    return {Fault(*(row[name] for name in ("module", "function", "statement", "fault"))): row["reason"] for row in rows}


# -------------------------------------------------------------------------------------------------------------- tests


def files_for(module: str, root: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the test files for a module: its package's that import it, the package's others, and the daemon's."""
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    folder, _, last = name.rpartition(".")
    imported = re.compile(
        rf"^\s*(from|import) {re.escape(name)}\b|^\s*from {re.escape(folder)} import .*\b{last}\b", re.MULTILINE
    )
    package = name.removeprefix("producerd.").split(".")[0]
    own = (f"tests/{package}/", f"tests/test_{package}")
    files = [path.relative_to(root).as_posix() for path in sorted((root / "tests").rglob("test_*.py"))]
    files = [file for file in files if not file.startswith(NOT_ASKED)]
    importing = [file for file in files if file == DOCUMENTS or imported.search((root / file).read_text())]
    first = [file for file in importing if file.startswith(own)]
    first.sort(key=lambda file: not file.endswith(f"/test_{last}.py"))
    then = [file for file in files if (file.startswith(own) or file in importing) and file not in first]
    then.sort(key=lambda file: not file.startswith(own))
    code, tests = DAEMON
    last_of_all = [file for file in files if file.startswith(tests) and file not in (*first, *then)]
    return first, then, last_of_all if module.startswith(code) else []


class Trees:
    """Copies of the tree, one for each worker, and the tests that run in them.

    Each run of tests has a process group of its own, of which nothing is left when the run ends.
    """

    def __init__(self, root: Path, folder: Path, workers: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._groups: set[int] = set()
        self._stopped = False
        self._without_fault: dict[str, bool] = {}  # by test, whether it holds
        self._lock = threading.Lock()
        for number in range(workers):
            others = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
            shutil.copytree(root, folder / str(number), ignore=others)
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

        def failing(source: str, tests: list[str]) -> str:
            path.write_text(source)
            # Byte code is known by the second of the source's last change, and many runs are shorter.
            os.utime(path, (0, random.randrange(2**31)))
            return self._failing(tree, tests)

        def is_by_the_fault(test: str) -> bool:
            """Return whether a test fails with the fault once more, and holds without it.  Else it failed by chance."""
            return "::" not in test or bool(failing(source, [test]) and self._holds(test, partial(failing, text)))

        try:
            for files in files_for(planted.fault.module, tree):
                left_out: list[str] = []
                while files and (noticed := failing(source, [*files, *left_out])) and noticed not in left_out:
                    if is_by_the_fault(noticed):
                        return noticed
                    left_out += ["--deselect", noticed]
            return ""
        finally:
            path.write_text(text)
            self._free.put(tree)

    def _holds(self, test: str, failing: Callable[[list[str]], str]) -> bool:
        """Return whether a test holds without a fault.  ``failing`` runs tests without one."""
        with self._lock:
            if test not in self._without_fault:
                self._without_fault[test] = not failing([test])
                if not (self._without_fault[test] or self._stopped):
                    print(f"{test} fails without a fault, too", file=sys.stderr)
            return self._without_fault[test]

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


PASSED = (0, 5)
"""Exit codes of pytest: all tests passed, and no test was selected."""


def failure_in(output: str) -> str:
    """Return the test that failed by what pytest printed, or the last that began, if it hung or crashed."""
    if failed := re.search(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", output, re.MULTILINE):
        return failed[1]
    began = re.findall(r"^(tests/\S+?::\S+?(?:\[.*?\])?) ", output, re.MULTILINE)
    return began[-1] if began else ""


def kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(group, signal.SIGKILL)


# ------------------------------------------------------------------------------------------------------------ command


@dataclass(frozen=True)
class Row:
    """What became of a fault."""

    module: str
    line: int
    function: str
    statement: str
    fault: str
    verdict: str
    by: str  # the test that noticed it, or why it is equivalent
    seconds: float

    def __str__(self) -> str:
        by = f"  {self.by}" if self.by else ""
        where = f"{self.module}:{self.line} {self.function}"
        statement = textwrap.shorten(self.statement, 100, placeholder=" ...")
        return f"{self.verdict:10} {where}: `{statement}`: {self.fault}{by} ({self.seconds:.0f} s)"


def modules_of(names: list[str], root: Path) -> list[str]:
    """Return the modules with these paths and below them."""
    found = [root / name for name in names]
    files = {file for path in found for file in (path.rglob("*.py") if path.is_dir() else [path])}
    return sorted(file.relative_to(root).as_posix() for file in files)


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev mutate", description="Plant small faults, and see which the tests notice."
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"a file or folder (default: {' '.join(MODULES)})")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which faults are drawn (default: 1)")
    parser.add_argument("--count", type=int, default=150, metavar="N", help="how many (default: 150)")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers", type=int, default=cores, metavar="N", help=f"how many at once (default: a core each, {cores})"
    )
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    options = parser.parse_args(arguments)
    if absent := [name for name in options.modules if not (root / name).exists()]:
        parser.error(f"not there: {' '.join(absent)}")
    modules = modules_of(options.modules or MODULES, root)
    every = [planted for module in modules for planted in faults(module, (root / module).read_text())]
    random.Random(options.seed).shuffle(every)
    known = read_equivalents(root / EQUIVALENTS)
    drawn: list[Planted] = []
    passed_over: list[Planted] = []
    for planted in every:
        if len(drawn) < options.count:
            (passed_over if planted.fault in known else drawn).append(planted)
    for gone in known.keys() - {planted.fault for planted in every}:
        if gone.module in modules or not (root / gone.module).exists():
            print(f"{EQUIVALENTS}: cannot be planted any more: {gone}", file=sys.stderr)

    out = sys.stderr if options.json else sys.stdout
    rows: list[Row] = []

    def report(planted: Planted, verdict: str, by: str = "", seconds: float = 0.0) -> None:
        rows.append(Row(line=planted.line, verdict=verdict, by=by, seconds=round(seconds, 1), **asdict(planted.fault)))
        print(f"{len(rows)}/{len(passed_over) + len(drawn)} {rows[-1]}", file=out, flush=True)

    for planted in passed_over:
        report(planted, "equivalent", known[planted.fault])
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        trees = Trees(root, Path(folder), options.workers)
        try:
            if drawn and (failed := trees.uncollected()):
                print(f"the tests cannot be collected, also without a fault: {failed}", file=sys.stderr)
                return 2
            for done in as_completed([pool.submit(trees.outcome, planted) for planted in drawn]):
                planted, by, seconds = done.result()
                report(planted, "caught" if by else "SURVIVED", by, seconds)
        finally:
            trees.stop()
            pool.shutdown(cancel_futures=True)
    survived = sum(row.verdict == "SURVIVED" for row in rows)
    caught = len(drawn) - survived
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    print(f"{caught} of {len(drawn)} caught ({caught / max(1, len(drawn)):.0%}), seed {options.seed}", file=out)
    return int(survived > 0)


def run_alone(arguments: list[str], root: Path = ROOT) -> NoReturn:
    """Be the whole process: yield to others, and end in order when interrupted."""
    os.nice(10)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda signum, _frame: sys.exit(128 + signum))
    sys.exit(main(arguments, root))


if __name__ == "__main__":
    run_alone(sys.argv[1:])
