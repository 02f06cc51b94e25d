"""Which tests show which promise: a page names a promise at its sentence, and tests name the promise that they show.

In a page it is ``<!-- promise: id -->``, once for each id.  A test has ``@pytest.mark.promise("id", ...)``.  What
shows a promise and is not a test of pytest has a comment ``# Shows the promise id.`` on a line of its own.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tools import ROOT
from tools.docs import DOCS, pages, without_code
from tools.docs.words import GENERATED

EVIDENCE: Final = DOCS / "build/evidence.md"
IN_PAGE: Final = re.compile(r"(?<!`)<!--\s+promise:\s+([\w-]+)\s+-->")
IN_SOURCE: Final = re.compile(r"^ *# Shows the promise ([\w-]+)\.$", re.MULTILINE)
SOURCES: Final = (("tests", "*.py"), ("tools", "*.py"), ("deploy", "*.yml"))


class Proof(NamedTuple):
    """What shows a promise: a test, or a file with a comment."""

    path: str
    test: str

    def __str__(self) -> str:
        return f"[`{self.test or self.path}`](../../{self.path})"


def made() -> list[tuple[str, str]]:
    """Return each promise with its page, in the order of the pages."""
    found = ((path, promise) for path in pages() for promise in IN_PAGE.findall(without_code(path.read_text())))
    return [(promise, path.relative_to(ROOT).as_posix()) for path, promise in found]


def marked(source: str) -> Iterator[tuple[str, str]]:
    """Yield each promise that a test in Python is marked with, and the test's name.  Nothing is imported."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                    yield from ((str(ast.literal_eval(promise)), node.name) for promise in mark.args)


def shown() -> dict[str, list[Proof]]:
    """Return what shows each promise."""
    found: dict[str, list[Proof]] = {}
    for folder, names in SOURCES:
        for path in sorted((ROOT / folder).rglob(names)):
            source, place = path.read_text(), path.relative_to(ROOT).as_posix()
            for promise in IN_SOURCE.findall(source):
                found.setdefault(promise, []).append(Proof(place, ""))
            if "pytest.mark.promise(" in source:
                for promise, test in marked(source):
                    found.setdefault(promise, []).append(Proof(place, test))
    return found


def problems(made: list[tuple[str, str]], shown: dict[str, list[Proof]]) -> Iterator[str]:
    """Yield a line for each promise without a test, each test without a promise, and each id that stands twice."""
    page_of = dict(made)
    for promise, page in made:
        if promise not in shown:
            yield f"{page}: no test is marked with the promise {promise}"
        if page_of[promise] != page or made.count((promise, page)) > 1:
            yield f"{page}: the promise {promise} stands twice"
    for promise, proofs in sorted(shown.items()):
        if promise not in page_of:
            yield f"{proofs[0].path}: no page makes the promise {promise}"


def evidence() -> str:
    """Return the page that lists every promise, by page and name: so a sentence that moves changes nothing here."""
    proofs = shown()
    lines = ["| promise | page | tests |", "|---|---|---|"]
    for promise, page in sorted(made(), key=lambda each: each[::-1]):
        link = posixpath.relpath(page, EVIDENCE.parent.relative_to(ROOT).as_posix())
        tests = ", ".join(map(str, proofs.get(promise, ())))
        lines.append(f"| `{promise}` | [{posixpath.basename(page)}]({link}) | {tests} |")
    return "\n".join([f"{GENERATED}# Evidence", "", "Each promise of these pages, and what shows it.", "", *lines, ""])


def check() -> int:
    found = list(problems(made(), shown()))
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))
