"""``./dev fuzz [NAME ...] [--inputs N] [--seed S] [--planted] [--json]``"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.interrupts import interrupts
from benchmarks.table import answer, say
from producerd.demo.children import Child, ChildFailed, Children
from tests.daemon import ROOT

TARGETS: Final = {
    "wire": "the socket's protocol, on the daemon's side and on the client's",
    "aggregate": "payloads that may be aggregates, and what the packer makes",
    "answer": "HTTP of the service, in random cuts",
    "cbor": "the bodies of its answers to PutRecords, in CBOR and in JSON",
    "config": "files, --set and variables with settings",
    "http": "requests to the address of the metrics",
}
SERVED: Final = "wire", "answer", "cbor", "http"
"""Targets whose inputs also go to a real daemon, or are answered to it, while honest clients put records."""
CORPUS: Final = Path(__file__).parent / "corpus"
CRASHES: Final = ROOT / "build" / "fuzz"
MOST_BYTES: Final = 1_024
PLANTED_INPUTS: Final = 100_000
"""Inputs within which a planted fault must be found."""
SILENT_SECONDS: Final = 600.0
"""The longest time without a line of libFuzzer, which prints one at each power of two."""
HUNG_SECONDS: Final = 20
TAIL_LINES: Final = 30
_STATUS: Final = re.compile(r"#(\d+)\s+(\w+)\s+cov: (\d+) .*exec/s: (\d+)")
_EXECUTED: Final = re.compile(r"stat::(number_of_executed_units|average_exec_per_sec): +(\d+)")


@dataclass(slots=True)
class FuzzFigures:
    """What became of one target.  ``edges``: how many of its parser's branches the inputs reached.

    ``sent`` counts the inputs that a real daemon met, and ``honest`` the records that its honest clients had
    acknowledged meanwhile, each of which was read back.
    """

    target: str
    inputs: int = 0
    edges: int = 0
    crashes: int = 0
    inputs_per_second: int = 0
    sent: int | None = None
    honest: int | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where an input broke a promise, or a planted fault was not found."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.target if name not in TARGETS]:
        near = " or ".join(difflib.get_close_matches(unknown[0], TARGETS, 3))
        parser.error(f"no target {unknown[0]!r}; {f'did you mean {near}?' if near else '--help lists them'}")
    rows: list[FuzzFigures] = []
    failed: list[str] = []
    with (
        interrupts(),
        tempfile.TemporaryDirectory(prefix="fuzz-") as logs,
        Children(Path(logs), {**os.environ, "TMPDIR": logs}) as children,
    ):
        try:
            for name in dict.fromkeys(options.target or TARGETS):
                figures, folder = FuzzFigures(name), Path(logs, "found", name)
                folder.mkdir(parents=True)
                rows.append(figures)
                inputs = PLANTED_INPUTS if options.planted else options.inputs
                fuzz(children, figures, folder, inputs, options.seed, planted=options.planted)
                if bool(figures.crashes) is not options.planted:
                    failed.append(name)
                elif name in SERVED and not options.planted and not serve(children, figures, folder, options.seed):
                    failed.append(f"{name} with a daemon")
        finally:
            print(answer(FuzzFigures, rows, as_json=options.json), flush=True)
    say(f"{len(rows)} targets: {', '.join(failed) or 'none'} FAILED")
    return int(bool(failed))


def fuzz(
    children: Children, figures: FuzzFigures, folder: Path, inputs: int, seed: int, *, planted: bool = False
) -> None:
    """Fuzz one target, and fill in its figures.  An input that breaks a promise ends it, and is kept."""
    name = figures.target
    say(f"{name}: {TARGETS[name]}: {inputs:,} inputs{', with a planted fault' * planted} ...")
    kept = folder if planted else CRASHES / name
    kept.mkdir(parents=True, exist_ok=True)
    limits = [f"-runs={inputs}", f"-seed={seed}", f"-max_len={MOST_BYTES}", f"-timeout={HUNG_SECONDS}"]
    told = [*limits, f"-artifact_prefix={kept}/", "-print_final_stats=1", str(folder), str(CORPUS / name)]
    child = children.start(name, ["-m", "tests.fuzz.one", name, *["--planted"] * planted, *told])
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    for line in _lines(child):
        if found := _STATUS.match(line):
            figures.inputs, figures.edges, figures.inputs_per_second = (int(found[group]) for group in (1, 3, 4))
            if found[2] == "pulse":
                say(f"{name}: {figures.inputs:,} inputs, {figures.edges:,} edges")
        elif found := _EXECUTED.match(line):
            if found[1] == "number_of_executed_units":
                figures.inputs = int(found[2])
            else:
                figures.inputs_per_second = int(found[2])
        else:
            tail.append(line)
    figures.crashes = int(child.ended(SILENT_SECONDS) != 0)
    if figures.crashes:
        say("\n".join(f"{name}: {line}" for line in tail))
    verdict = "found a fault" if figures.crashes else "ok"
    say(f"{name}: {verdict}: {figures.inputs:,} inputs, {figures.edges:,} edges")


def _lines(child: Child) -> Iterator[str]:
    try:
        while True:
            yield child.line(SILENT_SECONDS)
    except ChildFailed:
        return


def serve(children: Children, figures: FuzzFigures, folder: Path, seed: int) -> bool:
    """Send what was found to a real daemon.  Return whether it kept its promises."""
    name = figures.target
    say(f"{name}: to a real daemon, while honest clients put records ...")
    try:
        child = children.start(f"{name} served", ["-m", "tests.fuzz.served", name, str(folder), str(seed)])
        told = json.loads(child.line(SILENT_SECONDS))
    except ChildFailed as error:
        say(f"{name}: FAILED: {error}\n{error.tail}")
        return False
    figures.sent, figures.honest = told["sent"], told["honest"]
    ends = f"all {told['honest']:,} acknowledged records are readable, {told['refused']:,} got an error"
    say(f"{name}: ok: the daemon met {told['sent']:,} inputs; {ends}")
    return True


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, TARGETS))
    parser = argparse.ArgumentParser(
        prog="./dev fuzz",
        description="Fuzz parsers by coverage, then send what was found to a real daemon that honest clients use.",
        epilog="targets:\n" + "\n".join(f"  {name:{width}}  {what}" for name, what in TARGETS.items()) + "\n\n"
        f"An input that breaks a promise ends its target and is kept in {CRASHES.relative_to(ROOT)}/NAME.\n\n"
        "exit code: 0: all is well; 1: a promise was broken, or a planted fault was not found; 2: a wrong option; "
        "69: atheris does not run here; 130: interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", nargs="*", metavar="NAME", help="default: all of them, one after the other")
    parser.add_argument(
        "--inputs", type=_count, default=200_000, metavar="N", help="for each target (default: 200,000)"
    )
    parser.add_argument("--seed", type=_count, default=1, metavar="S", help="of the random choices (default: 1)")
    parser.add_argument(
        "--planted", action="store_true", help=f"find a fault planted in each parser, within {PLANTED_INPUTS:,} inputs"
    )
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {2**31 - 1:,}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
