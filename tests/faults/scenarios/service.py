"""The service throttles, fails, loses answers and is late."""

from __future__ import annotations

from tests.faults.scenarios import scenario
from tests.faults.stage import Stage


@scenario("every entry throttled for three minutes")
def throttled(stage: Stage) -> None:
    stage.service.fails({"kind": "throttle"})
    stage.wait(180, 3)


@scenario("one request in three is stored and its answer lost, for 20 s")
def lost_answers(stage: Stage) -> None:
    stage.service.fails({"kind": "lost", "fraction": 0.3})
    stage.wait(20, 2)
