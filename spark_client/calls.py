"""Which call of a batch this is: what a call writes may have a name that is the same when the batch is repeated."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

FORGET_SECONDS: Final = 24 * 3600.0 + 1200.0
"""How long after a key's last call its number counts: none of the replay guard's records counts any more."""


@dataclass
class _Batch:
    """The calls of one batch in one run: how many were made, how many of them run, when the last one ended.

    ``has_sent``: not all of them have left all of their rows out.
    """

    count: int = 0
    running: int = 0
    ended: float = 0.0
    has_sent: bool = False


class Calls:
    """How many calls each batch has made in this process.

    It remembers the newest batch of each query, in each of its runs, and every batch of a key for a day.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: dict[tuple[str, str | None, int | None], _Batch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def take(self, name: str, run: str | None, batch: int | None) -> tuple[int, bool]:
        """Return how many calls came before in this batch, and whether one of them has sent rows or may still.

        ``run`` is the id of a query's run, or None for a key.
        """
        with self._lock:
            for key, old in [*self._batches.items()]:
                is_passed = run is not None and key[0] == name and (key[2] or 0) < (batch or 0)
                if not old.running and (is_passed or time.monotonic() - old.ended >= FORGET_SECONDS):
                    del self._batches[key]
            of_batch = self._batches.setdefault((name, run, batch), _Batch())
            ordinal, follows_sent = of_batch.count, of_batch.has_sent or of_batch.running > 0
            of_batch.count += 1
            of_batch.running += 1
            return ordinal, follows_sent

    def end(self, name: str, run: str | None, batch: int | None, ordinal: int, *, failed: bool, sent: bool) -> None:
        """End a call.  If it failed and was the last one, the next has its number: it may write the same rows again."""
        with self._lock:
            of_batch = self._batches[name, run, batch]
            of_batch.running -= 1
            of_batch.ended = time.monotonic()
            of_batch.has_sent |= sent
            of_batch.count -= failed and of_batch.count == ordinal + 1
