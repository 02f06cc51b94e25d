"""What pages take from the code, between two marks, and files that are copies.  ``./dev docs --write`` writes them."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pydantic.fields import FieldInfo

from producerd import cli
from producerd.config import NodeSettings, StreamSettings
from producerd.config.settings import OF_ONE_STREAM, Settings, needs_restart
from producerd.config.sources import GONE
from producerd.config.text import allowed, assignment, is_size, schema
from producerd.config.values import UNITS
from producerd.core import failures
from producerd.core.failures import Kind, Meaning
from producerd.core.holding import ADVICE
from producerd.ctl import commands as producerctl
from producerd.errors import Code
from producerd.runtime.metrics import NODE_FAMILIES, PREFIX, STREAM_FAMILIES
from producerd.wire import machine, messages
from spark_client.options import OPTIONS, WriterOptions
from tests import licences
from tests.core.refusals import matrix
from tests.faults.oracle import Law
from tests.faults.scenarios import all_scenarios
from tests.remedies import code_table, event_table
from tests.wire import golden
from tools import ROOT
from tools.commands import measurements
from tools.docs import DOCS, WRITE, api
from tools.docs.promises import EVIDENCE, evidence

RELIABILITY: Final = DOCS / "understand/reliability.json"
"""What `./dev faults --seeds 3 --json` printed."""
CLIENT_SETTINGS: Final = ROOT / "spark_client/daemon_settings.json"
DEPLOY: Final = ROOT / "deploy"
COPIES: Final[Mapping[Path, Path]] = {
    source: DEPLOY / "kubernetes/chart/files" / source.name
    for source in (DEPLOY / "prometheus/alerts.yml", *sorted((DEPLOY / "grafana").glob("*.json")))
}
"""Files of which the chart holds copies, as it is used without the rest of this tree."""


def options() -> str:
    """One line an option of the writer: both names, the type, the default, what it does."""
    types = {field.name: str(field.type) for field in dataclasses.fields(WriterOptions)}
    lines = []
    for option in OPTIONS:
        kinds = [kind.partition("[")[0] for kind in types[option.name].split(" | ") if kind != "None"]
        type_ = " or ".join(f"`{kind}`" for kind in kinds)
        camel = f"`{option.camel}`" if option.read else "-"
        lines.append(f"| `{option.name}` | {camel} | {type_} | `{option.default!r}` | {option.meaning} |")
    return "\n".join(["| Python | data source | type | default | meaning |", "|---|---|---|---|---|", *lines])


def settings(model: type[Settings]) -> str:
    """One line a setting: its default, what it does, what is allowed, whether a change of it needs a restart."""
    lines = []
    for name, info in model.model_fields.items():
        default = "" if info.default_factory else f"`{assignment(name, info.default).partition(' = ')[2]}`"
        own = " (in a stream's own table)" if name in OF_ONE_STREAM else ""
        restart = "yes" if needs_restart(info) else ""
        cells = (f"`{name}`", default, f"{' '.join(str(info.description).split())}{own}", allowed(name, info), restart)
        lines.append(f"| {' | '.join(cells)} |".replace("``", "`"))
    head = ["| setting | default | what it does | allowed | restart |", "|---|---|---|---|---|"]
    return "\n".join([*head, *lines])


def commands(of: argparse.ArgumentParser) -> str:
    """One line a command of ``producerd`` or ``producerctl``: how it is called, what it does."""
    lines = ["| command | what it does |", "|---|---|"]
    for parser, words in _commands(of):
        formatter = argparse.HelpFormatter(parser.prog, width=1000)
        formatter.add_usage(None, [action for action in parser._actions if action.dest != "help"], (), "")
        usage = formatter.format_help().strip().replace("|", "\\|")
        lines.append(f"| `{usage}` | {words} |")
    return "\n".join(lines)


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """The parser of each command below this one, and what its help says."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for chosen in action._choices_actions:
                below = action.choices[chosen.dest]
                yield from list(_commands(below)) or [(below, str(chosen.help))]


DOES: Final[Mapping[Kind, str]] = {
    Kind.THROTTLED: "slows the shard's lane, and sends the record again",
    Kind.TRANSIENT: "sends the records again after a delay",
    Kind.INVALID: "divides the request until the bad record stands alone; that one fails",
    Kind.REFUSED: "divides the request until a record stands alone; that one waits, or fails after the grace",
    Kind.PERMANENT: "counts the stream as refused, at once or after a minute",
}
"""What the daemon does about a failure."""


