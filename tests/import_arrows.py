"""Nobody imports what docs/build/laws.md gives them no arrow to.

Run it to have every violation printed as ``file:line: reason`` (exit code 1 if there is one). It reads the source and
imports nothing, so it also sees imports inside functions. For each part of the tree, `RULES` says which of our own
modules it may know, which third parties, which of the standard library it must not, and what may be imported only
where it is used: inside a function, or for type checkers.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHIPPED = ("producerd", "spark_client", "pyspark_producerd")
OURS = (*SHIPPED, "tools")


@dataclass(frozen=True, slots=True)
class Rule:
    ours: tuple[str, ...]  # modules that may be imported, with everything below them
    others: frozenset[str] | None = frozenset()  # third parties; None: any
    never: frozenset[str] = frozenset()
    lazily: frozenset[str] = frozenset()  # not when the module is loaded


@dataclass(frozen=True, slots=True)
class Import:
    name: str  # `from a import b` is "a.b", whether b is a module or not
    line: int
    lazy: bool


CLOCK_AND_IO = frozenset({"asyncio", "selectors", "socket", "ssl", "time"})
SPARK = frozenset({"pandas", "pyarrow", "pyspark", "typing_extensions"})  # the last one for type checkers

# The first prefix that fits decides.
RULES: dict[str, Rule] = {
    "producerd/__init__.py": Rule(ours=()),
    "producerd/errors.py": Rule(ours=(), never=CLOCK_AND_IO),
    "producerd/printing.py": Rule(ours=(), others=frozenset({"argcomplete"})),
    "producerd/wire/": Rule(ours=("producerd.wire", "producerd.errors"), never=CLOCK_AND_IO),
    "producerd/core/": Rule(
        ours=("producerd.core", "producerd.wire.columns", "producerd.errors"),
        others=frozenset({"cbor2", "numpy", "orjson", "pyarrow", "pybase64"}),
        never=CLOCK_AND_IO,
    ),
    "producerd/config/file.py": Rule(ours=()),  # it waits for a pipe, up to a limit
    "producerd/config/": Rule(ours=("producerd.config", "producerd.errors"), others=None, never=CLOCK_AND_IO),
    "producerd/runtime/": Rule(
        ours=("producerd.runtime", "producerd.core", "producerd.wire", "producerd.config", "producerd.errors"),
        others=None,
    ),
    # The command line answers at once: it loads the daemon only to run it.
    "producerd/cli.py": Rule(ours=SHIPPED, others=None, lazily=frozenset({"producerd.runtime"})),
    "producerd/ctl/": Rule(ours=SHIPPED, others=None, lazily=frozenset({"producerd.runtime"})),
    "producerd/": Rule(ours=SHIPPED, others=None),
    # Its classes are subclasses of Spark's, so only processes with Spark import it.
    "spark_client/datasource.py": Rule(
        ours=("spark_client", "producerd.errors"), others=SPARK, lazily=frozenset({"pandas", "pyarrow"})
    ),
    # An executor has the standard library; pyarrow and pyspark are loaded by the calls that need them.
    "spark_client/": Rule(ours=("spark_client", "producerd.wire", "producerd.errors"), others=SPARK, lazily=SPARK),
    "pyspark_producerd.py": Rule(ours=("spark_client",), others=frozenset({"pyspark"})),
    # It has the tests loaded.
    "tools/mutation/loaded.py": Rule(ours=("tools",), others=frozenset({"pytest"})),
    # They need the project and its tests.
    "tools/docs/": Rule(ours=OURS, others=None),
    # The others run before anything is installed.
    "tools/": Rule(ours=("tools",)),
}

# Third parties that one module, or one package, hides from all others.
ONLY_IN = {
    "aiobotocore": "producerd/runtime/aws/",
    "botocore": "producerd/runtime/aws/",
    "prometheus_client": "producerd/runtime/metrics.py",
}


def violations(root: Path) -> Iterator[str]:
    """Every import under `root` that no arrow allows, as ``file:line: reason``."""
    for path in sorted(path for name in OURS for path in (root / f"{name}.py", *(root / name).rglob("*.py"))):
        if path.is_file():
            place = path.relative_to(root).as_posix()
            for imported in imports(ast.parse(path.read_bytes(), place), package=path.parent.relative_to(root).parts):
                if reason := objection(place, imported):
                    yield f"{place}:{imported.line}: {reason}"


def objection(place: str, imported: Import) -> str | None:
    """Why the module at `place` may not import this; None if it may."""
    rule = next(rule for prefix, rule in RULES.items() if place.startswith(prefix))
    name, top = imported.name, imported.name.partition(".")[0]
    if top in OURS and name != "producerd.__version__" and not within(name, rule.ours):
        return f"no arrow to {name}"
    if within(name, rule.never):
        return f"must do without {name}"
    if not place.startswith(ONLY_IN.get(top, place)):
        return f"only {ONLY_IN[top]} may import {top}"
    if top not in (*OURS, *sys.stdlib_module_names) and rule.others is not None and top not in rule.others:
        return f"must do without the third party {top}"
    if within(name, rule.lazily) and not imported.lazy:
        return f"may import {name} only where it is used, inside a function"
    return None


def within(name: str, modules: tuple[str, ...] | frozenset[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def imports(node: ast.AST, package: tuple[str, ...], lazy: bool = False) -> Iterator[Import]:
    """Every import statement below `node`; `package` is where relative ones start from."""
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno, lazy) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else ()
        module = ".".join((*start, *filter(None, [node.module])))
        yield from (Import(f"{module}.{alias.name}", node.lineno, lazy) for alias in node.names)
    elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for checked in node.body:
            yield from imports(checked, package, lazy=True)
        for otherwise in node.orelse:
            yield from imports(otherwise, package, lazy)
    else:
        lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from imports(child, package, lazy)


if __name__ == "__main__":
    found = list(violations(Path(__file__).resolve().parent.parent))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
