"""A process that has tests loaded, and runs some of them with a fault, in a fork of itself.

Loading what the tests need takes seconds, and a fork milliseconds.  A fault is planted in a function that is loaded: it
gets another code object.  Processes that a test starts load the faulty module from its file.

``python -m tools.mutation.loaded FILE ...`` reads a question from each line of its standard input, and answers with one
line: `Loaded` asks.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, TextIO

import pytest

from tools.mutation.faults import Planted, changes, sites

DATA_BYTES: Final = 6 << 30
"""Most memory of a fork: a loop that a fault keeps from ending may fill a list."""
Functions = dict[tuple[str, str, int], list[FunctionType]]
"""Functions by the file, name and line of their code."""
STARTS_PROCESSES: Final = "(starts processes)"
"""Stands for a module among what a test reaches, if the test starts processes, which may reach any function."""

# ------------------------------------------------------------------------------------------------------ who asks


@dataclass
class Ran:
    """What became of tests: which failed or did not end, and for those that held, how long they took.

    ``planted`` tells in how many functions the fault stood.
    """

    failed: list[str] = field(default_factory=list)
    planted: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    reached: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # module and function, by test


class Loaded:
    """A process that has the tests of some files loaded."""

    def __init__(self, tree: Path, files: Iterable[str], temporary: Path) -> None:
        ours = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, f"--basetemp={temporary}", *files],
            cwd=tree,
            env=dict(os.environ, PYTHONPATH=f"{tree}{os.pathsep}{ours}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C goes to who asks
        )
        self.tests: list[str] = self._answer()["tests"]

    def run(
        self, tests: list[str], seconds: float, fault: Planted | None = None, text: str = "", *, traces: bool = False
    ) -> Ran:
        """Run tests until one fails, or is silent for ``seconds``.  With ``traces`` run all, and note what they call.

        ``text`` is the faulty module's without the fault.  Nothing runs where no function has the fault.
        """
        question: dict[str, Any] = {"tests": tests, "seconds": seconds, "traces": traces}
        if fault is not None:
            question["fault"] = {
                "module": fault.fault.module,
                "text": text,
                "site_number": fault.site,
                "change": fault.change,
            }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        ran = Ran(**self._answer())
        ran.reached = {test: [(module, name) for module, name in reached] for test, reached in ran.reached.items()}
        return ran

    def close(self) -> None:
        """End the process, and what it runs."""
        self._process.terminate()
        with self._process:
            pass

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError("the process with the tests has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


# --------------------------------------------------------------------------------------------------- who answers


class Server:
    """pytest's plugin, which answers questions where pytest would run the tests."""

    def __init__(self, questions: TextIO, answers: TextIO) -> None:
        self._questions, self._answers = questions, answers

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = _functions_of_tree()
        self._say({"tests": list(items)})
        for line in self._questions:
            question = json.loads(line)
            self._say(asdict(_answered([items[test] for test in question["tests"]], question, functions)))
        return True

    def _say(self, answer: dict[str, Any]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def _answered(items: list[pytest.Item], question: dict[str, Any], functions: Functions) -> Ran:
    """Run tests in a fork, and end everything that it has started."""
    ours, forks = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os.setpgid(0, 0)
        with contextlib.suppress(BaseException), os.fdopen(forks, "w", buffering=1) as report:
            _run(items, question, functions, report)
        os._exit(0)
    os.close(forks)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # the first of both
    ran, begun, ended = Ran(), "", False

    def terminated(*_: object) -> None:
        kill(pid)
        os._exit(1)

    signal.signal(signal.SIGTERM, terminated)
    for line in _lines(ours, question["seconds"]):
        match json.loads(line):
            case {"begins": test}:
                begun = test
            case {"holds": True, "seconds": seconds, "reached": reached}:
                ran.seconds[begun], ran.reached[begun] = seconds, reached
            case {"holds": False}:
                ran.failed.append(begun)
            case {"planted": number}:
                ran.planted = number
            case {"ends": True}:
                ended = True
    if not ended:
        ran.failed.append(begun)
    kill(pid)
    os.waitpid(pid, 0)
    return ran


def kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(group, signal.SIGKILL)


def _lines(descriptor: int, seconds: float) -> Iterator[str]:
    """Yield lines until their writer ends, or is silent for so long."""
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        read = b""
        while select.select([stream], [], [], seconds)[0] and (more := stream.read(1 << 16)):
            *lines, read = (read + more).split(b"\n")
            yield from (line.decode() for line in lines)


def _run(items: list[pytest.Item], question: dict[str, Any], functions: Functions, report: TextIO) -> None:
    """Be the fork: plant the fault, run the tests, and report each."""

    def say(**said: Any) -> None:
        report.write(json.dumps(said) + "\n")

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    if fault := question.get("fault"):
        planted = _plant(functions, **fault)
        say(planted=planted)
        if not planted:
            say(ends=True)
            return
    reports: list[pytest.TestReport] = []
    tracer = _Tracer()

    class Watch:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            reports.append(report)

    for item, following in zip(items, [*items[1:], None], strict=False):
        say(begins=item.nodeid)
        reports.clear()
        tracer.reached.clear()
        if item is items[0]:
            item.config.pluginmanager.register(Watch())
        began = time.monotonic()
        with tracer if question["traces"] else contextlib.nullcontext():
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        holds = not any(each.failed for each in reports)
        say(holds=holds, seconds=round(time.monotonic() - began, 3), reached=sorted(tracer.reached))
        if not holds and not question["traces"]:
            break
    say(ends=True)


class _Tracer:
    """Notes which functions of the tree are called while it is on."""

    def __init__(self) -> None:
        self.reached: set[tuple[str, str]] = set()
        self._tree = f"{os.getcwd()}/"

    def __enter__(self) -> None:
        threading.settrace(self._called)
        sys.settrace(self._called)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self._tree):
            self.reached.add((code.co_filename[len(self._tree) :], code.co_qualname))
        elif code.co_filename == subprocess.__file__ and code.co_name == "_execute_child":
            self.reached.add((STARTS_PROCESSES, ""))


