"""Count the hot functions in one process under qemu, each as often as needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from benchmarks.instructions import hot, qemu


def count(names: Sequence[str], say: Callable[[str], None]) -> dict[str, float]:
    """Return the instructions per record of each function.  Raise `qemu.Failed`."""
    say(f"counting {len(names)} functions ...")
    lines = [json.loads(line) for line in qemu.run(hot.__name__, names).splitlines()]
    return {line["name"]: line["per_record"] for line in lines}
