"""The network between the daemon and the service fails."""

from __future__ import annotations

from tests.faults.scenarios import scenario
from tests.faults.stage import Stage


@scenario("the network carries nothing for 30 s")
def blackhole(stage: Stage) -> None:
    stage.proxy.set_mode("blackhole")
    stage.wait(30, 3)
