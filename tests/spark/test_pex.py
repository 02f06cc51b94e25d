"""Executors without the daemon's packages start it from a pex that Spark ships to them."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.daemon import until
from tests.spark.drivers import driver
from tests.spark.service import UNPACKING, Kinesis, assert_all_stored, commands_of, plain_settings

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROWS = 200
OWN_MINOR = int(platform.python_version_tuple()[1])
OLDEST_MINOR = 11
GLUE_BOTO3 = "1.34.131"
"""Of AWS Glue 5.0.  No aiobotocore works with it and with this daemon."""
ASK_IMPORT = "import boto3; print(boto3.__version__); import aiobotocore"


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python for Spark's workers that is like Glue 5.0's: PyArrow and pandas, a pinned boto3, nothing of the daemon.

    On Python 3.9 the tests' own is like that, except that it has no boto3.
    """
    if OWN_MINOR < OLDEST_MINOR:
        assert importlib.util.find_spec("aiobotocore") is None
        return sys.executable
    glue = tmp_path_factory.mktemp("glue")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", glue], check=True)
    python = str(glue / "bin" / "python")
    pip = [str(Path(sys.executable).resolve()), "-m", "pip", "--python", python, "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", f"boto3=={GLUE_BOTO3}"], check=True, timeout=300)
    (packages,) = (glue / "lib").glob("python3.*/site-packages")
    for name in ("numpy", "numpy.libs", "pandas", "pyarrow", "pytz"):
        found = Path(str(importlib.util.find_spec("numpy").origin)).parents[1] / name  # type: ignore[union-attr]
        (packages / name).symlink_to(found)
    told = subprocess.run([python, "-I", "-c", ASK_IMPORT], capture_output=True, text=True, check=False)
    assert told.stdout.strip() == GLUE_BOTO3
    assert "No module named 'aiobotocore'" in told.stderr
    return python


@pytest.mark.promise("executors-lack-daemon", "executors-lack-daemon-packages", "executors-lack-daemon-packages-start")
@pytest.mark.spark_lane
def test_executors_that_lack_the_daemon_s_packages_start_it_from_a_file(
    pex: Path, workers: str, kinesis: Kinesis, tmp_path: Path
) -> None:
    stream = kinesis.stream()
    conf = {"spark.files": str(pex)}
    with driver(tmp_path, "local-cluster[2,1,1024]", conf, PYSPARK_PYTHON=workers) as spark:
        result = spark.ask("write", rows=ROWS, partitions=4, stream=stream, daemon=plain_settings(kinesis), **UNPACKING)
        assert_all_stored(result, kinesis, stream, ROWS)
        roots = {command.partition("/.producerd-pex/")[0] for command in commands_of(result)}
        assert len(roots) == len(result["daemons"]) == 2, "each executor unpacks it among its own files"
    until(lambda: not commands_of(result), "no daemon is left", 5)


@pytest.mark.promise("executors-lack-daemon")
def test_it_may_come_in_an_archive(pex: Path, workers: str, kinesis: Kinesis, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "daemon.zip", "w") as archive:
        archive.write(pex, pex.name)
    stream, conf = kinesis.stream(), {"spark.archives": f"{tmp_path}/daemon.zip#daemon"}
    with driver(tmp_path, "local[2]", conf, PYSPARK_PYTHON=workers) as spark:
        result = spark.ask("write", rows=ROWS, partitions=2, stream=stream, daemon=plain_settings(kinesis), **UNPACKING)
        assert_all_stored(result, kinesis, stream, ROWS)
        assert "/daemon/.producerd-pex/" in commands_of(result)[0]
