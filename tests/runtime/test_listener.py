"""The socket's mode holds before anybody can connect; its path is free again when it is closed."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from producerd.errors import ConfigurationError
from producerd.runtime.listener import Listener
from tests.daemon import directory


def test_mode_file_and_lock_come_and_go() -> None:
    with directory() as path:
        listener = Listener(path / "inner" / "daemon.sock", 0o640, None)
        assert stat.S_IMODE(os.stat(listener.path).st_mode) == 0o640
        with pytest.raises(ConfigurationError, match="in use by another producerd"):
            Listener(listener.path, 0o640, None)
        listener.close()
        assert not listener.path.exists()
        Listener(listener.path, 0o640, None).close()


def test_a_stale_file_is_replaced() -> None:
    with directory() as path:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(os.fspath(path / "daemon.sock"))
        listener = Listener(path / "daemon.sock", 0o600, None)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(os.fspath(listener.path))
        listener.close()


def test_a_group_that_does_not_exist_leaves_no_file() -> None:
    with directory() as path:
        with pytest.raises(ConfigurationError, match="socket_group = nobody-of-that-name"):
            Listener(path / "daemon.sock", 0o600, "nobody-of-that-name")
        assert not (path / "daemon.sock").exists()
        Listener(path / "daemon.sock", 0o600, None).close()
