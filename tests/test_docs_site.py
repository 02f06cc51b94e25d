"""A page's links work on the site, too, and the menu has every page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.docs import site

if TYPE_CHECKING:
    from pathlib import Path

PLACES = {"docs/a/b.md": "a/b.md", "docs/c.md": "c.md", "CONTRIBUTING.md": "build/contributing.md"}


@pytest.mark.parametrize(
    ("text", "on_the_site"),
    [
        ("[c](../c.md#d)", "[c](../c.md#d)"),
        ("[build](../../CONTRIBUTING.md#run)", "[build](../build/contributing.md#run)"),
        ("![x\ny](../../LICENSE)", "![x\ny](https://forge/us/blob/HEAD/LICENSE)"),
        ("[w](https://w.org/a.md) [here](#d)", "[w](https://w.org/a.md) [here](#d)"),
        ('<img src="../../docs/c.md" alt="(b)">', '<img src="../c.md" alt="(b)">'),
        ("```python\nx[0](a)\n```\n", "```python\nx[0](a)\n```\n"),
    ],
)
def test_a_link_that_leaves_the_pages_leads_to_the_repository(text: str, on_the_site: str) -> None:
    assert site.for_site("docs/a/b.md", text, PLACES, "https://forge/us") == on_the_site


def test_a_link_to_nothing_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match=r"docs/a/b\.md: there is no deploy/nothing"):
        site.for_site("docs/a/b.md", "[x](../../deploy/nothing)", PLACES, "https://forge/us")


def test_a_page_without_an_entry_in_the_menu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {**site.published(), "docs/new.md": "new.md"}
    monkeypatch.setattr(site, "published", lambda: places)
    monkeypatch.setattr(site, "FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"entry in `nav` go together: new\.md$"):
        site.prepare()
