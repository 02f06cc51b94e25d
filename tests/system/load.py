"""Clients that send without a pause, while the daemon is stopped and started under them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from spark_client import KinesisClient
from tests.system.machine import SYSTEM_SECONDS

HOT: Final = "the key of the hot shard"


class Load:
    """Threads that put records until the end of the block: half of them into one shard.  Then all must be stored."""

    def __init__(self, client: Callable[[], KinesisClient], senders: int) -> None:
        self.calls: list[Future[None]] = []
        self.sent: list[bytes] = []
        self._client = client
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(senders)
        self._sending = [self._pool.submit(self._send, number) for number in range(senders)]

    def _send(self, sender: int) -> None:
        with self._client() as own:
            for turn in itertools.count():
                if self._over.is_set():
                    return
                ids = [f"{sender}-{turn}-{row}" for row in range(50)]
                self.calls.append(
                    own.put_many([(name, HOT if sender % 2 else name) for name in ids], timeout_seconds=60)
                )
                self.sent += (name.encode() for name in ids)

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        for sending in self._sending:
            sending.result(2 * SYSTEM_SECONDS)
        self._pool.shutdown()
        assert [call.exception(0) for call in self.calls] == [None] * len(self.calls)
