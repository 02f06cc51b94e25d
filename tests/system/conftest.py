"""One machine for all modules, which `pytest_xdist_make_scheduler` keeps in one process.  Each leaves it as it was."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.service import Kinesis
from tests.system.emr import EmrNode
from tests.system.machine import Machine, NotMade, bootstrap, machine


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """A tar of Debian's packages for the machine and the image's base.  One process makes it for all."""
    folder = tmp_path_factory.getbasetemp()
    made = (folder.parent if hasattr(pytestconfig, "workerinput") else folder) / "debian.tar"
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            part = made.with_name("part.tar")
            try:
                bootstrap(part)
            except NotMade as error:
                pytest.skip(f"Debian's packages did not come: {error}")
            part.rename(made)
    return made


@pytest.fixture(scope="session")
def booted(debian: Path) -> Iterator[Machine]:
    with machine(debian) as made:
        yield made


@pytest.fixture
def kinesis(booted: Machine) -> Iterator[Kinesis]:
    with booted.kinesis("--stream=flights", "--shards=4") as serving:
        yield serving


@pytest.fixture(scope="module")
def emr_node(booted: Machine) -> Iterator[EmrNode]:
    made = EmrNode(booted)
    made.prepare()
    made.copy_script()
    made.bootstrap("--uninstall")
    yield made
    made.restore()
    booted.install()


@pytest.fixture
def emr(emr_node: EmrNode) -> Iterator[EmrNode]:
    """Nothing of ours is on it."""
    emr_node.copy_script()
    yield emr_node
    emr_node.bootstrap("--uninstall")
    emr_node.machine.run("systemctl reset-failed")
