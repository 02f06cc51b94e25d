"""Executors without the daemon's packages start it from a pex that Spark ships to them."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import until
from tests.spark.drivers import driver
from tests.spark.nodes import connect_server
from tests.spark.processes import processes
from tests.spark.service import Kinesis

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROWS = 200
OWN_MINOR = int(platform.python_version_tuple()[1])
OLDEST_MINOR = 11
MOST_BYTES = 110_000_000
GLUE_BOTO3 = "1.34.131"
"""Of AWS Glue 5.0.  No aiobotocore works with it and with this daemon."""
ASK_IMPORT = "import boto3; print(boto3.__version__); import aiobotocore"


@pytest.fixture(scope="session")
def pex(dist_with_pex: Path) -> Path:
    """The one of `./dev build` for this machine."""
    (made,) = dist_with_pex.glob("producerd-*.pex")
    assert made.stat().st_size <= MOST_BYTES
    return made


@pytest.fixture
def workers(tmp_path: Path) -> str:
    """A Python for Spark's workers that is like Glue 5.0's: PyArrow and pandas, a pinned boto3, nothing of the daemon.

    On Python 3.9 the tests' own is like that, except that it has no boto3.
    """
    if OWN_MINOR < OLDEST_MINOR:
        assert importlib.util.find_spec("aiobotocore") is None
        return sys.executable
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "glue"], check=True)
    python = str(tmp_path / "glue" / "bin" / "python")
    pip = [str(Path(sys.executable).resolve()), "-m", "pip", "--python", python, "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", f"boto3=={GLUE_BOTO3}"], check=True, timeout=300)
    (packages,) = (tmp_path / "glue" / "lib").glob("python3.*/site-packages")
    for name in ("numpy", "numpy.libs", "pandas", "pyarrow", "pytz"):
        found = Path(str(importlib.util.find_spec("numpy").origin)).parents[1] / name  # type: ignore[union-attr]
        (packages / name).symlink_to(found)
    told = subprocess.run([python, "-I", "-c", ASK_IMPORT], capture_output=True, text=True, check=False)
    assert told.stdout.strip() == GLUE_BOTO3
    assert "No module named 'aiobotocore'" in told.stderr
    return python


def settings(kinesis: Kinesis) -> dict[str, Any]:
    return {"region": "us-east-1", "endpoint_url": kinesis.url}


def assert_all_stored(result: Any, kinesis: Kinesis, stream: str) -> None:
    assert result.get("records") == ROWS, result
    assert kinesis.ids(stream) == Counter(range(ROWS))


def commands(result: Any) -> list[str]:
    """The command lines of the daemons that a batch's tasks have started, and that are still there."""
    return [found.command for found in processes() if found.pid in result["daemons"]]


@pytest.mark.promise("executors-lack-daemon", "executors-lack-daemon-packages", "executors-lack-daemon-packages-start")
@pytest.mark.spark_lane
def test_executors_that_lack_the_daemon_s_packages_start_it_from_a_file(
    pex: Path, workers: str, kinesis: Kinesis, tmp_path: Path
) -> None:
    stream = kinesis.stream()
    conf = {"spark.files": str(pex)}
    with driver(tmp_path, "local-cluster[2,1,1024]", conf, PYSPARK_PYTHON=workers) as spark:
        result = spark.ask("write", rows=ROWS, partitions=4, stream=stream, daemon=settings(kinesis))
        assert_all_stored(result, kinesis, stream)
        roots = {command.partition("/.producerd-pex/")[0] for command in commands(result)}
        assert len(roots) == len(result["daemons"]) == 2, "each executor unpacks it among its own files"
    until(lambda: not commands(result), "no daemon is left", 5)


@pytest.mark.promise("executors-lack-daemon")
def test_it_may_come_in_an_archive(pex: Path, workers: str, kinesis: Kinesis, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "daemon.zip", "w") as archive:
        archive.write(pex, pex.name)
    stream, conf = kinesis.stream(), {"spark.archives": f"{tmp_path}/daemon.zip#daemon"}
    with driver(tmp_path, "local[2]", conf, PYSPARK_PYTHON=workers) as spark:
        result = spark.ask("write", rows=ROWS, partitions=2, stream=stream, daemon=settings(kinesis))
        assert_all_stored(result, kinesis, stream)
        assert "/daemon/.producerd-pex/" in commands(result)[0]


@pytest.mark.promise("executors-lack-daemon")
@pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="needs pyspark[connect]")
def test_spark_connect_ships_it_as_an_artifact(pex: Path, kinesis: Kinesis, tmp_path: Path) -> None:
    stream = kinesis.stream()
    with connect_server(tmp_path) as url, driver(tmp_path, url) as client:
        assert client.ask("add_artifact", path=str(pex)) == {}
        result = client.ask("write", rows=ROWS, partitions=2, stream=stream, daemon=settings(kinesis))
        assert_all_stored(result, kinesis, stream)
        assert "/.producerd-pex/" in commands(result)[0]
