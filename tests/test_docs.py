"""What the pages say of the project is so: tests, tables, links, examples, figures.  They have one width."""

from __future__ import annotations

import json
import re

import pytest

from producerd.config import Config, NodeSettings, StreamSettings
from producerd.config.memory import mib, needed_bytes
from spark_client.options import OPTIONS
from tests.faults.scenarios import all_scenarios
from tools import ROOT
from tools.docs import DOCS, WIDTH, without_code
from tools.docs.generated import RELIABILITY
from tools.docs.promises import IN_PAGE

PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")))
"""Codes that the client takes for itself."""


def prose(page: str) -> str:
    """The page without blocks of code."""
    return without_code((ROOT / page).read_text())


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_lines_of_at_most_100_characters(page: str) -> None:
    """Except tables, code, pictures, promises' names, and a single word that is longer."""
    lines = IN_PAGE.sub("", prose(page)).splitlines()
    lines = [line for line in lines if not line.lstrip().startswith(("|", "<img ", "<source "))]
    assert not [line for line in lines if len(line) > WIDTH and " " in line.strip()]


@pytest.mark.parametrize("page", ["docs/understand/delivery.md", "docs/understand/failures.md"])
def test_each_promise_of_delivery_has_a_name(page: str) -> None:
    """Bullets are the promises; tables and what introduces them are not."""
    bullets = re.findall(r"^- .*?(?=^\S|\n\n|\Z)", prose(page), flags=re.MULTILINE | re.DOTALL)
    assert len(bullets) > 10
    assert not [bullet for bullet in bullets if not IN_PAGE.search(bullet)]


def test_every_scenario_has_three_runs_on_the_page_of_reliability_and_all_held_every_law() -> None:
    """Each is a full run, as `./dev faults --json` printed it."""
    rows = json.loads(RELIABILITY.read_text())
    runs = [(row["scenario"], row["seed"]) for row in rows]
    assert runs == [(name, seed) for name in all_scenarios() for seed in (1, 2, 3)]
    assert not [row for row in rows if row["broken"] or row["readable"] != row["acknowledged"]]


@pytest.mark.promise("memory-page-settings")
def test_the_memory_on_the_page_of_settings_is_what_the_defaults_may_need() -> None:
    table = prose("docs/operate/memory.md").split("\n## The law\n")[1]
    need = needed_bytes(Config())
    shown = dict(re.findall(r"^\| ?(\w*) ?\|.*\| (\d+ MiB) \|$", table, flags=re.MULTILINE))
    assert shown == {**{term.name: mib(term.bytes) for term in need.terms}, "": need.mib}


@pytest.mark.promise("pages-make-versions")
def test_pages_make_versions_side_by_side_and_links_that_refuse_a_directory() -> None:
    """Else `ln` puts the link of an upgrade into the directory, says nothing, and the old version goes on."""
    pages = [path.read_text() for path in (DOCS / "operate").glob("*.md")]
    links = [flags for page in pages for flags in re.findall(r"\bln -(\w+) producerd", page)]
    assert len(links) > 2
    assert all("T" in flags for flags in links)
    environments = [path for page in pages for path in re.findall(r"\bvenv (?:--python \S+ )?(/opt/[^\s`]+)", page)]
    assert len(environments) > 3
    assert "/opt/producerd" not in environments


def test_every_option_and_every_setting_is_in_a_table() -> None:
    options, configuration = (DOCS / "use/options.md").read_text(), (DOCS / "operate/configuration.md").read_text()
    assert all(f"| `{option.name}` | " in options for option in OPTIONS)
    names = [*NodeSettings.model_fields, *StreamSettings.model_fields]
    assert all(f"| `{name}` | " in configuration for name in names)


def test_the_terms_of_the_glossary_stand_in_order_and_each_once() -> None:
    page = prose("docs/build/glossary.md")
    terms = [term.lower() for term in re.findall(r"^\| (?!term )(\w.*?) \|", page, flags=re.MULTILINE)]
    assert len(terms) > 20
    assert terms == sorted(set(terms))


@pytest.mark.parametrize(
    "document", ["README.md", *(f"docs/use/{name}.md" for name in ("migrating", "platforms", "spark"))]
)
def test_every_example_in_python_compiles(document: str) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        compile(example, document, "exec")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_page_of_ours_leads_there(page: str) -> None:
    """Headings, too."""
    place = ROOT / page
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        name, _, heading = target.partition("#")
        linked = place if not name else (place.parent / name)
        assert linked.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}, target


def test_the_ratios_of_what_a_record_costs_are_to_bare_rust() -> None:
    page = (ROOT / "docs/understand/performance.md").read_text()
    table = page.split("\n## What a record costs\n")[1].strip().split("\n\n")[0]
    rows = [re.findall(r"([\d,]+) \(([\d.]+)\)", line) for line in table.splitlines()[2:]]
    (bare,) = [[number(ns) for ns, _ in row] for row in rows if {ratio for _, ratio in row} == {"1.00"}]
    assert sum(map(len, rows)) > 20
    for row in rows:
        for (ns, ratio), bare_ns in zip(row, bare, strict=True):
            assert float(ratio) == pytest.approx(number(ns) / bare_ns, abs=0.006)


def number(text: str) -> int:
    return int(text.replace(",", ""))
