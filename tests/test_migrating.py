"""The page for who comes from another producer names nothing that is not there.

Whatever stands in `code` in a table, right of the first column, is ours: a setting, an option, a metric, a name in
Python, a code, a command.  So is every metric and every name_with_underscores in `code` anywhere else.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

import spark_client
from producerd import cli
from producerd.config import Config, NodeSettings, StreamSettings, load
from producerd.config.text import as_toml
from producerd.ctl import commands
from producerd.errors import Code
from producerd.runtime.metrics import Metrics
from producerd.runtime.metrics import text as metrics_text
from producerd.runtime.stream import Stream
from spark_client.options import OPTIONS, from_text
from spark_client.selection import ALIASES

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = (ROOT / "docs/use/migrating.md").read_text()
PROSE: Final = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)

METHODS: Final = [getattr(spark_client.KinesisClient, name) for name in ("__init__", "put", "put_many", "flush")]
PLAIN: Final = {
    *NodeSettings.model_fields,
    *StreamSettings.model_fields,
    *(option.name for option in OPTIONS),
    *(option.camel for option in OPTIONS if option.read),
    *(name for method in METHODS for name in inspect.signature(method).parameters if name != "self"),
    *ALIASES.values(),
    *spark_client.__all__,
    *spark_client.BatchResult._fields,
    *(value for name, value in vars(Code).items() if name.isupper()),
}
NOT_OURS: Final = {
    "[defaults]", '[streams."NAME"]', "foreachBatch", "with", "http://", "kpl", "PRODUCERD[",  # of files and of Python
    "concurrent.futures.Future", "concat_ws('-', origin, dest)",
    "AWS_CA_BUNDLE", "HTTPS_PROXY", "NO_PROXY",
}  # fmt: skip
"""Other names that a table may have.  The last line is AWS's environment, which aws-access.md promises."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def tables() -> Iterator[tuple[list[str], list[list[str]]]]:
    """Each table's head and rows, as cells."""
    for text in re.findall(r"(?:^\|.*\|\n)+", PROSE, flags=re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
        yield head, rows


def coded(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def samples() -> dict[str, set[str]]:
    """Return the labels of each name that a scrape has, except the stream."""
    streams = [Stream("s", StreamSettings())]
    snapshot = Metrics(Config()).snapshot(streams, state="serving", is_ready=True, connections=0, now=0.0)
    text = metrics_text(snapshot, everything=True)
    return {
        name: set(sample.labels) - {"stream", "le"}
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        for name in (sample.name, family.name if family.type == "histogram" else sample.name)
    }


SAMPLES: Final = samples()


def is_metric(name: str) -> bool:
    plain, _, label = name.partition("{")
    return plain in SAMPLES and SAMPLES[plain] >= {label.strip("}")} - {""}


def is_command(text: str) -> bool:
    program, *arguments = text.split()
    parser = cli.build_parser() if program == "producerd" else commands.build_parser()
    try:
        parser.parse_args(arguments)
    except SystemExit:
        return False
    return True


def is_there(name: str) -> bool:
    """Whether a word in `code` is something of ours, or known not to be."""
    if name in PLAIN or name in NOT_OURS or name == 'format("producerd")':
        return True
    if name.startswith("producerd_"):
        return is_metric(name)
    if name.startswith(("producerd ", "producerctl ")):
        return is_command(name)
    if name.startswith(("/-/", "GET /")):
        return f'"{name.removeprefix("GET ")}"' in (ROOT / "producerd/runtime/admin.py").read_text()
    if assigned := re.fullmatch(r"(\w+) ?= ?\S.*", name):
        return assigned[1] in PLAIN
    owner, _, attribute = name.partition(".")
    return bool(attribute) and hasattr(getattr(spark_client, owner or "ProducerdError", None), attribute)


def test_everything_that_a_table_names_on_its_right_is_there() -> None:
    found = [name for _, rows in tables() for row in rows for cell in row[1:] for name in coded(cell)]
    assert len(found) > 80
    assert [name for name in found if not is_there(name)] == []


def test_everything_named_elsewhere_that_looks_like_ours_is_there() -> None:
    """Also on the left of the tables of metrics."""
    found = {name for name in coded(PROSE) if re.search(r"[a-z]_[a-z]|^producer", name)}
    assert len(found) > 50
    calls = {name for name in found if name.startswith("spark_client.")}
    assert {name for name in found - calls if not is_there(name)} == set()
    assert {call.partition("(")[0] for call in calls} == {"spark_client.check"}
    for call in calls:
        given = {word.arg for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Call) for word in node.keywords}
        assert given <= set(inspect.signature(spark_client.check).parameters)


def test_every_default_that_is_told_is_ours() -> None:
    """A cell of the column `default` has the default of each setting or option in the cell before it."""
    lines = [line.partition(" = ") for line in as_toml(Config()).splitlines()]
    defaults = {option.name: str(option.default) for option in OPTIONS}
    defaults |= {name: value.strip('"') for name, separator, value in lines if separator}
    told = [
        (name, row[head.index("default")])
        for head, rows in tables()
        if "default" in head
        for row in rows
        if row[head.index("default")]
        for name in coded(row[head.index("default") - 1])
    ]
    assert len(told) > 10
    assert [(name, said, defaults[name]) for name, said in told if said != defaults[name]] == []


@pytest.mark.parametrize("text", blocks("toml"))
def test_every_file_of_settings_holds(text: str, tmp_path: Path) -> None:
    file = tmp_path / "producerd.toml"
    file.write_text(text)
    assert load(file, environ={}).streams


# --- the examples in Python


EXAMPLES: Final = blocks("python")
FUNCTIONS: Final = {*spark_client.__all__, "put", "put_many", "flush", "close"}


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_calls_what_is_there_with_what_it_takes(text: str) -> None:
    """Names that it imports, arguments by name of our functions, and options of the data source."""
    tree = ast.parse(text)
    ours = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "spark_client"]
    assert [name.name for node in ours for name in node.names if not hasattr(spark_client, name.name)] == []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)) if ours else ():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in FUNCTIONS:
            assert {word.arg for word in call.keywords} <= PLAIN, name
    if '.format("producerd")' in text:
        options = dict(re.findall(r'\.option\("(\w+)", "?([^")]+)"?\)', text))
        assert from_text(options).stream
        assert "checkpointLocation" in options
