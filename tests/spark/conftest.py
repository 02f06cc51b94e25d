"""What the tests of Spark share: one fake Kinesis and one daemon for all that need none of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon import DaemonProcess, daemon
from tests.spark.service import Kinesis, fake_kinesis, wait_until_left_alone


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
