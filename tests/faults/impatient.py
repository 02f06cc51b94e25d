"""A daemon that forgets the shards of an idle stream 200 times sooner: after 3 s in place of ten minutes.

No setting says how long an idle stream keeps its list of shards, and how often an idle daemon reads it.  So this runs
the daemon with other constants, and changes nothing else in it.  The scenario's full form runs the daemon itself::

    python -m tests.faults.impatient PYTHON -m tests.tuned TUNING serve ...
"""

from __future__ import annotations

import json
import sys
from typing import Final

from producerd.core import pipeline
from producerd.core.shards import reading_times
from tests import tuned

FASTER: Final = 200
SECONDS: Final = (
    (pipeline, "IDLE_SECONDS"),
    (reading_times, "REFRESH_SECONDS"),
    (reading_times, "AFTER_READING_SECONDS"),
)


def hurry() -> None:
    for module, name in SECONDS:
        setattr(module, name, getattr(module, name) / FASTER)
    reading_times.READINGS_PER_MINUTE *= FASTER  # type: ignore[misc]


if __name__ == "__main__":
    hurry()
    sys.exit(tuned.main(json.loads(sys.argv[4]), sys.argv[5:]))
