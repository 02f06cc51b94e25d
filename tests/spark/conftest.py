"""What the tests of Spark share: one fake Kinesis and one daemon for all that need none of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import DaemonProcess, daemon, until
from tests.spark.service import Kinesis, fake_kinesis, own_daemons, wait_until_left_alone

MOST_PEX_BYTES = 110_000_000


@pytest.fixture(scope="session")
def one_kinesis() -> Iterator[Kinesis]:
    with fake_kinesis() as kinesis:
        yield kinesis


@pytest.fixture(scope="session")
def one_daemon(one_kinesis: Kinesis) -> Iterator[DaemonProcess]:
    with daemon(one_kinesis.url) as running:
        yield running


@pytest.fixture
def kinesis(one_kinesis: Kinesis) -> Iterator[Kinesis]:
    """The fake Kinesis: no test leaves it slow or hanging."""
    yield one_kinesis
    one_kinesis.recover()


@pytest.fixture
def running(kinesis: Kinesis, one_daemon: DaemonProcess) -> Iterator[DaemonProcess]:
    """A daemon with default limits: no test leaves it a client, or anything of one."""
    yield one_daemon
    kinesis.recover()
    wait_until_left_alone(one_daemon)


@pytest.fixture(scope="module")
def none_is_left(one_kinesis: Kinesis) -> Iterator[None]:
    """Wait until the daemons that tasks have started have ended with Spark."""
    yield
    until(lambda: not own_daemons(one_kinesis), "no daemon is left", 5)


@pytest.fixture(scope="session")
def pex(dist_with_pex: Path) -> Path:
    """The one of `./dev build` for this machine."""
    (made,) = dist_with_pex.glob("producerd-*.pex")
    assert made.stat().st_size <= MOST_PEX_BYTES
    return made