def service_errors() -> str:
    """One line for each code and what it calls for: the errors of the service that lead there."""
    by_meaning: dict[Meaning, list[str]] = {}
    for error, meaning in failures._MEANINGS.items():
        by_meaning.setdefault(meaning, []).append(f"`{error}`")
    by_meaning.setdefault(failures.meaning_of("any other"), []).append("any other")
    lines = ["| what comes | the daemon | code |", "|---|---|---|"]
    for meaning, errors in by_meaning.items():
        ends = "; after some attempts they fail as unknown" * (meaning.code == Code.RESULT_COUNT)
        lines.append(f"| {', '.join(errors)} | {DOES[meaning.kind]}{ends} | {meaning.code} |")
    return "\n".join(lines)


def metrics() -> str:
    """One line a metric: name, type, labels, meaning, and what a usual scrape has of it."""
    lines = ["| metric | type | labels | |", "|---|---|---|---|"]
    for families, of_a_stream in ((NODE_FAMILIES, []), (STREAM_FAMILIES, ["`stream`"])):
        for family in families:
            label = [f"`{family.label}`" + (f": {' '.join(family.values)}" if family.values else "")]
            labels = ", ".join(of_a_stream + (label if family.label else []))
            only = "" if family.is_usual else "`collect=all`: "
            lines.append(f"| `{PREFIX}{family.name}` | {family.kind} | {labels} | {only}{family.meaning} |")
    return "\n".join(lines)


def causes() -> str:
    """One line a cause of a held queue: what to do."""
    lines = [f"| `{cause}` | {advice.format(stream='NAME')} |" for cause, advice in ADVICE.items()]
    return "\n".join(["| cause | what to do |", "|---|---|", *lines])


def laws() -> str:
    """The laws of the oracle, one a line."""
    return "\n".join(f"- {law[0].upper()}{law[1:]}." for law in Law)


def scenarios() -> str:
    """One line a kind of fault: its runs in docs/understand/reliability.json, and what became of the records."""
    known = all_scenarios()
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(RELIABILITY.read_text()):
        kind = str(inspect.getdoc(inspect.getmodule(known[row["scenario"]].act))).splitlines()[0].rstrip(".")
        kinds.setdefault(kind, []).append(row)
    kinds["**all**"] = [row for rows in kinds.values() for row in rows]
    names = ("what was injected", "runs", "sent", "acknowledged", "lost", "out of order", "errors", "longest recovery")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for kind, rows in kinds.items():
        sent, acknowledged, readable, disordered, errors = (
            sum(row[name] for row in rows)
            for name in ("sent", "acknowledged", "readable", "order_violations", "errors_told")
        )
        figures = (len(rows), sent, acknowledged, acknowledged - readable, disordered, errors)
        recovery = max(row["seconds_to_recover"] for row in rows)
        lines.append(f"| {kind} | {' | '.join(f'{figure:,}' for figure in figures)} | {recovery:.0f} s |")
    return "\n".join(lines)


def benchmarks() -> str:
    """One line a benchmark: its name, and what it measures."""
    lines = [f"| `{name}` | {what} |" for name, what in measurements().items()]
    return "\n".join(["| name | what |", "|---|---|", *lines])


def session() -> str:
    """The recorded session of the newest version up to its first ACK: the bytes and the name of each field."""
    kept = golden.FOLDER.glob("*/session.txt")
    newest = max(kept, key=lambda path: [int(part) for part in path.parent.name.split(".")])
    lines = ["```text"]
    for said in golden.read(newest):
        fields = list(_wire_fields(said))
        if b"".join(data for data, _ in fields) != said.data:
            raise ValueError(f"{newest.parent.name}: today's code writes {said.name} in other bytes")
        lines += [said.name, *(f"  {data.hex():{HEX_WIDTH}}  {name}".rstrip() for data, name in fields)]
        if isinstance(said.message, messages.Ack):
            break
    return "\n".join([*lines, "```"])


HEX_WIDTH: Final = 42
"""Of the bytes of most fields of a session."""


def _wire_fields(said: golden.Golden) -> Iterator[tuple[bytes, str]]:
    """The bytes of each field of a message, in order, and what they are."""
    yield said.data[: messages.HEADER.size], "type, flags, zero, payload length"
    if isinstance(said.message, golden.Rows):
        count = len(said.message.rows)
        at = messages.HEADER.size
        sizes = {"frame_id": 8, "layout": 16, "key offsets": 4 * (count + 1), "data offsets": 4 * (count + 1)}
        sizes |= {"keys": sum(len(row[0].encode()) for row in said.message.rows)}
        for name, size in (sizes | {"data": len(said.data)}).items():
            yield said.data[at : at + size], name
            at += size
        return
    for name, kind, tag, default in messages.SCHEMAS[type(said.message)].fields:
        value = getattr(said.message, name)
        if not tag:
            yield messages.written(kind, value), name if kind.name == "layout" else f"{name} {value}"
        elif value != default:
            optional = kind.write(value)
            yield messages.TAG.pack(tag, len(optional)) + optional, f"tag {tag}, length, {name} {value}"


