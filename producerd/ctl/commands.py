"""The commands of ``producerctl`` and the parser of its command line."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from producerd import __version__
from producerd.ctl import tables
from producerd.ctl.address import client_path, client_path_beside
from producerd.ctl.bundle import bundle
from producerd.ctl.daemon import AdminClient, Failed, path_of
from producerd.ctl.live import top
from producerd.ctl.profiling import profile
from producerd.ctl.tables import count
from producerd.printing import complete, escape_unprintable

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
EXIT_CODES: Final = "exit codes: 0 done; 1 no daemon answers, or it could not do it; 2 wrong usage; 130 interrupted"
LEVELS: Final = ("debug", "info", "warning", "error")
FLUSH_SECONDS: Final = 60.0
BYTES_AT_ONCE: Final = 256 * 1024
"""Number of bytes after which `put` sends the lines that it has read, so that its memory does not grow with them."""
UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
MOST_SECONDS: Final = 365 * 86_400
"""The longest time that the daemon takes, too."""

Lines = Iterator[str]


def main(arguments: Sequence[str] | None = None) -> int:
    escape_unprintable()
    parser = build_parser()
    complete(parser)
    parsed = parser.parse_args(arguments)
    run: Callable[[AdminClient, argparse.Namespace], Lines] = parsed.run
    try:
        for line in run(AdminClient(parsed.admin_socket), parsed):
            print(line, flush=True)
    except Failed as failed:
        print(f"producerctl: {failed}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:  # of the standard output, which Python would flush again at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # as with `| head`
            print(f"producerctl: {error.strerror or error}", file=sys.stderr)
            return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="producerctl",
        description="Show what the daemon of this machine does and why, and control it.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"producerctl {__version__}")
    where = "the daemon's admin_socket (default: as PRODUCERD_* and the file of PRODUCERD_CONFIG place it)"
    parser.add_argument("--admin-socket", metavar="PATH", help=where)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(
        name: str, run: Callable[[AdminClient, argparse.Namespace], Lines], words: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
        added.add_argument("--admin-socket", metavar="PATH", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        added.set_defaults(run=run)
        return added

    def of_stream(added: argparse.ArgumentParser, **options: Any) -> None:
        stream = added.add_argument(
            "stream", type=_name, metavar="STREAM", help="its name, as clients use it", **options
        )
        # An attribute that argcomplete looks for, and that argparse does not declare.
        stream.completer = _streams  # type: ignore[attr-defined]

    def as_json(added: argparse.ArgumentParser) -> None:
        added.add_argument("--json", action="store_true", help="print JSON, with everything that the daemon knows")

    as_json(command("status", _status, "show each stream: its queue, and why records wait in it"))
    command("ready", _ready, "tell whether the daemon serves clients, for a probe: exit code 0 or 1")
    live = command("top", top, "show each stream again and again, with rates")
    live.add_argument("--every", type=_seconds, default=2.0, metavar="TIME", help="time between two (default: 2s)")
    live.add_argument("--count", type=_times, metavar="N", help="end after N times")
    shards = command("shards", _shards, "show each shard of a stream: what waits for it, and why")
    of_stream(shards)
    as_json(shards)
    flush = command("flush", _flush, "deliver all records accepted until now, and show how they ended")
    of_stream(flush, nargs="?")
    flush.add_argument(
        "--timeout",
        type=_seconds,
        default=FLUSH_SECONDS,
        metavar="TIME",
        help=f"wait at most this long (default: {FLUSH_SECONDS:.0f}s)",
    )
    drain = command("drain", _drain, "stop the daemon after it has delivered its queues; it accepts nothing more")
    drain.add_argument(
        "--timeout", type=_seconds, metavar="TIME", help="deliver for at most this long (drain_timeout_seconds)"
    )
    drain.add_argument("--wait", action="store_true", help="return when the daemon has ended, not when it is drained")
    command("reload", _reload, "let the daemon read its settings again")
    of_stream(
        command("pause", _pause, "send no records of a stream until `resume`; callers wait when its queue is full")
    )
    of_stream(command("resume", _resume, "send the records of a stream again"))
    loglevel = command("loglevel", _loglevel, "log more or fewer messages")
    loglevel.add_argument("level", choices=LEVELS)
    loglevel.add_argument(
        "--for", dest="seconds", type=_seconds, metavar="TIME", help="return to the former level after this time (10m)"
    )
    put = command("put", _put, "put each line of the standard input into a stream, as a record")
    of_stream(put)
    put.add_argument("--key", metavar="KEY", help="partition key of all records (default: spread over all shards)")
    put.add_argument(
        "--socket", metavar="PATH", help="the daemon's socket for clients (default: as for --admin-socket)"
    )
    command(
        "dump", _dump, "print the daemon's whole state as JSON, for a report of a fault; it has no records or secrets"
    )
    bundled = command("bundle", bundle, "write one file for a report of a fault, without records or secrets")
    bundled.add_argument(
        "--output", metavar="FILE.tar.gz", help="its name (default: one with the time); -: the standard output"
    )
    profiled = command("profile", profile, "sample what the daemon works on, as stacks for a flame graph")
    profiled.add_argument("--seconds", type=_seconds, default=10.0, metavar="N", help="for how long (default: 10)")
    profiled.add_argument("--output", metavar="FILE", help="write the stacks there, not to the standard output")
    return parser


def _streams(*, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the streams of the daemon, which a shell offers."""
    return [stream["stream"] for stream in AdminClient(parsed_args.admin_socket).get("/status")["streams"]]


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("a stream's name is not empty")
    return text


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    seconds = math.inf if match is None else float(match[1]) * UNITS[match[2]]
    if seconds > MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: a time such as 90, 90s, 10m, 2h, 1d, at most 365d")
    return seconds


