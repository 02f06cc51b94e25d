"""The Python examples of docs/testing.md run as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


def examples() -> Iterator[Any]:
    """Each with the lines before it left empty, so that a traceback names the page's own lines."""
    text, section = PAGE.read_text(), ""
    for found in re.finditer(r"^## (.*?)$|^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        heading, code = found.groups()
        if heading:
            section = heading
        else:
            marks = [pytest.mark.spark] if "pyspark" in code else []
            yield pytest.param("\n" * text.count("\n", 0, found.start(2)) + code, id=section, marks=marks)


@pytest.mark.parametrize("code", list(examples()))
def test_an_example_runs(code: str, request: pytest.FixtureRequest) -> None:
    if "pyspark" in code:
        request.getfixturevalue("spark")
    exec(compile(code, str(PAGE), "exec"), {"__name__": "example"})
