"""Records of stored chunks go to new files now and then, from a thread that no put waits for."""

from __future__ import annotations

import threading
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
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, record: StoredChunk) -> None:
        """Take the record of a chunk that is stored."""
        with self._lock:
            self._records.append(record)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no thread may be left, and the rows are stored all the same
                self.problem = f"records cannot be written: {error}"
            else:
                self._thread = thread

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
            if not records:
                continue
            try:
                name = f"{self._token}-{uuid.uuid4().hex}.json"
                store = store or Store(self._uri)
                store.write(f"{self._folder}/{name}", to_file(records))
            except Exception as error:  # ImportError, too, where a PyArrow was built without S3
                self.problem = f"records cannot be written: {type(error).__name__}: {error}"
                with self._lock:
                    self._records = [*records, *self._records]
