"""Every owner of a law in docs/build/laws.md has a test that shows it, and no test shows the law of nobody."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def owners() -> set[str]:
    """The first column of the table under "Laws by owner"."""
    page = (ROOT / "docs/build/laws.md").read_text("utf-8")
    table = page.split("\n## Laws by owner", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| ([A-Za-z]+)(?: \*)? \|", table, re.MULTILINE)
    return set(rows) - {"owner"}


@cache
def marked() -> dict[str, set[str]]:
    """Owner -> the test modules that carry its mark.  Read, and not imported: nothing needs to be installed."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "mark.law(" in text else ():
            for owner in _owners_of(node):
                found.setdefault(owner, set()).add(str(path.relative_to(ROOT)))
    return found


def _owners_of(node: ast.AST) -> list[str]:
    """``pytest.mark.law("Owner")``, or that in a loop over a tuple of names."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.law":
        return [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if isinstance(node, ast.ListComp) and ast.unparse(node.elt).startswith("pytest.mark.law("):
        names = node.generators[0].iter
        if isinstance(names, ast.Tuple | ast.List):
            return [name.value for name in names.elts if isinstance(name, ast.Constant) and isinstance(name.value, str)]
    return []


def test_the_table_was_found() -> None:
    assert {"QueueBudget", "AdmissionGate", "wire", "Pipeline"} <= owners()


@pytest.mark.promise("owner-test-law")
@pytest.mark.parametrize("owner", sorted(owners()))
def test_each_owner_has_a_test_of_its_law(owner: str) -> None:
    assert owner in marked(), f'no test is marked with @pytest.mark.law("{owner}")'


@pytest.mark.promise("owner-test-law")
def test_no_test_shows_the_law_of_nobody() -> None:
    assert set(marked()) <= owners()


@pytest.mark.promise("owner-test-law")
def test_no_law_is_an_assert_statement_which_python_leaves_out_with_its_option_o() -> None:
    """The core's only ones tell a type checker that something is not None."""
    for path in sorted((ROOT / "producerd" / "core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Assert):
                assert ast.unparse(node.test).endswith(" is not None"), f"{path.name}:{node.lineno}"
