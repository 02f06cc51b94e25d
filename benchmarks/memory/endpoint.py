"""The fake Kinesis in a process of its own, which can be told to fail while a daemon sends to it."""

from __future__ import annotations

import json
import ssl
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

from producerd.demo.children import Child, Children

STREAM: Final = "bench"
START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Over TLS; what it stores it counts, and does not keep."""

    child: Child
    url: str
    certificate: str

    def set_faults(self, *faults: dict[str, Any]) -> None:
        """In the place of those that there were; what hangs is answered by what holds now."""
        self._ask("faults", {"standing": faults})
        self._ask("release", {})

    def never_read(self, never: bool) -> None:
        """Whether bodies of requests are left where they are, in the client's memory and the sockets'."""
        self._ask("settings", {"uplink_bytes_per_second": 0 if never else None})

    def stored(self) -> int:
        """Kinesis records so far."""
        found: int = self._ask("counters")["results"].get("stored", 0)
        return found

    def in_flight(self) -> int:
        """Requests that have no answer yet."""
        found: int = self._ask("counters")["in_flight"]
        return found

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        context = ssl.create_default_context(cafile=self.certificate)
        with urllib.request.urlopen(f"{self.url}/_fake/{path}", data, START_SECONDS, context=context) as answer:
            return json.load(answer)


def start_endpoint(children: Children, shards: int) -> Endpoint:
    arguments = ["--tls", "--forget", f"--stream={STREAM}", f"--shards={shards}"]
    child = children.start("kinesis", ["-m", "producerd.testing.fake_kinesis", *arguments])
    return Endpoint(child, child.line(START_SECONDS), child.line(START_SECONDS))
