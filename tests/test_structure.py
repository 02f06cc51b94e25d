"""The structure that docs/build/laws.md promises: rooms without circles, and one owner for each attribute."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.import_arrows import imports

ROOT = Path(__file__).resolve().parents[1]


def paths() -> dict[str, Path]:
    """The file of each module of ours."""
    found = [path for name in ("producerd", "spark_client") for path in (ROOT / name).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in found}


@cache
def modules() -> dict[str, ast.Module]:
    """Each module of ours by its name."""
    return {name: ast.parse(path.read_bytes()) for name, path in paths().items()}


@cache
def arrows() -> dict[str, set[str]]:
    """Return the modules of ours that each module imports, anywhere in it."""
    found: dict[str, set[str]] = {}
    for name, tree in modules().items():
        package = tuple(name.split(".")[:-1])
        named = {imported.name for imported in imports(tree, package)}
        found[name] = {target for one in named for target in (one, one.rpartition(".")[0]) if target in modules()}
        found[name] -= {name}
    return found


def floors(of: Mapping[str, set[str]]) -> dict[str, int]:
    """How high each stands: one floor above the highest that it imports.  Raises ValueError for a circle."""
    heights: dict[str, int] = {}

    def height(name: str, path: tuple[str, ...]) -> int:
        if name in path:
            raise ValueError(" -> ".join((*path[path.index(name) :], name)))
        if name not in heights:
            heights[name] = 1 + max([height(other, (*path, name)) for other in sorted(of.get(name, ()))], default=0)
        return heights[name]

    for name in of:
        height(name, ())
    return heights


@pytest.mark.promise("rooms-core-stand-few")
def test_no_module_imports_itself_by_way_of_others() -> None:
    packages = {name.rpartition(".")[0] for name in modules()}
    floors({name: others - packages for name, others in arrows().items()})


TEST_MODULE = re.compile(
    r"^\s*(?:from|import) tests\b(?:[\w.]*\.test_\w+|.* import (?:.*, )?test_\w+).*$", re.MULTILINE
)


def test_no_module_of_the_tests_imports_a_test_module() -> None:
    """What tests of two modules share stands in a module that has no test."""
    assert TEST_MODULE.findall("from tests.a.test_b import c\nimport tests.test_d\nfrom tests.daemon import e\n")[1:]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    assert {path: found for path, text in texts.items() if (found := TEST_MODULE.findall(text))} == {}


def test_the_replay_guard_is_not_imported_while_it_is_off() -> None:
    """Only functions import it that are called where it is on, and type checkers."""
    at_import = {
        name
        for name, tree in modules().items()
        for node in tree.body
        if "spark_client.replay" in ast.dump(node) and isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert at_import == {f"spark_client.replay.{name}" for name in ("driver", "guard", "recorder")}


@pytest.mark.promise("rooms-core-stand-few")
def test_no_room_of_the_core_imports_itself_by_way_of_others() -> None:
    """A room is a folder of core/ or a module in it."""
    rooms: dict[str, set[str]] = {}
    for name, others in arrows().items():
        if name.startswith("producerd.core."):
            inside = {other.split(".")[2] for other in others if other.startswith("producerd.core.")}
            room = name.split(".")[2]
            rooms[room] = rooms.get(room, set()) | inside - {room}
    assert len(rooms) > 10
    floors(rooms)


def written(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Each attribute that is written: of whom, its name, and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield ast.unparse(node.value), node.attr, node.lineno


def foreign_writes(tree: ast.Module) -> list[str]:
    """Attributes that this module writes, of objects whose class stands in another."""
    fields = [node for each in ast.walk(tree) if isinstance(each, ast.ClassDef) for node in each.body]
    own = {attribute for whose, attribute, _ in written(tree) if whose == "self"}
    own |= {ast.unparse(field.target) for field in fields if isinstance(field, ast.AnnAssign)}
    return [f"{line}: {whose}.{attribute}" for whose, attribute, line in written(tree) if attribute not in own]


OWNED = ("producerd.core.", "producerd.runtime.")
REACHES_INTO_LIBRARIES = "producerd.runtime.aws.internals"


@pytest.mark.promise("rooms-core-stand-few")
def test_no_module_writes_attributes_of_another_s_classes() -> None:
    owned = {name: tree for name, tree in modules().items() if name.startswith(OWNED)}
    del owned[REACHES_INTO_LIBRARIES]
    assert len(owned) > 50
    assert {name: found for name, tree in owned.items() if (found := foreign_writes(tree))} == {}


def finished_later(tree: ast.Module) -> list[str]:
    """Attributes of classes without a base that no constructor sets, nor a method that it calls, but another does."""
    found = []
    for each in ast.walk(tree):
        if isinstance(each, ast.ClassDef) and not each.bases:
            sets, calls = dict[str, set[str]](), dict[str, set[str]]()
            for method in each.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    sets[method.name] = {attribute for whose, attribute, _ in written(method) if whose == "self"}
                    calls[method.name] = {
                        node.func.attr
                        for node in ast.walk(method)
                        if isinstance(node, ast.Call)
                        and isinstance(node.func, ast.Attribute)
                        and ast.unparse(node.func.value) == "self"
                    }
            declared = {
                ast.unparse(target)
                for node in each.body
                if isinstance(node, ast.AnnAssign | ast.Assign)
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            }
            born, constructors = set[str](), ["__init__"]
            for name in constructors:  # which grows
                born |= sets.get(name, set())
                constructors += calls.get(name, set()) - set(constructors)
            # A dataclass declares what its constructor sets.
            whole = born | declared
            found += [f"{each.name}.{name}" for name in sorted(set[str]().union(*sets.values()) - whole)]
    return found


def test_every_object_is_whole_when_its_constructor_returns() -> None:
    assert {name: found for name, tree in modules().items() if (found := finished_later(tree))} == {}


def raises_inside_except_star(tree: ast.AST) -> list[int]:
    """The lines of `raise` inside `except*`."""
    handlers = [handler for node in ast.walk(tree) if isinstance(node, ast.TryStar) for handler in node.handlers]
    return [node.lineno for handler in handlers for node in ast.walk(handler) if isinstance(node, ast.Raise)]


def test_no_except_star_raises_because_older_pythons_wrap_that_in_a_group() -> None:
    """They do so before 3.11.4: Debian 12 has 3.11.2."""
    lines = {name: found for name, tree in modules().items() if (found := raises_inside_except_star(tree))}
    assert lines == {}


NAMED_TWICE = {"Refused"}
"""The message of the protocol, and the error that the client raises after it."""


def names_of_several_classes() -> set[str]:
    classes = Counter(
        node.name for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    return {name for name, count in classes.items() if count > 1}


def test_no_name_is_that_of_two_classes() -> None:
    assert names_of_several_classes() == NAMED_TWICE


PUBLIC_ALL_THE_SAME = {"_asdict", "_exit", "_fields", "_make", "_replace", "_repr_html_"}
"""Documented names of Python and IPython."""
PRIVATE_READS = {
    "tests/conftest.py: _split_scope": "xdist groups tests in no other way",
    "tests/core/test_planted_faults.py: _Bucket": "a fault stands in it",
    "tests/core/test_planted_faults.py: _mixed": "a fault calls it",
    "tests/runtime/test_sampling.py: _sample": "a thread's stacks at a chosen moment, of which the profile is a sum",
    "tests/simulation/story.py: _OF_KINESIS": "draws codes from the table, so that no new one is left out",
    "tests/soak/census.py: _clear_type_cache": "a cache that fills for hours hides what grows",
    "tests/soak/census.py: _debugmallocstats": "Python tells in no other way how many bytes it has handed out",
    "tests/spark/orders.py: _jrdd": "PySpark's only way to a job that can be cancelled from the JVM",
    "tests/spark/test_pod_templates.py: _jvm": "PySpark's only way to Spark's own classes",
    "tests/spark_client/test_progress.py: _log": "six reports at chosen times take no threads",
    "tests/spark_client/test_writer.py: _bounded_arrow_batches": "a version of Spark that is not installed",
    "tests/spark_client/test_writer.py: _name_of_call": "a name that only the folder of diverted rows shows",
    "tests/wire/golden/__init__.py: _channel": "sends a message that a client sends only at its end",
    "tests/wire/golden/__init__.py: _session": "sends a message that a client sends only at its end",
}


def private_reads(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that a module imports, or reads of anything but itself."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            names = [node.attr]
        yield from (name for name in names if re.match("_(?!_)", name) and name not in PUBLIC_ALL_THE_SAME)


def test_no_test_reads_what_is_private_without_a_reason() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for name in private_reads(ast.parse(path.read_bytes()))
    }
    assert found == PRIVATE_READS.keys()
    assert len(PRIVATE_READS) <= 20


def test_each_snapshot_is_compared_by_a_test() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    names = [path.stem for path in (ROOT / "tests" / "snapshots").iterdir()]
    assert [name for name in names if f'snapshot("{name}"' not in tests] == []


@pytest.mark.parametrize(
    ("find", "source", "found"),
    [
        (
            foreign_writes,
            "class A:\n v: int\n def f(self, b):\n  self.x = 1\n  b.x = b.v = 2\n  b.y += 3\n  self.b.z = 4\n  del b.w",
            ["6: b.y", "7: self.b.z", "8: b.w"],
        ),
        (
            finished_later,
            "class A:\n def __init__(self):\n  self.f()\n def f(self):\n  self.y = 2\n def g(self):\n  self.z = 3",
            ["A.z"],
        ),
        (private_reads, "from a import _b, c\nself._d = e.f._g = e.__h__ = i._asdict", ["_b", "_g"]),
        (
            raises_inside_except_star,
            "try:\n f()\nexcept* ValueError:\n if x:\n  raise E\ntry:\n f()\nexcept ValueError:\n raise",
            [5],
        ),
    ],
)
def test_what_is_against_the_structure_is_found(
    find: Callable[[ast.Module], list[object]], source: str, found: list[object]
) -> None:
    assert sorted(find(ast.parse(source)), key=str) == found


def test_a_circle_is_found_and_named() -> None:
    with pytest.raises(ValueError, match=r"^a -> b -> a$"):
        floors({"a": {"b"}, "b": {"c", "a"}, "c": set()})
