"""./dev simulate [--seeds N] [--from S] [--json]: stories of one stream, until one breaks a law.

./dev simulate --machines [--examples N]: random callers of the gate and random rows for the lanes, until a rule breaks.
The tests run the same machines for some seconds.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from producerd.testing.faults import THROTTLED
from tests.simulation import at_the_end, laws, story
from tests.simulation.gate_machine import GateMachine
from tests.simulation.lane_machine import LaneMachine
from tests.simulation.laws import OWN_CHECKS, LawBroken
from tests.simulation.story import Story, how_to_see
from tests.simulation.world import Simulation

MACHINES: Final[dict[str, type[RuleBasedStateMachine]]] = {"gate": GateMachine, "lanes": LaneMachine}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a law was broken, or the code failed."""
    options = _parser().parse_args(arguments)
    return run_machines(options.examples) if options.machines else tell_stories(options)


def run_machines(examples: int) -> int:
    """Run each machine with this many examples, which differ from run to run."""
    long = settings(
        max_examples=examples,
        stateful_step_count=50,
        derandomize=False,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    for name, machine in MACHINES.items():
        began = time.monotonic()
        try:
            run_state_machine_as_test(machine, settings=long)
        except Exception:  # of any type: the report is the example
            traceback.print_exc()
            print(f"the machine of the {name} broke a rule, see above", file=sys.stderr)
            return 1
        print(f"{name}: {examples} examples in {time.monotonic() - began:.1f} s, and every rule held")
    return 0


def tell_stories(options: argparse.Namespace) -> int:
    met: Counter[str] = Counter()
    result: dict[str, Any] = {"name": "simulate", "first_seed": options.first, "stories": 0, "laws": laws_looked_at()}
    began = told_at = time.monotonic()
    for seed in range(options.first, options.first + options.seeds):
        result["stories"] += 1
        try:
            one = Story(seed)
            one.tell()
        except Exception as error:  # of any type: the report is the seed
            law = error.law if isinstance(error, LawBroken) else f"no {type(error).__name__}"
            result |= {"failed_seed": seed, "law": law, "message": str(error)}
            print(f"broken law: {law}\n{error}\n{how_to_see(seed)}", file=sys.stderr)
            if options.seeds == 1:
                raise
            break
        met.update(met_in(one.sim))
        if time.monotonic() > told_at + 5:
            told_at = time.monotonic()
            pace = result["stories"] / (told_at - began)
            print(f"  {result['stories']} of {options.seeds} stories, {pace:.1f} a second", file=sys.stderr, flush=True)
    result |= {"met": met, "seconds": round(time.monotonic() - began, 3)}
    if options.json:
        print(json.dumps([result]))
    elif "law" not in result:
        print(f"{result['stories']} stories in {result['seconds']:.1f} s, and every law held")
        print(f"laws looked at: {', '.join(result['laws'])}")
        print(f"met: {', '.join(f'{what} {count:,}' for what, count in met.items())}")
    return int("law" in result)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev simulate",
        description="stories of one stream, in virtual time",
        epilog="One seed alone, with its traceback: ./dev simulate --seeds 1 --from SEED",
        allow_abbrev=False,  # --seed 5 would be taken as --seeds 5
    )
    parser.add_argument("--seeds", type=_from(1), default=200, metavar="N", help="how many stories (default: 200)")
    parser.add_argument(
        "--from", type=_from(0), default=0, dest="first", metavar="S", help="the first seed (default: 0)"
    )
    parser.add_argument("--machines", action="store_true", help="random use of the gate and the lanes, and no stories")
    parser.add_argument(
        "--examples", type=_from(1), default=2_000, metavar="N", help="how many for each machine (default: 2000)"
    )
    parser.add_argument("--json", action="store_true", help="one array of objects on stdout")
    return parser


def _from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return number


def laws_looked_at() -> list[str]:
    """Every law that a story may break, by the names with which `LawBroken` is raised."""
    sources = "".join(map(inspect.getsource, (laws, at_the_end, story)))
    return sorted({*re.findall(r'LawBroken\(\s*"(\w+)"', sources), *OWN_CHECKS.values()})


def met_in(sim: Simulation) -> dict[str, int]:
    """What a story had to cope with.  Each "no answer" is a request, each "throttled" an entry of one."""
    replies, results = sim.kinesis.replies, sim.kinesis.results
    silent = {"requests reset": replies["reset"], "replies lost": replies["lost"], "no answer": replies["hang"]}
    throttled = results[THROTTLED]
    return {
        "steps": sim.laws.steps,
        "requests that failed": replies.total() - replies["ok"] - sum(silent.values()),
        **silent,
        "entries throttled": throttled,
        "entries that failed": results.total() - results["stored"] - throttled,
        "shards closed": sum(shard.closed_at < math.inf for shard in sim.stream.shards),
        "aggregates dropped by the consumer": sim.consumer.dropped_aggregates,
    }


if __name__ == "__main__":
    sys.exit(main())
