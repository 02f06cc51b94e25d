"""What the documents say of the tests is so: every test that one of them names exists."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from producerd.config import NodeSettings, StreamSettings
from producerd.errors import Code
from spark_client.options import OPTIONS
from tests.faults.scenarios import all_scenarios
from tests.generated import DOCS, RELIABILITY, TABLES, with_tables

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (
    *("docs/configuration.md", "docs/delivery.md", "docs/install.md", "docs/licences.md", "docs/memory.md"),
    *("docs/operations.md", "docs/reliability.md", "docs/spark.md", "docs/testing.md"),
)
NOT_FOR_CALLERS = {Code.CANCELLED, Code.TOO_LARGE}
"""Codes that the client takes for itself."""


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


@pytest.mark.parametrize("name", sorted({page for page, _ in TABLES}))
def test_tables_that_come_from_the_code_are_those_of_the_code(name: str) -> None:
    """Mended by ``python -m tests.generated``."""
    page = (DOCS / name).read_text()
    assert page == with_tables(name, page)


def test_every_scenario_has_three_runs_on_the_page_of_reliability_and_all_held_every_law() -> None:
    """Each is a full run, as `./dev faults --json` printed it."""
    rows = json.loads(RELIABILITY.read_text())
    runs = [(row["scenario"], row["seed"]) for row in rows]
    assert runs == [(name, seed) for name in all_scenarios() for seed in (1, 2, 3)]
    assert not [row for row in rows if row["broken"] or row["readable"] != row["acknowledged"]]


def test_every_option_and_every_setting_is_in_a_table() -> None:
    spark, configuration = (DOCS / "spark.md").read_text(), (DOCS / "configuration.md").read_text()
    assert all(f"| `{option.name}` | " in spark for option in OPTIONS)
    names = [*NodeSettings.model_fields, *StreamSettings.model_fields]
    assert all(f"| `{name}` | " in configuration for name in names)


def test_the_page_for_spark_tells_what_to_do_about_each_code() -> None:
    rows = re.findall(r"^\| ([A-Z_, ]+) \| .+ \| .+ \|$", (DOCS / "spark.md").read_text(), flags=re.MULTILINE)
    told = {code for row in rows for code in row.split(", ")}
    codes = {value for name, value in vars(Code).items() if name.isupper()}
    assert told == codes - NOT_FOR_CALLERS


@pytest.mark.parametrize("document", ["README.md", "docs/spark.md"])
def test_every_example_in_python_compiles(document: str) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        compile(example, document, "exec")


@pytest.mark.parametrize("document", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_every_link_to_a_page_of_ours_leads_there(document: str) -> None:
    """Headings, too."""
    place = ROOT / document
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", place.read_text()):
        name, _, heading = target.partition("#")
        page = place if not name else (place.parent / name)
        assert page.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}, target


def test_what_others_cost_in_the_readme_is_what_was_measured() -> None:
    """Each figure, with its ratio, stands in the table of docs/performance.md."""
    table = (ROOT / "README.md").read_text().split("\n## What it costs\n")[1].split("\n\n")[0]
    figures = re.findall(r"([\d,]+) \(([\d.]+)\)", table)
    measured = (ROOT / "docs/performance.md").read_text().split("\n## Rivals\n")[1].split("\n## ")[0]
    assert len(figures) > 20
    assert not [figure for figure in figures if f"| {figure[0]} | {figure[1]} |" not in measured]
