"""Texts that tests compare with files under tests/snapshots/.  ``pytest --write-snapshots`` writes those files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import pytest

FOLDER = Path(__file__).with_name("snapshots")


class Snapshot(Protocol):
    def __call__(self, name: str, text: str) -> None: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-snapshots", action="store_true", help="write the texts of tests/snapshots, to be read")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("write_snapshots") and os.environ.get("CI"):
        raise pytest.UsageError("--write-snapshots needs a person to review what it writes: the variable CI is set")


@pytest.fixture
def snapshot(pytestconfig: pytest.Config) -> Snapshot:
    """Compare a text with the file of this name."""

    def compare(name: str, text: str) -> None:
        file = FOLDER / f"{name}.txt"
        if pytestconfig.getoption("write_snapshots"):
            FOLDER.mkdir(exist_ok=True)
            file.write_text(text)
        assert text == file.read_text(), f"another text than tests/snapshots/{name}.txt has: pytest --write-snapshots"

    return compare
