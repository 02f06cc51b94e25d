"""Clients that break the daemon's rules, or keep them to the letter and do harm.

``python -m tests.faults.abusers NAME --socket PATH --seed S`` runs the clients of one abuse, each in a thread, until
its standard input ends.  It prints an empty line when they have begun.  At the end it prints what they met as one JSON
object: how often each thing happened, by its name.

They are a process of their own, so that they take no time from the honest senders' interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from producerd.errors import ProtocolError
from producerd.wire import messages
from producerd.wire.columns import FRAME_CHARGE_BYTES, RECORD_CHARGE_BYTES, Columns, Layout, lay_out
from tests.daemon import ROOT, WireClient

HONEST: Final = ("plain", "packed", "ordered")
"""Streams that honest senders use.  An abuser hands over no whole frame for them."""
OWN: Final = "abused"
"""The stream for the abusers' whole frames, which nobody reads back."""
PATIENCE_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.05
CHOKED_SECONDS: Final = 1.0
BLIND_FRAMES: Final = 8
"""Sent in one go by a client that does not know what was granted: well within a session's window."""
BYTE_SECONDS: Final = 1.0
CROWD: Final = 1_000
NAMES_OF_A_CONNECTION: Final = 100
KEY_BYTES: Final = 8
FLOOD: Final = 500
"""Messages of a flood that are sent in one go."""


@dataclass(slots=True)
class World:
    """What one thread has.  ``met`` counts what happened, by its name."""

    socket: Path
    number: int
    chance: random.Random
    ended: threading.Event
    met: Counter[str] = field(default_factory=Counter)
    failed: bool = False
    """Whether its thread ended by an error that no daemon can be the cause of."""

    def connect(self) -> WireClient:
        self.met["connections"] += 1
        return WireClient(self.socket, PATIENCE_SECONDS)

    def opened(self, client: WireClient, stream: str) -> messages.Opened | None:
        """Greet and open; None where the daemon refuses it."""
        client.send(messages.Hello(1, 1, client="abuser"))
        if not isinstance(self.heard(client), messages.Welcome):
            return None
        client.send(messages.Open(1, stream))
        answer = self.heard(client)
        return answer if isinstance(answer, messages.Opened) else None

    def heard(self, client: WireClient) -> messages.Message:
        """The next message, counted by its type, and by its code if it has one."""
        message = client.read()
        code = getattr(message, "code", "")
        self.met[f"{type(message).__name__} {code}".strip()] += 1
        return message

    def hear_out(self, client: WireClient) -> None:
        """Hear all that the daemon has to say, until it ends the connection or the abuse ends."""
        while not self.ended.is_set():
            if not client.hears_nothing(LOOK_SECONDS):
                self.heard(client)


def half_frames(world: World) -> None:
    """Die in the middle of a message: HELLO, OPEN, RESERVE or a body that was granted."""
    with world.connect() as client:
        hello = messages.encode(messages.Hello(1, 1, client="abuser"))
        following = messages.encode(messages.Open(2, "plain"))
        part = world.chance.randrange(4)
        if part == 0:
            client.send(_cut(hello, world.chance))
        elif world.opened(client, world.chance.choice(HONEST)) is None:
            return
        elif part == 1:
            client.send(_cut(following, world.chance))
        elif part == 2:
            client.send(_cut(messages.encode(messages.Reserve(1, 1, _rows(50).layout)), world.chance))
        else:
            columns = _rows(50, data_bytes=2_000)
            frame_id = client.reserve(columns.layout)
            if isinstance(world.heard(client), messages.Grant):
                client.send(_cut(client.body(frame_id, columns), world.chance))
        world.met["died"] += 1


