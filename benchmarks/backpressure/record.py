"""Runs as a small file, from which pictures are drawn anew: a line of JSON with the conditions, one for each run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.backpressure.curves import Curves
from benchmarks.backpressure.run import Figures, Run

FILE: Final = "backpressure.jsonl"
DECIMALS: Final = {"seconds": 2, "blocked": 3}
"""Of the other curves none."""


def write(runs: Sequence[Run], conditions: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"conditions": conditions}, *map(_as_json, runs)]
    (folder / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


def _as_json(run: Run) -> dict[str, Any]:
    told = asdict(run)
    told["batches"] = [[round(at, 2) for at in span] for span in run.batches]
    told["curves"] = {
        name: [round(value, DECIMALS.get(name)) for value in values] for name, values in told["curves"].items()
    }
    return told


def read(folder: Path) -> list[Run]:
    _, *lines = (folder / FILE).read_text().splitlines()
    return [
        Run(Figures(**told["figures"]), [tuple(span) for span in told["batches"]], Curves(**told["curves"]))
        for told in map(json.loads, lines)
    ]
