"""Sources of a daemon's credentials, which can rotate, expire and be absent while it runs.

Each source makes a new access key on request.  The service accepts the keys that a test lists, and the key of the
stream's owner.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tests.daemon import CREDENTIALS
from tests.faults.service import Service

NO_VARIABLES: Final = dict.fromkeys(CREDENTIALS, "")
"""For the daemon's environment: its keys come from elsewhere."""
OWNER: Final = CREDENTIALS["AWS_ACCESS_KEY_ID"]


def accept(service: Service, *keys: str) -> None:
    """The service accepts these keys from now on, and the owner's; any other is invalid."""
    service.control("settings", accepted_access_keys=[OWNER, *keys])


class KeysFile:
    """AWS's shared credentials file in a daemon's home."""

    def __init__(self, home: Path) -> None:
        self.path = home / ".aws" / "credentials"
        self._made = 0

    def rotate(self) -> str:
        """Put a new key in the place of the old one, at once.  Returns it."""
        self._made += 1
        key = f"KEY{self._made}"
        new = self.path.with_suffix(".new")
        new.parent.mkdir(exist_ok=True)
        new.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")
        new.replace(self.path)
        return key

    def remove(self) -> None:
        self.path.unlink()


class KeysEndpoint:
    """The credentials endpoint of a container: each answer is a new key, which expires after ``valid_seconds``.

    With ``fails`` every answer is an error.  While it ``hangs`` nothing is answered.
    """

    def __init__(self, valid_seconds: float) -> None:
        self.valid_seconds = valid_seconds
        self.fails = self.hangs = False
        self.ends: dict[str, datetime] = {}
        """When each key expires that was handed out."""
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = endpoint.answer()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # it was given up while it hung
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/keys"

    def answer(self) -> tuple[int, bytes]:
        """The status and the body of the next answer."""
        while self.hangs:
            time.sleep(0.05)
        if self.fails:
            return 503, b"{}"
        key, ends = f"KEY{len(self.ends) + 1}", datetime.now(UTC) + timedelta(seconds=self.valid_seconds)
        self.ends[key] = ends
        keys = {"AccessKeyId": key, "SecretAccessKey": "secret", "Token": "token", "Expiration": f"{ends:%FT%TZ}"}
        return 200, json.dumps(keys).encode()

    def expired(self) -> list[str]:
        """The keys that no service should take any more."""
        now = datetime.now(UTC)
        return [key for key, ends in list(self.ends.items()) if ends <= now]

    @contextlib.contextmanager
    def running(self) -> Iterator[KeysEndpoint]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="keys", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.hangs = False
            self._server.shutdown()
            self._server.server_close()
            thread.join()
