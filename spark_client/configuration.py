"""What Spark's configuration says of the daemon: ``spark.producerd.socket`` and ``spark.producerd.daemon.*``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from spark_client import daemon_settings
from spark_client.daemon_settings import DaemonSettings
from spark_client.options import DAEMON_PREFIX, boolean, refuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS: Final = "spark.producerd."
SOCKET: Final = f"{OURS}socket"
DAEMON: Final = f"{OURS}daemon"


def is_connect(of_spark: object) -> bool:
    """Return whether a session or a DataFrame is one of Spark Connect."""
    return type(of_spark).__module__.startswith("pyspark.sql.connect")


def functions_of(of_spark: object) -> Any:
    """Return ``pyspark.sql.functions`` for the kind of a session or a DataFrame."""
    return importlib.import_module("pyspark.sql.connect.functions" if is_connect(of_spark) else "pyspark.sql.functions")


def configured(spark: SparkSession) -> dict[str, Any]:
    """Return the fields of a `spark_client.task.Plan` that Spark's configuration has.

    Raises ConfigurationError for names that are none of ours, for settings of the daemon that do not hold, or if a
    socket is configured, too.
    """
    entries = _entries(spark)
    given = {name[len(OURS) :]: text for name, text in entries.items() if name.startswith(f"{DAEMON}.")}
    settings, wrong = daemon_settings.from_text(given, DAEMON_PREFIX)
    problems = [f"{OURS}{problem}" for problem in wrong]
    problems += [
        f"{name}: no such setting; there are {SOCKET}, {DAEMON} and {DAEMON}.SETTING"
        for name in sorted(entries)
        if name not in (SOCKET, DAEMON) and not name.startswith(f"{DAEMON}.")
    ]
    try:
        starts = boolean(entries.get(DAEMON, "true" if given else "false"))
    except ValueError:
        problems.append(f"{DAEMON}={entries[DAEMON]!r}: give true or false")
        starts = False
    if starts and SOCKET in entries:
        problems.append(f"{SOCKET}={entries[SOCKET]!r}: of a daemon that runs already, and {DAEMON} starts one")
    refuse(problems)
    daemon = DaemonSettings.of(settings) if starts else None
    return {"configured_socket": entries.get(SOCKET), "configured_daemon": daemon}


def _entries(spark: SparkSession) -> Mapping[str, str]:
    """Return what this session's configuration says of producerd.

    Spark 3.5 lists the names by SQL only, which hides the value of any name with "url" in it.
    """
    every: Any = getattr(spark.conf, "getAll", None)
    names = [row[0] for row in spark.sql("SET").collect()] if every is None else every
    return {name: str(spark.conf.get(name)) for name in names if name.startswith(OURS)}
