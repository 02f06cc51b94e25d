"""The command ``producerctl profile``: what the daemon's event loop works on, as stacks for a flame graph."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from producerd.ctl.daemon import AdminClient, Failed
from producerd.ctl.tables import count, table

PLACES_SHOWN: Final = 10


def profile(daemon: AdminClient, parsed: argparse.Namespace) -> Iterator[str]:
    """Yield the sampled stacks, or write them to a file.  Print where most samples ended to the standard error."""
    began = time.monotonic()

    def meanwhile() -> None:
        if sys.stderr.isatty():
            passed = f"\r{time.monotonic() - began:.0f} of {parsed.seconds:g} s\r"
            print(passed, end="", file=sys.stderr, flush=True)

    reply = daemon.post("/profile", {"seconds": parsed.seconds}, meanwhile)
    stacks: Mapping[str, int] = reply["stacks"]
    lines = [f"{stack} {times}" for stack, times in stacks.items()]
    if parsed.output is None:
        yield from lines
    else:
        try:
            Path(parsed.output).write_text("".join(f"{line}\n" for line in lines))
        except OSError as error:
            raise Failed(f"{parsed.output}: {error.strerror}") from None
    print("\n".join(_places(stacks, reply["samples"])), file=sys.stderr)


def _places(stacks: Mapping[str, int], samples: int) -> Iterator[str]:
    """Yield the table of the places where most stacks end."""
    ends: Counter[str] = Counter()
    for stack, times in stacks.items():
        ends[stack.rpartition(";")[2]] += times
    yield count(samples, "sample")
    if ends:
        rows = [(f"{times / samples:.1%}", f"{times:,}", place) for place, times in ends.most_common(PLACES_SHOWN)]
        yield from table(("SHARE", "SAMPLES", "PLACE"), rows)
