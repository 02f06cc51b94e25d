"""Find words and phrases that make our texts hard to read.  ``python -m tools.voice`` is the step of `./dev check`.

The list stands in tools/voice.toml.  It applies to the docstrings, comments and messages of Python files and to the
whole text of every other file.  Inline code, the names in the code and the names of promises may use any word.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools import ROOT

LIST = ROOT / "tools" / "voice.toml"
SUFFIXES = {".py", ".md", ".sh", ".yml", ".yaml", ".toml", ".service", ".socket", ".conf", ".env"}
NAMES = re.compile(r"(`+)[^`\n]+\1|<!-- promise: \S+ -->")


class Passage(NamedTuple):
    """A text of a file, the number of its first line, and the lines of the file on which it stands."""

    text: str
    first: int
    source: list[str]

    def line(self, match: re.Match[str]) -> int:
        """Return the number of the line on which the match begins."""
        if self.text.count("\n") == len(self.source) - 1:
            return self.first + self.text.count("\n", 0, match.start())
        begin = match.group().split("\n")[0]  # of several literals in a row, or with escapes
        return self.first + next((n for n, line in enumerate(self.source) if begin in line), 0)


class Banned(NamedTuple):
    """A regular expression for what we do not write, what to write instead, and the paths that may have it."""

    find: re.Pattern[str]
    instead: str
    but: tuple[str, ...] = ()


class Quotation(NamedTuple):
    """A sentence of another author, or a phrase in its plain meaning, that one file may have."""

    path: str
    text: str
    reason: str

    @property
    def find(self) -> re.Pattern[str]:
        return re.compile(r"\s+".join(map(re.escape, self.text.split())))


def passages(name: str, text: str) -> Iterator[Passage]:
    """Yield the texts that people read: of Python its comments and strings, of any other file all of it."""
    lines = text.split("\n")
    if not name.endswith((".py", "dev")):
        yield Passage(text, 1, lines)
        return
    for node in strings(ast.parse(text)):
        value = literal(node)
        if " " in value:  # a single word is data
            yield Passage(value, node.lineno, lines[node.lineno - 1 : node.end_lineno])
    yield from comments(text)


def strings(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Yield every string below a node, an f-string as one."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
    if isinstance(node, ast.JoinedStr):
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                yield from strings(value.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from strings(child)


def literal(node: ast.expr) -> str:
    """Return the text of a string.  Of an f-string, each expression becomes ``{}``."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(literal, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "{}"


def comments(text: str) -> Iterator[Passage]:
    """Yield the comments; those on lines that follow one another are one passage."""
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield Passage("\n".join(block), last - len(block) + 1, block)
                block = []
            block, last = [*block, token.string.lstrip("# ")], token.start[0]
    if block:
        yield Passage("\n".join(block), last - len(block) + 1, block)


def blanked(pattern: re.Pattern[str], text: str) -> str:
    """Return the text with every match blanked, on the same lines."""
    return pattern.sub(lambda match: re.sub(r"\S", "_", match.group()), text)


def findings(
    name: str, text: str, banned: list[Banned], quotations: list[Quotation]
) -> tuple[set[tuple[int, str]], set[Quotation]]:
    """Return what is banned in one file, each with its line, and the quotations that the file has."""
    found, quoted = set(), set()
    banned = [each for each in banned if not name.startswith(each.but)]
    for passage in passages(name, text):
        readable = blanked(NAMES, passage.text)
        for quotation in quotations:
            if quotation.path == name and quotation.find.search(readable):
                quoted.add(quotation)
                readable = blanked(quotation.find, readable)
        for each in banned:
            for match in each.find.finditer(readable):
                phrase = " ".join(match.group().split())
                found.add((passage.line(match), f'"{phrase}": write {each.instead}'))
    return found, quoted


def files(root: Path, clean: list[str]) -> Iterator[Path]:
    """Yield these files, and the files of people in these folders."""
    for each in (root / name for name in clean):
        for path in sorted(each.rglob("*")) if each.is_dir() else [each]:
            if path.is_file() and (path.suffix in SUFFIXES or path == each) and path.name != LIST.name:
                yield path


def problems(root: Path, listed: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each banned phrase in the clean folders, and for each quotation that no file has."""
    banned = [
        Banned(
            re.compile(rf"\b(?:{each['find']})".replace(" ", r"\s+"), re.IGNORECASE),
            each["instead"],
            tuple(each.get("but", ())),
        )
        for each in listed["banned"]
    ]
    quotations = [Quotation(**each) for each in listed.get("quotation", [])]
    unseen = set(quotations)
    for path in files(root, listed["clean"]):
        name = path.relative_to(root).as_posix()
        found, quoted = findings(name, path.read_text(), banned, quotations)
        unseen -= quoted
        yield from (f"{name}:{line}: {what}" for line, what in sorted(found))
    for quotation in sorted(unseen):
        yield f'{quotation.path}: no longer has the quotation "{quotation.text}": remove it from {LIST.name}'


def main() -> int:
    found = list(problems(ROOT, tomllib.loads(LIST.read_text())))
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
