"""tools/voice.py finds what we do not write, on its line, and only in what people read."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from tools import ROOT, voice

if TYPE_CHECKING:
    from pathlib import Path

BANNED = [{"find": r"grand (duke|duchess)\b", "instead": "ruler"}, {"find": r"zounds\b", "instead": "nothing"}]


def found(folder: Path, name: str, text: str, **more: Any) -> list[str]:
    (folder / name).write_text(text)
    return list(voice.problems(folder, {"banned": BANNED, "clean": [name], **more}))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.py", "x = 1\ny = 2  # a grand duke\n", 2),
        ("a.py", "# Of a grand\n# duke.\n", 1),
        ("a.py", 'x = 1\n\n\ndef f():\n    """Begin.\n\n    Then a grand\n    duke.\n    """\n', 7),
        ("a.py", 'x = (\n    f"{1} of"\n    f" the grand duke {2}"\n)\n', 3),
        ("a.py", "x = f\"{', '.join(['the Grand Duke'])}\"\n", 1),
        ("a.md", "# Title\n\nOf a Grand\nDuchess.\n", 3),
        ("a.service", "[Unit]\n# The grand duke.\n", 2),
    ],
)
def test_a_banned_phrase_is_found_on_its_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    (problem,) = found(tmp_path, name, text)
    assert re.fullmatch(rf'{name}:{line}: "grand (duke|duchess)": write ruler', problem, re.IGNORECASE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "def test_zounds_is_a_grand_duke():\n    zounds = 1\n"),
        ("a.py", 'user = "zounds"\n'),
        ("a.py", '"""The option ``grand duke``."""\n'),
        ("a.md", "The test `test_zounds` shows `zounds`.\n"),
    ],
)
def test_names_and_code_may_have_any_word(tmp_path: Path, name: str, text: str) -> None:
    assert found(tmp_path, name, text) == []


def test_a_quotation_is_allowed_only_in_its_file(tmp_path: Path) -> None:
    quotation = [{"path": "a.md", "text": "the Grand Duke of York", "reason": "a song"}]
    text = "He sang of the\nGrand Duke of York.\n"
    assert found(tmp_path, "a.md", text, quotation=quotation) == []
    assert len(found(tmp_path, "a.md", f"{text}\nZounds!", quotation=quotation)) == 1
    assert len(found(tmp_path, "b.md", text, quotation=quotation)) == 2


def test_a_quotation_that_no_file_has_is_an_error(tmp_path: Path) -> None:
    quotation = [{"path": "a.md", "text": "the Grand Duke of York", "reason": "a song"}]
    (problem,) = found(tmp_path, "a.md", "Nothing here.\n", quotation=quotation)
    assert problem.startswith('a.md: no longer has the quotation "the Grand Duke of York"')


def test_each_listed_path_exists() -> None:
    listed = tomllib.loads(voice.LIST.read_text())
    quoting = [quotation["path"] for quotation in listed["quotation"]]
    assert [name for name in (*listed["clean"], *quoting) if not (ROOT / name).exists()] == []
