"""The command ``producerctl profile``: what the daemon's event loop works on, as stacks for a flame graph."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from producerd.ctl.daemon import AdminClient
from producerd.ctl.files import whole_file
from producerd.ctl.tables import count, table

PLACES_SHOWN: Final = 10


def profile(daemon: AdminClient, parsed: argparse.Namespace) -> Iterator[str]:
    """Yield the sampled stacks, or write them to a file.  Print where most samples ended to the standard error."""
    if parsed.output is None:
        reply = _sampled(daemon, parsed.seconds)
        yield from _lines(reply)
    else:
        with whole_file(parsed.output, 0o666) as file:  # open before the time passes, which an error would waste
            reply = _sampled(daemon, parsed.seconds)
            file.write("".join(f"{line}\n" for line in _lines(reply)).encode())
    print("\n".join(_places(reply["stacks"], reply["samples"])), file=sys.stderr)


def _sampled(daemon: AdminClient, seconds: float) -> Mapping[str, Any]:
    began = time.monotonic()

    def meanwhile() -> None:
        if sys.stderr.isatty():
            passed = f"\r{time.monotonic() - began:.0f} of {seconds:g} s\r"
            print(passed, end="", file=sys.stderr, flush=True)

    reply: Mapping[str, Any] = daemon.post("/profile", {"seconds": seconds}, meanwhile, seconds=seconds)
    return reply


def _lines(reply: Mapping[str, Any]) -> Iterator[str]:
    for stack, times in reply["stacks"].items():
        yield f"{stack} {times}"


def _places(stacks: Mapping[str, int], samples: int) -> Iterator[str]:
    """Yield the table of the places where most stacks end."""
    ends: Counter[str] = Counter()
    for stack, times in stacks.items():
        ends[stack.rpartition(";")[2]] += times
    yield count(samples, "sample")
    if ends:
        rows = [(f"{times / samples:.1%}", f"{times:,}", place) for place, times in ends.most_common(PLACES_SHOWN)]
        yield from table(("SHARE", "SAMPLES", "PLACE"), rows)
