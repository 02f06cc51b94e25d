"""One machine for all modules, which `pytest_xdist_make_scheduler` keeps in one process.  Each leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark.service import Kinesis
from tests.system.emr import EmrNode
from tests.system.machine import Machine, NotMade, machine


@pytest.fixture(scope="session")
def booted() -> Iterator[Machine]:
    try:
        with machine() as made:
            yield made
    except NotMade as error:
        pytest.skip(f"no machine could be made of Debian's packages: {error}")


@pytest.fixture
def kinesis(booted: Machine) -> Iterator[Kinesis]:
    with booted.kinesis("--stream=flights", "--shards=4") as serving:
        yield serving


@pytest.fixture(scope="module")
def emr_node(booted: Machine) -> Iterator[EmrNode]:
    made = EmrNode(booted)
    made.prepare()
    yield made
    made.restore()


@pytest.fixture
def emr(emr_node: EmrNode) -> Iterator[EmrNode]:
    """Nothing of ours is on it."""
    emr_node.bootstrap("--uninstall")
    yield emr_node
    emr_node.bootstrap("--uninstall")
    emr_node.machine.run("systemctl reset-failed")
    emr_node.machine.install()
