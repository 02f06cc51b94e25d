"""Records of stored chunks go to new files now and then, from a thread that no put waits for."""

from __future__ import annotations

import threading
import time
import uuid

from spark_client.replay.records import StoredChunk, to_file
from spark_client.replay.store import MOST_SECONDS, THREAD, Store


class Recorder:
    """Writes what `add` was given to files of a folder, each ``interval_seconds`` and at `close`.

    A file's name begins with ``token``.  ``problem`` is what went wrong last, or "".
    """

    def __init__(self, uri: str, folder: str, token: str, interval_seconds: float) -> None:
        self.problem = ""
        self._uri = uri
        self._folder = folder
        self._token = token
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        self._records: list[StoredChunk] = []
        self._oldest_seconds = 0.0  # when the first of them was stored, since 1970
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, record: StoredChunk) -> None:
        """Take a chunk that was stored just now."""
        with self._lock:
            if not self._records:
                self._oldest_seconds = time.time()
            self._records.append(record)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write what is left, and wait for that a little."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(MOST_SECONDS)
            if self._thread.is_alive():
                self.problem = f"its store has not answered within {MOST_SECONDS:g} s, and the last records are missing"

    def _run(self) -> None:
        store: Store | None = None
        is_closing = False
        while not is_closing:
            is_closing = self._closing.wait(self._interval_seconds)
            with self._lock:
                records, self._records = self._records, []
                oldest_seconds = self._oldest_seconds
            if not records:
                continue
            try:
                name = f"{self._token}-{uuid.uuid4().hex}.json"
                store = store or Store(self._uri)
                store.write(f"{self._folder}/{name}", to_file(records, oldest_seconds))
            except Exception as error:  # ImportError, too, where a PyArrow was built without S3
                self.problem = f"records cannot be written: {type(error).__name__}: {error}"
                with self._lock:
                    self._records = [*records, *self._records]
                    self._oldest_seconds = oldest_seconds
