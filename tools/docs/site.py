"""The site: Zensical builds it from a copy of the pages, and fails for a dead link, anchor or menu entry.

Pages are plain Markdown, whose links work in a clone and on a forge.  The site lacks what lies outside of docs/, so in
the copy a link to it gets the repository's address.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterator
from typing import Any, Final

import yaml

from tools import ROOT
from tools.docs import CODE, DOCS
from tools.environments import OWN
from tools.processes import run

FOLDER: Final = ROOT / "build/docs"
"""Gets the copy, Zensical's settings and its cache, and the site."""
GUESTS: Final = {"README.md": "index.md", "CONTRIBUTING.md": "build/contributing.md"}
"""Pages outside of docs/, with their places on the site."""
LINK: Final = re.compile(r"(?:(?<=\]\()|(?<=<img src=\")|(?<=srcset=\"))(?![a-z]+:|#)([^)\s#\"]+)")


def published() -> dict[str, str]:
    """Return the place on the site of every file that it has, by its place in the tree."""
    ours = (path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*")) if path.is_file())
    return {f"docs/{name}": name for name in ours} | GUESTS


def for_site(source: str, text: str, places: dict[str, str], repository: str) -> str:
    """Return the text of a page with each link as it must be on the site."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        if target in places:
            return posixpath.relpath(places[target], posixpath.dirname(places[source]) or ".")
        if not (ROOT / target).exists():
            raise FileNotFoundError(f"{source}: there is no {target}")
        return f"{repository}/blob/HEAD/{target}"

    return "".join(part if n % 2 else LINK.sub(link, part) for n, part in enumerate(CODE.split(text)))


def copy_pages(repository: str) -> None:
    """Write to the copy what has changed, and leave the rest, which Zensical would build again."""
    places = published()
    for source, place in places.items():
        content, to = (ROOT / source).read_bytes(), FOLDER / "pages" / place
        if source.endswith(".md"):
            content = for_site(source, content.decode(), places, repository).encode()
        if not to.exists() or to.read_bytes() != content:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(content)


def paths(nav: Any) -> Iterator[str]:
    """Yield the pages of a menu, or of a part of it."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from paths(part)


def prepare() -> str:
    """Write the copy and the settings, and return the address of the repository.

    Zensical says nothing about a page without an entry in the menu.
    """
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    decisions = [f"decisions/{path.name}" for path in sorted((DOCS / "decisions").glob("*.md"))]
    settings["nav"].append({"Decisions": decisions})
    pages = {place for place in published().values() if place.endswith(".md")}
    if wrong := sorted(pages.symmetric_difference(paths(settings["nav"]))):
        raise FileNotFoundError(f"mkdocs.yml: a page and its entry in `nav` go together: {', '.join(wrong)}")
    shutil.rmtree(FOLDER, ignore_errors=True)
    copy_pages(urls["repository"])
    settings |= {"docs_dir": "pages", "site_dir": "site", "site_url": urls["documentation"]}
    # With `repo_url` each page would ask GitHub for the number of stars.
    settings["extra"] = {"social": [{"icon": "lucide/git-fork", "link": urls["repository"], "name": "Source"}]}
    (FOLDER / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False))
    return str(urls["repository"])


def zensical(*arguments: str) -> list[str]:
    return [str(OWN.python), "-m", "zensical", *arguments, "--config-file", str(FOLDER / "mkdocs.yml")]


def build() -> int:
    prepare()
    code = run(zensical("build", "--strict"))
    if not code:
        print(f"{FOLDER.relative_to(ROOT)}/site/index.html")
    return code


def serve() -> int:
    """Serve the site, and build a page again when it changes."""
    repository = prepare()
    with subprocess.Popen(zensical("serve")) as server:
        try:
            while server.poll() is None:
                time.sleep(1)
                copy_pages(repository)
        finally:
            server.terminate()
    return server.returncode