def never_reads(world: World) -> None:
    """Send frames, or STATUS, and read no answer at all."""
    with world.connect() as client:
        client.socket.settimeout(CHOKED_SECONDS)
        columns = _rows(1)
        client.send(messages.Hello(1, 1, client="abuser"), messages.Open(1, OWN))
        with contextlib.suppress(TimeoutError):
            while not world.ended.is_set():
                if world.number % 2:
                    client.send(messages.encode(messages.Status(1)) * FLOOD)
                    world.met["unread STATUS"] += FLOOD
                else:
                    frame_id = client.reserve(columns.layout)
                    client.send(client.body(frame_id, columns))
                    world.met["unread frames"] += 1
                    if frame_id % BLIND_FRAMES == 0:
                        world.ended.wait(LOOK_SECONDS)
        world.met["choked"] += 1
        world.ended.wait()


def one_byte_a_second(world: World) -> None:
    """Send one message, another type for each client, byte by byte."""
    columns = _rows(20)
    slow: tuple[messages.Message | bytes, ...] = (
        messages.Hello(1, 1, client="abuser" * 20),
        b"body",
        messages.Open(2, "ordered" * 10),
        messages.Reserve(1, 1, columns.layout),
        messages.Cancel(1),
        messages.Flush(1),
        messages.Status(1),
        messages.Close("SLOW", "slowly" * 20),
    )
    message = slow[world.number % len(slow)]
    with world.connect() as client:
        if not isinstance(message, messages.Hello) and world.opened(client, world.chance.choice(HONEST)) is None:
            return
        data = message if isinstance(message, bytes) else messages.encode(message)
        if message == b"body":
            frame_id = client.reserve(columns.layout)
            if not isinstance(world.heard(client), messages.Grant):
                return
            data = client.body(frame_id, columns)
        for place in range(len(data)):
            client.send(data[place : place + 1])
            world.met["slow bytes"] += 1
            if world.ended.wait(BYTE_SECONDS):
                return
            while not client.hears_nothing(0):
                world.heard(client)


