"""What is promised of older Pythons: the client runs on 3.9, and the daemon says which Python it needs.

A version that this machine lacks is skipped, with what to install as the reason.  The daemon runs on the newest Python
in tests/test_packaging.py, and on the oldest one in the image of tests/system/test_image.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from producerd import __version__
from tools.environments import choose_pip, find_python

pytestmark = pytest.mark.slow

WHERE = "import sys, spark_client; print(sys.version_info[:2], spark_client.__file__)"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, dist: Path) -> Callable[[str], Path]:
    """The interpreter of an environment of a version, which has the wheel and nothing else."""

    @cache
    def make(version: str) -> Path:
        base = find_python(version)
        if not base:
            pytest.skip(f"no Python {version} on PATH or among pyenv's versions: `pyenv install {version}` brings it")
        python = tmp_path_factory.mktemp("environment") / "bin/python"
        subprocess.run([base, "-m", "venv", "--without-pip", python.parents[1]], check=True)
        pip = [choose_pip(str(python)), "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        wheel = f"{dist}/producerd-{__version__}-py3-none-any.whl"
        subprocess.run([*pip, "install", "--quiet", "--no-compile", "--no-index", wheel], check=True, timeout=300)
        return python

    return make


@pytest.mark.promise("wheel-installs-bare")
@pytest.mark.parametrize("shipped", ["wheel", "zip"])
def test_the_client_imports_on_the_oldest_python(shipped: str, installed: Callable[[str], Path], dist: Path) -> None:
    """Installed or shipped, with the standard library alone."""
    python, env = installed("3.9"), dict[str, str]()
    if shipped == "zip":
        env["PYTHONPATH"] = f"{dist}/producerd-client-{__version__}.zip"
    told = subprocess.run([python, "-c", WHERE], cwd="/", env=env, capture_output=True, text=True, check=False)
    assert told.stderr == ""
    assert told.stdout.startswith(f"(3, 9) {env.get('PYTHONPATH', python.parents[1])}/")


@pytest.mark.promise("daemon-says-python-needs")
@pytest.mark.parametrize("version", ["3.9", "3.10"])
def test_the_daemon_says_which_python_it_needs_and_producerctl_runs(
    version: str, installed: Callable[[str], Path]
) -> None:
    """On a Python that is too old for the daemon, as EMR's is."""

    def run(name: str, *arguments: str) -> tuple[int, str]:
        command = [str(installed(version).with_name(name)), *arguments]
        done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    assert run("producerd", "--version") == (0, f"producerd {__version__}\n")
    code, said = run("producerd", "serve")
    assert (code, said.splitlines()[1:]) == (78, [])
    assert said.startswith(f"producerd: needs Python 3.11 or newer; this is {version}.")
    code, said = run("producerctl", "--admin-socket", "/nonexistent/s", "status")
    assert (code, "Traceback" in said) == (1, False)
