"""The page of the Python API, made of the docstrings of what users import."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import griffe

import spark_client
from tools import ROOT
from tools.docs import WIDTH
from tools.docs.words import GENERATED

FIRST: Final = ("KinesisBatchWriter", "write_batch", "KinesisClient", "check")
"""What users call.  What they are given follows, and then the errors."""
OF_TESTS: Final = ("producerd.testing.FakeKinesis", "producerd.testing.fake_kinesis.serve_in_thread")
ATTRIBUTES: Final = griffe.DocstringSectionKind.attributes
RAISES: Final = griffe.DocstringSectionKind.raises
RETURNS: Final = griffe.DocstringSectionKind.returns
PARAMETERS: Final = griffe.DocstringSectionKind.parameters
TEXT: Final = griffe.DocstringSectionKind.text
TITLES: Final = {PARAMETERS: "argument", ATTRIBUTES: "attribute"}


def page() -> str:
    """Return the page: a table of arguments, of what is returned and of errors for each public name."""
    names = [name for name in spark_client.__all__ if not name.startswith("_")]
    errors = [name for name in names if isinstance(getattr(spark_client, name), type) and _is_error(name)]
    results = sorted({*names} - {*FIRST, *errors})
    lines = [GENERATED, "# The Python API\n", "These names are in `spark_client`.\n"]
    for name in (*FIRST, *results):
        lines += _of(name, _found(f"spark_client.{name}"), "##")
    lines += ["## Errors\n", "All are a `ProducerdError`, and have a `code`.\n", "| error | |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(_text(_found('spark_client.' + name)))} |" for name in errors]
    lines += ["", "## For tests\n", "These are in `producerd.testing`.\n"]
    for path in OF_TESTS:
        lines += _of(path.rpartition(".")[2], _found(path), "###")
    return "\n".join(lines).rstrip() + "\n"


def _is_error(name: str) -> bool:
    return issubclass(getattr(spark_client, name), Exception)


@cache
def _packages() -> Any:
    loader = griffe.GriffeLoader(search_paths=[ROOT], docstring_parser=griffe.Parser.google)
    for package in ("producerd", "spark_client"):
        loader.load(package)
    loader.resolve_aliases()
    return loader.modules_collection


def _found(path: str) -> Any:
    found = _packages()[path]
    return found.final_target if found.is_alias else found


def _text(of: Any) -> str:
    sections = of.docstring.parsed if of.docstring else ()
    return "\n\n".join(str(section.value) for section in sections if section.kind is TEXT)


def _of(name: str, of: Any, level: str) -> Iterator[str]:
    """Yield the lines about a class, with its public methods, or a function."""
    yield f"{level} {name}\n"
    yield f"{_prose(_text(of))}\n"
    parameters = of.parameters if of.is_function or "__init__" in of.members else ()
    defaults = {one.name: one.default for one in parameters}
    for section in of.docstring.parsed if of.docstring else ():
        if section.kind in TITLES:
            shows = section.kind is PARAMETERS
            yield f"| {TITLES[section.kind]} | {'default | ' if shows else ''}|\n|---|---|{'---|' if shows else ''}"
            for one in section.value:
                default = f" {_code(defaults.get(one.name))} |" if shows else ""
                yield f"| `{one.name}` |{default} {_cell(one.description)} |"
            yield ""
        elif section.kind is RETURNS:
            yield _prose(f"**Returns** {' '.join(one.description for one in section.value)}") + "\n"
        elif section.kind is RAISES:
            yield "| raises | |\n|---|---|"
            yield from (f"| `{one.annotation}` | {_cell(one.description)} |" for one in section.value)
            yield ""
    if of.is_class:
        for method, below in of.members.items():
            if below.is_function and not method.startswith("_") and below.docstring:
                yield from _of(f"{name}.{method}", below, f"{level}#")


def _code(default: object) -> str:
    return "" if default is None else f"`{default}`"


def _prose(text: str) -> str:
    """Return paragraphs in Markdown, within the width of a page."""
    paragraphs = [" ".join(part.split()) for part in text.replace("``", "`").split("\n\n")]
    return "\n\n".join(textwrap.fill(part, WIDTH, break_long_words=False) for part in paragraphs)


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")
