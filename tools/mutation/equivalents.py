"""Finds the faults that ``tools/equivalents.toml`` names in modules whose functions and variables have other names.

The file quotes statements.  Their *shapes* are compared, in which the order of its first appearance stands for each
identifier, so that an entry survives a rename.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from tools.mutation.faults import Fault, sites

ENDS = ("", ":\n    pass", ":\n    pass\nfinally:\n    pass")
"""What may follow a statement's first line: a simple statement's, a compound statement's, and the end of `try`."""


@dataclass
class Found:
    """What became of the entries."""

    reasons: dict[Fault, str] = field(default_factory=dict)  # by the fault that can be planted
    renamed: dict[str, str] = field(default_factory=dict)  # the new name of each class or function that has gone
    stale: list[Fault] = field(default_factory=list)


def find(entries: Mapping[Fault, str], planted: Iterable[Fault], texts: Mapping[str, str]) -> Found:
    """Return which of the faults ``planted`` the entries mean.  ``texts`` are the modules of all these faults."""
    found = Found()
    known_of, planted_of = defaultdict(list), defaultdict(list)
    for entry in entries:
        known_of[entry.module].append(entry)
    for fault in planted:
        planted_of[fault.module].append(fault)
    for module, text in texts.items():
        if not known_of[module]:
            continue
        functions = {site.function for site in sites(ast.parse(text))}
        gone = [entry for entry in known_of[module] if entry.function not in functions]
        names = _new_names(known_of[module], planted_of[module], functions) if gone else {}
        found.renamed |= {f"{module} {old}": new for old, new in names.items()}
        wanted, there = defaultdict(list), defaultdict(list)
        for entry in known_of[module]:
            wanted[_renamed(entry.function, names), *_likeness(entry)].append(entry)
        with_entries = {(function, what) for function, _, what in wanted}
        for fault in planted_of[module]:
            if (fault.function, fault.fault) in with_entries:
                there[fault.function, *_likeness(fault)].append(fault)
        for alike, its_entries in wanted.items():
            pairs = dict(_pairs(its_entries, list(dict.fromkeys(there[alike]))))
            found.reasons |= {fault: entries[entry] for fault, entry in pairs.items()}
            found.stale += [entry for entry in its_entries if entry not in pairs.values()]
    return found


@cache
def shape(statement: str) -> str:
    """Return the statement with numbers for its identifiers, or itself if it cannot be parsed."""
    tree = next(filter(None, (_parsed(statement + end) for end in ENDS)), None)
    if tree is None:
        return statement
    numbers: dict[str, str] = {}

    def number(value: object) -> object:
        return numbers.setdefault(value, f"name {len(numbers)}") if isinstance(value, str) else value

    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant):
            for name, value in ast.iter_fields(node):
                setattr(node, name, [number(each) for each in value] if isinstance(value, list) else number(value))
    return ast.dump(tree)


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def _likeness(fault: Fault) -> tuple[str, str]:
    return shape(fault.statement), fault.fault


def _pairs(entries: list[Fault], planted: list[Fault]) -> Iterator[tuple[Fault, Fault]]:
    """Yield which planted fault is which entry's, of those with one shape in one function.

    Those with the entry's own words come first.  If more are left than entries, which of them has a new
    name stays unknown.
    """
    words = {entry.statement: entry for entry in entries}
    same = {fault: words[fault.statement] for fault in planted if fault.statement in words}
    yield from same.items()
    other_entries = [entry for entry in entries if entry not in same.values()]
    other_planted = [fault for fault in planted if fault not in same]
    if len(other_planted) <= len(other_entries):
        yield from zip(other_planted, other_entries, strict=False)


def _new_names(entries: list[Fault], planted: list[Fault], functions: set[str]) -> dict[str, str]:
    """Return the new names of the classes and functions that have entries and have gone.

    A new name belongs to the only class or function at the same place that has the faults of all these entries, and no
    entries of its own.
    """
    wanted, there = _by_scope(entries), _by_scope(planted)
    new: dict[str, str] = {}
    for old, faults in wanted.items():
        around = old.rpartition(".")[0]
        if old not in functions and (around in functions or not around):
            candidates = [
                scope
                for scope, others in there.items()
                if scope.rpartition(".")[0] == around and scope not in wanted and faults <= others
            ]
            if len(candidates) == 1:
                new[old] = candidates[0]
    return new


def _by_scope(faults: list[Fault]) -> dict[str, set[tuple[str, str, str]]]:
    """Return what is known of the faults inside each class and function, its own name left out."""
    found = defaultdict(set)
    for fault in faults:
        names = fault.function.split(".")
        for depth in range(1, len(names) + 1):
            found[".".join(names[:depth])].add((".".join(names[depth:]), *_likeness(fault)))
    found.pop("", None)  # of the module itself
    return found


def _renamed(function: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if f"{function}.".startswith(f"{old}."):
            return new + function.removeprefix(old)
    return function
