"""The command ``producerd`` with another `Tuning`, which no user can give: ``python -m tests.tuned TUNING serve ...``.

TUNING is a JSON object.  The daemon also lets tests that do not run as root look at its memory and files in /proc.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from producerd import cli
from producerd.config.tuning import Tuning
from producerd.runtime import app, secrecy


def main(tuning: Mapping[str, Any], arguments: Sequence[str]) -> int:
    app.run = partial(app.run, tuning=Tuning(**tuning))
    if os.geteuid():
        secrecy.keep_memory_private = lambda: None
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