def _plant(functions_of_tree: Functions, module: str, text: str, site_number: int, change: int) -> int:
    """Give each loaded function in whose code the fault stands its faulty code.  Return how many there are.

    There is none where the fault stands in a module or a class itself, or in an argument's default.  ``text`` is the
    module's without the fault.
    """
    path = str(Path(module).resolve())
    tree, faulty = ast.parse(text), ast.parse(text)
    site = list(sites(faulty))[site_number]
    list(changes(site))[change][1]()

    def functions(source: ast.Module | str) -> list[CodeType]:
        return list(_outermost(site.function, compile(source, path, "exec", dont_inherit=True)))

    before = [code for code in functions(tree) if code.co_firstlineno <= getattr(site.node, "lineno", 0)]
    if not before:
        return 0
    place, number = before[-1], len(before) - 1
    # Both as Python writes them, which changes line numbers and nothing else.
    without, with_it = (functions(ast.unparse(each))[number] for each in (tree, faulty))
    if without == with_it:
        return 0
    found = functions_of_tree.get(_place(place), [])
    for function in found:
        function.__code__ = with_it
    return len(found)


def _functions_of_tree() -> Functions:
    """Return all functions that are loaded, by their places.  Forks that looked would copy all memory."""
    gc.unfreeze()  # what tests/conftest.py took out of sight
    by_place: Functions = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            by_place.setdefault(_place(each.__code__), []).append(each)
    gc.freeze()
    return by_place


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _outermost(function: str, code: CodeType) -> Iterator[CodeType]:
    """Yield the codes of the functions of this name in a module, or of those around it."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if not constant.co_flags & inspect.CO_OPTIMIZED:  # a class's body
                yield from _outermost(function, constant)
            elif f"{function}.".startswith(f"{constant.co_qualname}."):
                yield constant


def main(arguments: list[str]) -> int:
    questions, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    quiet = ["-m", "not slow", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=no", "--tb=no", "-q"]
    return int(pytest.main([*quiet, *arguments], plugins=[Server(questions, answers)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
