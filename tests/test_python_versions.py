"""What is promised of other Pythons: the daemon installs and serves on the oldest and newest, the client on 3.9.

A version that this machine lacks is skipped, with what to install as the reason.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from producerd import __version__
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import serve_in_thread
from tests.daemon import CREDENTIALS, QUICK, directory, until
from tests.locked import locked
from tools.environments import PYTHONS, choose_pip, find_python

pytestmark = pytest.mark.slow

OURS = "{}.{}".format(*sys.version_info)  # on which tests/test_packaging.py installs the daemon

ONE_RECORD = """
import sys
from spark_client import KinesisClient
with KinesisClient("flights", socket=sys.argv[1]) as client:
    client.put(b"from " + sys.version.encode())
"""


@pytest.fixture
def python(version: str, tmp_path: Path) -> Path:
    """The interpreter of a new and empty environment of this version."""
    base = find_python(version)
    if not base:
        pytest.skip(f"no Python {version} on PATH or among pyenv's versions: `pyenv install {version}` brings it")
    subprocess.run([base, "-m", "venv", "--without-pip", tmp_path / "environment"], check=True)
    return tmp_path / "environment" / "bin" / "python"


@pytest.fixture
def install(python: Path) -> Callable[..., None]:
    """Install something there, by a pip that can."""

    def run(*what: str) -> None:
        pip = [choose_pip(str(python)), "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", "--no-compile", *what], check=True, timeout=300)

    return run


@pytest.mark.promise("daemon-runs-extra-alone")
@pytest.mark.parametrize("version", sorted({PYTHONS[0], PYTHONS[-1]} - {OURS}))
def test_the_daemon_installs_from_its_wheel_and_serves(
    version: str, python: Path, install: Callable[..., None], dist: Path, tmp_path: Path
) -> None:
    """It says its version, becomes ready, stores a record of a client on the same Python, and ends well by SIGTERM."""
    (tmp_path / "locked.txt").write_text(locked())
    install("-c", str(tmp_path / "locked.txt"), f"{dist}/producerd-{__version__}-py3-none-any.whl[daemon]")
    producerd = str(python.with_name("producerd"))
    told = subprocess.run([producerd, "--version"], cwd="/", capture_output=True, text=True, check=True)
    assert told.stdout == f"producerd {__version__}\n"

    kinesis = FakeKinesis()
    flights = kinesis.create_stream("flights", shards=1)
    with serve_in_thread(kinesis) as server, directory() as folder, (folder / "log").open("w+b") as log:
        settings = {**QUICK, "endpoint_url": server.url, "socket": folder / "d.sock"}
        command = [producerd, "serve", *(f"--set={name}={value}" for name, value in settings.items())]
        env = {**CREDENTIALS, "HOME": str(folder), "AWS_EC2_METADATA_DISABLED": "true"}
        with subprocess.Popen(command, cwd="/", env=env, stdout=log, stderr=log) as daemon:
            try:
                said = (folder / "log").read_text
                until(lambda: " serving " in said() or daemon.poll() is not None, "serving", 60)
                assert daemon.poll() is None, said()
                subprocess.run([python, "-c", ONE_RECORD, folder / "d.sock"], cwd="/", env={}, check=True, timeout=60)
                daemon.terminate()
                assert daemon.wait(60) == 0, said()
            finally:
                daemon.kill()
        assert "Warning" not in said()
    (record,) = flights.read().records
    assert record.data.decode().startswith(f"from {version}.")


@pytest.mark.promise("wheel-installs-bare")
@pytest.mark.parametrize("version", ["3.9"])
@pytest.mark.parametrize("shipped", ["wheel", "zip"])
def test_the_client_imports_on_the_oldest_python(
    version: str, shipped: str, python: Path, install: Callable[..., None], dist: Path
) -> None:
    """Installed or shipped, with the standard library alone."""
    env = {}
    if shipped == "wheel":
        install("--no-index", f"{dist}/producerd-{__version__}-py3-none-any.whl")
    else:
        env["PYTHONPATH"] = f"{dist}/producerd-client-{__version__}.zip"
    code = "import sys, spark_client; print(sys.version_info[:2], spark_client.__file__)"
    told = subprocess.run([python, "-c", code], cwd="/", env=env, capture_output=True, text=True, check=False)
    assert told.stderr == ""
    assert told.stdout.startswith(f"({version.replace('.', ', ')}) {env.get('PYTHONPATH', python.parent.parent)}/")


@pytest.mark.promise("daemon-says-python-needs")
@pytest.mark.parametrize("version", ["3.9", "3.10"])
def test_the_daemon_says_which_python_it_needs_and_producerctl_runs(
    version: str, python: Path, install: Callable[..., None], dist: Path
) -> None:
    """On a Python that is too old for the daemon, as EMR's is."""
    install("--no-index", f"{dist}/producerd-{__version__}-py3-none-any.whl")

    def run(name: str, *arguments: str) -> tuple[int, str]:
        command = [str(python.with_name(name)), *arguments]
        done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    assert run("producerd", "--version") == (0, f"producerd {__version__}\n")
    code, said = run("producerd", "serve")
    assert (code, said.splitlines()[1:]) == (78, [])
    assert said.startswith(f"producerd: needs Python 3.11 or newer; this is {version}.")
    code, said = run("producerctl", "--admin-socket", "/nonexistent/s", "status")
    assert (code, "Traceback" in said) == (1, False)
