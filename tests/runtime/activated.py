"""A process that starts a daemon with an open socket, as systemd does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.daemon import CREDENTIALS, DaemonProcess


class Activated(DaemonProcess):
    """A daemon that is started by ``prefix``, which passes it the socket that it is to listen on."""

    def __init__(
        self, path: Path, socket_path: Path, endpoint_url: str, prefix: list[str], descriptor: int | None = None
    ) -> None:
        sets = {"socket": path / "unused.sock", "endpoint_url": endpoint_url}
        descriptors = [] if descriptor is None else [descriptor]
        super().__init__(path, sets, CREDENTIALS, socket_path=socket_path, prefix=prefix, pass_fds=descriptors)

    def __enter__(self) -> Activated:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
