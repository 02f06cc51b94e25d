"""``./dev docs``: builds the site, or does what its option says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

from tools.docs import generated, promises, site, words

OPTIONS: Final[dict[str, tuple[str, Callable[[], int]]]] = {
    "serve": ("show the site, and build it again when a page changes", site.serve),
    "write": ("write the tables and files that are generated", generated.write),
    "words": ("count the words that people wrote, page by page", words.show),
    "check": ("fail if something generated is stale, a page too long, or a promise without a test", lambda: check()),
}


def check() -> int:
    """Run every check, also after one has failed."""
    return max([generated.find_stale(), words.check(), promises.check()])


def main() -> int:
    parser = argparse.ArgumentParser("./dev docs", description="Build the site of the documentation, strictly.")
    options = parser.add_mutually_exclusive_group()
    for name, (purpose, command) in OPTIONS.items():
        options.add_argument(f"--{name}", dest="command", action="store_const", const=command, help=purpose)
    command = parser.parse_args().command or site.build
    try:
        return int(command())
    except KeyboardInterrupt:
        return 130
    except FileNotFoundError as error:
        print(f"./dev docs: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
