"""./dev simulate [--seeds N] [--from S] [--json]: stories of one stream, until one breaks a law."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from tests.simulation.laws import LawBroken
from tests.simulation.story import Story, how_to_see


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a law was broken, or the code failed."""
    parser = argparse.ArgumentParser(prog="./dev simulate", description="stories of one stream, in virtual time")
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many stories (default: 200)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="S", help="the first seed (default: 0)")
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {"name": "simulate", "first_seed": options.first, "stories": 0}
    began = told_at = time.monotonic()
    for seed in range(options.first, options.first + options.seeds):
        result["stories"] += 1
        try:
            Story(seed).tell()
        except Exception as error:  # whatever it is: the seed is what is to be told
            law = error.law if isinstance(error, LawBroken) else f"no {type(error).__name__}"
            result |= {"failed_seed": seed, "law": law, "message": str(error)}
            print(f"broken law: {law}\n{error}\n{how_to_see(seed)}", file=sys.stderr)
            if options.seeds == 1:
                raise
            break
        if time.monotonic() > told_at + 5:
            told_at = time.monotonic()
            pace = result["stories"] / (told_at - began)
            print(f"  {result['stories']} of {options.seeds} stories, {pace:.1f} a second", file=sys.stderr, flush=True)
    result["seconds"] = round(time.monotonic() - began, 3)
    if options.json:
        print(json.dumps([result]))
    elif "law" not in result:
        print(f"{result['stories']} stories in {result['seconds']:.1f} s, and every law held")
    return int("law" in result)


if __name__ == "__main__":
    sys.exit(main())
