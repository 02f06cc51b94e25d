"""The fake service that the daemons of these tests send to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread


@pytest.fixture
def kinesis() -> FakeKinesis:
    """A service with one stream of four shards, ``flights``."""
    fake = FakeKinesis()
    fake.create_stream("flights", shards=4)
    return fake


@pytest.fixture
def server(kinesis: FakeKinesis) -> Iterator[FakeServer]:
    with serve_in_thread(kinesis) as serving:
        yield serving
