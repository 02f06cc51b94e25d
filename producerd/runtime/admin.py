"""The HTTP endpoints: by TCP for Prometheus and health checks, and on a unix socket for `producerctl`.

The TCP endpoint changes nothing.  It serves ``GET /metrics``, ``/-/ready``, ``/-/healthy``, ``/version``, and ``/`` for
people.  Ready means that clients can connect and the daemon does not drain.  A daemon with a full queue or without
Kinesis is still ready, because otherwise no Spark pod would start during an incident.

The unix socket serves `Commands`, only to the daemon's own user and root.  Questions are GET requests, orders are POST
requests, and all answers are JSON.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import ipaddress
import json
import logging
import os
import platform
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol, get_args
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from producerd import __version__
from producerd.errors import ConfigurationError, PlaceTaken, Refused
from producerd.runtime import logs
from producerd.runtime.acceptor import Acceptor
from producerd.runtime.aside import begin_aside
from producerd.runtime.commands import Commands, JsonObject, NoSuchStream
from producerd.runtime.http_connections import HttpConnections
from producerd.runtime.listener import BACKLOG, Listener
from producerd.runtime.log_lines import UNLIMITED
from producerd.runtime.metrics import CONTENT_TYPE
from producerd.runtime.page.page import HEADERS
from producerd.runtime.users.peers import may_administer, peer_of

log = logs.get_logger("producerd.admin")
orders = logs.get_logger(UNLIMITED)


class RenderMetrics(Protocol):
    """Return the metrics as text: what a usual scrape has, or everything."""

    async def __call__(self, *, everything: bool) -> bytes: ...


_OF_WEB_PAGES: Final = ("Origin", "Sec-Fetch-Site")
"""Headers that browsers add and scrapers do not.  Any web page could have a browser ask."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether a log record shows an error of ours, and none of a client that sends no HTTP, or leaves early."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | ConnectionError))


logging.getLogger("aiohttp.server").addFilter(_is_ours)


def _name_in(host: str) -> str:
    """Return the name in a Host header, or "" if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_own_name(host: str) -> bool:
    """Return whether a Host header names this machine.

    Any web site could have its own name lead here, and read the answer as its own (DNS rebinding).
    """
    name, own = _name_in(host), socket.gethostname().lower()
    if name in ("localhost", own, own.partition(".")[0]):
        return True
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


class FullName:
    """This machine's full name.  The resolver may never answer, so at most one thread asks it at a time, aside."""

    def __init__(self) -> None:
        self._asking: asyncio.Future[str] | None = None

    async def ask(self) -> str:
        if self._asking is None or self._asking.done():
            self._asking = begin_aside(socket.getfqdn)
        asking = self._asking  # until this one goes on, another may have asked again
        await asyncio.wait({asking})  # a request that is cancelled leaves the question to the others
        return asking.result()


def _accepts_gzip(headers: Iterable[str]) -> bool:
    """Return whether a request's Accept-Encoding headers allow gzip, by its weight or the one of ``*`` (RFC 9110).

    aiohttp looks for the substring, and would compress for ``gzip;q=0``.
    """
    weights: dict[str, float] = {}
    for coding in ",".join(headers).lower().split(","):
        name, *parameters = [part.strip() for part in coding.split(";")]
        weights[name] = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                with suppress(ValueError):  # what is not a number is ignored
                    weights[name] = float(parameter[2:])
    return weights.get("gzip", weights.get("*", 0.0)) > 0


