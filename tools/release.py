"""Whether a tag may be released: ``python3 -m tools.release v0.2.0`` says what is missing, or prints the notes.

The version stands in the tree, where the daemon, the zip of the client and every archive of the source have it.  The
tag only names it, so the same tree has the same version with git and without.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools import ROOT
from tools.packaging import version_of

CHART = "deploy/kubernetes/chart/Chart.yaml"


def problems(tag: str, tree: Path = ROOT) -> Iterator[str]:
    """Yield what keeps this tree from being released under this tag, and what to do about it."""
    version = version_of(tree)
    if tag != f"v{version}":
        yield f"producerd.__version__ is {version}: the tag must be v{version}, or change producerd/__init__.py first"
    minor = version.rpartition(".")[0]
    if not (tree / "tests/wire/golden" / minor).is_dir():
        yield f"tests/wire/golden/{minor} is missing: run `python -m tests.wire.golden`"
    chart = re.findall(r'^(?:appVersion|version): "?([^"\n]*)', (tree / CHART).read_text(), re.MULTILINE)
    if chart != [version] * 2:
        yield f"{CHART} must have {version} as version and as appVersion"
    if not notes(version, tree):
        yield f"CHANGELOG.md has no lines under a heading like: ## [{version}] - 2026-12-31"
    if section(r"\[Unreleased\]", tree):
        yield f"CHANGELOG.md has lines under [Unreleased]: move them under [{version}]"


def notes(version: str, tree: Path = ROOT) -> str:
    """Return what the changelog says of a version, or nothing if it has no dated section of it."""
    return section(re.escape(f"[{version}] - ") + r"\d{4}-\d\d-\d\d", tree)


def section(heading: str, tree: Path) -> str:
    """Return the lines of the changelog below the heading that matches, and above the next one of its kind."""
    changelog = (tree / "CHANGELOG.md").read_text()
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python3 -m tools.release TAG", file=sys.stderr)
        return 2
    if found := list(problems(arguments[0])):
        print(f"{arguments[0]} cannot be released:", *found, sep="\n  ", file=sys.stderr)
        return 1
    print(notes(version_of()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
