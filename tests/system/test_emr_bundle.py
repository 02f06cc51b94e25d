"""A bundle of `./dev build` on a node of EMR."""

from __future__ import annotations

import platform
import shlex
from pathlib import Path

import pytest

from tests.spark.service import Kinesis
from tests.system.emr import EmrNode
from tests.system.machine import missing

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.skipif(bool(missing()), reason=missing())]
SEND = """\
import sys
from spark_client import KinesisClient
print(sys.modules["spark_client"].__file__)
with KinesisClient("flights") as client:
    client.put("from yarn", "key").result(30)
"""


@pytest.mark.promise("bundle-build-makes-node")
def test_a_bundle_of_the_build_makes_a_node_on_which_executors_can_send(
    emr: EmrNode, kinesis: Kinesis, dist_with_pex: Path
) -> None:
    (made,) = dist_with_pex.glob(f"producerd-*-emr-{platform.machine()}.tar")
    emr.give_credentials()
    emr.bootstrap(emr.upload(made), "us-east-1", f"endpoint_url={kinesis.url}", "streams.flights.linger_seconds=0.01")
    emr.machine.run("useradd --system --gid yarn yarn")  # EMR does so later
    try:
        where = emr.machine.run(shlex.join(["runuser", "-u", "yarn", "--", "python3", "-c", SEND]))
    finally:
        emr.machine.run("userdel yarn")
    assert where.startswith("/opt/producerd-")
    assert "/client.zip/" in where
    assert kinesis.data("flights") == [b"from yarn"]
    emr.machine.run(shlex.join(["runuser", "-u", "nobody", "--", "python3", "-c", SEND]), codes=(1,))
    assert "flights" in emr.machine.run("/opt/producerd/bin/producerctl status")
    compiled = "opt/producerd-*/lib/python3.11/site-packages/producerd/runtime/__pycache__/app.*.pyc"
    assert list(emr.machine.root.glob(compiled)), "the unit may not write there, and would compile at each start"
