"""The options of ``producerd demo``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

from producerd.demo import ALL_ROWS, LEAST_ROWS, QUEUE_LIMIT, ROWS_UNAGGREGATED, DemoOptions, run

EXIT_USAGE: Final = 2


def add_options(demo: argparse.ArgumentParser) -> None:
    """Add the options and the function that runs the command to its parser."""
    demo.set_defaults(run=_run)
    demo.add_argument(
        "--records",
        type=_whole(LEAST_ROWS, ALL_ROWS),
        help=f"flights to send (default: all {ALL_ROWS:,}; without aggregation {ROWS_UNAGGREGATED:,})",
    )
    demo.add_argument("--shards", type=_whole(1, 64), default=4, help="shards of the stream (default: %(default)s)")
    demo.add_argument(
        "--queue-limit",
        type=_whole(1, 1_000_000),
        help="records that the daemon queues before callers wait "
        f"(default: {QUEUE_LIMIT:,}, or an eighth of --records if that is less)",
    )
    demo.add_argument(
        "--aggregation", choices=("kpl", "none"), default="kpl", help="how records are packed (default: %(default)s)"
    )
    demo.add_argument(
        "--endpoint-url",
        type=_url,
        metavar="URL",
        help="use this Kinesis, which may be AWS's own, with your credentials: the demo creates a stream of --shards "
        "there, paces it as a real one, and deletes it at the end (default: an embedded Kinesis)",
    )
    demo.add_argument(
        "--no-daemon",
        action="store_true",
        help="start no daemon; Spark's tasks start one (`daemon=` of the writer)",
    )
    # For the tests: change what was read back, to show that the comparison can fail.
    demo.add_argument("--break", dest="tamper", choices=("drop", "duplicate", "corrupt"), help=argparse.SUPPRESS)


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: a URL http(s)://HOST[:PORT]")
    return text


def _whole(low: int, high: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        digits = text.replace(",", "").replace("_", "")
        if not digits.isdecimal() or not low <= int(digits) <= high:
            raise argparse.ArgumentTypeError(f"{text!r}: allowed: {low:,} to {high:,}")
        return int(digits)

    return whole


def _run(parsed: argparse.Namespace) -> int:
    try:
        chosen = DemoOptions.chosen(
            parsed.records,
            parsed.shards,
            parsed.queue_limit,
            parsed.aggregation,
            parsed.endpoint_url,
            parsed.tamper,
            parsed.no_daemon,
        )
    except ValueError as error:
        print(f"producerd demo: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    return run(chosen)
