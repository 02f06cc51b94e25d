"""``./dev bench NAME`` sets itself up and becomes the measurement; with ``--json`` stdout is that one's alone."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.test_dev import ROOT, load


@pytest.fixture
def dev(monkeypatch: pytest.MonkeyPatch) -> Any:
    """./dev, which finds its environment made and starts nothing."""
    script = load(ROOT / "dev")
    monkeypatch.setattr(script.signal, "signal", lambda *_: None)
    monkeypatch.chdir(ROOT)
    script.set_up = lambda: print("set-up")
    return script


def test_it_becomes_the_measurement_with_its_options(
    dev: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _path, arguments: became.append(arguments))
    dev.main(["bench", "delivery", "--json", "--scenario", "split"])
    assert became == [[str(dev.PYTHON), "-m", "benchmarks.delivery", "--json", "--scenario", "split"]]
    assert capsys.readouterr() == ("", "set-up\n")


NAMES = sorted(path.parent.name for path in ROOT.glob("benchmarks/*/__main__.py"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], 2), (["judges"], 2), (["nonsense"], 2), (["--json"], 2), (["--help"], 0), (["-h"], 0), (["help"], 0)],
)
def test_without_a_name_those_there_are_are_told_with_what_they_are_for_and_nothing_is_set_up(
    dev: Any, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dev.main(["bench", *arguments]) == code
    out, err = capsys.readouterr()
    assert "" in (out, err)
    assert out if code == 0 else err
    usage, *lines = (out or err).splitlines()
    assert usage.startswith("usage: ./dev bench NAME")
    told = dict(line.split(None, 1) for line in lines)
    assert list(told) == NAMES
    assert told["memory"] == "How much memory the daemon takes, beside what it charges and what the law allows"
    assert all(20 < len(text) < 110 and "``" not in text for text in told.values())
