"""Hostile clients: ``python -m benchmarks.abuse.attackers ATTACK SOCKET CONNECTIONS UID``.

SOCKET is the path of the daemon's socket, or HOST:PORT for an attack on its HTTP endpoint.  They attack until standard
input ends, and print an empty line when they have begun.  One thread drives all connections, so that most of the cost
is the daemon's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import select
import socket
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from producerd.wire import messages
from producerd.wire.columns import Layout, lay_out
from producerd.wire.messages import Message

STREAM: Final = "flights"
OWN: Final = "attacked"
"""A stream of the attackers, which the daemon's Kinesis has, too."""
AT_ONCE: Final = 200
"""Messages that a connection of a flood sends in one go."""
LARGEST_BYTES: Final = 60_000_000
MIB: Final = 1 << 20
NUMBERS: Final = (0, 1, 255, 65_535, (1 << 31) - 1, (1 << 32) - 1)
SEEDS: Final = itertools.count()


class Hostile:
    """One connection, which sends ``opening`` and then, if it floods, ``repeated()`` whenever the daemon reads.

    It reads what it receives, unless it never ``reads``.
    """

    def __init__(self, path: str, opening: bytes, repeated: Callable[[], bytes] | None, *, reads: bool = True) -> None:
        host, _, port = path.rpartition(":")
        self.socket = socket.socket(socket.AF_INET if host else socket.AF_UNIX, socket.SOCK_STREAM)
        if host:
            self.socket.setblocking(False)  # a connection may wait for its place
        with contextlib.suppress(BlockingIOError):
            self.socket.connect((host, int(port)) if host else path)
        self.socket.setblocking(False)
        self._unsent = memoryview(opening)
        self._repeated = repeated
        self._reads = reads

    @property
    def waits_for(self) -> int:
        writes = select.POLLOUT if self._unsent or self._repeated is not None else 0
        return writes | (select.POLLIN if self._reads else select.POLLRDHUP)

    def go_on(self) -> bool:
        """Read what has come, and send more.  Return whether the connection is still there."""
        try:
            with contextlib.suppress(BlockingIOError):
                while self._reads:
                    if not self.socket.recv(1 << 16):
                        return False
            if not self._unsent and self._repeated is not None:
                self._unsent = memoryview(self._repeated())
            if self._unsent:
                with contextlib.suppress(BlockingIOError):
                    self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except OSError:
            return False
        return True


def encoded(*said: Message) -> bytes:
    return b"".join(map(messages.encode, said))


def hello(stream: str = STREAM) -> bytes:
    return encoded(messages.Hello(1, 1, client="hostile"), messages.Open(1, stream))


def reserves(bytes_: int) -> Callable[[str], Hostile]:
    """Reserve a record of this size, and never send it."""
    layout = Layout(1, 1, bytes_)
    return lambda path: Hostile(path, hello() + encoded(messages.Reserve(1, 1, layout)), None)


def status_flood(path: str) -> Hostile:
    return Hostile(path, hello(), lambda: encoded(messages.Status(1)) * AT_ONCE)


def flush_flood(path: str) -> Hostile:
    return Hostile(path, hello(), lambda: encoded(messages.Flush(1)) * AT_ONCE)


def cancel_flood(path: str) -> Hostile:
    """Reserve and take it back, over and over."""
    layout, ids = Layout(1, 1, 100), itertools.count(1)

    def pairs() -> bytes:
        numbers = itertools.islice(ids, AT_ONCE)
        return b"".join(encoded(messages.Reserve(n, 1, layout), messages.Cancel(n)) for n in numbers)

    return Hostile(path, hello(), pairs)


def name_flood(path: str) -> Hostile:
    """Open streams that do not exist."""
    ids = itertools.count(2)

    def names() -> bytes:
        return encoded(*(messages.Open(n, f"invented-{os.getpid()}-{n}") for n in itertools.islice(ids, AT_ONCE)))

    return Hostile(path, hello(OWN), names)


