"""The wall clock of the daemon's machine jumps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.faults.credentials import NO_VARIABLES, KeysEndpoint
from tests.faults.scenarios import scenario
from tests.faults.stage import Stage

LIBRARIES: Final = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
KEY_SECONDS: Final = 3_600.0
STEP_SECONDS: Final = 2.0
CACHE_SECONDS: Final = 1
"""How often libfaketime reads the time's file; without a cache it would open the file for each look at a clock."""
LONGEST_HOURS: Final = 48


def lacks_faketime() -> str:
    return "" if LIBRARIES else "libfaketime, which Debian's package of that name brings"


class Clock:
    """The daemon's wall clock, by libfaketime; the monotonic one stays as it is."""

    def __init__(self, stage: Stage) -> None:
        self._file = stage.folder / "time"
        self.set(0)
        stage.environ |= {
            "LD_PRELOAD": str(LIBRARIES[-1]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(CACHE_SECONDS),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: float) -> None:
        """So far from the true time, either way."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+.0f}\n")
        new.replace(self._file)


@contextlib.contextmanager
def clock_and_keys_that_expire(stage: Stage) -> Iterator[Clock]:
    """The service refuses what is signed at another time; the keys' expiry is given in true time."""
    with KeysEndpoint(KEY_SECONDS).running() as endpoint:
        stage.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = endpoint.url
        stage.service.control("settings", checks_clock=True)
        yield Clock(stage)


@scenario(
    f"the wall clock jumps 30 times by up to {LONGEST_HOURS} hours, forward and back",
    environ=NO_VARIABLES,
    around=clock_and_keys_that_expire,
    lacks=lacks_faketime,
    resends=False,
    records_per_second=100,  # libfaketime makes a look at a clock some 20 times as dear
)
def jumping_clock(stage: Stage) -> None:
    clock: Clock = stage.given
    with stage.spares_callers():
        for place in stage.times(30, 2):
            hours = stage.chance.uniform(0.1, LONGEST_HOURS)
            clock.set((hours if place % 2 else -hours) * 3_600)
            stage.wait(STEP_SECONDS)
        clock.set(0)
    assert "clock is off" in stage.daemon.log, "no jump was met"
