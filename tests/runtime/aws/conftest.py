"""Tests of access run on the daemon's loop, and reach no AWS except the one that they serve themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from producerd.runtime.event_loop import EventLoop
from producerd.testing import FakeKinesis
from tests.runtime.aws.local_aws import LocalAws, local_aws


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"EventLoop": EventLoop}


@pytest.fixture(autouse=True)
def _bare(bare_environment: None) -> None:
    pass


@pytest.fixture
async def aws(bare_environment: None, kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalAws]:
    """A small AWS that serves `kinesis`, and the STS of this environment."""
    async with local_aws(kinesis) as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws.url)
        yield aws
