from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_client import progress
from tests.spark_client.fake_daemon import FakeDaemon, fake_daemon
from tests.spark_client.moto_s3 import Faults, moto_s3


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    for name in ("PRODUCERD_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    # Not tmp_path: its length may pass what a socket's path can hold.
    with tempfile.TemporaryDirectory(prefix="producerd-") as folder, fake_daemon(Path(folder, "d.sock")) as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver of a real Spark asks no fake daemon what is stored, or on a busy machine why a write takes long."""
    is_local: Any = progress.is_local
    monkeypatch.setattr(progress, "is_local", lambda spark: isinstance(spark, SimpleNamespace) and is_local(spark))
    monkeypatch.setattr(progress, "FIRST_SECONDS", 600.0)
    monkeypatch.setattr(progress, "ANSWER_SECONDS", 20.0)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def s3(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """moto's S3 with a bucket ``kept``; the parameters of a URI that reach it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with moto_s3(faults) as parameters:
        yield parameters
