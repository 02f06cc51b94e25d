"""EventLoop: uvloop's loop, on which neither lookups of names nor child processes pile up when they hang."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import uvloop

from producerd.runtime.aside import begin_aside


class EventLoop(uvloop.Loop):
    """uvloop's loop, with a thread for each name that it looks up.  A child process ends with the task that started it.

    uvloop gives lookups to libuv, which has two threads for them and cannot cancel them.  If a DNS server does not
    answer, a lookup takes 10 to 30 s, and each request adds one.  All other hosts would wait in that line, and so
    would the end of the loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lookups: dict[tuple[Any, ...], asyncio.Future[list[Any] | OSError]] = {}  # under way, by what they ask

    async def getaddrinfo(self, host: Any, port: Any, **options: int) -> list[Any]:
        """Return the addresses of a host.  Raise socket.gaierror, or UnicodeError for what cannot be a name."""
        with suppress(socket.gaierror):  # an address needs no thread; uvloop asks for each that it connects to
            numeric = options.get("flags", 0) | socket.AI_NUMERICHOST
            return socket.getaddrinfo(host, port, **options | {"flags": numeric})
        asked = (host, port, *sorted(options.items()))
        lookup = self._lookups.get(asked)
        if lookup is None:
            lookup = self._lookups[asked] = begin_aside(partial(_look_up, host, port, options))
            lookup.add_done_callback(lambda _: self._lookups.pop(asked))
        await asyncio.wait({lookup})  # a request that is cancelled leaves the lookup to the others
        found = lookup.result()
        if isinstance(found, OSError):
            raise type(found)(*found.args)  # one for each that waits: an exception grows with each raise
        return found

    async def subprocess_exec(self, protocol_factory: Callable[[], Any], *args: Any, **options: Any) -> tuple[Any, Any]:
        """Start a child process, and kill it if it still runs when the task that started it ends.

        aiobotocore leaves a credential process that hangs to itself, with its pipes.
        """
        transport: Any  # uvloop's stub takes it for a protocol
        transport, protocol = await super().subprocess_exec(protocol_factory, *args, **options)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: transport.close())
        return transport, protocol


def _look_up(host: Any, port: Any, options: dict[str, int]) -> list[Any] | OSError:
    """Return a host's addresses or the error, for which the caller may no longer wait."""
    try:
        return socket.getaddrinfo(host, port, **options)
    except OSError as error:
        return error
