"""Run the fake Kinesis in a process of its own, and let it fail while a daemon sends to it."""

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
    """The fake Kinesis over TLS.  It counts records and does not keep them."""

    child: Child
    url: str
    certificate: str

    def set_faults(self, *faults: dict[str, Any]) -> None:
        """Replace all faults by these, and let the rules decide again about requests that hang."""
        self._ask("faults", {"standing": faults})
        self._ask("release", {})

    def never_read(self, never: bool) -> None:
        """Set whether the server leaves the bodies of requests unread, in the client's memory and in the sockets."""
        self._ask("settings", {"uplink_bytes_per_second": 0 if never else None})

    def stored(self) -> int:
        """Return the number of stored Kinesis records."""
        found: int = self._ask("counters")["results"].get("stored", 0)
        return found

    def in_flight(self) -> int:
        """Return the number of requests without an answer."""
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
