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


@pytest.mark.parametrize("arguments", [[], ["judges"], ["nonsense"]])
def test_what_is_no_measurement_is_refused_and_those_there_are_are_named(dev: Any, arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"bench NAME: NAME is one of .*delivery"):
        dev.main(["bench", *arguments])
