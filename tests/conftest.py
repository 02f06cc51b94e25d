"""What tests of several modules share."""

from __future__ import annotations

import fcntl
import gc
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis import Phase

from tests import cpu_times, snapshots
from tests.daemon import SERVICE_PYTHON
from tests.snapshots import snapshot as snapshot
from tests.spark.jvm import SHORT_JVM, short_jvm
from tools import copy_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
SHARED = {"one Spark": "spark", "one machine": "booted|emr"}
BUILD = "import sys, pathlib, tools.packaging as its; sys.exit(its.build(pathlib.Path(sys.argv[1]), sys.argv[2:]))"


def pytest_addoption(parser: pytest.Parser) -> None:
    """For soaks: ``./dev test --all -o faulthandler_timeout=0 -k stopped_while_it_is_blocked --stops 100``."""
    cpu_times.pytest_addoption(parser)
    snapshots.pytest_addoption(parser)
    parser.addoption("--kills", type=int, default=2, help="how often the driver of a query is killed")
    parser.addoption("--stops", type=int, default=10, help="how often a blocked query is stopped")


def pytest_configure(config: pytest.Config) -> None:
    """Start each JVM with the options for a short life, and ignore the warnings of an older Spark itself."""
    snapshots.pytest_configure(config)
    if most := config.getoption("cpu_times"):
        config.pluginmanager.register(cpu_times.CpuTimes(most))
    gc.disable()  # until `pytest_collection_finish`: the collector would look through what is being loaded
    os.environ["SPARK_LAUNCHER_OPTS"] = os.environ["SPARK_SUBMIT_OPTS"] = SHORT_JVM
    hypothesis.settings.register_profile(
        "producerd", derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
    )
    hypothesis.settings.load_profile("producerd")
    os.environ["GOGC"] = "1000"  # promtool lives for a second, of which collecting garbage would take a fifth
    if importlib.metadata.version("pyspark").startswith(("3.5.", "4.0.")):
        for its_own in (
            "ignore:distutils Version classes are deprecated:DeprecationWarning",
            # Its driver's, to the JVM; our client's are AF_UNIX.
            r"ignore:unclosed <socket.socket .*family=(2|AddressFamily\.AF_INET), :ResourceWarning",
        ):
            config.addinivalue_line("filterwarnings", its_own)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m system`` leave out modules without such a test: each process would import 200 modules for 27 tests."""
    if config.option.markexpr != "system" or collection_path.suffix != ".py":
        return None
    return ".mark.system" not in collection_path.read_text() or None


def pytest_collection_finish() -> None:
    """Take what was loaded out of the garbage collector's sight for the length of all tests."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)  # what is left out has gone
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, long modules come first: at the end all have work, and none has much."""
    if any(item.get_closest_marker("spark") for item in items):
        os.environ["SPARK_SUBMIT_OPTS"] = short_jvm()
    if hasattr(config, "workerinput"):
        long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("spark")}
        items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Send all modules that share something which takes long to start to one process."""
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    path_of = scheduler._split_scope
    scheduler._split_scope = lambda nodeid: _shared(path_of(nodeid)) or path_of(nodeid)
    return scheduler


@cache
def _shared(path: str) -> str | None:
    """What a module shares with others, by its fixtures."""
    text = (ROOT / path).read_text()
    return next(
        (name for name, its in SHARED.items() if re.search(rf"(^    |[(, ])({its}): ", text, re.MULTILINE)), None
    )


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for the whole run: two cores, four attempts a task; its Python workers find the source tree."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        # Set before the JVM starts: it hands its own environment to its Python workers.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2,4]")
            .appName("producerd tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            # Spark 4 otherwise prints 1,000 lines of harmless StackOverflowError at query.stop().
            .config("spark.driver.extraJavaOptions", "-Xss16m")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture(scope="session")
def dist(tree: Path) -> Path:
    """The folder in which `./dev build` put its three files, made from a copy of this tree."""
    from tools.packaging import build

    assert build(tree) == 0
    return tree / "dist"


@pytest.fixture(scope="session")
def dist_with_pex(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The folder in which `./dev build` put all that it makes with a pex for this machine: half a minute's work.

    One process makes it for all, also for later runs with the same TEST_BUILDS.
    """
    folder = tmp_path_factory.getbasetemp()
    # A run that a test starts inherits the worker's variables, so they do not say that it has workers itself.
    shared = folder.parent if hasattr(pytestconfig, "workerinput") else folder
    tag = f"cp3{daemon_minor()}-{platform.machine()}"
    tree = Path(os.environ.get("TEST_BUILDS", shared), tag)
    with tree.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            shutil.rmtree(new := tree.with_suffix(".new"), ignore_errors=True)  # of a build that failed
            copy_of_this_tree(new)
            subprocess.run([SERVICE_PYTHON, "-c", BUILD, str(new), tag], cwd=ROOT, check=True, timeout=300)
            new.rename(tree)
    return tree / "dist"


def daemon_minor() -> int:
    """The minor version of a Python of this machine on which a daemon runs: this one, or one on PATH."""
    own = int(platform.python_version_tuple()[1])
    if own >= 11:
        return own
    for number in (13, 12, 11):
        name = f"python3.{number}"
        if shutil.which(name) and not subprocess.run([name, "-I", "-c", ""], capture_output=True).returncode:
            return number
    pytest.skip("no python3.11 to python3.13 on PATH")


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree, in which an older build has left a file behind."""
    copy_of_this_tree(copy := tmp_path_factory.mktemp("trees") / "tree")
    (copy / "build" / "lib" / "producerd").mkdir(parents=True)
    (copy / "build" / "lib" / "producerd" / "of_another_day.py").touch()
    return copy


def copy_of_this_tree(copy: Path) -> None:
    """Copy the files of which a build is made."""
    # Not what other tests are making either: a file that goes meanwhile would be an error.
    copy_tree(ROOT, copy, "spark-warehouse", "artifacts")
