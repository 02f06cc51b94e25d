"""The settings of a daemon that tasks start: which there are, and which values they take, checked on the driver.

The daemon checks them again, and better, when it starts.  But the driver's error comes before any task, names all
problems at once, and needs only the standard library.
"""

from __future__ import annotations

import difflib
import functools
import json
import pkgutil
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

TABLE: Final = "daemon_settings.json"
"""The settings of the node and of a stream with their types, ranges and patterns, those that are gone, and the units of
sizes.

``./dev docs --write`` writes it.
"""
OF_ITS_OWN: Final = ("socket", "socket_mode", "socket_group", "admin_socket", "allowed_uids")
"""Settings that are not the user's here: the daemon belongs to one executor, and only its tasks find its socket."""
DEFAULTS: Final[Mapping[str, str]] = {
    "memory": "384 MiB",  # what Spark gives an executor at least besides its heap
    "metrics_listen": "",  # the daemons of several executors on one host would want the same port
    "exit_when_idle_seconds": "60",
}
"""What differs from the daemon's own defaults."""
COMMAND: Final = "command"
NOT_SHOWN: Final = "(set, not shown)"
"""Text in place of a value, as the daemon's own messages have it."""
STREAMS: Final = "streams"


class DaemonSettings(NamedTuple):
    """What a daemon is started with: ``sets`` are KEY=VALUE; ``command`` is the one that starts it, or empty."""

    sets: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "DaemonSettings(...)"  # one of them may be a secret

    @property
    def memory_bytes(self) -> int:
        """What the daemon may use at most, or 0 if it has no bound of this kind."""
        text = next((one[len("memory=") :] for one in self.sets if one.startswith("memory=")), "")
        return int(size_bytes(text)) if text else 0

    @staticmethod
    def of(given: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS) -> DaemonSettings:
        """Return the settings of a mapping in which `problems` finds none."""
        flat = {name: value for name, value in given.items() if name not in (COMMAND, STREAMS)}
        for stream, table in given.get(STREAMS, {}).items():
            flat.update({f"streams.{json.dumps(stream)}.{name}": value for name, value in table.items()})
        command = given.get(COMMAND, ())
        return DaemonSettings(
            tuple(f"{name}={value}" for name, value in sorted({**defaults, **flat}.items())),
            tuple(shlex.split(command) if isinstance(command, str) else command),
        )


def problems(given: Any) -> Iterator[str]:
    """Yield what is wrong with ``daemon=``: settings that do not exist, and values of another type or range."""
    if not isinstance(given, Mapping):
        kind = type(given).__name__  # its text may have a secret
        yield f"daemon is a {kind}: give a mapping of the daemon's settings, such as {{'region': 'eu-west-1'}}"
        return
    for name, value in given.items():
        if name == COMMAND:
            if not _is_command(value):
                yield f"daemon.command={NOT_SHOWN}: give the command that runs the daemon, as text or a list of texts"
        elif name == STREAMS and isinstance(value, Mapping):
            for stream, table in value.items():
                for inner, item in table.items() if isinstance(table, Mapping) else [("", table)]:
                    yield from _problems_of(f"streams.{stream}.{inner}", inner, item, _table()["stream"])
        else:
            yield from _problems_of(str(name), str(name), value, _any())


def from_text(given: Mapping[str, str], prefix: str) -> tuple[dict[str, str], list[str]]:
    """Return the settings of options that begin with ``prefix``, by their own names, and what is wrong with them.

    Spark hands options over in lower case, and users write them with or without underscores.
    """
    names = {name.replace("_", ""): name for name in (*_any(), *_table()["gone"], COMMAND)}
    spelled: dict[str, list[str]] = {}
    for option in given:
        name = option[len(prefix) :]
        spelled.setdefault(names.get(name.replace("_", "").lower(), name), []).append(option)
    settings = {name: given[options[-1]] for name, options in spelled.items()}
    twice = [f"{', '.join(sorted(options))}: give one of them" for options in spelled.values() if len(options) > 1]
    return settings, [*problems(settings), *twice]


@functools.cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    table: Mapping[str, Mapping[str, Any]] = json.loads(pkgutil.get_data(__package__, TABLE) or b"")
    return table


def _any() -> Mapping[str, Any]:
    """Return the settings of the node and, for all streams, of a stream."""
    return {**_table()["stream"], **_table()["node"]}


def _problems_of(place: str, name: str, value: Any, known: Mapping[str, Any]) -> Iterator[str]:
    if name in OF_ITS_OWN:
        yield f"daemon.{place}={_shown(name, value)}: a daemon that tasks start has its own; leave it out"
    elif name in (gone := _table()["gone"]):
        yield f"daemon.{place}: is gone since 0.2, so leave it out: {gone[name]}"
    elif name not in known:
        near = difflib.get_close_matches(name, [*known, COMMAND])
        hint = f"did you mean {' or '.join(near)}?" if near else "docs/operate/configuration.md lists all"
        if name.startswith(f"{STREAMS}."):  # Spark hands an option's name over in lower case
            hint = "give a stream's own settings to the writer, daemon={'streams': {NAME: {...}}}"
        yield f"daemon.{place}: is not a setting of the daemon; {hint}"
    elif not _holds(known[name], value):
        yield f"daemon.{place}={_shown(name, value)}: allowed: {known[name]['allowed']}"


def shown(given: Mapping[str, Any]) -> str:
    """Return a mapping of settings for a message, without what may be a secret."""
    return "{" + ", ".join(f"{name!r}: {_shown(str(name), value)}" for name, value in given.items()) + "}"


def _shown(name: str, value: Any) -> str:
    """Return a value for a message, unless it may be a secret, or a URL with a login or a query."""
    harmless = isinstance(value, (bool, int, float, type(None))) or (
        isinstance(value, str) and not set(value) & {*"@?"}
    )
    return repr(value) if harmless and name != "external_id" else NOT_SHOWN


def _holds(setting: Mapping[str, Any], value: Any) -> bool:
    """Return whether a value, or its text, is of the setting's type and in its range."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return False
    text, kind = str(value), setting["type"]
    if kind == "string":
        pattern = setting.get("pattern", ".*").strip("^$")
        return isinstance(value, str) and "\0" not in text and (not text or re.fullmatch(pattern, text) is not None)
    if not text and "or empty" in setting["allowed"]:
        return True
    try:
        number = size_bytes(text) if kind == "size" else int(text) if kind == "integer" else float(text)
    except ValueError:
        return False
    return bool(setting["minimum"] <= number <= setting["maximum"])


def size_bytes(text: str) -> float:
    """Return a size such as "384 MiB" or "1048576" in bytes.  Raises ValueError."""
    match = re.fullmatch(r"\s*([0-9_]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    units = _table()["units"]
    if match is None or match[2].upper() not in units:
        raise ValueError(text)
    return float(match[1]) * float(units[match[2].upper()])


def _is_command(value: Any) -> bool:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError:  # a quote without its other one
        return False
    return isinstance(words, (list, tuple)) and bool(words) and all(isinstance(word, str) and word for word in words)
