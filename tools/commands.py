"""The commands of ``./dev``.  Each first sets up `.venv`, except `lock`, which needs none.

With ``--python VERSION`` a command runs by that Python, in the environment `.venv-python-VERSION`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import sys
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from tools import ROOT
from tools.environments import OWN, set_up, set_up_fuzzing, start_again, variables, write_locks
from tools.packaging import command as build
from tools.processes import handle_signals
from tools.testing import check, test


class Command(NamedTuple):
    summary: str
    run: Callable[[list[str]], int]


def become(module: str, arguments: list[str], env: dict[str, str] | None = None) -> NoReturn:
    """Go on as a module of this tree, which receives the signals itself."""
    os.execve(OWN.python, [str(OWN.python), "-m", module, *arguments], dict(os.environ) if env is None else env)


COMMANDS = {
    "demo": Command(
        "real flights through Spark and producerd into an embedded Kinesis, compared [the demo's options]",
        lambda arguments: become("producerd.cli", ["demo", *arguments], variables()),
    ),
    "test": Command(
        "the tests; --all: the slow ones too; --system: those with Debian's systemd, Prometheus,\n"
        "    chromium and qemu, which root has installed; --spark 3.5: only the Spark side's, on that Spark"
        " [pytest's options]",
        test,
    ),
    "check": Command(
        "formatting, lint, types, the import arrows, the texts, what is generated, Python 3.9 for the client's side",
        lambda _: check(),
    ),
    "docs": Command(
        "the site of the documentation, strictly; --serve: shows it; --write: what is generated;\n    --words: counts",
        lambda arguments: become("tools.docs", arguments),
    ),
    "build": Command(
        "the wheels and the zip for Spark's --py-files, to dist/; --pex: pexes of the daemon, too"
        " [--pex [TAG ...], --sbom]",
        build,
    ),
    "bench": Command(
        "a measurement; --json: one array of objects on stdout [NAME and its options]",
        lambda arguments: become(f"benchmarks.{arguments[0]}", arguments[1:]),
    ),
    "simulate": Command(
        "one stream in virtual time under random callers and faults [--seeds N, --from S, --json]",
        lambda arguments: become("tests.simulation", arguments),
    ),
    "faults": Command(
        "a real daemon under faults of every kind, judged by one oracle [NAME ..., --seed S, --seeds N, --json]",
        lambda arguments: become("tests.faults", arguments, variables()),
    ),
    "soak": Command(
        "one thing again and again for minutes or hours, judged by what grows [NAME ..., --hours H, --json]",
        lambda arguments: become("tests.soak", arguments, variables()),
    ),
    "fuzz": Command(
        "six parsers under inputs that coverage guides, then a real daemon [NAME ..., --inputs N, --seed S, --json]",
        lambda arguments: become("tests.fuzz", arguments, {**os.environ, "PYTHONPATH": str(set_up_fuzzing())}),
    ),
    "cluster": Command(
        "the chart in a real Kubernetes of two nodes on this machine [up, smoke, faults NAME ..., down, --json]",
        lambda arguments: become("tests.cluster", arguments),
    ),
    "aws-smoke": Command(
        "the same oracle against AWS itself, which charges for it: it asks before it starts [--region R, --yes]",
        lambda arguments: become("tests.faults.aws_smoke", arguments, variables()),
    ),
    "mutate": Command(
        "whether the tests notice small faults in the code [MODULE ..., --seed S, --count N, --json]",
        lambda arguments: become("tools.mutation.command", arguments, variables()),
    ),
    "lock": Command(
        "the lock files from pyproject.toml; --upgrade: with the newest versions [uv's options]", write_locks
    ),
}


def measurements() -> dict[str, str]:
    """Return what each benchmark is for: its docstring begins with it and with its command."""
    files = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("benchmarks/*/__init__.py")]
    lines = [(ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0] for file in files]
    found = [re.fullmatch(r"(.+): ``\./dev bench (\w+)``\.", line) for line in lines]
    return dict(sorted((match[2], match[1]) for match in found if match))


def usage(line: str, known: dict[str, str], asked: str) -> int:
    """Print the usage: to stdout if the caller asked for it."""
    helped = asked in ("-h", "--help", "help")
    width = max(map(len, known)) + 1
    lines = [line, *(f"  {name:{width}}{what}" for name, what in known.items())]
    print(*lines, sep="\n", file=sys.stdout if helped else sys.stderr)
    return 0 if helped else 2


def main(arguments: list[str]) -> int:
    name, first = [*arguments, "", ""][:2]
    if name not in COMMANDS:
        return usage(
            "usage: ./dev COMMAND [--python VERSION]",
            {name: command.summary for name, command in COMMANDS.items()},
            name,
        )
    if name == "bench" and first not in (known := measurements()):
        return usage("usage: ./dev bench NAME [--json] [--help]", known, first)
    parser = argparse.ArgumentParser(f"./dev {name}", add_help=False, allow_abbrev=False)
    parser.add_argument("--python", metavar="VERSION")
    python, others = parser.parse_known_args(arguments)
    if python.python and name != "lock":
        start_again(others, python.python)
    handle_signals()
    os.chdir(ROOT)
    # Some images set this.  Without byte code each process of the tests compiles all that it imports, for 15 s.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if name != "lock":
        with contextlib.redirect_stdout(sys.stderr if "--json" in arguments else sys.stdout):
            set_up()
    return COMMANDS[name].run(arguments[1:])
