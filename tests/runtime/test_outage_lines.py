"""A lasting failure of one thing is a warning when it begins and a line when it ends, however often it is tried."""

from __future__ import annotations

import asyncio
from typing import Any

from structlog.testing import capture_logs

from producerd.runtime.outage import Outage
from tests.runtime.virtual_time import live


async def story() -> None:
    outage = Outage("ListShards", stream="flights")
    outage.try_failed("LimitExceededException", "slower", "d3f1")
    await asyncio.sleep(2.0)
    outage.try_failed("UNREACHABLE", "no route")
    await asyncio.sleep(1.26)
    outage.ended()
    outage.ended()
    outage.try_failed("UNREACHABLE", "no route")
    await asyncio.sleep(4.0)
    outage.ended()


def test_each_outage_is_two_lines_and_further_failures_are_for_debugging() -> None:
    failed: dict[str, Any] = {"event": "ListShards failed", "stream": "flights"}
    works: dict[str, Any] = {"event": "ListShards works again", "log_level": "info", "stream": "flights"}
    slower = {"code": "LimitExceededException", "message": "slower", "request_id": "d3f1"}
    no_route = {"code": "UNREACHABLE", "message": "no route"}
    with capture_logs() as log:
        live(story())
    assert log == [
        {**failed, "log_level": "warning", **slower},
        {**failed, "log_level": "debug", **no_route},
        {**works, "failures": 2, "seconds": 3.3},
        {**failed, "log_level": "warning", **no_route},
        {**works, "failures": 1, "seconds": 4.0},
    ]
