"""The socket of one client: what the daemon sends and reads, and by when what it waits for must have come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from math import inf
from typing import Final, NamedTuple

from producerd.errors import ProtocolError
from producerd.runtime.logs import get_logger
from producerd.wire import messages
from producerd.wire.protocol import Event
from producerd.wire.protocol import Protocol as Wire

log = get_logger("producerd.session")

WRITE_HIGH_WATER_BYTES: Final = 64 * 1024
"""Bytes of unread answers from which a session waits for its client.

If a client stops reading, the session stops writing to it and reading from it until it catches up.
"""
MESSAGES_OF_A_TURN: Final = 16
"""Most control messages that a session reads before other sockets have their turn.

16 STATUS messages use 1 ms of CPU, and the buffer holds 2,700.  A client has two or three on their way.
"""
STOOD_STILL_SECONDS: Final = 0.05
"""Lateness of a timer from which the session assumes that the loop, or the whole daemon, did not run."""


def unreadable() -> ProtocolError:
    """Log that a client's bytes made a reader fail, and return it as a breach of the protocol.

    Only that client's session ends.
    """
    log.exception("a client's bytes could not be read", exc_text=False)
    return ProtocolError("these bytes could not be read; see the daemon's log")


class ClientSocket:
    """A client's transport, which it alone writes to, pauses, closes and cuts, and whether bytes wait for their turn.

    It reads nothing while the client leaves answers unread.  It puts off what exceeds one turn's messages or time.
    ``read_on`` is called when the client has read its answers.
    """

    def __init__(self, wire: Wire, read_on: Callable[[], None]) -> None:
        self._wire = wire
        self._transport: asyncio.Transport | None = None
        self._read_on = read_on
        self._abort: asyncio.TimerHandle | None = None  # of a connection that the daemon closes
        self.is_choked = False  # the client does not read its answers
        self.puts_off = False  # the buffer holds more messages, for a later turn of the loop

    @property
    def is_connected(self) -> bool:
        """Whether the connection lasts, and the daemon has not ended it."""
        return self._transport is not None

    def connected(self, transport: asyncio.Transport) -> None:
        """Use the transport of a new connection."""
        self._transport = transport
        transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES)

    def send(self, message: messages.Message) -> None:
        """Send a message, unless the connection ends."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._wire.send(message))

    # ---- reading

    def events(self, has_time: Callable[[], bool]) -> Iterator[Event]:
        """Yield what has come, until the turn is over.  ``puts_off`` then shows whether messages are left."""
        wire, handled = self._wire, 0
        while self._transport is not None and (not self.is_choked or wire.reads_body):
            if wire.has_more:
                if handled >= MESSAGES_OF_A_TURN or not has_time():
                    self.puts_off = not self._transport.is_closing()
                    if self.puts_off:
                        self._transport.pause_reading()
                    return
            elif not wire.reads_body:
                break
            try:
                event = wire.next_event()
            except ProtocolError:
                raise
            except Exception as error:
                raise unreadable() from error
            if event is None:
                break
            handled += 1
            yield event
        self.puts_off = False

    def choke(self) -> None:
        """Stop reading, because the client does not read its answers."""
        self.is_choked = True
        if self._transport is not None:
            self._transport.pause_reading()

    def unchoke(self) -> None:
        """Read on, because the client has read its answers."""
        self.is_choked = False
        asyncio.get_running_loop().call_soon(self._read_on)  # not at once: a write inside `events` may call this

    def resume(self) -> bool:
        """Let bytes come again after a pause.  Return whether they may."""
        if self.is_choked or self.puts_off or self._transport is None or self._transport.is_closing():
            return False
        self._transport.resume_reading()
        return True

    # ---- the end

    def hang_up(self) -> None:
        """Close the connection of a client that has closed its end."""
        if self._transport is not None:
            self._transport.close()

    def close_with(self, reason: messages.Close, cut_after_seconds: float) -> None:
        """Send the reason and close.  Cut the connection after this time, even if the client never reads the reason."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.write(messages.encode(reason))
            transport.close()
            self._abort = asyncio.get_running_loop().call_later(cut_after_seconds, transport.abort)

    def lost(self) -> None:
        """Note that the connection is gone."""
        self._transport = None
        if self._abort is not None:
            self._abort.cancel()  # the timer would keep 1 KB for each client that was turned away


class ClientDeadline:
    """The one time by which a client must have sent something.  Then it calls ``late``: "a body", "was not whole", 5.0.

    If the daemon itself stood still, as after SIGSTOP, it has not read what the client sent meanwhile, and waits once
    more.  It also waits once more, ``put_off_seconds``, while messages are put off: the awaited one may be among them.
    """

    def __init__(
        self, late: Callable[[str, str, float], None], is_put_off: Callable[[], bool], put_off_seconds: float
    ) -> None:
        self._late, self._is_put_off, self._put_off_seconds = late, is_put_off, put_off_seconds
        self._loop = asyncio.get_running_loop()
        self._awaited: _Awaited | None = None
        self._timer: asyncio.TimerHandle | None = None  # it may ring too early: setting it again takes longer
        self._rings_at = inf

    def expect(self, what: str, has_not: str, seconds: float, *, again: bool = False) -> None:
        """Wait for this from now on, and for nothing else."""
        due = self._loop.time() + seconds
        self._awaited = _Awaited(what, has_not, seconds, due, again)
        if due < self._rings_at:
            self._ring_at(due)

    def stop(self) -> None:
        """Wait for nothing until the next `expect`."""
        self._awaited = None

    def end(self) -> None:
        """Wait for nothing any more, and leave no timer, which would keep the client's memory."""
        self.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _ring_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = self._loop.call_at(due, self._rings), due

    def _rings(self) -> None:
        self._timer, self._rings_at = None, inf
        if (awaited := self._awaited) is None:
            return
        stood_still_seconds = self._loop.time() - awaited.due
        if stood_still_seconds < 0:
            self._ring_at(awaited.due)
        elif self._is_put_off() and not awaited.again:
            self.expect(awaited.what, awaited.has_not, self._put_off_seconds, again=True)
        elif stood_still_seconds > STOOD_STILL_SECONDS and not awaited.again:
            self.expect(awaited.what, awaited.has_not, min(awaited.seconds, stood_still_seconds), again=True)
        else:
            self._late(awaited.what, awaited.has_not, awaited.seconds)


class _Awaited(NamedTuple):
    what: str
    has_not: str
    seconds: float
    due: float
    again: bool
