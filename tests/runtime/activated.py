"""A process that starts a daemon with an open socket, as systemd does."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.daemon import (
    CREDENTIALS,
    QUICK,
    ROOT,
    SERVICE_PYTHON,
    DaemonProcess,
)


class Activated(DaemonProcess):
    """A daemon that is started by ``prefix``, which passes it the socket that it is to listen on."""

    def __init__(
        self, path: Path, socket_path: Path, endpoint_url: str, prefix: list[str], descriptor: int | None = None
    ) -> None:
        self.socket = socket_path
        self._log = path / f"log-{time.monotonic_ns()}"
        settings = {"socket": path / "unused.sock", **QUICK, "endpoint_url": endpoint_url}
        options = [f"--set={name}={value}" for name, value in settings.items()]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, SERVICE_PYTHON, "-m", "producerd", "serve", *options],
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], "HOME": str(path), **CREDENTIALS},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=() if descriptor is None else [descriptor],
            )

    def __enter__(self) -> Activated:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