@asynccontextmanager
async def serve(
    address: tuple[str, int],
    *,
    render_metrics: RenderMetrics,
    render_page: Callable[[], str],
    unready: Callable[[], str | None],
) -> AsyncIterator[tuple[str, int]]:
    """Serve by TCP until the block ends, and yield the bound address.  Raise ConfigurationError if it cannot be bound.

    ``unready`` returns why the daemon does not serve clients, or None while it does.
    """

    compressed = _Compressed()

    async def metrics(request: web.Request) -> web.Response:
        if any(name in request.headers for name in _OF_WEB_PAGES):
            return web.Response(status=403, text="no web page may read the metrics: use curl, for example\n")
        collected = set(request.query.getall("collect", []))
        if not collected <= {"all"}:
            unknown = ", ".join(sorted(collected - {"all"}))
            return web.Response(status=400, text=f"collect = {unknown}: allowed: all\n")
        headers = {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"}
        text = await render_metrics(everything=bool(collected))
        if _accepts_gzip(request.headers.getall("Accept-Encoding", [])):
            return web.Response(body=await compressed.of(text), headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=text, headers=headers)

    full_name = FullName()

    async def page(request: web.Request) -> web.Response:
        if not (_is_own_name(request.host) or _name_in(request.host) == await full_name.ask()):
            name = request.host.encode(errors="backslashreplace").decode()  # a header may have any bytes
            text = f"this page answers to an IP address, localhost and {socket.gethostname()}, not to {name}\n"
            return web.Response(status=421, text=text)
        return web.Response(text=render_page(), content_type="text/html", headers=HEADERS)

    async def ready(_request: web.Request) -> web.Response:
        why = unready()
        return web.Response(text="ready\n") if why is None else web.Response(status=503, text=f"{why}\n")

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    async def version(_request: web.Request) -> web.Response:
        return web.json_response({"version": __version__, "python": platform.python_version()})

    @web.middleware
    async def whole(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer until the kernel has all of the answer, and report that."""
        try:
            try:
                answer = await handler(request)
            except web.HTTPException as refusal:
                await _send(request, refusal)
                raise
            await _send(request, answer)
            return answer
        finally:
            connections.http_answered(request.protocol)

    app = web.Application(middlewares=[whole])
    app.add_routes(
        [
            web.get("/", page),
            web.get("/metrics", metrics),
            web.get("/-/ready", ready),
            web.get("/-/healthy", healthy),
            web.get("/version", version),
        ]
    )
    async with _running(app) as runner:
        http = runner.server
        assert http is not None
        connections = HttpConnections(http)
        sockets = await _listen(address)
        try:
            async with asyncio.TaskGroup() as tasks:
                accepting = [tasks.create_task(connections.accept_callers(one)) for one in sockets]
                bound = sockets[0].getsockname()
                yield bound[0], bound[1]
                for task in accepting:
                    task.cancel()
        finally:
            for one in sockets:
                one.close()


async def _listen(address: tuple[str, int]) -> list[socket.socket]:
    """Return a listening socket for each address of the host.  Raise ConfigurationError if it cannot be bound."""
    host, port = address
    sockets: list[socket.socket] = []
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, where in dict.fromkeys(found):
            one = socket.create_server(where, family=family, backlog=BACKLOG)
            sockets.append(one)
            one.setblocking(False)
    except OSError as error:
        for one in sockets:
            one.close()
        kind = PlaceTaken if error.errno == errno.EADDRINUSE else ConfigurationError
        raise kind([f"metrics_listen = {host}:{port}: {error.strerror or error}"]) from None
    return sockets


async def _send(request: web.Request, answer: web.StreamResponse) -> None:
    await answer.prepare(request)
    await answer.write_eof()


class _Compressed:
    """The newest text in gzip, made once for all that ask for it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._text = self._compressed = b""

    async def of(self, text: bytes) -> bytes:
        async with self._lock:
            if self._text is not text:
                self._text, self._compressed = text, await asyncio.to_thread(gzip.compress, text, 6)
            return self._compressed


@asynccontextmanager
async def serve_socket(listener: Listener, commands: Commands) -> AsyncIterator[Acceptor]:
    """Serve on a unix socket until the block ends."""

    async def flush(request: web.Request) -> JsonObject:
        given = await _given(request)
        return await commands.flush(request.match_info.get("name"), _seconds(given))

    async def drain(request: web.Request) -> JsonObject:
        drained = await commands.drain(_seconds(await _given(request)))
        hold_until_the_end(request.transport)
        return drained

    async def log_level(request: web.Request) -> JsonObject:
        given = await _given(request)
        level: Any = given.get("level")
        if level not in get_args(logs.Level):
            raise ValueError(f"level = {level!r}: allowed: {', '.join(get_args(logs.Level))}")
        return commands.log_level(level, _seconds(given, "seconds"))

    async def profile(request: web.Request) -> JsonObject:
        return await commands.profile(_seconds(await _given(request), "seconds"))

    async def bundle(_request: web.Request) -> JsonObject:
        return await commands.bundle()

    def plain(command: Callable[[], JsonObject]) -> _Handler:
        async def handler(_request: web.Request) -> JsonObject:
            return command()

        return handler

    def of_stream(command: Callable[[str], JsonObject]) -> _Handler:
        async def handler(request: web.Request) -> JsonObject:
            return command(request.match_info["name"])

        return handler

    async def reload(_request: web.Request) -> JsonObject:
        return await commands.reload()

    app = web.Application(middlewares=[_for_administrators])
    app.add_routes(
        [
            web.get("/status", _in_json(plain(commands.status))),
            web.get("/dump", _in_json(plain(commands.dump))),
            web.get("/bundle", _in_json(bundle)),
            web.get("/streams/{name}/shards", _in_json(of_stream(commands.shards))),
            web.post("/flush", _in_json(flush)),
            web.post("/streams/{name}/flush", _in_json(flush)),
            web.post("/streams/{name}/pause", _in_json(of_stream(commands.pause))),
            web.post("/streams/{name}/resume", _in_json(of_stream(commands.resume))),
            web.post("/drain", _in_json(drain)),
            web.post("/reload", _in_json(reload)),
            web.post("/loglevel", _in_json(log_level)),
            web.post("/profile", _in_json(profile)),
        ]
    )
    async with _running(app) as runner:
        http = runner.server
        assert http is not None
        acceptor = Acceptor(listener, http)
        await acceptor.start()
        try:
            yield acceptor
        finally:
            acceptor.close()


_Handler = Callable[[web.Request], Awaitable[JsonObject]]


def _in_json(handler: _Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Wrap a command so that it answers in JSON.

    If the request is wrong, the answer has the reason under ``error``.
    """

    async def respond(request: web.Request) -> web.Response:
        try:
            return web.json_response(await handler(request))
        except NoSuchStream as error:
            return web.json_response({"error": str(error)}, status=404)
        except ConfigurationError as error:
            return web.json_response({"error": "; ".join(error.problems), "problems": error.problems}, status=409)
        except Refused as error:
            return web.json_response({"error": str(error)}, status=409)
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)

    return respond


@web.middleware
async def _for_administrators(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    peer = peer_of(request.transport)
    if not may_administer(peer):
        log.warning("who may not administer tried to", uid=peer and peer.uid, pid=peer and peer.pid, path=request.path)
        refusal = {"error": f"uid {peer and peer.uid} may not: only the daemon's own user and root"}
        return web.json_response(refusal, status=403)
    if request.method == "POST":
        orders.info("order", path=request.path, uid=peer and peer.uid, pid=peer and peer.pid)
    return await handler(request)


async def _given(request: web.Request) -> dict[str, Any]:
    """Return the parameters in an order's body.  Raise ValueError if it is not a JSON object."""
    try:
        given = json.loads(await request.text() or "{}")
    except (ValueError, LookupError, RecursionError, HttpProcessingError):  # the charset may be unknown, too
        raise ValueError("the body is not JSON") from None
    if not isinstance(given, dict):
        raise ValueError("the body is not a JSON object")
    return given


def hold_until_the_end(transport: asyncio.BaseTransport | None) -> None:
    """Keep a connection open until the process ends: the kernel closes it then, and so the caller sees that end.

    A pidfd of the peer would not do, because the peer is systemd where that listens.
    """
    connected = transport and transport.get_extra_info("socket")
    if connected:
        with suppress(OSError):  # no descriptor is left: the caller sees the end of the connection
            os.dup(connected.fileno())


def _seconds(given: dict[str, Any], name: str = "timeout_seconds") -> float | None:
    seconds = given.get(name)
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= 86_400 * 365:
        raise ValueError(f"{name} = {seconds!r}: allowed: 0 to {86_400 * 365:,} seconds")
    return float(seconds)


@asynccontextmanager
async def _running(app: web.Application) -> AsyncIterator[web.AppRunner]:
    # Cancel a command whose caller has disconnected.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()
