"""Free ports, for a process whose port another one has to know before it starts.

Python 3.9 loads this module: the servers of Spark in the tests have their ports from here.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from typing import Final

PORTS: Final = range(20_000, 32_000)
"""Linux gives higher ports to connections by itself, and one might take a free port before the server does."""


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
