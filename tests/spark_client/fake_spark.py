"""A stand-in for a SparkSession of which only the settings are read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class AnyConf(dict[str, str]):
    """Spark's, of which check() only asks."""

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return self


def fake_spark(**conf: str) -> Any:
    return SimpleNamespace(conf=AnyConf({f"spark.{name}": value for name, value in conf.items()}))
