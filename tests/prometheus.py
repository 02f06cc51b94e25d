"""Ask Prometheus for the dashboard's expressions, with Grafana's variables replaced as Grafana does it."""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

DASHBOARD: Final = Path(__file__).resolve().parents[1] / "deploy/grafana/producerd.json"
ALL: Final = ".*"
"""The dashboard's allValue."""
VARIABLES: Final = ("cluster", "region", "stream", "instance")
ASK_SECONDS: Final = 20.0


class Series(NamedTuple):
    """One series: its labels, and pairs of a Unix time and a finite value."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


def chosen(*values: str) -> str:
    """Return the value of a variable with these choices.  Grafana quotes them for a regular expression in PromQL."""
    quoted = [re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", value.replace("\\", r"\\\\")) for value in values]
    return quoted[0] if len(quoted) == 1 else f"({'|'.join(quoted)})"


def filled(expression: str, rate_seconds: int, **choices: str) -> str:
    """Return the expression that Grafana sends.  A variable without a choice is All."""
    values: Mapping[str, str] = {**dict.fromkeys(VARIABLES, ALL), **choices, "__rate_interval": f"{rate_seconds}s"}
    return re.sub(r"\$(\w+)", lambda name: values[name[1]], expression)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A Prometheus that answers at ``url``."""

    url: str

    def graph(self, expression: str, begin: float, end: float, step_seconds: float) -> list[Series]:
        """Return what a panel over this time gets."""
        asked = {"query": expression, "start": begin, "end": end, "step": step_seconds}
        return [_series(found["metric"], found["values"]) for found in self._ask("query_range", asked)["result"]]

    def now(self, expression: str, at: float) -> list[Series]:
        """Return what a panel of one moment gets."""
        found = self._ask("query", {"query": expression, "time": at})["result"]
        return [_series(each["metric"], [each["value"]]) for each in found]

    def label_values(self, query: str) -> list[str]:
        """Return the choices of a variable, whose query is ``label_values(METRIC, LABEL)``."""
        metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()  # type: ignore[union-attr]
        values: list[str] = self._ask(f"label/{label}/values", {"match[]": metric})
        return values

    def _ask(self, path: str, query: Mapping[str, Any]) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=ASK_SECONDS) as answer:
            return json.load(answer)["data"]


def _series(labels: dict[str, str], values: Sequence[tuple[float, str]]) -> Series:
    numbers = [(at, float(value)) for at, value in values]
    return Series(labels, [(at, value) for at, value in numbers if math.isfinite(value)])
