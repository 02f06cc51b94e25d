"""Golden frames: the bytes that each minor version of producerd writes, kept for the versions after it.

``VERSION/messages.txt`` has every message with every field, with none that is optional, and with a field of a later
version; ``VERSION/session.txt`` what a client and a daemon of that version said to each other.  Both are text: what a
message is, and below it its bytes in hex.

    python -m tests.wire.golden

writes the files of this version, once: those that are there are never changed.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Final, NamedTuple

from producerd import __version__
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import serve_in_thread
from producerd.wire import messages
from producerd.wire.columns import FLAG_RESENT, Columns, Layout, lay_out, parse_body
from producerd.wire.messages import HEADER, BadRows, Message, MessageType, OnDisconnect
from spark_client.connection import Connection
from spark_client.tally import Tally
from tests.daemon import PATIENCE_SECONDS, daemon, directory
from tests.spark_client.fake_daemon import rows_of
from tests.wire.messages import MESSAGES

FOLDER: Final = Path(__file__).parent
MINOR: Final = __version__.rpartition(".")[0]
LATER: Final = "and a field of a later version"
LATER_FIELD: Final = struct.pack("<HI", 65_535, 5) + b"later"
HEX_DIGITS: Final = 96
CLIENT, DAEMON = ">", "<"


class Golden(NamedTuple):
    """A message and its bytes.  In a session ``name`` is who says it, and what."""

    name: str
    message: Message | Rows
    data: bytes


class Rows(NamedTuple):
    """What a BODY says: (key, data, hash key) of each row; None is null, and no hash keys at all."""

    frame_id: int
    rows: tuple[tuple[str, str | None, str | None], ...]
    resent: bool = False


# ---- a message as a line of text, and back


def line_of(message: Message | Rows) -> str:
    values = message._asdict() if isinstance(message, Rows) else asdict(message)
    plain = {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}
    return f"{type(message).__name__} {json.dumps(plain, ensure_ascii=False)}"


def message_of(line: str) -> Message | Rows:
    kind, _, plain = line.partition(" ")
    values = json.loads(plain)
    if kind == "Rows":
        return Rows(values["frame_id"], tuple(map(tuple, values["rows"])), values["resent"])
    if "layout" in values:
        values["layout"] = Layout(**values["layout"])
    if "codes" in values:
        values["codes"] = tuple(messages.RowCode(**code) for code in values["codes"])
    for name in ("shards", "sizes"):
        if name in values:
            values[name] = tuple(map(tuple, values[name]))
    for name in ("bitmap", "code_rows", "judged"):
        if isinstance(values.get(name), str):
            values[name] = bytes.fromhex(values[name])
    message: Message = getattr(messages, kind)(**values)
    return message


# ---- by today's code


def encoded(message: Message | Rows) -> bytes:
    if not isinstance(message, Rows):
        return messages.encode(message)
    keys, data, hash_keys = ([_bytes(value) for value in column] for column in zip(*message.rows, strict=True))
    columns = lay_out(keys, data, None if hash_keys[0] is None else hash_keys)
    if message.resent:
        columns = Columns(replace(columns.layout, flags=columns.layout.flags | FLAG_RESENT), columns.parts)
    parts = (messages.body_header(columns.layout), columns.body_prefix(message.frame_id), *columns.parts)
    return b"".join(map(bytes, parts))


def decoded(data: bytes) -> Message | Rows:
    header, payload = messages.parse_header(data), data[HEADER.size :]
    if header.type is not MessageType.BODY:
        return messages.decode(header, payload)
    body = parse_body(payload, header.flags)
    rows = tuple((key.decode(), _text(value), _text(hash_key)) for key, value, hash_key in rows_of(body))
    return Rows(body.frame_id, rows, bool(header.flags & FLAG_RESENT))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


# ---- files


def write(path: Path, goldens: Sequence[Golden]) -> None:
    """Raises FileExistsError: what a version wrote does not change."""
    blocks = []
    for golden in goldens:
        digits = golden.data.hex()
        lines = [digits[at : at + HEX_DIGITS] for at in range(0, len(digits), HEX_DIGITS)]
        blocks.append("\n  ".join([golden.name, line_of(golden.message), *lines]) + "\n")
    path.parent.mkdir(exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write("\n".join(blocks))


def read(path: Path) -> list[Golden]:
    blocks = (block.split("\n  ") for block in path.read_text(encoding="utf-8").rstrip("\n").split("\n\n"))
    return [Golden(name, message_of(line), bytes.fromhex("".join(digits))) for name, line, *digits in blocks]


# ---- what goes into them


def golden_messages() -> Iterator[Golden]:
    for message in MESSAGES:
        name = messages.number_of(message).name
        without = bare(message)
        yield _golden(f"{name} with every field", message)
        if without != message:
            yield _golden(f"{name} with required fields alone", without)
        whole = _golden(f"{name} with every field {LATER}", message)
        size = len(whole.data) - HEADER.size + len(LATER_FIELD)
        yield whole._replace(data=whole.data[:4] + struct.pack("<I", size) + whole.data[HEADER.size :] + LATER_FIELD)
    yield _golden("BODY", Rows(5, (("key-1", "one", None), ("", "two", None))))
    yield _golden("BODY with a null row", Rows(6, (("key-1", "one", None), ("key-2", None, None))))
    yield _golden(
        "BODY with hash keys, sent again", Rows(7, (("key-1", "one", "0"), ("key-2", "two", "")), resent=True)
    )


def _golden(name: str, message: Message | Rows) -> Golden:
    return Golden(name, message, encoded(message))


def bare(message: Message) -> Message:
    """The same without what it may leave out."""
    defaults = {field.name: field.default for field in fields(message) if field.default is not MISSING}
    if isinstance(message, messages.Hello):  # required on the wire
        defaults = {name: default for name, default in defaults.items() if name not in ("on_disconnect", "bad_rows")}
    if isinstance(message, messages.Flush):
        defaults = {}
    if isinstance(message, messages.Ack):
        defaults.update(stored=message.records, not_stored=0, unknown=0, returned=0)
    return replace(message, **defaults)


def talk(path: str) -> tuple[Tally, str]:
    """The client's part of the session that is kept: how its rows ended, and the daemon's word on why rows wait."""
    hello = messages.Hello(
        1,
        messages.VERSION,
        OnDisconnect.DELIVER,
        BadRows.TAKE_GOOD,
        client=f"golden {__version__}",
        application_id="application",
        query_id="query",
        run_id="run",
        batch_id=7,
        stage_id=1,
        partition=2,
        attempt=3,
        pid=4711,
    )
    hash_keys = [b"", b"0", b"%d" % (2**128 - 1)]
    with Connection(hello, [path]) as session:
        session.put("flights", lay_out([b"key-1", None], [b"one", b"two"]), PATIENCE_SECONDS)
        session.flush(PATIENCE_SECONDS)
        session.put(
            "flights", lay_out([b"key-3", b"key-4", b"k"], [b"three", b"four", None], hash_keys), PATIENCE_SECONDS
        )
        session.flush(PATIENCE_SECONDS)
        said = session.reason("flights")
        session._session._channel.tell(messages.Close("", "the session is over"))
    return session.tally, said


def session() -> list[Golden]:
    """What this version's client and daemon say to each other."""
    kinesis = FakeKinesis()
    kinesis.create_stream("flights", shards=1)
    with serve_in_thread(kinesis) as server, daemon(server.url) as running, directory() as folder:
        path = str(folder / "s")
        with recorded(path, str(running.socket)) as said:
            talk(path)
        return said


