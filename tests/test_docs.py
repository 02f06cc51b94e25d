"""What the documents say of the tests is so: every test that one of them names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("docs/delivery.md", "docs/operations.md", "docs/testing.md")


@cache
def every_test() -> frozenset[str]:
    """The name of every test function in the project."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.add(node.name)
    return frozenset(found)


def named(document: str) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", (ROOT / document).read_text()))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_test_that_a_document_names_exists(document: str) -> None:
    assert named(document) <= every_test()


def test_each_promise_of_delivery_names_its_test() -> None:
    """Bullets are the promises; tables and what introduces them are not."""
    text = (ROOT / "docs/delivery.md").read_text()
    bullets = re.findall(r"^- .*?(?=^\S|\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert len(bullets) > 20
    without = [bullet.splitlines()[0] for bullet in bullets if not re.search(r"`test_\w+`", bullet)]
    assert not without
