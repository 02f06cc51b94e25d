"""docs/build/recipes.md names files that exist, and its recipe for a setting leads to one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import copy_of_this_tree
from tools import ROOT
from tools.docs import WRITE

PAGE = (ROOT / "docs/build/recipes.md").read_text()
PATH = re.compile(r"\b(?:[\w-]+/)+[\w.-]*")
SETTING = '''
    example_seconds: Seconds = _in(0, 60, default=5)
    """Seconds that a test adds."""'''


def test_every_file_of_a_recipe_is_there() -> None:
    commands = {
        word
        for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        for word in block.split()
    }
    named = {path for path in re.findall(r"`([^`\s]+)`", PAGE) if PATH.fullmatch(path)}
    assert len(named) > 30
    assert [
        path
        for path in sorted(named | {word for word in commands if PATH.fullmatch(word)})
        if not (ROOT / path).exists()
    ] == []


@pytest.mark.slow
def test_the_steps_for_a_setting_write_the_files_that_the_recipe_names(tmp_path: Path) -> None:
    """In a copy: the named command writes a new field into these files and no others."""
    recipe = PAGE.split("\n## A setting\n")[1].split("\n## ")[0]
    (source,) = re.findall(r"^1\. `(\S+)`", recipe, re.MULTILINE)
    written = set(PATH.findall(recipe.split(f"`{WRITE}` writes")[1].split("\n\n")[0]))
    copy_of_this_tree(copy := tmp_path / "tree")
    settings = (copy / source).read_text()
    place = settings.index("\n    log_level: ")
    (copy / source).write_text(settings[:place] + SETTING + settings[place:])

    command = [sys.executable, "-m", "tools.docs", "--write"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr == ""
    files = (path for path in copy.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    named = {str(path.relative_to(copy)) for path in files if "example_seconds" in path.read_text(errors="replace")}
    assert named - {source, str(Path(__file__).relative_to(ROOT))} == written
