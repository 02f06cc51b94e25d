"""What an option does not take is refused before anything starts, with what is allowed; and every help can be read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from benchmarks.arguments import MOST_RECORD_BYTES, assignment, at_least, seconds_at_least
from tools import ROOT


@pytest.mark.parametrize(
    ("parse", "text", "allowed"),
    [
        *((at_least(1), text, "a whole number, 1 or more") for text in ("0", "-5", "x", "1.5", "inf", "")),
        (at_least(1, 1_000), "1001", "a whole number from 1 to 1,000"),
        *((seconds_at_least(20), text, "a number of seconds, 20 or more") for text in ("nan", "inf", "x", "19.9")),
        *((assignment, text, "KEY=VALUE") for text in ("novalue", "=value")),
    ],
)
def test_a_value_that_means_nothing_is_refused(parse: Callable[[str], Any], text: str, allowed: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        parse(text)
    assert str(refused.value) == f"{text}: allowed: {allowed}"


def test_what_is_allowed_is_taken() -> None:
    assert at_least(2)("2") == 2
    assert at_least(1, MOST_RECORD_BYTES)(str(MOST_RECORD_BYTES)) == MOST_RECORD_BYTES
    assert seconds_at_least(0.5)("0.5") == 0.5
    assert assignment("a=b=c") == ("a", "b=c")
    assert assignment("a=") == ("a", "")


@pytest.mark.parametrize("name", sorted(path.parent.name for path in ROOT.glob("benchmarks/*/__main__.py")))
def test_every_help_can_be_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        import_module(f"benchmarks.{name}.__main__").main(["--help"])
    assert capsys.readouterr().out.startswith(f"usage: ./dev bench {name} ")
