"""Credentials rotate, expire and are absent, and the service denies what the daemon asks for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from tests.faults.credentials import NO_VARIABLES, KeysEndpoint, KeysFile, accept
from tests.faults.oracle import Law
from tests.faults.scenarios import scenario
from tests.faults.scenarios.processes import REPLAYS
from tests.faults.scenarios.shards import owners, reshard
from tests.faults.stage import Stage, wait_for

RENEWAL_SECONDS: Final = 7.0
"""The daemon looks for new keys every 4 to 6 s; then the service must have answered by them."""
REFUSED_SECONDS: Final = 10.0
"""A stream that is refused is tried every 4 to 6 s; its callers fail until then."""
LATE_SECONDS: Final = 12.0
"""A container's endpoint that does not answer is given up after 9 s."""
LIST_SECONDS: Final = 35.0
"""A list of shards that was denied for long is read again every 15 to 30 s."""
MAP_WAIT_SECONDS: Final = 2
GRACE_SECONDS: Final = 30


@contextlib.contextmanager
def key_in_file(stage: Stage) -> Iterator[KeysFile]:
    keys = KeysFile(stage.folder)
    accept(stage.service, keys.rotate())
    yield keys


@scenario(
    "the file of keys rotates every second for a minute, and the service refuses the older key at once",
    environ=NO_VARIABLES,
    around=key_in_file,
)
def rotated_keys(stage: Stage) -> None:
    keys: KeysFile = stage.given
    with stage.spares_callers():
        for _ in stage.times(60, 3):
            accept(stage.service, keys.rotate())
            stage.wait(1)


@scenario(
    "the key is refused and its file gone for 30 s, and then at a daemon's start",
    environ=NO_VARIABLES,
    around=key_in_file,
)
def absent_keys(stage: Stage) -> None:
    keys: KeysFile = stage.given
    with stage.spares_callers():
        _take_away(stage, keys)
        stage.wait(30, 1)
        accept(stage.service, keys.rotate())
        stage.wait(RENEWAL_SECONDS, 0)
    stage.stop_daemon()
    _take_away(stage, keys)
    stage.start_daemon()
    stage.wait(30, 2)
    wait_for(lambda: "credentials failed" in stage.daemon.log)
    stage.must(Law.CALM, "credentials failed" in stage.daemon.log, "the log does not say that credentials failed")
    _told_only(stage, "CREDENTIALS", "PREDECESSOR_FAILED")
    accept(stage.service, keys.rotate())
    stage.refused_seconds = REFUSED_SECONDS


def _take_away(stage: Stage, keys: KeysFile) -> None:
    accept(stage.service)
    keys.remove()


@contextlib.contextmanager
def keys_of_a_container(stage: Stage) -> Iterator[KeysEndpoint]:
    with KeysEndpoint(stage.of(8, 2)).running() as endpoint:
        stage.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = endpoint.url
        yield endpoint


@scenario(
    "every key expires after 8 s; in 20 s of a minute the container's endpoint has none",
    environ=NO_VARIABLES,
    around=keys_of_a_container,
)
def expiring_keys(stage: Stage) -> None:
    endpoint: KeysEndpoint = stage.given
    began = time.monotonic()
    with stage.spares_callers():
        while (elapsed := time.monotonic() - began) < stage.of(60, 3):
            endpoint.fails = stage.of(20, 1) < elapsed < stage.of(40, 2)
            stage.service.control("settings", expired_access_keys=endpoint.expired())
            stage.wait(0.1)
    stage.notes.append(f"{len(endpoint.ends):,} keys were handed out")


@scenario(
    "every key expires after 8 s; for 40 s the container's endpoint never answers, and then a daemon starts",
    environ=NO_VARIABLES,
    around=keys_of_a_container,
    exempt=REPLAYS,
    patient=True,
)
def hung_renewal(stage: Stage) -> None:
    endpoint: KeysEndpoint = stage.given
    endpoint.hangs = True
    _expire(stage, endpoint, stage.of(15, 1))
    stage.kill_daemon()
    stage.start_daemon()
    _expire(stage, endpoint, stage.of(25, LATE_SECONDS))
    stage.must(Law.CALM, "no answer in time" in stage.daemon.log, "the log does not say that credentials are late")
    endpoint.hangs = False


def _expire(stage: Stage, endpoint: KeysEndpoint, seconds: float) -> None:
    """Let everything run on, while the service refuses keys that have expired."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        stage.service.control("settings", expired_access_keys=endpoint.expired())
        stage.wait(0.1)


@scenario(
    f"PutRecords is denied for half of the grace of {GRACE_SECONDS} s, and for a minute",
    tuning={"permanent_error_grace_seconds": GRACE_SECONDS},
)
def denied_records(stage: Stage) -> None:
    with stage.spares_callers():
        _deny(stage, "PutRecords", GRACE_SECONDS / 2, 1)
        stage.wait(5, 1)
    if not stage.short:
        _deny(stage, "PutRecords", 60)
        _told_only(stage, "ACCESS_DENIED", "PREDECESSOR_FAILED")
        stage.refused_seconds = REFUSED_SECONDS


@scenario(
    "ListShards is denied for a minute while shards split and merge, and for a minute to a daemon that starts",
    tuning={"shard_map_wait_seconds": MAP_WAIT_SECONDS},
    resends=False,
)
def denied_shards(stage: Stage) -> None:
    resharding = owners(stage)
    with stage.spares_callers():
        stage.service.control("settings", denied=["ListShards"])
        reshard(stage, resharding, 200, 3)
        stage.service.control("settings", denied=[])
        stage.wait(20, 0)
    stage.stop_daemon()
    stage.service.control("settings", denied=["ListShards"])
    stage.start_daemon()
    stage.wait(60, MAP_WAIT_SECONDS + 2)
    _told_only(stage, "SHARD_MAP_MISSING", "PREDECESSOR_FAILED")
    stage.service.control("settings", denied=[])
    stage.refused_seconds = LIST_SECONDS


def _deny(stage: Stage, action: str, full: float, short: float | None = None) -> None:
    stage.service.control("settings", denied=[action])
    stage.wait(full, short)
    stage.service.control("settings", denied=[])


def _told_only(stage: Stage, *codes: str) -> None:
    """Callers fail, and learn why: they got the first of these codes, and no other than these."""
    wait_for(lambda: codes[0] in stage.told)
    well = codes[0] in stage.told and stage.told.keys() <= set(codes)
    stage.must(Law.REFUSED, well, f"callers got {dict(stage.told)}")
