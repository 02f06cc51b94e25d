"""Each input of the corpus keeps its target's promises, also one that once broke one, and options are checked."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tests.daemon import ROOT
from tests.fuzz.__main__ import CORPUS, TARGETS, main
from tests.fuzz.planted import PLANTS

INPUTS: Final = sorted(CORPUS.glob("*/*"))
MOST_CORPUS_BYTES: Final = 40 * 1024


CHECK_ALL: Final = """
import importlib, pathlib, sys
for path in map(pathlib.Path, sys.argv[1:]):
    try:
        importlib.import_module(f"tests.fuzz.targets.{path.parent.name}").check(path.read_bytes())
    except Exception as error:
        raise AssertionError(path) from error
"""


def test_each_input_of_the_corpus_keeps_the_promises() -> None:
    """In a process of their own, because a target replaces parts of the daemon."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK_ALL, *map(str, INPUTS)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


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
