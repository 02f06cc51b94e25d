"""Serve a fake Kinesis over HTTP or HTTPS.

`FakeKinesis.handle` decides about every request, on one thread.  The server does on the socket what it decides,
including resets and silence.  A client that gives up leaves nothing behind.

    async with serve(kinesis) as server:              # in an asyncio program
    with serve_in_thread(kinesis) as server:          # with blocking clients, such as boto3
    python -m producerd.testing.fake_kinesis --shards 4 --port 0 --stream flights

The server accepts any credentials, unless `FakeServer.accepted_access_keys` names some, and never checks signatures.
`producerd.testing.control` answers the paths below ``/_fake/``, which control a server in another process.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import email.utils
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import uvloop
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from producerd.testing import access, control, formats
from producerd.testing.certificate import self_signed
from producerd.testing.rules import FakeKinesis, Fault
from producerd.testing.uplink import RECEIVE_BUFFER_BYTES, Uplink

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Largest body of a request.  10 MiB of data have 13.4 MiB in base64; the rest is for keys and JSON."""
LONGEST_SLEEP_SECONDS: Final = 86_400.0
"""Longest single sleep.  The server sleeps a delay of math.inf in steps, because some event loops refuse it."""
HIGHEST_PORT: Final = 65_535
READ_BYTES: Final = 1024 * 1024
STEPS_TO_A_CONNECTION: Final = 4
"""Turns of asyncio's event loop from its accept() to `connection_made`, and one more."""
ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class FakeServer:
    """A server of a `FakeKinesis`, with settings and with counters for assertions.

    A test may change the settings at any time, from any thread.  ``uplink_bytes_per_second`` is the speed at which the
    server reads the bodies of requests, over all connections: None for no limit, 0 for a server that never reads one.
    A counter named ``_peak`` has the highest number at one time.
    """

    def __init__(self, kinesis: FakeKinesis) -> None:
        self.kinesis = kinesis
        self.url = ""
        self.certificate: Path | None = None
        self.checks_clock = False  # refuse a request that was signed more than 5 minutes from the server's time
        self.accepted_access_keys: set[str] | None = None  # None: every one
        self.expired_access_keys: set[str] = set()
        self.connections_open = 0
        self.connections_peak = 0
        self.connections_closed = 0
        self.in_flight = 0
        self.in_flight_peak = 0
        self._clock_offset_seconds = 0.0
        self._loop = asyncio.get_running_loop()
        self._wall_clock_offset = time.time() - self._loop.time()
        self._released = asyncio.Event()
        self._uplink = Uplink(self._loop)

    @property
    def uplink_bytes_per_second(self) -> float | None:
        return self._uplink.bytes_per_second

    @uplink_bytes_per_second.setter
    def uplink_bytes_per_second(self, value: float | None) -> None:
        self._uplink.bytes_per_second = value

    @property
    def clock_offset_seconds(self) -> float:
        """Offset of the server's clock, which is the Date of its answers and checks the time of signatures."""
        return self._clock_offset_seconds

    @clock_offset_seconds.setter
    def clock_offset_seconds(self, seconds: float) -> None:
        self._clock_offset_seconds = access.checked_clock_offset(seconds)

    def now(self) -> float:
        """Return the time for `FakeKinesis.handle`: seconds since 1970 that never go back."""
        return self._loop.time() + self._wall_clock_offset

    def clock(self) -> float:
        """Return the time on the server's clock, in seconds since 1970, with its offset."""
        return time.time() + self.clock_offset_seconds

    def release(self) -> None:
        """Let the rules decide again about every request that hangs, from any thread.

        Remove the standing fault before.
        """
        self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    def count_connection(self, change: int) -> None:
        self.connections_open += change
        self.connections_peak = max(self.connections_peak, self.connections_open)
        self.connections_closed += change < 0

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.startswith(control.PREFIX):
            body = await request.content.read()
            status, body = control.answer(self, request.method, request.path, request.query, body)
            return web.Response(status=status, body=body, content_type="application/json")
        self.in_flight += 1
        self.in_flight_peak = max(self.in_flight_peak, self.in_flight)
        try:
            return await self._respond(request)
        finally:
            self.in_flight -= 1

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            return web.Response(status=413)
        action = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        body = await self._uplink.read(request)
        refused = access.refusal(
            request.headers,
            self.clock(),
            checks_clock=self.checks_clock,
            accepted_access_keys=self.accepted_access_keys,
            expired_access_keys=self.expired_access_keys,
        )
        content_type = formats.format_of(request.headers.get("Content-Type", ""))
        reply = self.kinesis.handle(action, body, self.now(), refused, content_type)
        while reply.how == "hang":
            await self._released.wait()
            reply = self.kinesis.handle(action, body, self.now(), refused, content_type)
        await _sleep(reply.delay_seconds)
        if reply.how == "replaced":
            return web.Response(status=reply.status, body=reply.body, content_type="text/html")
        if reply.how != "answer":
            _reset(request)
        headers = {"x-amzn-RequestId": str(uuid.uuid4()), "Content-Type": content_type}
        if self.clock_offset_seconds:
            headers["Date"] = email.utils.formatdate(self.clock(), usegmt=True)
        return web.Response(status=reply.status or 500, body=reply.body, headers=headers)


