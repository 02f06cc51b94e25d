"""The table of docs/build/licences.md: `licences.toml` has the licences, the lock files what brings each package."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from typing import Final

from tools import ROOT

LOCKS: Final = ("requirements.lock", "tests/spark-3.5.lock", "tests/spark-4.0.lock", "tests/fuzz/fuzz.lock")
BRINGERS: Final = ("daemon", "spark", "demo", "dev", "tests")


def table() -> str:
    """One line a package: its licence, and what it comes with."""
    licences = tomllib.loads((ROOT / "tests/licences.toml").read_text())
    by = bringers()
    if wrong := sorted(licences.keys() ^ by.keys()):
        raise ValueError(f"tests/licences.toml has one line for each package of the locks: {', '.join(wrong)}")
    names = sorted(licences, key=lambda name: (BRINGERS.index(by[name]), name))
    lines = [f"| `{name}` | {licences[name]} | {by[name]} |" for name in names]
    return "\n".join(["| package | licence | with |", "|---|---|---|", *lines])


def bringers() -> dict[str, str]:
    """What brings each package of the locks: the first extra that has it, or `dev` or `tests`."""
    wanted = locked(LOCKS[0])
    first = dict.fromkeys((name for lock in LOCKS for name in locked(lock)), "tests") | dict.fromkeys(wanted, "dev")
    for extra in ("demo", "spark", "daemon"):
        first |= dict.fromkeys(brought_by(extra, wanted), extra)
    return first


def locked(lock: str) -> dict[str, set[str]]:
    """Each package of a lock, and what asks for it."""
    wanted: dict[str, set[str]] = {}
    for name, comment in re.findall(
        r"^([\w.-]+)==.*\n(?:    --hash.*\n)*((?:    #.*\n?)*)", (ROOT / lock).read_text(), re.MULTILINE
    ):
        wanted.setdefault(name, set()).update(re.findall(r"#(?: via)? +([\w.-]+)", comment))
    return wanted


def brought_by(extra: str, wanted: dict[str, set[str]]) -> set[str]:
    """The packages of an extra, and what they ask for; but not what they ask for with an extra of their own."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        asked = tomllib.load(file)["project"]["optional-dependencies"][extra]
    names = {re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in asked} & wanted.keys()
    while more := {name for name, by in wanted.items() if any(asks(each, name) for each in by & names)} - names:
        names |= more
    return names


def asks(package: str, name: str) -> bool:
    """Whether a package asks for another one in any case, as far as is known here."""
    try:
        asked = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return True
    mentions = [each for each in asked if re.match(rf"{name.replace('-', '[-_.]')}(?![\w.-])", each, re.IGNORECASE)]
    return not mentions or any("extra ==" not in each for each in mentions)


def page() -> str:
    return (ROOT / "docs/build/licences.md").read_text()


def rows() -> dict[str, tuple[str, str]]:
    """What the table says of each package: its licence, and what it comes with."""
    found = re.findall(r"^\| `([\w.-]+)` \| (.+) \| (\w+) \|$", page(), re.MULTILINE)
    assert len(found) == len({name for name, _, _ in found})
    return {name: (licence, extra) for name, licence, extra in found}
