"""Each benchmark starts: its help can be read, and a short run of it gives figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.abuse import run as abuse
from benchmarks.processes import cpu_seconds
from benchmarks.sampler import LINES, OTHER, PLACES, STEPS
from benchmarks.sampler import ROOT as DAEMON
from producerd.wire.columns import lay_out
from producerd.wire.messages import Hello
from spark_client.connection import Connection
from tools import ROOT
from tools.commands import measurements

FLOOD: Final = "flood of RESERVE and CANCEL"
SHORT_RUNS: Final = {
    "client": ["--records", "20000", "--only", "put", "alone"],
    "daemon": ["--records", "1000", "--repeat", "1", "--only", "100,kpl"],
    "latency": ["--puts", "100"],
    "memory": ["--set", "queue_limit_bytes=4 MiB", "--rounds", "1", "--record-bytes", "1024", "--only", "stuck"],
    "profile": ["--records", "20000", "--only", "100,kpl"],
    "rivals": ["--bytes", "100", "--records", "500", "--repeat", "1", "--only", "naive-daemon"],
    "scale": ["--only", "keys", "--aggregation", "none"],
}


def figures(name: str, *options: str) -> list[dict[str, Any]]:
    """What a run prints with ``--json``: nothing else may stand on its standard output."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *options]
    env = {**os.environ, "PATH": ""}  # without qemu, under which a walk takes long
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


@pytest.mark.parametrize("name", measurements())
def test_every_help_can_be_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    is_package = (ROOT / "benchmarks" / name).is_dir()
    with pytest.raises(SystemExit, match="0"):
        import_module(f"benchmarks.{name}{'.__main__' * is_package}").main(["--help"])
    assert capsys.readouterr().out.startswith(f"usage: ./dev bench {name} ")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT_RUNS)
def test_a_short_run_gives_figures(name: str, tmp_path: Path) -> None:
    picture = ["--picture", f"{tmp_path}/profile.svg"] if name == "profile" else []
    assert figures(name, *SHORT_RUNS[name], *picture)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_a_flood_of_another_user_gets_a_quarter_of_the_loops_time() -> None:
    """By processor time, to which other work on the machine adds nothing.  Without shares by user it is all of it."""
    hello = Hello(1, 1, client="honest", pid=os.getpid())
    with (
        abuse.bench(1.0, print) as running,
        Connection(hello, [running.socket]) as honest,
        running.attackers(FLOOD, 20, abuse.NOBODY_UID),
    ):
        honest.put("flights", lay_out([b"key"], [b"x"]), 60.0)
        honest.flush(60.0)
        began, before = time.monotonic(), cpu_seconds(running.daemon.process.pid)
        time.sleep(2.0)
        used = cpu_seconds(running.daemon.process.pid) - before
        part = used / (time.monotonic() - began)
    assert 0.01 < part < 0.5


def test_each_part_of_the_daemon_that_the_profile_names_is_there() -> None:
    files = [str(file.relative_to(DAEMON).with_suffix("")) for file in DAEMON.rglob("*.py")]
    assert {place for place in PLACES if not any(file.startswith(place) for file in files)} == set()
    source = "".join(file.read_text() for file in DAEMON.rglob("*.py"))
    assert {part for part in LINES if part not in source} == set()
    assert set(STEPS) == {*PLACES.values(), *LINES.values(), OTHER}
