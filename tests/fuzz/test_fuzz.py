"""Each input of the corpus keeps its target's promises, also one that once broke one, and options are checked."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.__main__ import CORPUS, TARGETS, main
from tests.fuzz.planted import PLANTS

INPUTS: Final = sorted(CORPUS.glob("*/*"))
MOST_CORPUS_BYTES: Final = 40 * 1024


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_of_the_corpus_keeps_the_promises(path: Path) -> None:
    importlib.import_module(f"tests.fuzz.targets.{path.parent.name}").check(path.read_bytes())


def test_each_target_has_inputs_to_begin_with_and_a_fault_to_find() -> None:
    assert {path.parent.name for path in INPUTS} == TARGETS.keys() == PLANTS.keys()
    assert sum(path.stat().st_size for path in INPUTS) <= MOST_CORPUS_BYTES


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["wires"], "no target 'wires'; did you mean wire"),
        (["xyzzy"], "no target 'xyzzy'; --help lists them"),
        (["--inputs", "0"], "argument --inputs: '0' is not a number from 1 to "),
    ],
)
def test_a_wrong_option_ends_before_anything_runs(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert told in capsys.readouterr().err
