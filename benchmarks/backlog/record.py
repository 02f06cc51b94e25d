"""Keep runs in a small file, from which pictures can be drawn again.

The file has a line of JSON for the conditions, and one for each run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.backlog.curves import Curves
from benchmarks.backlog.run import Figures, Run

FILE: Final = "backlog.jsonl"
DECIMALS: Final = {"seconds": 2}
"""Digits after the point.  The other curves have none."""


def write(runs: Sequence[Run], conditions: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"conditions": conditions}, *map(_as_json, runs)]
    (folder / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


def _as_json(run: Run) -> dict[str, Any]:
    document = asdict(run)
    document["hang"] = [round(at, 2) for at in run.hang]
    document["batches"] = [[round(at, 2) for at in span] for span in run.batches]
    document["curves"] = {
        name: [round(value, DECIMALS.get(name)) for value in values] for name, values in document["curves"].items()
    }
    return document


def read(folder: Path) -> list[Run]:
    _, *lines = (folder / FILE).read_text().splitlines()
    return [
        Run(
            Figures(**document["figures"]),
            tuple(document["hang"]),
            [tuple(span) for span in document["batches"]],
            Curves(**document["curves"]),
        )
        for document in map(json.loads, lines)
    ]
