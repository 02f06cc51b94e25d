"""Fixtures: the fake service to which daemons send, an environment that names no AWS, timers, and a log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import structlog

from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from tests.runtime.timers import Timers


@pytest.fixture(scope="session", autouse=True)
def one_loader() -> Iterator[None]:
    """Read botocore's models once in a process, as a daemon does: it takes 80 ms of CPU time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        yield


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


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys "testing" and nothing else: no files, no metadata service, no proxy."""
    for name in os.environ:
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret of testing")


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    """The timers of the running loop."""
    timers = Timers()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    return timers


@pytest.fixture
def log() -> Iterator[list[Any]]:
    """The lines that are logged in a test."""
    with structlog.testing.capture_logs() as lines:
        yield lines
