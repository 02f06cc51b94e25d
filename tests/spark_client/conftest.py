from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

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
    """On a busy machine the driver asks no fake daemon why a write takes long, and waits for those it asks."""
    monkeypatch.setattr(progress, "FIRST_SECONDS", 600.0)
    monkeypatch.setattr(progress, "ANSWER_SECONDS", 20.0)