class _CountingServer(web.Server):
    """aiohttp's server, which counts its connections."""

    def __init__(self, server: FakeServer) -> None:
        # With cancellation a waiting request ends when its client disconnects.
        super().__init__(server.respond, handler_cancellation=True, access_log=None, read_bufsize=READ_BYTES)
        self._server = server

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        self._server.count_connection(+1)
        super().connection_made(handler, transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._server.count_connection(-1)
        super().connection_lost(handler, exc)


async def _sleep(seconds: float) -> None:
    while seconds > 0:
        await asyncio.sleep(min(seconds, LONGEST_SLEEP_SECONDS))
        seconds -= LONGEST_SLEEP_SECONDS


def _reset(request: web.BaseRequest) -> None:
    """End the connection with RST.  Without the socket's option the client would see an orderly end."""
    transport = request.transport
    if transport is not None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


@contextlib.asynccontextmanager
async def serve(
    kinesis: FakeKinesis, *, host: str = "127.0.0.1", port: int = 0, tls: bool = False
) -> AsyncIterator[FakeServer]:
    """Serve until the block ends, then cut every connection.

    With ``tls`` the server has a new self-signed certificate, which clients verify with `FakeServer.certificate`.
    """
    if not 0 <= port <= HIGHEST_PORT:  # uvloop would take it modulo 65536
        raise ValueError(f"port {port}: 1 to {HIGHEST_PORT}, or 0 for any that is free")
    server = FakeServer(kinesis)
    protocols = _CountingServer(server)
    with contextlib.ExitStack() as files:
        context = None
        if tls:
            directory = Path(files.enter_context(tempfile.TemporaryDirectory(prefix="fake-kinesis-")))
            context, server.certificate = self_signed(directory, host)
        listener = await asyncio.get_running_loop().create_server(protocols, host, port, ssl=context, backlog=1024)
        for listening in listener.sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        actual_port = listener.sockets[0].getsockname()[1]
        server.url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{actual_port}"
        try:
            yield server
        finally:
            await _accept_no_more(listener)
            listener.close()
            await _cut(protocols)
            await listener.wait_closed()


async def _accept_no_more(listener: asyncio.Server) -> None:
    """Stop accepting, and let asyncio hand over accepted sockets: a closed server would leave them open."""
    for listening in listener.sockets:
        asyncio.get_running_loop().remove_reader(listening)
    for _ in range(STEPS_TO_A_CONNECTION):
        await asyncio.sleep(0)


async def _cut(protocols: web.Server) -> None:
    for handler in protocols.connections:
        if handler.transport is not None:
            handler.transport.abort()
    await protocols.shutdown(timeout=1.0)


@contextlib.contextmanager
def serve_in_thread(
    kinesis: FakeKinesis, *, host: str = "127.0.0.1", port: int = 0, tls: bool = False
) -> Iterator[FakeServer]:
    """Serve on an event loop in another thread until the block ends.

    Args:
        kinesis: The service.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        tls: Serve HTTPS with a new self-signed certificate, which clients verify with ``server.certificate``.

    Returns:
        The server, whose ``url`` is the endpoint.
    """
    started: concurrent.futures.Future[tuple[FakeServer, Callable[[], object]]] = concurrent.futures.Future()

    async def run() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        async with serve(kinesis, host=host, port=port, tls=tls) as server:
            started.set_result((server, lambda: loop.call_soon_threadsafe(ended.set)))
            await ended.wait()

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # an error at the start is raised in the caller's thread
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=main, name="fake-kinesis", daemon=True)
    thread.start()
    server, end = started.result()
    try:
        yield server
    finally:
        end()
        # A program may end in this block, as a notebook does.  The thread then runs no more, and never ends.
        if not sys.is_finalizing():
            thread.join()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m producerd.testing.fake_kinesis",
        description="Serve a Kinesis in memory, for tests. The first line on stdout is its URL.",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument(
        "--tls", action="store_true", help="serve HTTPS; the second line on stdout is the path of the certificate"
    )
    parser.add_argument(
        "--stream", action="append", metavar="NAME", help="a stream's name; may be repeated (default: stream)"
    )
    parser.add_argument("--shards", type=int, default=4, help="shards of each stream")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency-seconds", type=float, default=0.0)
    parser.add_argument("--enforce-limits", action="store_true", help="allow 1,000 records/s and 1 MiB/s per shard")
    parser.add_argument("--throttle-fraction", type=float, default=0.0, help="share of the entries to throttle")
    parser.add_argument("--hang", action="store_true", help="accept every request and never answer")
    parser.add_argument("--forget", action="store_true", help="count entries without keeping them, for long runs")
    return parser


def kinesis_of(arguments: Sequence[str]) -> FakeKinesis:
    """Return the fake Kinesis that a command line describes."""
    return _kinesis_of(_parser().parse_args(arguments))


def _kinesis_of(options: argparse.Namespace) -> FakeKinesis:
    kinesis = FakeKinesis(options.seed)
    kinesis.latency_seconds = options.latency_seconds
    kinesis.enforce_limits = options.enforce_limits
    for name in options.stream or ["stream"]:
        stream = kinesis.create_stream(name, options.shards, now=time.time())
        stream.keeps_entries = not options.forget
    if options.throttle_fraction:
        kinesis.standing.append(Fault("throttle", fraction=options.throttle_fraction))
    if options.hang:
        kinesis.standing.append(Fault("hang", action="*"))
    return kinesis


async def _serve_until_signal(kinesis: FakeKinesis, options: argparse.Namespace) -> None:
    ended = asyncio.Event()
    for number in ENDING_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with serve(kinesis, host=options.host, port=options.port, tls=options.tls) as server:
        print(server.url, flush=True)
        if server.certificate is not None:
            print(server.certificate, flush=True)
        await ended.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    handlers = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    try:
        kinesis = _kinesis_of(options)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve_until_signal(kinesis, options))
    except (OSError, RuntimeError, ValueError) as error:
        parser.exit(1, f"fake_kinesis: {error}\n")
    finally:
        # uvloop leaves the handlers to its closed loop, so the caller would receive no signal any more.
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 0


if __name__ == "__main__":
    sys.exit(main())
