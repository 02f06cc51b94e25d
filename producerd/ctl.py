"""The command ``producerctl``: asks the daemon of this machine, over its admin socket, and prints what it says.

The standard library alone, so that it answers at once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from producerd import __version__

EXIT_FAILED: Final = 1
TIMEOUT_SECONDS: Final = 10.0
SHARDS_SHOWN: Final = 20
MIB: Final = 1 << 20


class Failed(Exception):
    """What to say before the exit with 1."""


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], Iterator[str]] = parsed.run
    try:
        for line in run(parsed):
            print(line)
    except Failed as failed:
        print(f"producerctl: {failed}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:  # of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="producerctl",
        description="What the producerd of this machine does, and why.",
        epilog="exit codes: 0 done; 1 no daemon answers, or it has no such stream; 2 wrong usage of the command line",
    )
    parser.add_argument("--version", action="version", version=f"producerctl {__version__}")
    parser.add_argument(
        "--admin-socket",
        metavar="PATH",
        default=os.environ.get("PRODUCERD_ADMIN_SOCKET"),
        help="the daemon's admin_socket; else the one that PRODUCERD_ADMIN_SOCKET names, else the default ones",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="as JSON, with everything that is known")
    status = commands.add_parser("status", parents=[as_json], help="each stream: its queue, and what holds it")
    status.set_defaults(run=_status)
    shards = commands.add_parser("shards", parents=[as_json], help="each shard of a stream: what waits for it, and why")
    shards.add_argument("stream", metavar="STREAM")
    shards.set_defaults(run=_shards)
    return parser


# ---- the commands


def _status(parsed: argparse.Namespace) -> Iterator[str]:
    status = _ask(parsed.admin_socket, "/status")
    if parsed.json:
        yield json.dumps(status, indent=2)
        return
    yield f"producerd {status['version']}: {status['state']}, {_count(status['connections'], 'connection')}"
    streams = sorted(status["streams"], key=lambda stream: str(stream["stream"]))
    if not streams:
        yield "no client has opened a stream yet"
        return
    yield from _table(
        ("STREAM", "HEALTH", "RECORDS", "OF", "MIB", "OF", "BLOCKED", "IN FLIGHT", "SHARDS"),
        [
            (
                stream["stream"],
                stream["health"],
                f"{stream['queue_records']:,}",
                f"{stream['queue_limit_records']:,}",
                f"{stream['queue_bytes'] / MIB:.1f}",
                f"{stream['queue_limit_bytes'] / MIB:.1f}",
                f"{stream['blocked_callers']:,}",
                f"{stream['requests_in_flight']:,}",
                f"{stream['shards_open']:,}",
            )
            for stream in streams
        ],
    )
    for stream in streams:
        if stream["reason"]:
            yield f"{stream['stream']}: {stream['reason']}"
        if stream["last_error"]:
            yield f"{stream['stream']}: last error: {stream['last_error']}"


def _shards(parsed: argparse.Namespace) -> Iterator[str]:
    told = _ask(parsed.admin_socket, f"/streams/{quote(parsed.stream, safe='')}/shards")
    if parsed.json:
        yield json.dumps(told, indent=2)
        return
    shards = told["shards"]
    if not shards:
        yield f"{parsed.stream}: its shards are not known"
        return
    busy = [shard for shard in shards if shard["waiting_records"] or shard["in_flight"] or shard["use"] >= 0.005]
    busy.sort(key=lambda shard: (shard["waiting_bytes"], shard["use"]), reverse=True)
    if busy:
        yield from _table(
            ("SHARD", "WAITING", "MIB", "SHARE", "IN FLIGHT", "RECORDS/S", "MIB/S", "USE", "WAITS FOR"),
            [_shard_row(shard) for shard in busy[:SHARDS_SHOWN]],
        )
    if len(busy) > SHARDS_SHOWN:
        yield f"{_count(len(busy) - SHARDS_SHOWN, 'shard')} with less: --json has them all"
    if len(busy) < len(shards):
        yield f"{_count(len(shards) - len(busy), 'shard')} with nothing to send"


def _shard_row(shard: Mapping[str, Any]) -> tuple[str, ...]:
    waits = shard["waits_for"] or "-"
    return (
        shard["shard_id"],
        f"{shard['waiting_records']:,}",
        f"{shard['waiting_bytes'] / MIB:.1f}",
        f"{shard['share']:.0%}",
        f"{shard['in_flight']:,}",
        f"{shard['rate_records']:,.0f}",
        f"{shard['rate_bytes'] / MIB:.2f}",
        f"{shard['use']:.0%}",
        f"{waits}, throttled" if shard["backs_off"] else waits,
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as they must be; numbers stand right."""
    columns = range(len(head))
    widths = [max(len(row[place]) for row in (head, *rows)) for place in columns]
    numbers = [rows[0][place][0].isdigit() for place in columns]
    for row in (head, *rows):
        cells = [(row[i].rjust if numbers[i] else row[i].ljust)(widths[i]) for i in columns]
        yield "  ".join(cells).rstrip()


# ---- the daemon


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _ask(given: str | None, target: str) -> Any:
    paths = [given] if given else _default_paths()
    problems = []
    for path in paths:
        connection = _UnixConnection(path)
        try:
            connection.request("GET", target)
            answer = connection.getresponse()
            body = json.loads(answer.read())
        except PermissionError:
            problems.append(f"{path}: it answers to the daemon's own user alone: try sudo")
            continue
        except (OSError, http.client.HTTPException, ValueError) as error:
            problems.append(f"{path}: {getattr(error, 'strerror', None) or error}")
            continue
        finally:
            connection.close()
        if answer.status != 200:
            raise Failed(body.get("error", f"status {answer.status}"))
        return body
    raise Failed("no daemon answers: " + "; ".join(problems) + "; --admin-socket names another place")


def _default_paths() -> list[str]:
    """Where the daemon's admin socket is if neither it nor `socket` is set."""
    user = os.environ.get("XDG_RUNTIME_DIR")
    return [f"{folder}/producerd/producerd.admin.sock" for folder in ("/run", user) if folder]


if __name__ == "__main__":
    sys.exit(main())