def _times(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: a whole number")
    return int(text)


# ---- questions


def _status(daemon: AdminClient, parsed: argparse.Namespace) -> Lines:
    reply = daemon.get("/status")
    yield from [json.dumps(reply, indent=2)] if parsed.json else tables.status(reply)


def _ready(daemon: AdminClient, _parsed: argparse.Namespace) -> Lines:
    if unready := tables.unready(daemon.get("/status")):
        raise Failed(f"not ready: {unready}")
    yield "ready"


def _shards(daemon: AdminClient, parsed: argparse.Namespace) -> Lines:
    reply = daemon.get(f"{path_of(parsed.stream)}/shards")
    yield from [json.dumps(reply, indent=2)] if parsed.json else tables.shards(reply)


def _dump(daemon: AdminClient, _parsed: argparse.Namespace) -> Lines:
    yield json.dumps(daemon.get("/dump"), indent=1)


# ---- orders


def _flush(daemon: AdminClient, parsed: argparse.Namespace) -> Lines:
    target = "/flush" if parsed.stream is None else f"{path_of(parsed.stream)}/flush"
    given = {"timeout_seconds": parsed.timeout}
    reply = daemon.post(target, given, partial(_progress, daemon, "to be delivered"), seconds=parsed.timeout)
    if not reply["streams"]:
        yield "no client has opened a stream yet"
    for name, ended in sorted(reply["streams"].items()):
        words = [
            f"{number:,} {what.replace('_', ' ')}" for what, number in ended.items() if number and what != "records"
        ]
        yield f"{name}: {count(ended['records'], 'record')}" + (f": {', '.join(words)}" if words else "")
    left = sum(ended["open"] for ended in reply["streams"].values())
    if left:
        raise Failed(f"{count(left, 'record')} had not ended after {parsed.timeout:g} s; `producerctl status` says why")
    if any(ended[how] for ended in reply["streams"].values() for how in ("not_stored", "unknown", "returned")):
        raise Failed("not all of them are stored; their callers know it, unless they have left")


def _drain(daemon: AdminClient, parsed: argparse.Namespace) -> Lines:
    progress = partial(_progress, daemon, "left")
    given = {"timeout_seconds": parsed.timeout}
    most = daemon.get("/status").get("drain_timeout_seconds")  # a daemon of 0.1.0 does not send it
    if most is not None:  # for what is in flight, once the queues are delivered
        most += most if parsed.timeout is None else parsed.timeout
    reply = daemon.post("/drain", given, progress, seconds=most, until_end=parsed.wait)
    returned, undelivered = reply["returned_records"], reply["undelivered_records"]
    if undelivered:
        raise Failed(
            f"the daemon stops with {count(undelivered, 'record')} undelivered that have no caller: they are lost"
        )
    back = f"; {count(returned, 'record')} went back to their callers, who keep them" if returned else ", all delivered"
    yield f"the daemon {'has stopped' if parsed.wait else 'stops'}{back}"


def _reload(daemon: AdminClient, _parsed: argparse.Namespace) -> Lines:
    reply = daemon.post("/reload")
    yield from (f"changed: {change}" for change in reply["changed"])
    yield from (f"needs a restart: {setting}" for setting in reply["needs_restart"])
    if not reply["changed"] and not reply["needs_restart"]:
        yield "nothing has changed"
    if reply.get("unready"):  # a daemon of 0.1.0 does not send it
        raise Failed(f"the settings were read, but {reply['unready']}")


def _pause(daemon: AdminClient, parsed: argparse.Namespace) -> Lines:
    daemon.post(f"{path_of(parsed.stream)}/pause")
    yield f"{parsed.stream}: nothing is sent until `producerctl resume {parsed.stream}`, or a restart"


def _resume(daemon: AdminClient, parsed: argparse.Namespace) -> Lines:
    daemon.post(f"{path_of(parsed.stream)}/resume")
    yield f"{parsed.stream}: sent again"


def _loglevel(daemon: AdminClient, parsed: argparse.Namespace) -> Lines:
    daemon.post("/loglevel", {"level": parsed.level, "seconds": parsed.seconds})
    until = "until it is set again, or a restart" if parsed.seconds is None else f"for {parsed.seconds:g} s"
    yield f"log level {parsed.level} {until}"


def _put(_daemon: AdminClient, parsed: argparse.Namespace) -> Lines:
    from producerd.errors import ProducerdError, RecordsFailed
    from spark_client import KinesisClient
    from spark_client.gathering import PutFuture, records_failed

    if sys.stdin is None:
        raise Failed("the standard input is closed")
    path = parsed.socket or (client_path_beside(parsed.admin_socket) if parsed.admin_socket else client_path())
    if parsed.admin_socket and not path:
        raise Failed(
            f"--admin-socket {parsed.admin_socket} does not tell its daemon's socket for clients: give --socket"
        )
    lines = sys.stdin.buffer
    if lines.isatty():
        print("one record a line; Ctrl-D ends", file=sys.stderr)
    records = 0
    puts: list[tuple[int, PutFuture]] = []  # what is not stored yet, or failed, and the lines before it
    try:
        with KinesisClient(parsed.stream, socket=path) as client:
            while chunk := lines.readlines(BYTES_AT_ONCE):
                puts = [put for put in puts if not put[1].done() or put[1].exception() is not None]
                puts.append((records, client.put_many([(line.rstrip(b"\n"), parsed.key) for line in chunk])))
                records += len(chunk)
    except RecordsFailed:
        pass  # the futures name the lines
    except (ProducerdError, TypeError, ValueError) as error:
        raise Failed(str(error)) from None
    failures = []
    for before, put in puts:
        why = put.exception()
        if isinstance(why, RecordsFailed):
            failures += [
                failure._replace(rows=tuple([before + 1 + row for row in failure.rows])) for failure in why.failures
            ]
        elif why is not None:
            raise Failed(str(why))
    if failures:
        failed = count(sum([failure.records for failure in failures]), "line")
        raise Failed(str(records_failed(f"{failed} of {records:,} not stored, by number", failures)))
    yield f"{parsed.stream}: {count(records, 'record')} stored"


def _progress(daemon: AdminClient, words: str) -> None:
    """Print how far a long command is, if the standard error is a terminal."""
    if sys.stderr.isatty():
        try:
            streams = daemon.get("/status")["streams"]
        except Failed:
            return  # the answer to the command itself will say more
        records = sum(stream["queue_records"] for stream in streams)
        print(f"\r{count(records, 'record')} {words}  ", end="", file=sys.stderr, flush=True)
