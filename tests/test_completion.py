"""A shell that asks what may come next gets options, commands and, from the daemon, names of streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DAEMON = """\
from producerd import cli, ctl
from producerd.ctl.daemon import AdminClient
AdminClient.get = lambda *_: {"streams": [{"stream": "flights"}, {"stream": "orders"}]}
"""


@pytest.mark.parametrize(
    ("main", "line", "offered"),
    [
        ("cli", "producerd con", "config "),
        ("cli", "producerd check --deny", "--deny-warnings "),
        ("ctl", "producerctl loglevel d", "debug "),
        ("ctl", "producerctl shards f", "flights "),
    ],
)
def test_what_a_shell_is_offered(main: str, line: str, offered: str, tmp_path: Path) -> None:
    of_the_shell = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    subprocess.run(
        [sys.executable, "-c", f"{DAEMON}{main}.main()"],
        env={**os.environ, **of_the_shell, "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "offered")},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert (tmp_path / "offered").read_text() == offered
