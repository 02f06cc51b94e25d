"""A real daemon in a process of its own, and a client that speaks bytes: for the tests that go end to end.

Nothing of a daemon outlives its block: it is ended by SIGTERM, and its exit code and log are looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from producerd.wire import messages
from producerd.wire.columns import Columns, Layout, lay_out
from tests.forks import NO_TUNING, Forked, Program, can_fork

ROOT: Final = Path(__file__).resolve().parents[1]
SERVICE_PYTHON: Final = os.environ.get("PRODUCERD_TEST_PYTHON", sys.executable)
"""Runs the daemon, and whatever else needs a newer Python than the tests of an old Spark run on."""
MODULE: Final = ("-m", "producerd")
WITHOUT_SECRECY: Final = (
    "import sys; from producerd import cli; from producerd.runtime import secrecy; "
    "secrecy.keep_memory_private = int; sys.exit(cli.main())"
)
READABLE: Final = ("-c", WITHOUT_SECRECY)
"""A daemon at whose memory and files in /proc tests may look that do not run as root."""
PATIENCE_SECONDS: Final = 15.0
"""How long anything that must happen may take on a busy machine; nothing waits so long when all is well."""
START_SECONDS: Final = 4 * PATIENCE_SECONDS
"""How long a daemon may take to serve: the first one after a set-up compiles all that it imports."""
QUICK: Final = {
    "metrics_listen": "127.0.0.1:0",
    "region": "us-east-1",
    "linger_seconds": 0.01,
    "drain_timeout_seconds": 5,
    "shard_rate_fraction": 1_000,  # the fake has no limits unless a test sets them
}
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}

M = TypeVar("M", bound=messages.Message)
T = TypeVar("T")


def until(happens: Callable[[], T], what: str = "", seconds: float = PATIENCE_SECONDS) -> T:
    """Wait for something in another process: its first true value.

    The longer it lasts, the more seldom it asks: a question may be a scrape, or a process.
    """
    begin = time.monotonic()
    while not (value := happens()):
        waited = time.monotonic() - begin
        assert waited < seconds, f"did not happen in {seconds:g} s: {what or happens}"
        time.sleep(min(0.05, max(0.01, waited / 20)))
    return value


async def until_on_loop(happens: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """The same for what happens on this loop."""
    async with asyncio.timeout(seconds):
        while not happens():  # noqa: ASYNC110 - the state of others sets no event
            await asyncio.sleep(0.001)


NEVER_STORED: Final = "(never stored)"
"""As in `producerd.runtime.metrics`, which not every environment of these tests can import."""
WITHOUT_A_SUM: Final = ("queue_limit_records", "queue_limit_bytes", "stream_up")


class DaemonProcess:
    """One ``python -m producerd serve OPTIONS``, behind ``prefix``.  ``sets`` are its settings, over `QUICK`.

    ``tuning`` has values of its `Tuning` that differ.
    With ``forked`` it is a fork of a process that has imported it already (`tests.forks`), unless ``prefix`` or a
    variable in ``environ`` asks for an interpreter of its own.  ``program`` is which of the daemons is forked.
    """

    def __init__(
        self,
        directory: Path,
        sets: dict[str, Any],
        environ: dict[str, str],
        *,
        socket_path: Path | None,
        prefix: Sequence[str] = (),
        options: Sequence[str] = (),
        forked: bool = False,
        program: Program = "daemon",
        pass_fds: Sequence[int] = (),
        tuning: Mapping[str, Any] = NO_TUNING,
    ):
        self.socket = socket_path or directory / "daemon.sock"
        self._log = directory / f"log-{time.monotonic_ns()}"
        settings = {"socket": self.socket, **QUICK, **sets}
        options = [*options, *(f"--set={name}={value}" for name, value in settings.items() if value is not None)]
        plain = {"PATH": os.environ["PATH"], "HOME": str(directory), "AWS_EC2_METADATA_DISABLED": "true"}
        self.process: subprocess.Popen[bytes] | Forked
        with self._log.open("wb") as log:
            if forked and not prefix and can_fork(environ):
                self.process = Forked(SERVICE_PYTHON, options, {**plain, **environ}, self._log, program, tuning)
                return
            module: Sequence[str] = MODULE if prefix or not os.geteuid() else READABLE
            if tuning:
                module = ("-m", "tests.tuned", json.dumps(dict(tuning)))
            self.process = subprocess.Popen(
                [*prefix, SERVICE_PYTHON, *module, "serve", *options],
                cwd=ROOT,
                env={**plain, **environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=pass_fds,
            )

    # ---- what it says

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def url(self) -> str:
        found = until(lambda: re.search(r"metrics address=(\S+)/metrics", self.log), "the metrics' address")
        assert found is not None
        return found[1]

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of one of its HTTP endpoints."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """One scrape: the value of each family, summed over its labels, and of each single sample.

        What has no sum, such as a limit, is a named stream's value, if there is one.
        """
        status, text = self.get("/metrics?collect=all")
        assert status == 200
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix("producerd_")
                if name in WITHOUT_A_SUM and sample.labels["stream"] == NEVER_STORED and len(family.samples) > 1:
                    continue
                values[name] = values.get(name, 0.0) + sample.value
                labels = ",".join(value for key, value in sample.labels.items() if key != "stream")
                if labels:
                    values[f"{name}[{labels}]"] = values.get(f"{name}[{labels}]", 0.0) + sample.value
        return values

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    # ---- its life

    def wait_ready(self) -> None:
        def serves() -> bool:
            assert self.process.poll() is None, f"the daemon ended with {self.process.returncode}:\n{self.log}"
            return " serving " in self.log

        until(serves, "serving", START_SECONDS)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the daemon did not end in {seconds:g} s:\n{self.log}") from None

    def end(self) -> int:
        if self.process.poll() is None:
            self.signal()
        return self.wait()


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A directory whose path is short enough for a socket in it."""
    path = Path(tempfile.mkdtemp(prefix="producerd-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def daemon(
    endpoint_url: str | None,
    *,
    environ: dict[str, str] | None = None,
    socket_path: Path | None = None,
    exit_code: int | None = 0,
    prefix: Sequence[str] = (),
    options: Sequence[str] = (),
    forked: bool = True,
    tuning: Mapping[str, Any] = NO_TUNING,
    **sets: Any,
) -> Iterator[DaemonProcess]:
    """A daemon that serves.  At the block's end it must end by SIGTERM, with this code and without a traceback.

    Tests of the start itself, and of how much memory a daemon uses, say ``forked=False``.
    """
    with directory() as path:
        own = CREDENTIALS if environ is None else environ
        settings = {"endpoint_url": endpoint_url, **sets}
        running = DaemonProcess(
            path,
            settings,
            own,
            socket_path=socket_path,
            prefix=prefix,
            options=options,
            forked=forked,
            tuning=tuning,
        )
        try:
            running.wait_ready()
            yield running
            code = running.end()
            assert exit_code is None or code == exit_code, running.log
            assert "Traceback" not in running.log, running.log
            assert "never awaited" not in running.log, running.log
        finally:
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()


def serve_once(**sets: Any) -> tuple[int, str]:
    """Exit code and log of a daemon that is not expected to serve."""
    environ = sets.pop("environ", CREDENTIALS)
    socket_path = sets.pop("socket_path", None)
    with directory() as path:
        running = DaemonProcess(path, sets, environ, socket_path=socket_path)
        try:
            return running.wait(START_SECONDS), running.log
        finally:
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()


def rows(count: int, *, size: int = 20, name: str = "row", keys: int = 97) -> Columns:
    """A frame of ``count`` rows whose data tell their numbers."""
    data = [f"{name}-{i}-".encode().ljust(size, b".") for i in range(count)]
    return lay_out([f"key-{i % keys}".encode() for i in range(count)], data)


def data_of(columns: Columns) -> list[bytes]:
    """The data of a frame's rows."""
    records = columns.layout.records
    offsets = memoryview(columns.parts[1]).cast("i")
    data = bytes(columns.parts[-2 if columns.layout.flags & 2 else -1])
    return [data[offsets[i] : offsets[i + 1]] for i in range(records)]


class WireClient:
    """A client in raw bytes, which may do what no client should.  Every read ends within ``patience_seconds``."""

    def __init__(self, path: Path, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.patience_seconds = patience_seconds
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(patience_seconds)
        try:
            self.socket.connect(os.fspath(path))
        except OSError:
            self.socket.close()
            raise
        self.welcome: messages.Welcome | None = None
        self._received = b""
        self._early: list[messages.Ack] = []
        self.last_frame_id = 0

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # ---- bytes

    def send(self, *said: messages.Message | bytes) -> None:
        parts = [message if isinstance(message, bytes) else messages.encode(message) for message in said]
        self.socket.sendall(b"".join(parts))

    def read(self) -> messages.Message:
        """The next message; EOFError at the end of the socket."""
        while True:
            if len(self._received) >= messages.HEADER.size:
                header = messages.parse_header(self._received)
                end = messages.HEADER.size + header.payload_bytes
                if len(self._received) >= end:
                    payload, self._received = self._received[messages.HEADER.size : end], self._received[end:]
                    return messages.decode(header, payload)
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._received += data

    def expect(self, wanted: type[M]) -> M:
        message = self.read()
        assert isinstance(message, wanted), message
        return message

    def read_to_end(self) -> list[messages.Message]:
        """What is left, to the end of the socket."""
        said: list[messages.Message] = []
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                said.append(self.read())
        return said

    def hears_nothing(self, seconds: float = 0.2) -> bool:
        """Whether the daemon says nothing for so long."""
        return not self._received and not select.select([self.socket], [], [], seconds)[0]

    # ---- what a session does

    def hello(self, *, deliver: bool = False, take_good: bool = False, client: str = "test") -> WireClient:
        self.send(messages.Hello(1, 1, int(deliver), int(take_good), client, pid=os.getpid()))
        self.welcome = self.expect(messages.Welcome)
        return self

    def open(self, stream: str = "flights", stream_id: int = 1) -> messages.Opened:
        self.send(messages.Open(stream_id, stream))
        return self.expect(messages.Opened)

    def reserve(self, layout: Layout, *, stream_id: int = 1) -> int:
        """Ask for room; the answer is not waited for."""
        self.last_frame_id += 1
        self.send(messages.Reserve(self.last_frame_id, stream_id, layout))
        return self.last_frame_id

    def body(self, frame_id: int, columns_: Columns) -> bytes:
        return b"".join(
            (messages.body_header(columns_.layout), columns_.body_prefix(frame_id), *map(bytes, columns_.parts))
        )

    def put(self, columns_: Columns, *, stream_id: int = 1) -> int:
        """Reserve, wait for the grant, send the body.  ACKs that come before the grant are kept for `acks`."""
        frame_id = self.reserve(columns_.layout, stream_id=stream_id)
        while isinstance(message := self.read(), messages.Ack):
            self._early.append(message)
        assert message == messages.Grant(frame_id), message
        self.send(self.body(frame_id, columns_))
        return frame_id

    def acks(self, count: int = 1) -> list[messages.Ack]:
        early, self._early = self._early[:count], self._early[count:]
        return early + [self.expect(messages.Ack) for _ in range(count - len(early))]


def session(running: DaemonProcess, stream: str = "flights", **hello: Any) -> WireClient:
    """A client that has opened a stream."""
    client = WireClient(running.socket).hello(**hello)
    client.open(stream)
    return client


def one(columns_data: bytes = b"x", key: bytes = b"k", hash_key: bytes | None = None) -> Columns:
    """A frame of one row."""
    return lay_out([key], [columns_data], None if hash_key is None else [hash_key])


def conserved(metrics: dict[str, float]) -> bool:
    """ingest = delivered + failed + discarded + queued."""
    ended = sum(metrics[f"{name}_records_total"] for name in ("delivered", "failed", "discarded"))
    return metrics["ingest_records_total"] == ended + metrics["queue_records"]


def idle(metrics: dict[str, float]) -> bool:
    """Nothing is taken on any more."""
    return not any(metrics[name] for name in ("queue_records", "queue_bytes", "inflight_requests"))
