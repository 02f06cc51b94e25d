"""A real Prometheus answers every expression of the dashboard with data, as Grafana would ask, in a run with faults."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.prometheus import DASHBOARD as FILE
from tests.prometheus import Series, chosen, filled
from tests.system.faulty_run import PHASES, RATE_SECONDS, SCRAPE_SECONDS, FaultyRun, faulty_run

DASHBOARD: Final[dict[str, Any]] = json.loads(FILE.read_text())
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PHASE_SECONDS: Final = 4.0
EMPTY_WHEN_ALL_IS_WELL: Final = {
    "Alerts": "no alert fires",
    "Nodes in trouble": "no node is in trouble",
    "Why callers wait": "no caller waits",
    "Waits for room": "no frame had to wait",
    "Errors of the service": "no send failed",
    "Possible copies": "no answer was lost",
    "Failed, rejected and given up": "every record was stored",
    "Nodes with a trouble now": "no node is in trouble",
    "Ended connections": "no connection has ended",
    "Restarts": "no daemon was restarted",
}
"""Panels that have no data while nothing is wrong, and why.  Each says so in place of "No data"."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed"),
]


@pytest.fixture(scope="module")
def run() -> Iterator[FaultyRun]:
    with faulty_run(PHASE_SECONDS, print) as run:
        yield run


def answers(run: FaultyRun, target: dict[str, Any], end: float, **choices: str) -> list[Series]:
    """What a panel's query gets, without series that have no value."""
    expression = filled(target["expr"], RATE_SECONDS, **choices)
    if target["instant"]:
        found = run.prometheus.now(expression, end)
    else:
        found = run.prometheus.graph(expression, run.began, end, SCRAPE_SECONDS)
    return [series for series in found if series.points]


def without_data(run: FaultyRun, panel: dict[str, Any], end: float) -> list[str]:
    """The queries of a panel that get nothing until then."""
    return [target["legendFormat"] for target in panel["targets"] if not answers(run, target, end)]


@pytest.mark.promise("query-panel-data-everything")
@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_query_of_a_panel_has_data_and_its_legends_labels_while_everything_fails(
    run: FaultyRun, panel: dict[str, Any]
) -> None:
    for target in panel["targets"]:
        found = answers(run, target, run.ended)
        assert found, target["legendFormat"]
        labels = {name for series in found for name in series.labels}
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels


@pytest.mark.promise("query-panel-data-everything")
def test_only_named_panels_are_empty_while_nothing_is_wrong(run: FaultyRun) -> None:
    end = run.phases[PHASES[0]]
    empty = {panel["title"] for panel in PANELS if len(without_data(run, panel, end)) == len(panel["targets"])}
    assert empty <= set(EMPTY_WHEN_ALL_IS_WELL)
    says = {panel["title"] for panel in PANELS if "noValue" in panel["fieldConfig"]["defaults"]}
    assert set(EMPTY_WHEN_ALL_IS_WELL) <= says


def test_annotations_mark_pages_restarts_and_reloads(run: FaultyRun) -> None:
    for annotation in DASHBOARD["annotations"]["list"]:
        assert answers(run, {"expr": annotation["expr"], "instant": False}, run.ended), annotation["name"]


@pytest.mark.promise("query-panel-data-everything")
def test_variables_offer_what_there_is_and_work_without_the_labels(run: FaultyRun) -> None:
    """One of the two daemons has neither a cluster nor a region."""
    offered = {
        variable["name"]: run.prometheus.label_values(filled(variable["definition"], RATE_SECONDS))
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    }
    instances = offered.pop("instance")
    assert len(instances) == 2
    assert offered == {
        "cluster": ["spark"],
        "region": ["eu-west-1"],
        "stream": ["(never stored)", "flights", "gone", "impatient"],
    }
    nodes = {"expr": 'count(producerd_ready{cluster=~"$cluster", instance=~"$instance"})', "instant": True}
    for choices, count in (
        ({}, 2),
        ({"cluster": "spark"}, 1),
        ({"instance": chosen(instances[0])}, 1),
        ({"instance": chosen(*instances)}, 2),
    ):
        ((_, [(_, value)]),) = answers(run, nodes, run.ended, **choices)
        assert value == count


def test_a_stream_whose_label_has_parentheses_can_be_chosen(run: FaultyRun) -> None:
    rejected = {
        "expr": 'sum by (stream) (producerd_ingest_rejected_records_total{stream=~"$stream"}) > 0',
        "instant": True,
    }
    found = answers(run, rejected, run.ended, stream=chosen("(never stored)"))
    assert [series.labels for series in found] == [{"stream": "(never stored)"}]
