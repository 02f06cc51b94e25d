"""The options of a writer: their names, which values are valid, and how the data source reads them from text.

Python spells them in snake_case.  The data source spells them in camelCase, and ignores case, as Spark hands options
over in lower case.  One error names every value that is not valid.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Callable, Final, NamedTuple, TypedDict, Union

from producerd.errors import Code, ConfigurationError
from spark_client import daemon_settings
from spark_client.batches import STREAM_NAME
from spark_client.channel import MAX_SOCKET_PATH_BYTES
from spark_client.diverting import PLACES, Place
from spark_client.results import marked, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

OF_SPARK: Final = frozenset(("checkpointlocation", "queryname"))
"""Options of Spark's own, which every data source gets in addition to its own options."""
ELSEWHERE: Final = {
    "jsonoptions": "it has no payload by default: give to_json(struct(*), map(...)) as the column data",
    "streamname": "it is called stream",
    "path": "call save() without a path",
    **dict.fromkeys(
        ("region", "endpointurl", "rolearn", "externalid", "awsaccesskey", "awssecretkey", "awsaccesskeyid"),
        "access to AWS belongs to the daemon, see its settings region, endpoint_url and role_arn",
    ),
    **dict.fromkeys(
        ("queuelimit", "queuelimitbytes", "aggregation", "ordering", "lingerseconds", "recordttlseconds"),
        "a setting of the daemon, in [defaults] or for one stream",
    ),
}
"""Options that users of other connectors look for here, and where they are."""
DAEMON_PREFIX: Final = "daemon."
MOST_SECONDS: Final = 1_000_000
"""The longest time-out, as poll() takes no more than 24 days."""
SECONDS_OF: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
"""Spark's units of time (JavaUtils.timeStringAs)."""
ARN: Final = re.compile(r"arn:aws[a-z-]*:kinesis:[^:]*:[^:]*:stream/([^/:]+)")
"""The ARN of a stream, with its name."""
STREAM_WANTED: Final = "give the Kinesis stream's name, 1 to 128 of a-z A-Z 0-9 _ . -"
JsonOption = Union[str, int, float, bool]
"""A value that Spark takes for one of its own options, as text."""


class NoKeywords(TypedDict):
    """No keywords: a type checker refuses each, where a function takes any to name the right one in its error."""