def message_table() -> str:
    """One line a message of the wire: number, name, sender, fields.  A kind holds until the next one."""
    lines = ["| type | message | from | required fields | optional fields (tag) |", "|---" * 5 + "|"]
    schemas = {schema.number: schema.fields for schema in messages.SCHEMAS.values()}
    for type_ in messages.MessageType:
        sender = machine.SENDER[type_].value if type_ in machine.SENDER else "either"
        required, optional = "[see below](#the-body)", ""
        if schema := schemas.get(type_):
            required = _fields_of((field.name, field.kind) for field in schema if not field.tag)
            optional = _fields_of((f"{field.name} ({field.tag})", field.kind) for field in schema if field.tag)
        lines.append(f"| {type_.value} | {type_.name} | {sender} | {required} | {optional} |")
    return "\n".join(lines)


def _fields_of(fields: Iterable[tuple[str, messages.FieldKind]]) -> str:
    named = {name: kind.name for name, kind in fields}
    groups = ((kind, ", ".join(names)) for kind, names in groupby(named, key=named.__getitem__))
    return "; ".join(names if names.startswith(kind) else f"{kind} {names}" for kind, names in groups)


TABLES: Final[Mapping[tuple[str, str], Callable[[], str]]] = {
    ("use/options.md", "options"): options,
    ("build/benchmarks.md", "benchmarks"): benchmarks,
    ("build/licences.md", "packages"): licences.table,
    ("build/protocol.md", "session"): session,
    ("build/protocol.md", "messages"): message_table,
    ("operate/configuration.md", "node settings"): lambda: settings(NodeSettings),
    ("operate/configuration.md", "stream settings"): lambda: settings(StreamSettings),
    ("operate/slow-streams.md", "causes"): causes,
    ("operate/producerctl.md", "orders"): lambda: commands(producerctl.build_parser()),
    ("operate/producerctl.md", "commands"): lambda: commands(cli.build_parser()),
    ("operate/error-codes.md", "codes"): code_table,
    ("operate/error-codes.md", "service errors"): service_errors,
    ("operate/log-events.md", "events"): event_table,
    ("understand/delivery.md", "refusals"): matrix,
    ("operate/metrics.md", "metrics"): metrics,
    ("understand/reliability.md", "laws"): laws,
    ("understand/reliability.md", "scenarios"): scenarios,
}
"""By page and mark."""


def client_settings() -> str:
    """The settings of a daemon that tasks start, as the client checks them."""
    whole = schema()["properties"]
    of_streams = whole["streams"]["additionalProperties"]["properties"]
    node = {name: _for_client(name, info, whole[name]) for name, info in NodeSettings.model_fields.items()}
    stream = {name: _for_client(name, info, of_streams[name]) for name, info in StreamSettings.model_fields.items()}
    return json.dumps({"node": node, "stream": stream, "gone": GONE, "units": UNITS}, indent=1) + "\n"


def _for_client(name: str, info: FieldInfo, value: Mapping[str, Any]) -> dict[str, Any]:
    bounded: Mapping[str, Any] = next((part for part in (value, *value.get("anyOf", ())) if "minimum" in part), {})
    patterns = [each.pattern for each in info.metadata if getattr(each, "pattern", None)]
    if "enum" in value:
        patterns = [f"^({'|'.join(value['enum'])})$"]
    return {
        "type": "size" if is_size(name) else bounded.get("type", "string"),
        **{word: bounded[word] for word in ("minimum", "maximum") if bounded},
        **({"pattern": patterns[0]} if patterns else {}),
        "allowed": allowed(name, info),
    }


def with_tables(name: str, page: str) -> str:
    """The page with its tables as they should be.  Raises ValueError where a mark is missing."""
    for (of, mark), table in TABLES.items():
        if of == name:
            begin, end = f"<!-- {mark}: written by {WRITE} -->\n", f"<!-- end of {mark} -->\n"
            start, stop = page.index(begin) + len(begin), page.index(end)
            page = f"{page[:start]}{table()}\n{page[stop:]}"
    return page


def files() -> dict[Path, str]:
    """Return every file that is generated, or has a part that is, as it should be."""
    pages = {DOCS / name for name, _ in TABLES}
    found = {path: with_tables(path.relative_to(DOCS).as_posix(), path.read_text()) for path in sorted(pages)}
    found[DOCS / "use/api.md"] = api.page()
    found[CLIENT_SETTINGS] = client_settings()
    found[EVIDENCE] = evidence()
    return found | {copy: source.read_text() for source, copy in COPIES.items()}


def write() -> int:
    for path, text in files().items():
        path.write_text(text)
    return 0


def find_stale() -> int:
    """Print each file that is not as it should be."""
    wrong = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    for path in wrong:
        print(f"{path.relative_to(ROOT)}: not as the code has it: {WRITE}")
    return int(bool(wrong))