def fuzz(path: str) -> Hostile:
    """Send messages in random order, with bodies and without, and spoil a number in one of twenty."""
    random, ids = Random(next(SEEDS)), itertools.count(1)
    frame = lay_out([b"key"] * 3, [b"x" * 50] * 3)

    def one() -> bytes:
        number = next(ids)
        message = random.choice(
            (
                messages.Hello(random.randrange(4), random.randrange(4), client="hostile"),
                messages.Open(random.randrange(9), OWN),
                messages.Reserve(number, 1, frame.layout),
                messages.Reserve(number, 1, Layout(random.choice(NUMBERS), 1, random.choice(NUMBERS))),
                messages.Cancel(random.randrange(number + 1)),
                messages.Flush(1),
                messages.Status(1, random.randrange(2)),
            )
        )
        sent = messages.encode(message)
        if isinstance(message, messages.Reserve) and random.random() < 0.5:
            sent += b"".join((messages.body_header(frame.layout), frame.body_prefix(number), *frame.parts))
        return _spoiled(sent, random) if random.random() < 0.05 else sent

    return Hostile(path, hello(OWN), lambda: b"".join(one() for _ in range(AT_ONCE // 10)))


def stores(records: int, at_once: int) -> Callable[[str], Hostile]:
    """Store frames of this many records of one byte, each flushed at once, and send several in one go."""
    frame = lay_out([str(number).encode() for number in range(records)], [b"x"] * records)

    def whole(number: int) -> bytes:
        body = b"".join((messages.body_header(frame.layout), frame.body_prefix(number), *frame.parts))
        return encoded(messages.Reserve(number, 1, frame.layout)) + body + encoded(messages.Flush(1))

    def flood(path: str) -> Hostile:
        ids = itertools.count(1)
        return Hostile(path, hello(OWN), lambda: b"".join(map(whole, itertools.islice(ids, at_once))))

    return flood


def _spoiled(message: bytes, random: Random) -> bytes:
    """Return the message with another number somewhere."""
    at, width = random.randrange(len(message)), random.choice((1, 2, 4, 8))
    return message[:at] + (random.choice(NUMBERS) % (1 << 8 * width)).to_bytes(width, "little") + message[at + width :]


def come_and_go(path: str) -> Hostile:
    """Connect, greet and leave, over and over."""
    return Hostile(path, encoded(messages.Hello(1, 1, client="hostile"), messages.Close("", "")), None)


def idle(path: str) -> Hostile:
    """Connect and open a stream, and do nothing."""
    return Hostile(path, hello(), None)


def mute(path: str) -> Hostile:
    """Connect and say nothing."""
    return Hostile(path, b"", None)


def get(path: str, more: bytes = b"") -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % (path.encode(), more)


def http_flood(asked: str) -> Callable[[str], Hostile]:
    """Ask for this without a pause, several times ahead."""
    return lambda address: Hostile(address, b"", lambda: get(asked) * 20)


def http_come_and_go(address: str) -> Hostile:
    """Connect, ask once and leave, over and over."""
    return Hostile(address, get("/-/healthy", b"Connection: close\r\n"), None)


def http_incomplete(address: str) -> Hostile:
    """Begin a request that never ends."""
    return Hostile(address, get("/metrics")[:-2], None)


def http_never_reads(address: str) -> Hostile:
    """Ask for the page without a pause, and read no answer."""
    return Hostile(address, b"", lambda: get("/") * 20, reads=False)


ATTACKS: Final[dict[str, Callable[[str], Hostile]]] = {
    "RESERVE of 60 MB, no body": reserves(LARGEST_BYTES),
    "RESERVE of 1 MiB, no body": reserves(MIB - 2_048),
    "flood of STATUS": status_flood,
    "flood of RESERVE and CANCEL": cancel_flood,
    "flood of FLUSH": flush_flood,
    "flood of invented names": name_flood,
    "flood of small frames": stores(1, at_once=20),
    "flood of full frames": stores(10_000, at_once=1),
    "fuzzed messages": fuzz,
    "flood of connections": come_and_go,
    "idle connections": idle,
    "mute connections": mute,
}
HTTP_ATTACKS: Final[dict[str, Callable[[str], Hostile]]] = {
    "HTTP: flood of the page": http_flood("/"),
    "HTTP: flood of /metrics": http_flood("/metrics"),
    "HTTP: flood of connections": http_come_and_go,
    "HTTP: answers that are not read": http_never_reads,
    "HTTP: idle connections": mute,
    "HTTP: incomplete requests": http_incomplete,
}
"""Attacks on the HTTP endpoint, which knows no users."""
BUSY: Final = "busy processes, no attack"
"""Takes processor time from the machine, and nothing from the daemon: what the attackers' processes alone cost."""


def attack(make: Callable[[str], Hostile], path: str, connections: int) -> Iterator[None]:
    """Keep up this many connections: each step of the iterator serves those that are ready, and replaces lost ones."""
    held: dict[int, Hostile] = {}
    poll = select.poll()
    while True:
        for _ in range(connections - len(held)):
            try:
                one = make(path)
            except OSError:  # the daemon's backlog is full
                break
            held[one.socket.fileno()] = one
            poll.register(one.socket, one.waits_for)
        for descriptor, _ in poll.poll(50):
            one = held[descriptor]
            if one.go_on():
                poll.modify(descriptor, one.waits_for)
            else:
                poll.unregister(descriptor)
                held.pop(descriptor).socket.close()
        yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("attack", choices=(*ATTACKS, *HTTP_ATTACKS, BUSY))
    parser.add_argument("socket")
    parser.add_argument("connections", type=int)
    parser.add_argument("uid", type=int)
    options = parser.parse_args()
    if options.uid != os.getuid():
        os.setgroups([])
        os.setgid(options.uid)
        os.setuid(options.uid)
    steps = (
        itertools.repeat(None)
        if options.attack == BUSY
        else attack((ATTACKS | HTTP_ATTACKS)[options.attack], options.socket, options.connections)
    )
    begun = False
    for number, _ in enumerate(steps):
        if not begun:
            print(flush=True)
            begun = True
        if number % 8 == 0 and select.select([sys.stdin], [], [], 0)[0]:
            return


if __name__ == "__main__":
    main()