class Option(NamedTuple):
    """One option: its meaning, which values it takes, and how to read it from text.

    ``read`` is None if it is not an option of the data source.
    """

    name: str
    default: Any
    meaning: str
    want: str
    holds: Callable[[Any], bool]
    read: Callable[[str], Any] | None = str

    def shown(self, value: Any) -> str:
        """Return a value as an error shows it.  A wrong place may have keys of AWS, in one way or another."""
        if self.name == "daemon" and isinstance(value, Mapping):
            return daemon_settings.shown(value)
        may_have_keys = self.name in ("divert_to", "replay_guard") and re.search("[@?]", str(value))
        return "'***'" if may_have_keys else quoted(value)

    def advice(self, value: Any) -> str:
        """Return what to give instead of a value."""
        return stream_advice(value, self.want) if self.name == "stream" else self.want

    @property
    def camel(self) -> str:
        """The option's name in the data source."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.capitalize, others))


def seconds(text: str) -> float | None:
    """Return a duration such as "5", "5s", "500ms" or "2min" in seconds, and None for "none".  Raises ValueError."""
    if text.strip().lower() == "none":
        return None
    match = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", text.lower())
    if not match or (match[2] and match[2] not in SECONDS_OF):
        raise ValueError(text)
    return float(match[1]) * SECONDS_OF.get(match[2], 1.0)


def boolean(text: str) -> bool:
    """Return whether the text is "true" and not "false".  Raises ValueError for any other text."""
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(text)
    return text.strip().lower() == "true"


def is_stream(value: Any) -> bool:
    """Return whether a value can be a stream's name."""
    return isinstance(value, str) and STREAM_NAME.fullmatch(value) is not None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_seconds(value: Any) -> bool:
    """Return whether a value can be a time-out."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 <= value <= MOST_SECONDS


def _one_of(*choices: str) -> tuple[str, Callable[[Any], bool]]:
    return f"give {' or '.join(map(repr, choices))}", lambda value: value in choices


def _seconds_or_none(value: Any) -> bool:
    return value is None or is_seconds(value)


def is_socket(value: Any) -> bool:
    """Return whether a value can be the path of a socket, or is None."""
    return value is None or (_is_name(value) and len(os.fsencode(value)) <= MAX_SOCKET_PATH_BYTES)


def _is_column(value: Any) -> bool:
    return _is_name(value) or type(value).__name__ == "Column"


def _is_place(value: Any) -> bool:
    try:
        Place.of(value)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _are_json_options(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(given, (str, int, float)) for name, given in value.items()
    )


_COLUMN: Final = "give a column's name, an SQL expression or a Column"
SECONDS_WANTED: Final = f"give a number of seconds, 0 to {MOST_SECONDS:,}"
SOCKET_WANTED: Final = f"give the path of the daemon's socket, at most {MAX_SOCKET_PATH_BYTES} bytes"
_SECONDS_OR_NONE: Final = f"{SECONDS_WANTED}, or None to wait forever"


def _about(
    meaning: str, want: str, holds: Callable[[Any], bool], read: Callable[[str], Any] | None = str
) -> dict[str, Any]:
    """Return what an `Option` says of a field."""
    return {"meaning": meaning, "want": want, "holds": holds, "read": read}


@dataclass(frozen=True)
class WriterOptions:
    """A writer's options.  The constructor raises ConfigurationError, which names every option that is not valid."""

    stream: str | None = field(
        default=None,
        metadata=_about(
            "the Kinesis stream's name; without it a column names one for each row",
            f"{STREAM_WANTED}, or None where a column has one for each row",
            lambda value: value is None or is_stream(value),
        ),
    )
    partition_key: str | Column = field(
        default="partition_key",
        metadata=_about(
            "the column of partition keys, or `partitionKey`; a null or empty key spreads its record over all shards",
            _COLUMN,
            _is_column,
        ),
    )
    data: str | Column | None = field(
        default=None,
        metadata=_about(
            "the column of payloads, string or binary, sent as it is; without it the whole row as JSON (data source: "
            "the column `data`)",
            f"{_COLUMN}, or None for the whole row as JSON",
            lambda value: value is None or _is_column(value),
        ),
    )
    explicit_hash_key: str | Column | None = field(
        default=None,
        metadata=_about(
            "the column of explicit hash keys, decimal numbers below 2^128; without it `explicit_hash_key` or "
            "`explicitHashKey`, if there is one",
            _COLUMN,
            lambda value: value is None or _is_column(value),
        ),
    )
    stream_column: str | Column | None = field(
        default=None,
        metadata=_about(
            "the column that names each row's stream, where no `stream` is given; without it the column `stream`",
            _COLUMN,
            lambda value: value is None or _is_column(value),
        ),
    )
    json_options: Mapping[str, JsonOption] | None = field(
        default=None,
        metadata=_about(
            "Spark's own options of `to_json` for the default payload, such as `timestampFormat` or `ignoreNullFields`",
            "give a mapping of names to texts, numbers or booleans, as for to_json",
            lambda value: value is None or _are_json_options(value),
            None,
        ),
    )
    socket: str | None = field(
        default=None,
        metadata=_about(
            "the daemon's socket; without it PRODUCERD_SOCKET, the writer's `spark.producerd.socket`, then "
            "/run/producerd/producerd.sock",
            SOCKET_WANTED,
            is_socket,
        ),
    )
    null_key: str = field(
        default="spread",
        metadata=_about(
            "what becomes of a null or empty partition key: `spread` over all shards",
            *_one_of("spread"),
        ),
    )
    on_bad_record: str = field(
        default="fail",
        metadata=_about(
            "`fail` the batch for a record that can never be stored, `skip`, count and list it, or `divert` it to a "
            "file",
            *_one_of("fail", "skip", "divert"),
        ),
    )
    divert_to: str | None = field(
        default=None,
        metadata=_about(
            "where such records are kept with `divert`: `s3://bucket/prefix` or `file:///folder`",
            PLACES,
            lambda value: value is None or _is_place(value),
        ),
    )
    put_timeout_seconds: float | None = field(
        default=None,
        metadata=_about(
            "how long a task waits for room in the queue; forever by default",
            _SECONDS_OR_NONE,
            _seconds_or_none,
            seconds,
        ),
    )
    flush_timeout_seconds: float | None = field(
        default=None,
        metadata=_about(
            "how long a task waits for its last acknowledgement; forever by default",
            _SECONDS_OR_NONE,
            _seconds_or_none,
            seconds,
        ),
    )
    connect_timeout_seconds: float = field(
        default=10,
        metadata=_about(
            "how long a task looks for a daemon that is not there",
            SECONDS_WANTED,
            is_seconds,
            seconds,
        ),
    )
    reconnect_timeout_seconds: float = field(
        default=120,
        metadata=_about(
            "how long it looks for one that was there and is lost or restarts; 0: the task fails, and Spark tries it "
            "again",
            SECONDS_WANTED,
            is_seconds,
            seconds,
        ),
    )
    allow_speculation: bool = field(
        default=False,
        metadata=_about(
            "write although `spark.speculation` may run a task twice, and so store its records twice",
            "give True or False",
            lambda value: isinstance(value, bool),
            boolean,
        ),
    )
    daemon: Mapping[str, Any] | None = field(
        default=None,
        metadata=_about(
            'settings of a daemon that tasks start on their executor, such as `{"region": "eu-west-1"}` (data '
            "source: an option for each, such as `daemon.region`, or `daemon` = `true` for the defaults); without it "
            "tasks look for the node's daemon",
            "give a mapping of the daemon's settings (data source: true, or an option for each, such as daemon.region)",
            lambda _: True,
            lambda text: {} if boolean(text) else None,
        ),
    )
    daemon_start_timeout_seconds: float = field(
        default=60,
        metadata=_about(
            "how long a task waits for the daemon that tasks start",
            SECONDS_WANTED,
            is_seconds,
            seconds,
        ),
    )
    replay_guard: str | None = field(
        default=None,
        metadata=_about(
            "where records of what is stored are kept, so that a repeated micro-batch is stored once: "
            "`s3://bucket/prefix` or `file:///folder` on a file system that all nodes share",
            PLACES,
            lambda value: value is None or _is_place(value),
        ),
    )
    replay_key: str | None = field(
        default=None,
        metadata=_about(
            "what names this write to `replay_guard` where Spark has no query for it: in a batch job, and in Spark "
            "Connect's `foreachBatch`",
            "give 1 to 128 of a-z A-Z 0-9 _ . - that name this write and no other",
            lambda value: value is None or (isinstance(value, str) and STREAM_NAME.fullmatch(value) is not None),
        ),
    )
    replay_guard_interval_seconds: float = field(
        default=10,
        metadata=_about(
            "how often a task records what is stored; a killed task's rows since then are stored again",
            "give a number of seconds, 1 to 3600",
            lambda value: is_seconds(value) and 1 <= value <= 3600,
            seconds,
        ),
    )
    progress: bool = field(
        default=True,
        metadata=_about(
            "show the progress of a write that takes longer than 5 s: one line in a terminal or a notebook, "
            "elsewhere a line in the log every 10 s",
            "give True or False",
            lambda value: isinstance(value, bool),
            None,
        ),
    )

    def __post_init__(self) -> None:
        given = [(option, getattr(self, option.name)) for option in OPTIONS]
        wrong = [
            f"{option.name}={option.shown(value)}: {option.advice(value)}"
            for option, value in given
            if not option.holds(value)
        ]
        refuse([*wrong, *(() if self.daemon is None else daemon_settings.problems(self.daemon))])
        refuse(self._conflicts())

    def _conflicts(self) -> Iterator[str]:
        if self.stream is not None and self.stream_column is not None:
            yield f"stream={self.stream!r}: every row goes there, and no column says where; give one of the two"
        if self.json_options is not None and self.data is not None:
            data = quoted(self.data)
            yield f"json_options={self.json_options!r}: of the default payload, but data={data} is sent as it is"
        if self.socket is not None and self.daemon is not None:
            yield f"socket={self.socket!r}: of a daemon that runs already, and daemon= starts one; give one of the two"

        if self.replay_key is not None and self.replay_guard is None:
            yield f"replay_key={self.replay_key!r}: it needs replay_guard, which is not given; give both, or none"
        if (self.on_bad_record == "divert") != (self.divert_to is not None):
            yield (
                f"on_bad_record={self.on_bad_record!r}, divert_to={self.divert_to!r}: "
                "give on_bad_record='divert' and the place for such records, or none of the two"
            )

    def __str__(self) -> str:
        """Return what differs from the defaults, as arguments; no secret is shown."""
        given = ((option, getattr(self, option.name)) for option in OPTIONS)
        return ", ".join(
            f"{option.name}={option.shown(value)}" for option, value in given if value is not option.default
        )

    @property
    def skips_bad_records(self) -> bool:
        """Whether a batch succeeds without its bad records."""
        return self.on_bad_record != "fail"


