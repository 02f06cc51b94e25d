"""Text gives a valid configuration, or a ConfigurationError whose problems name the setting or the place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from producerd.config import Config, load
from producerd.config.sources import as_file
from producerd.config.text import as_toml
from producerd.errors import ConfigurationError

FILE: Final = os.memfd_create("producerd.toml")
PATH: Final = Path(f"/proc/self/fd/{FILE}")
PLACES: Final = f"file {PATH}", "--set", "environment", "default"
ENVIRON: Final = {"HOME": "/home/fuzz", "XDG_RUNTIME_DIR": "/run/fuzz"}


def check(data: bytes) -> None:
    """The first byte says whether the text is a file, a ``--set``, or a file and a variable of the environment."""
    kind, text = (data[0] % 3 if data else 0), data[1:]
    path, sets, environ = PATH, [], ENVIRON
    if kind == 1:
        sets, text = text.decode(errors="replace").split("\n"), b""
    elif kind == 2:
        first, _, text = text.partition(b"\n")
        name, _, value = first.decode(errors="replace").replace("\0", "").partition("=")
        environ = {**ENVIRON, f"PRODUCERD_{name.upper()}": value}
    environ = {name: value for name, value in environ.items() if name != "PRODUCERD_CONFIG"}
    _write(text)
    try:
        config = load(path, sets, environ)
    except ConfigurationError as error:
        _check_problems(error.problems)
        return
    assert as_toml(config, origins=True)
    _assert_same(config, as_file(path, sets, environ))


def _check_problems(problems: Sequence[str]) -> None:
    assert problems
    for problem in problems:
        assert any(place in problem for place in PLACES), f"a problem that names no place: {problem}"
        assert "\n" not in problem, f"a problem of more than one line: {problem!r}"


def _assert_same(config: Config, text: str) -> None:
    """A configuration that exists is valid: its own file gives the same one."""
    _write(text.encode())
    assert load(PATH, [], ENVIRON) == config


def _write(text: bytes) -> None:
    os.ftruncate(FILE, 0)
    os.pwrite(FILE, text, 0)
