"""How many words people have written for readers, page by page, and whether they are within limits.toml.

Not counted: code blocks, comments, decision records, pages that are generated, and tables of which the product itself
reads every cell.  Help texts and the client's docstrings are a row of their own: only what they have above the limits
file's number is counted, so moving a page's text there saves nothing.
"""

from __future__ import annotations

import argparse
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import spark_client
from producerd import cli
from producerd.ctl import commands as producerctl
from tools import ROOT, docs
from tools.docs import DOCS, WRITE, without_code

LIMITS: Final = Path(__file__).with_name("limits.toml")
FROM_PRODUCT: Final = (
    "options",
    "node settings",
    "stream settings",
    "causes",
    "commands",
    "metrics",
    "messages",
    "benchmarks",
    "packages",
)
"""Tables that need no word of ours.  The others that are generated have words from the generator or from tests."""
GENERATED: Final = f"<!-- This page is written by {WRITE}. -->\n"
"""First line of a page that is generated."""
TABLES: Final = re.compile(
    rf"^<!-- ({'|'.join(FROM_PRODUCT)}): written by .*?^<!-- end of \1 -->$", re.DOTALL | re.MULTILINE
)
NOT_READ: Final = re.compile(r"<!--.*?-->|\]\([^)\s]*\)|<[^>]+>", re.DOTALL)
"""Comments, the targets of links, and tags."""
HELP: Final = "help texts, docstrings of the client"


def count(page: str) -> int:
    """Return the number of words of a page: what has a letter or a digit, between spaces."""
    if page.startswith(GENERATED):
        return 0
    text = NOT_READ.sub(" ", TABLES.sub("", without_code(page)))
    return sum(any(map(str.isalnum, word)) for word in text.split())


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the texts that a command's --help shows, and its commands'."""
    yield from filter(None, (parser.description, parser.epilog))
    for action in parser._actions:
        if action.help and action.help != argparse.SUPPRESS:
            yield action.help
        if isinstance(action, argparse._SubParsersAction):
            yield from (choice.help or "" for choice in action._choices_actions)
            for below in set(action.choices.values()):
                yield from helps(below)


def docstrings() -> Iterator[str]:
    for name in spark_client.__all__:
        public = getattr(spark_client, name)
        yield inspect.getdoc(public) or ""
        for method, value in vars(public).items() if inspect.isclass(public) else ():
            if not method.startswith("_"):
                yield inspect.getdoc(value) or ""


def pages() -> dict[str, int]:
    """Return the words of each page that is not a decision record, and what is above the number for help texts."""
    ours = [*docs.pages(), *sorted((ROOT / "deploy").rglob("README*"))]
    found = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ours}
    counted = {name: count(text) for name, text in found.items() if not name.startswith("docs/decisions/")}
    text = "\n".join([*helps(cli.build_parser()), *helps(producerctl.build_parser()), *docstrings()])
    return counted | {HELP: max(0, count(text) - limits()["help"])}


def limits() -> dict[str, int]:
    return tomllib.loads(LIMITS.read_text())


def problems(counted: dict[str, int], most: dict[str, int]) -> Iterator[str]:
    """Yield a line for each limit that is passed."""
    for name, words in counted.items():
        limit = most["readme" if name == "README.md" else "page"]
        if words > limit:
            yield f"{name}: {words:,} words, and the limit is {limit:,}"
    if (total := sum(counted.values())) > most["total"]:
        yield f"all pages: {total:,} words, and the limit is {most['total']:,}"
    for path in sorted((DOCS / "decisions").glob("*.md")):
        words = count(path.read_text())
        if int(path.name[:4]) >= most["first_new_decision"] and words > most["decision"]:
            yield f"{path.relative_to(ROOT)}: {words:,} words, and the limit is {most['decision']:,}"


def show() -> int:
    """Print the words of each page, the longest first, and their total."""
    counted = pages()
    for name, words in sorted(counted.items(), key=lambda item: -item[1]):
        print(f"{words:7,}  {name}")
    print(f"{sum(counted.values()):7,}  in all, of {limits()['total']:,}")
    return 0


def check() -> int:
    found = list(problems(pages(), limits()))
    print(*found, sep="\n", end="\n./dev docs --words shows each page\n" if found else "")
    return int(bool(found))