OPTIONS: Final = tuple(Option(each.name, each.default, **each.metadata) for each in fields(WriterOptions))


def from_text(given: Mapping[str, str]) -> WriterOptions:
    """Return the options of ``df.write.format("producerd")``.

    Durations may have Spark's units, and "none" waits forever.
    """
    known = {option.camel.lower(): option for option in OPTIONS if option.read}
    problems: list[str] = []
    values: dict[str, Any] = {}
    of_daemon = {name: text for name, text in given.items() if name.lower().startswith(DAEMON_PREFIX)}
    for name, text in given.items():
        if name in of_daemon:
            continue
        plain = name.replace("_", "").lower()
        option = known.get(plain)
        if option is not None and option.read is not None:
            try:
                values[option.name] = value = option.read(text)
                holds = option.holds(value)
            except ValueError:
                holds = False
            if not holds:
                advice = option.advice(text).replace("None", repr("none"))
                advice = advice.replace("of seconds", "of seconds such as 5, 5s or 2min")
                problems.append(f"{option.camel}={option.shown(text)}: {advice}")
        elif plain not in OF_SPARK:
            problems.append(f"{name}: is not an option of producerd; {_instead(plain, known)}")
    if of_daemon:
        settings, wrong = daemon_settings.from_text(of_daemon, DAEMON_PREFIX)
        problems += wrong
        if values.get("daemon", settings) is not None:  # "false" starts none, whatever its settings
            values["daemon"] = settings
    refuse(problems)
    return WriterOptions(**values)


