"""Carries the tests that footnotes name over to promises: ``python -m tools.docs.footnotes``, as often as it is needed.

A footnote that names tests becomes a promise at its sentence, and its tests get the mark.  Delete this file once no
branch has footnotes that name tests.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools import ROOT
from tools.docs import DOCS, without_code
from tools.docs.promises import made, marked, shown

NOTE: Final = re.compile(r"^\[\^(\w+)\]: (.*?)(?=\n\S|\n\n|\Z)\n?", re.MULTILINE | re.DOTALL)
TEST: Final = re.compile(r"`(test_\w+)`")
DULL: Final = """a all also an and any are as at be been but by can do does each ever every for from gets goes had has
have if in into is it its may more no nor not of on one only or other others s so than that the them then there they
this to too was were what when where which while who whose with without"""
LONGEST: Final = 36


def name_of(test: str, taken: set[str]) -> str:
    """Return a short id in words of the test's name that no other promise has."""
    words = [word for word in test.removeprefix("test_").split("_") if word not in DULL.split()]
    for many in range(3, len(words) + 1):
        name = "-".join(words[:many])
        if name not in taken and (len(name) > LONGEST // 2 or many == len(words)):
            return name
    base = "-".join(words[:4])
    return next(name for name in (base, *(f"{base}-{n}" for n in range(2, 100))) if name not in taken)


def carry(page: str, taken: set[str]) -> tuple[str, dict[str, list[str]]]:
    """Return a page without the footnotes that name tests, and the tests of each promise that it has instead."""
    found: dict[str, list[str]] = {}
    for label, note in NOTE.findall(without_code(page)):
        if not (tests := TEST.findall(note)):
            continue
        if page.count(f"[^{label}]") != 2:
            print(f"[^{label}] stands {page.count(f'[^{label}]')} times, and is left")
            continue
        promise = name_of(tests[0], taken)
        taken.add(promise)
        found[promise] = tests
        begin = page.index(f"[^{label}]: {note}")
        before, after = page[:begin], page[begin:].removeprefix(f"[^{label}]: {note}").removeprefix("\n")
        if before.endswith("\n\n"):
            after = after.removeprefix("\n")
        page = f"{before}{after}".rstrip("\n") + "\n"
        page = page.replace(f"[^{label}]", f"<!-- promise: {promise} -->")
    return page, found


def places() -> dict[str, list[Path]]:
    """Return the modules that have a test, by the test's name."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.setdefault(node.name, []).append(path)
    return found


def with_marks(source: str, wanted: dict[str, list[str]]) -> str:
    """Return a module in which each of these tests is marked with these promises, in addition to those it has."""
    has: dict[str, list[str]] = {}
    for promise, test in marked(source):
        has.setdefault(test, []).append(promise)
    lines = source.split("\n")
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for node in sorted(functions, key=lambda node: -node.lineno):
        if promises := wanted.get(node.name):
            for mark in [m for m in node.decorator_list if ast.unparse(m).startswith("pytest.mark.promise(")]:
                del lines[mark.lineno - 1 : mark.end_lineno]
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            quoted = ", ".join(f'"{promise}"' for promise in dict.fromkeys([*has.get(node.name, ()), *promises]))
            lines.insert(first - 1, f"{' ' * node.col_offset}@pytest.mark.promise({quoted})")
    if "import pytest" not in lines:
        lines.insert(lines.index("from __future__ import annotations") + 2, "import pytest")
    return "\n".join(lines)


def counts() -> str:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    notes = [TEST.findall(note) for path in pages for _, note in NOTE.findall(without_code(path.read_text()))]
    named, links = sum(map(len, notes)), sum(map(len, shown().values()))
    return f"{sum(map(bool, notes))} footnotes name {named} tests; {len(made())} promises have {links} marks"


def pages() -> Iterator[Path]:
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))


def main() -> int:
    print("before:", counts())
    taken, where = {promise for promise, _ in made()}, places()
    wanted: dict[Path, dict[str, list[str]]] = {}
    for page in pages():
        text, promises = carry(page.read_text(), taken)
        page.write_text(text)
        for promise, tests in promises.items():
            for test in tests:
                if test not in where:
                    print(f"{page.relative_to(ROOT)}: there is no {test}")
                if len(where.get(test, ())) > 1:
                    modules = ", ".join(path.relative_to(ROOT).as_posix() for path in where[test])
                    print(f"{test} is in {modules}: all get the mark")
                for path in where.get(test, ()):
                    of = wanted.setdefault(path, {}).setdefault(test, [])
                    of += [promise] if promise not in of else []
    for path, of_module in wanted.items():
        path.write_text(with_marks(path.read_text(), of_module))
    changed = [str(path) for path in wanted]
    if changed:
        subprocess.run(
            [sys.executable, "-m", "ruff", "check", "--quiet", "--select", "I", "--fix", *changed], check=True
        )
        subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *changed], check=True)
    print("after: ", counts())
    return 0


if __name__ == "__main__":
    sys.exit(main())