@contextmanager
def recorded(path: str, daemon_path: str) -> Iterator[list[Golden]]:
    """One session between the client who connects to ``path`` and the daemon; it is whole when the block has ended."""
    said: list[Golden] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=_carry, args=(listener, daemon_path, said))
        thread.start()
        yield said
        thread.join()


def _carry(listener: socket.socket, daemon_path: str, said: list[Golden]) -> None:
    client, _ = listener.accept()
    with client, socket.socket(socket.AF_UNIX) as service:
        service.connect(daemon_path)
        ways = {client: (CLIENT, service, bytearray()), service: (DAEMON, client, bytearray())}
        while True:
            for ready in select.select([*ways], [], [])[0]:
                who, other, unread = ways[ready]
                if not (data := ready.recv(1 << 16)):
                    return
                unread += data
                said += [
                    Golden(f"{who} {MessageType(whole[0]).name}", decoded(whole), whole) for whole in _whole(unread)
                ]
                with suppress(BrokenPipeError):  # it has said its last word
                    other.sendall(data)


def _whole(unread: bytearray) -> Iterator[bytes]:
    """Those that are there, taken away."""
    while len(unread) >= HEADER.size:
        size = HEADER.size + messages.parse_header(unread).payload_bytes
        if len(unread) < size:
            return
        yield bytes(unread[:size])
        del unread[:size]