def from_arguments(given: Mapping[str, Any], unknown: Mapping[str, Any]) -> WriterOptions:
    """Return the options of a call in Python, whose other arguments are ``unknown``."""
    known = {option.name.replace("_", ""): option for option in OPTIONS}
    problems = [
        f"{name}: is not an option of producerd; {_instead(name.replace('_', '').lower(), known, 'name')}"
        for name in unknown
    ]
    try:
        options = WriterOptions(**{option.name: given[option.name] for option in OPTIONS})
    except ConfigurationError as error:
        problems += error.problems
    refuse(problems)
    return options


def refuse(problems: Iterable[str]) -> None:
    """Raise a ConfigurationError, if there are problems."""
    if found := list(problems):
        raise ConfigurationError(found, marked(Code.CONFIGURATION, "; ".join(found)))


def _instead(plain: str, known: Mapping[str, Option], spelled: str = "camel") -> str:
    if plain in ELSEWHERE:
        return ELSEWHERE[plain]
    near = [getattr(known[match], spelled) for match in difflib.get_close_matches(plain, known)]
    every = ", ".join(getattr(option, spelled) for option in known.values())
    return f"did you mean {' or '.join(near)}?" if near else f"there are {every}"


def stream_advice(value: Any, want: str) -> str:
    """Return what to give instead of a value that is not a stream's name; ``want`` unless it is known better."""
    if hasattr(value, "sparkSession"):
        return "a DataFrame: write it with write_batch(df, stream=...), or give the writer to foreachBatch"
    arn = ARN.fullmatch(str(value))
    return f"give the name, {arn[1]!r}; an ARN is the daemon's setting stream_arn" if arn else want