def crowd(world: World) -> None:
    """Be 1,000 connections at once, over all threads: those that are refused come again."""
    held: list[WireClient] = []
    try:
        while not world.ended.wait(LOOK_SECONDS):
            new = [world.connect() for _ in range(CROWD // ABUSES["crowd"].clients - len(held))]
            for client in new:
                with contextlib.suppress(OSError):
                    client.send(messages.Hello(1, 1, client="abuser"))
            for client in new:
                kept = False
                with contextlib.suppress(OSError, EOFError):
                    kept = isinstance(world.heard(client), messages.Welcome)
                if kept:
                    held.append(client)
                else:
                    client.close()
    finally:
        for client in held:
            client.close()


def garbage(world: World) -> None:
    """Send random bytes, or messages of a session in which something is changed, left out, repeated or swapped."""
    chance = world.chance
    with world.connect() as client:
        if chance.random() < 0.2:
            client.send(chance.randbytes(chance.randrange(1, 5_000)))
        elif chance.random() < 0.5:
            client.send(*_spoiled(_conversation(chance), chance))
        elif world.opened(client, OWN) is not None:
            columns = _rows(chance.randrange(1, 50))
            frame_id = client.reserve(columns.layout)
            if isinstance(world.heard(client), messages.Grant):
                client.send(*_spoiled([client.body(frame_id, columns)], chance))
        client.socket.shutdown(1)
        for message in client.read_to_end():
            world.met[f"{type(message).__name__} {getattr(message, 'code', '')}".strip()] += 1


def reserve_only(world: World) -> None:
    """Reserve the largest frame of an honest stream, and never send its body."""
    with world.connect() as client:
        opened = world.opened(client, HONEST[world.number % len(HONEST)])
        if opened is not None:
            client.reserve(_largest(opened)[0].layout)
            world.hear_out(client)


def status_flood(world: World) -> None:
    """Ask how a stream is, over and over, and half of the time have the daemon ask the service, too."""
    with world.connect() as client:
        if world.opened(client, HONEST[world.number % len(HONEST)]) is not None:
            questions = messages.encode(messages.Status(1)) * (FLOOD // 2)
            questions += messages.encode(messages.Status(1, asks_service=1)) * (FLOOD // 2)
            while not world.ended.is_set():
                client.send(questions)
                for _ in range(FLOOD):
                    world.heard(client)


def flush_flood(world: World) -> None:
    """Flush an honest stream over and over: FLUSH has no answer that would hold a client back."""
    with world.connect() as client:
        if world.opened(client, HONEST[world.number % len(HONEST)]) is not None:
            while not world.ended.is_set():
                client.send(messages.encode(messages.Flush(world.number % 2)) * FLOOD)
                world.met["flushes"] += FLOOD


def reconnects(world: World) -> None:
    """Connect, go some steps, and leave: without a word, greeted, opened, or with a version that nobody speaks."""
    with world.connect() as client:
        steps = world.chance.randrange(4)
        if steps == 1:
            client.send(messages.Hello(1, 1, client="abuser"))
        elif steps == 2:
            world.opened(client, world.chance.choice(HONEST))
        elif steps == 3:
            client.send(messages.Hello(8, 9, client="abuser"))
            world.heard(client)


def wrong_names(world: World) -> None:
    """Open streams that no service has, and names that no stream can have; put a record to one that is opened."""
    with world.connect() as client:
        client.send(messages.Hello(1, 1, client="abuser"))
        world.heard(client)
        names = [_wrong_name(world.chance) for _ in range(NAMES_OF_A_CONNECTION)]
        client.send(*(messages.Open(number, name) for number, name in enumerate(names, 1)))
        world.met["wrong names"] += len(names)
        answers = [world.heard(client) for _ in names]
        opened = [answer for answer in answers if isinstance(answer, messages.Opened)]
        if opened:
            client.put(_rows(1), stream_id=opened[0].stream_id)
            world.heard(client)


def _wrong_name(chance: random.Random) -> str:
    name = f"nobody-{chance.getrandbits(64):x}"
    return chance.choice([name, name, name, f"{name}/{name}", name * 20, f"{name}\n{name}", ""])


def largest_frames(world: World) -> None:
    """Put the largest frames that the daemon takes, in bytes and in records; or ask for larger ones, and send one."""
    with world.connect() as client:
        opened = world.opened(client, OWN)
        if opened is None:
            return
        if world.number % 2:
            for columns in _largest(opened):
                frame_id = client.reserve(columns.layout)
                if isinstance(world.heard(client), messages.Grant):
                    client.send(client.body(frame_id, columns))
                    world.heard(client)
            return
        for layout in (
            Layout(opened.max_frame_records + 1, 8, 8),
            Layout(2, 8, opened.max_frame_bytes),
            Layout(1, 8, 2**31 - 1),
            Layout(2**32 - 1, 2**31 - 1, 2**31 - 1),
        ):
            client.reserve(layout)
            world.heard(client)
        if world.chance.random() < 0.5:
            client.send(messages.HEADER.pack(messages.MessageType.OPEN, 0, 0, messages.MAX_CONTROL_BYTES + 1))
        else:
            client.reserve(_rows(1).layout)
            world.heard(client)
            client.send(messages.HEADER.pack(messages.MessageType.BODY, 0, 0, 2**32 - 1))
        world.hear_out(client)


def _largest(opened: messages.Opened) -> tuple[Columns, Columns]:
    """A frame of as many bytes as the daemon takes, and one of as many records."""
    room_bytes = opened.max_frame_bytes - FRAME_CHARGE_BYTES
    record_bytes = RECORD_CHARGE_BYTES + KEY_BYTES
    records = min(opened.max_frame_records, room_bytes // record_bytes)
    return _rows(4, data_bytes=room_bytes // 4 - record_bytes), _rows(records, data_bytes=0)


@dataclass(frozen=True, slots=True)
class Abuse:
    """``act`` is what one client does on one connection; it is done again until the abuse ends."""

    act: Callable[[World], None]
    clients: int


ABUSES: Final = {
    abuse.act.__name__: abuse
    for abuse in (
        Abuse(half_frames, 8),
        Abuse(never_reads, 32),
        Abuse(one_byte_a_second, 32),
        Abuse(crowd, 20),
        Abuse(garbage, 4),
        Abuse(reserve_only, 16),
        Abuse(status_flood, 4),
        Abuse(flush_flood, 4),
        Abuse(reconnects, 4),
        Abuse(wrong_names, 4),
        Abuse(largest_frames, 4),
    )
}


def _rows(count: int, *, data_bytes: int = 20) -> Columns:
    """Rows that no honest sender can have made, with keys of `KEY_BYTES`."""
    return lay_out([b"%0*d" % (KEY_BYTES, place) for place in range(count)], [b"x" * data_bytes] * count)


def _cut(data: bytes, chance: random.Random) -> bytes:
    """Its beginning, at least a byte short."""
    return data[: chance.randrange(len(data))]


def _conversation(chance: random.Random) -> list[bytes]:
    """What a client says in a session of one frame, and some messages that are only the daemon's to send."""
    columns = _rows(chance.randrange(1, 9))
    said: list[messages.Message] = [
        messages.Hello(1, 1, chance.randrange(2), chance.randrange(2), "abuser", attempt=chance.getrandbits(40)),
        messages.Open(1, OWN),
        messages.Status(1),
        messages.Reserve(1, 1, columns.layout),
        messages.Flush(chance.randrange(3)),
        messages.Cancel(chance.randrange(3)),
        messages.Ack(1, 1, 1, 0, 0, 0),
        messages.Grant(1),
        messages.Close("ABUSED", "enough"),
    ]
    return [messages.encode(message) for message in said[: chance.randrange(2, len(said) + 1)]]


def _spoiled(said: list[bytes], chance: random.Random) -> list[bytes]:
    """These messages with one to three faults."""
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(said))
        message = bytearray(said[place])
        kind = chance.randrange(5)
        if kind == 0 and message:
            message[chance.randrange(len(message))] = chance.randrange(256)
        elif kind == 1 and message:
            at = chance.randrange(len(message))
            message[at : at + 4] = chance.choice([b"\xff\xff\xff\xff", bytes(4), b"\x00\x00\x00\x80"])
        elif kind == 2:
            del message[chance.randrange(len(message) + 1) :]
        elif kind == 3:
            said.insert(place, bytes(message))
        else:
            message += chance.randbytes(chance.randrange(1, 100))
        said[place] = bytes(message)
    return said


def _abuse(abuse: Abuse, world: World) -> None:
    while not world.ended.is_set():
        try:
            abuse.act(world)
        except (OSError, EOFError, ProtocolError, AssertionError):  # the daemon has ended it, in its way
            world.met["cut off"] += 1
        except BaseException:
            world.failed = True
            raise


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=ABUSES)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    abuse, ended = ABUSES[options.name], threading.Event()
    worlds = [
        World(options.socket, number, random.Random(f"{options.seed}/{number}"), ended)
        for number in range(abuse.clients)
    ]
    threads = [threading.Thread(target=_abuse, args=(abuse, world)) for world in worlds]
    for thread in threads:
        thread.start()
    print(flush=True)
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    print(json.dumps(sum((world.met for world in worlds), Counter[str]())))
    sys.exit(any(world.failed for world in worlds))


class Abusing:
    """An abuse that runs.  ``met`` is there when it has ended."""

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()


@contextlib.contextmanager
def abusing(name: str, socket: Path, seed: int) -> Iterator[Abusing]:
    """Run an abuse until the end of the block, which begins when the abuse does."""
    command = [sys.executable, "-m", "tests.faults.abusers", name, f"--socket={socket}", f"--seed={seed}"]
    running = Abusing()
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield running
            with contextlib.suppress(subprocess.TimeoutExpired):  # they still wait for a daemon that is overwhelmed
                said, _ = process.communicate(timeout=2 * PATIENCE_SECONDS)
                running.met.update(json.loads(said))
                assert not process.returncode, "an abuser failed by itself: its error stands above"
        finally:
            process.kill()


if __name__ == "__main__":
    main()
