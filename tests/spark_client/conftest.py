from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark_client.fake_daemon import FakeDaemon, fake_daemon


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    for name in ("PRODUCERD_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    # Not tmp_path: its length may pass what a socket's path can hold.
    with tempfile.TemporaryDirectory(prefix="producerd-") as folder, fake_daemon(Path(folder, "d.sock")) as daemon:
        yield daemon
