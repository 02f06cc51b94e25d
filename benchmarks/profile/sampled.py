"""Serve as ``producerd serve`` does, and sample what the event loop's thread works on.

The kernel sends a signal after each `SAMPLE_SECONDS` of the process's CPU time.  Python runs the handler behind the
call that was running, in the frame that made it.  The time of a call into C therefore counts for the line that calls
it::

    python -m benchmarks.profile.sampled FILE serve --set=...

For each line on stdin it writes the samples to FILE, and begins to count again.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

from benchmarks.profile.steps import Steps
from producerd import cli

SAMPLE_SECONDS: Final = 0.001
"""Time between samples.  A kernel with fewer ticks takes fewer samples."""


def main(path: Path, arguments: list[str]) -> int:
    samples: Counter[str] = Counter()
    steps = Steps()

    def sample(_signal: int, frame: FrameType | None) -> None:
        samples[steps.of(frame)] += 1

    def write() -> None:
        for _ in sys.stdin:
            path.write_text(json.dumps(samples))
            samples.clear()
            print("written", flush=True)

    threading.Thread(target=write, daemon=True).start()
    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
