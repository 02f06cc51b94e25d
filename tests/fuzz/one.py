"""Fuzz one target in a process of its own, by libFuzzer, whose lines come on the standard output.

::

    python -m tests.fuzz.one NAME [--planted] OPTIONS OF LIBFUZZER AND FOLDERS
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final

import atheris

PARSERS: Final = {
    "wire": ("producerd.wire",),
    "aggregate": ("producerd.core.kpl",),
    "answer": ("producerd.runtime.aws.connection", "producerd.runtime.aws.errors", "producerd.core.sending.answers"),
    "cbor": ("producerd.core.sending.answers",),
    "config": ("producerd.config",),
    "http": ("producerd.runtime.http_connections", "producerd.runtime.admin"),
}
"""The modules of which coverage guides each target."""


def main(name: str, *options: str) -> None:
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())  # libFuzzer knows no other place
    with atheris.instrument_imports(include=[*PARSERS[name]], enable_loader_override=False):
        target = importlib.import_module(f"tests.fuzz.targets.{name}")
    if "--planted" in options:
        from tests.fuzz.planted import PLANTS

        PLANTS[name]()
    given = [option for option in options if option != "--planted"]
    atheris.Setup([sys.argv[0], *given], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
