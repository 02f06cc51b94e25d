from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_client import progress
from tests.spark_client.fake_daemon import FakeDaemon, fake_daemon


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
