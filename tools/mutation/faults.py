"""The small faults that can be planted in a module, and those that change nothing."""

from __future__ import annotations

import ast
import copy
import itertools
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """One fault, which its module, function and statement identify.  Line numbers change too often for that.

    The operands of `and` and `or` are numbered through a statement from 1, because their text may change.
    """

    module: str
    function: str
    statement: str
    fault: str

    def __str__(self) -> str:
        return f"{self.module} {self.function or '(module)'}: `{self.statement}`: {self.fault}"


@dataclass(frozen=True)
class Site:
    """A node in which a fault may stand, with the function and the statement around it."""

    node: ast.AST
    function: str
    result: str  # the type that the function returns, as it is annotated
    statement: str  # its first line
    first_operand: int  # the number of a BoolOp's first operand in its statement


@dataclass(frozen=True)
class Planted:
    """A fault and where it stands."""

    fault: Fault
    line: int
    site: int  # its number among the module's `sites`
    change: int  # its number among the `changes` of that site

    def source(self, text: str) -> str:
        """Return the whole module with the fault in it."""
        tree = ast.parse(text)
        _, change = list(changes(list(sites(tree))[self.site]))[self.change]
        change()
        return ast.unparse(ast.fix_missing_locations(tree))


COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
# fmt: off
SIGNS: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.BitOr: "|", ast.BitAnd: "&",
}
# fmt: on
NOT_PLANTED = {"annotation", "returns", "decorator_list", "type_params"}


def faults(module: str, text: str) -> Iterator[Planted]:
    """Yield every fault that can be planted in a module."""
    for number, site in enumerate(sites(ast.parse(text))):
        for change, (what, _) in enumerate(changes(site)):
            line = getattr(site.node, "lineno", 0)
            yield Planted(Fault(module, site.function, site.statement, what), line, number, change)


def sites(tree: ast.Module) -> Iterator[Site]:
    """Yield every node in which a fault may stand: none in annotations, decorators or what only type checkers read."""

    def below(node: ast.AST, function: str, result: str, statement: str, operands: Iterator[int]) -> Iterator[Site]:
        if isinstance(node, ast.Import | ast.ImportFrom) or is_for_type_checkers(node):
            return
        if isinstance(node, ast.stmt):
            statement, operands = first_line(node), itertools.count(1)
        numbers = [next(operands) for _ in node.values] if isinstance(node, ast.BoolOp) else [0]
        yield Site(node, function, result, statement, numbers[0])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            result = ast.unparse(node.returns) if node.returns else ""
        for field, value in ast.iter_fields(node):
            if field not in NOT_PLANTED:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST) and not (isinstance(child, ast.keyword) and child.arg == "strict"):
                        yield from below(child, function, result, statement, operands)

    return below(tree, "", "", "", itertools.count(1))


def first_line(statement: ast.stmt) -> str:
    """Return the statement as Python writes it, without what is indented under it."""
    alone = copy.copy(statement)
    if "body" in alone._fields:
        alone.body = [ast.Pass()]  # type: ignore[attr-defined]  # a compound statement
    return ast.unparse(alone).partition(":\n    pass")[0]


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


Change = tuple[str, Callable[[], object]]
"""What a fault is, and the function that plants it in its tree."""


def changes(site: Site) -> Iterator[Change]:
    """Yield the faults that may stand in this node."""
    match node := site.node:
        case ast.Compare(ops=[operator]):
            for other in COMPARISONS[type(operator)]:
                yield swapped(operator, other), partial(setattr, node, "ops", [other()])
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if opposite := OPERATORS.get(type(operator)):
            yield swapped(operator, opposite), partial(setattr, node, "op", opposite())
        case ast.BoolOp():
            for at in range(len(node.values)):
                yield f"operand {site.first_operand + at} dropped", partial(node.values.pop, at)
        case ast.UnaryOp(op=ast.Not()):
            yield "not dropped", partial(setattr, node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.Constant(value=bool() as flag):
            yield f"{flag} -> {not flag}", partial(setattr, node, "value", not flag)
        case ast.Constant(value=int() | float() as number):
            near = number + 1 if isinstance(number, int) and number < 100 else number * 10 or 1.0
            yield f"{number} -> {near}", partial(setattr, node, "value", near)
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            other_end = "max" if name == "min" else "min"
            yield f"{name} -> {other_end}", partial(setattr, node.func, "id", other_end)
        case ast.If() | ast.IfExp():
            yield "never taken", partial(setattr, node, "test", ast.Constant(False))
        case ast.Return(value=ast.expr() as value):
            if site.result == "bool":
                yield "not", partial(setattr, node, "value", ast.UnaryOp(ast.Not(), value))
            elif site.result in ("int", "float"):
                yield "result + 1", partial(setattr, node, "value", ast.BinOp(value, ast.Add(), ast.Constant(1)))
            elif site.result.endswith("| None") and ast.unparse(value) != "None":
                yield "result None", partial(setattr, node, "value", ast.Constant(None))
    if isinstance(node, ast.stmt) and runs_without(node, site.function):
        yield "deleted", partial(setattr, node, "__class__", ast.Pass)


def swapped(old: ast.AST, new: type[ast.AST]) -> str:
    return f"{SIGNS[type(old)]} -> {SIGNS[new]}"


def runs_without(statement: ast.stmt, function: str) -> bool:
    """Return whether the function would run without this statement, so that only a test could miss it."""
    match statement:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
            return bool(function)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return not function.endswith("__init__")  # otherwise the attribute is missing
    return False


def read_equivalents(path: Path) -> dict[Fault, str]:
    """Return the faults that change nothing, with the reasons."""
    rows = tomllib.loads(path.read_text()).get("equivalent", []) if path.exists() else []
    return {Fault(*(row[name] for name in ("module", "function", "statement", "fault"))): row["reason"] for row in rows}
