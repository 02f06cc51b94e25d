"""What an option does not take is refused before anything starts, in a line that names it, the value and what is
allowed."""

from __future__ import annotations

import argparse
from importlib import import_module

import pytest

from benchmarks.arguments import MOST_RECORD_BYTES, assignment, at_least, seconds_at_least

NOT_COUNTS = ("0", "-5", "x", "1.5", "inf", "")
NOT_SECONDS = ("inf", "nan", "-1", "0", "x")
REFUSED = [
    ("daemon", "--records", NOT_COUNTS),
    ("daemon", "--repeat", NOT_COUNTS),
    ("rivals", "--records", NOT_COUNTS),
    ("rivals", "--repeat", NOT_COUNTS),
    ("rivals", "--bytes", ("-1", "x")),
    ("idle", "--starts", NOT_COUNTS),
    ("idle", "--seconds", NOT_SECONDS),
    ("latency", "--puts", (*NOT_COUNTS, "1", "99")),
    ("memory", "--rounds", NOT_COUNTS),
    ("memory", "--record-bytes", (*NOT_COUNTS, "2000000")),
    ("memory", "--set", ("novalue", "=value")),
    ("backpressure", "--seconds", (*NOT_SECONDS, "10", "19.9")),
    ("spark", "--rows", NOT_COUNTS),
    ("spark", "--row-bytes", (*NOT_COUNTS, "2000000")),
]


@pytest.mark.parametrize(
    ("name", "option", "value"), [(name, option, value) for name, option, values in REFUSED for value in values]
)
def test_what_an_option_does_not_take_is_refused_in_one_line(
    name: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        import_module(f"benchmarks.{name}.__main__").main([f"{option}={value}"])
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert out == ""
    assert last.startswith(f"./dev bench {name}: error: argument {option}: {value}: allowed: ")


@pytest.mark.parametrize("name", sorted({name for name, *_ in REFUSED} | {"delivery", "instructions", "scale"}))
def test_every_help_can_be_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        import_module(f"benchmarks.{name}.__main__").main(["--help"])
    told = capsys.readouterr().out
    assert told.startswith(f"usage: ./dev bench {name} ")
    assert "((" not in told, "a tuple as Python writes it"


def test_helps_name_the_least_that_is_not_one(capsys: pytest.CaptureFixture[str]) -> None:
    for name, least in (("backpressure", "20 or more"), ("latency", "100 or more")):
        with pytest.raises(SystemExit, match="0"):
            import_module(f"benchmarks.{name}.__main__").main(["--help"])
        assert least in capsys.readouterr().out


def test_what_is_allowed_is_taken() -> None:
    assert at_least(2)("2") == 2
    assert at_least(1, MOST_RECORD_BYTES)(str(MOST_RECORD_BYTES)) == MOST_RECORD_BYTES
    assert seconds_at_least(0.5)("0.5") == 0.5
    assert assignment("a=b=c") == ("a", "b=c")
    assert assignment("a=") == ("a", "")


def test_what_is_allowed_is_told() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"^0: allowed: a whole number from 1 to 1,000$"):
        at_least(1, 1_000)("0")
    with pytest.raises(argparse.ArgumentTypeError, match=r"^nan: allowed: a number of seconds, 20 or more$"):
        seconds_at_least(20)("nan")
