"""What systemd's own tools say of the units, and that the example's settings hold."""

from __future__ import annotations

import configparser
import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from producerd.cli import EXIT_CONFIGURATION, EXIT_TAKEN
from producerd.config import load
from producerd.runtime import allocator

ROOT: Final = Path(__file__).resolve().parents[2]
UNITS: Final = ROOT / "deploy/systemd"
MOST_EXPOSURE: Final = 15
"""Tenths, of 10.0; what is left of it is the network, the unix sockets, and who connects being seen as who it is."""
MALLOPT: Final = {"MALLOC_ARENA_MAX": -8, "MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Number of each of glibc's settings, as malloc.h has it."""
ANALYZE: Final = shutil.which("systemd-analyze")
pytestmark = pytest.mark.system
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is missing: apt-get install systemd")


def unit(name: str) -> configparser.SectionProxy:
    """The last value of each key of the unit's own section."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return parser["Service" if name.endswith(".service") else "Socket"]


def analyze(*arguments: str | Path) -> str:
    assert ANALYZE is not None
    done = subprocess.run([ANALYZE, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for command in (tmp_path / "producerd", tmp_path / "producerctl"):
        command.write_text("#!/bin/sh\n")
        command.chmod(0o755)
    for name in ("producerd.service", "producerd.socket"):
        (tmp_path / name).write_text((UNITS / name).read_text().replace("/opt/producerd/bin", str(tmp_path)))
    assert analyze("verify", "--man=no", tmp_path / "producerd.service", tmp_path / "producerd.socket") == ""


@pytest.mark.promise("service-exposed-little")
@needs_systemd
@pytest.mark.parametrize("drop_ins", [None, ROOT / "deploy/emr"])
def test_the_service_is_exposed_to_little(drop_ins: Path | None, tmp_path: Path) -> None:
    shutil.copy(UNITS / "producerd.service", tmp_path)
    if drop_ins:
        shutil.copytree(drop_ins / "producerd.service.d", tmp_path / "producerd.service.d")
    told = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSURE}", tmp_path / "producerd.service")
    assert "Overall exposure level for producerd.service" in told


def test_the_units_fit_the_daemon() -> None:
    """Exit code, drain and directory are those that the daemon has."""
    service, socket = unit("producerd.service"), unit("producerd.socket")
    config = load(UNITS / "producerd.toml", environ={})
    assert service["RestartPreventExitStatus"] == str(EXIT_CONFIGURATION)
    assert all(f" {code}) " in service["ExecStopPost"] for code in (EXIT_CONFIGURATION, EXIT_TAKEN))
    assert float(service["TimeoutStopSec"]) >= config.node.drain_timeout_seconds + 25
    assert socket["ListenStream"] == str(config.node.socket) == "/run/producerd/producerd.sock"
    assert service["ReadWritePaths"] == f"-{config.node.admin_path.parent}"
    assert socket["SocketMode"] == f"{config.node.socket_mode:04o}"
    assert (service["User"], service["Group"]) == (socket["SocketUser"], socket["SocketGroup"])


def test_the_allocators_settings_are_those_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit sets them in the environment, so that they count from the interpreter's start on."""
    (line,) = re.findall(r"^Environment=(MALLOC_.*)$", (UNITS / "producerd.service").read_text(), re.MULTILINE)
    of_the_unit = dict(each.split("=") for each in line.split())
    of_the_daemon: dict[int, int] = {}

    def mallopt(number: int, value: int) -> int:
        of_the_daemon[number] = value
        return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    for name in MALLOPT:
        monkeypatch.delenv(name, raising=False)
    assert allocator.configure()
    assert of_the_daemon == {number: int(of_the_unit[name]) for name, number in MALLOPT.items()}


def test_the_example_of_a_configuration_holds_with_all_that_it_offers(tmp_path: Path) -> None:
    """Also with what is commented out."""
    example = (UNITS / "producerd.toml").read_text()
    full = tmp_path / "producerd.toml"
    full.write_text(re.sub(r"^#(?=[\[a-z])", "", example, flags=re.MULTILINE))
    assert full.read_text() != example
    checked = subprocess.run(
        [sys.executable, "-m", "producerd", "check", "-c", str(full)],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stderr
    assert "stream flights: " in checked.stdout
