"""The dashboard has Grafana's form, and names metrics, labels and headings that exist."""

from __future__ import annotations

import importlib.util
import json
import re
from functools import cache
from typing import Any, Final

import pytest
import yaml
from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from producerd.config import Config, StreamSettings
from producerd.runtime.metrics import NODE_FAMILIES, PREFIX, STREAM_FAMILIES, Family, Metrics
from producerd.runtime.metrics import text as metrics_text
from tests.daemon import ROOT
from tests.grafana import misfits
from tests.prometheus import DASHBOARD as FILE
from tests.prometheus import chosen, filled

DASHBOARD: Final[dict[str, Any]] = json.loads(FILE.read_text())
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES: Final = (ROOT / "deploy/prometheus/alerts.yml").read_text()
OPERATE: Final = ROOT / "docs/operate"
OF_THE_SCRAPE: Final = frozenset({"cluster", "region", "job", "instance"})
OF_ALERTS: Final = frozenset({"alertname", "alertstate", "severity", "stream"})
AGGREGATES: Final = re.compile(
    r"\(*(1 - )?((sum|max|avg|count|quantile)( by \((?P<by>[^)]*)\) )?\("
    r"|histogram_quantile\([\d.]+, sum by \(le\)|ALERTS{)"
)
"""Beginning of an expression that aggregates.  Alerts are about streams and clusters already."""
MADE: Final = frozenset({"trouble", "le"})
"""Labels that an expression sets itself, or that histograms have."""


RULE_EXPRESSIONS: Final = [rule["expr"] for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"]]


@cache
def usual_samples() -> dict[str, list[dict[str, str]]]:
    """The labels of each series of a scrape, by name, before anything happened."""
    metrics = Metrics(Config(streams={"flights": StreamSettings()}))
    snapshot = metrics.snapshot([], state="serving", is_ready=True, connections=0, now=0.0)
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(metrics_text(snapshot, everything=False).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@cache
def labels_of_metrics() -> dict[str, frozenset[str]]:
    """The labels of each metric that Prometheus has: the daemon's own, the process's and the rules'."""
    labels = {"up": OF_THE_SCRAPE, "ALERTS": OF_THE_SCRAPE | OF_ALERTS}
    for families, more in ((NODE_FAMILIES, frozenset[str]()), (STREAM_FAMILIES, frozenset({"stream"}))):
        for family in families:
            own = OF_THE_SCRAPE | more | ({family.label} if family.label else frozenset())
            ends = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
            labels |= {f"{PREFIX}{family.name}{end}": own for end in ends}
    for metric in ProcessCollector(registry=None).collect():
        labels |= {sample.name: OF_THE_SCRAPE for sample in metric.samples}
    recorded = re.findall(r"^ +- record: (\S+)$", RULES, re.MULTILINE)
    of_rules = {name: frozenset({"cluster", "region", "stream"}) for name in recorded}
    of_troubles = {name: labels | {"trouble"} for name, labels in of_rules.items() if ":trouble" in name}
    of_nodes = {"producerd:trouble": OF_THE_SCRAPE | {"stream", "trouble"}}
    return labels | of_rules | of_troubles | of_nodes


def unknown(expression: str) -> set[str]:
    """The metrics that do not exist, and the labels that no metric of the expression has."""
    metrics = labels_of_metrics()
    bare = re.sub(r'"[^"]*"', "", expression)
    selectors = re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", bare)
    named = {*re.findall(r"\b(?:producerd|process)[_:][\w:]+", bare), *(name for name, _ in selectors)}
    wrong = named - set(metrics)
    for name, matchers in selectors:
        if name in metrics:
            wrong |= set(re.findall(r"(\w+) *[=!]", matchers)) - metrics[name]
    known = MADE.union(*(metrics[name] for name in named if name in metrics))
    for group in re.findall(r"\b(?:by|on|without) \(([^)]*)\)", bare):
        wrong |= set(group.split(", ")) - known
    return wrong


def expressions() -> list[str]:
    """Every expression of a panel or an annotation."""
    of_panels = [target["expr"] for panel in PANELS for target in panel["targets"]]
    of_annotations = [each["expr"] for each in DASHBOARD["annotations"]["list"]]
    return of_panels + of_annotations


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_of_an_expression_exists(expression: str) -> None:
    assert unknown(expression) == set()


@pytest.mark.promise("usual-scrape-alerts")
@pytest.mark.parametrize("expression", [*expressions(), *RULE_EXPRESSIONS])
def test_the_usual_scrape_has_all_that_alerts_and_the_dashboard_need(expression: str) -> None:
    """A value that an expression names is there before it occurs, since `increase()` does not see its first time."""
    usual = usual_samples()
    for name, matchers in re.findall(r"\b((?:producerd|process)_\w+)(?:\{([^}]*)\})?", expression):
        assert name in usual
        for label, values in re.findall(r'(\w+)=~?"([^"$]+)"', matchers):
            if label not in OF_THE_SCRAPE | {"stream"}:
                assert any(re.fullmatch(values, labels[label]) for labels in usual[name]), (name, label, values)


@pytest.mark.parametrize("family", [one for one in STREAM_FAMILIES if one.label and one.usual is not None])
def test_alerts_name_each_value_of_a_label_whose_others_appear_late(family: Family) -> None:
    for selector in re.findall(rf"\b{PREFIX}{family.name}\b(\{{[^}}]*\}}|)", "\n".join(RULE_EXPRESSIONS)):
        assert f'{family.label}="' in selector


def test_the_choices_of_variables_are_of_labels_that_exist() -> None:
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            name = metric.partition("{")[0]
            assert label in labels_of_metrics()[name]
            assert variable["allValue"] == ".*", "All must take series without the label, too"
            assert (variable["includeAll"], variable["multi"]) == (True, True)


def test_every_expression_goes_by_cluster_and_region() -> None:
    for expression in expressions():
        for selector in re.findall(r"\{([^}]*)\}", expression):
            assert 'cluster=~"$cluster", region=~"$region"' in selector, expression


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_aggregates_over_nodes_or_shows_the_worst_of_them(panel: dict[str, Any]) -> None:
    """A fleet has up to 2,000 nodes."""
    for target in panel["targets"]:
        if not re.search(r"\b(topk|bottomk)\(\d+, ", target["expr"]):
            outermost = AGGREGATES.match(target["expr"])
            assert outermost, target["expr"]
            assert "instance" not in (outermost["by"] or "")


def test_the_table_of_nodes_in_trouble_is_the_alerts_list_with_some_of_each_trouble() -> None:
    """Of all troubles together, many refused nodes would hide one that is down."""
    ((target,),) = [panel["targets"] for panel in PANELS if panel["title"] == "Nodes with a trouble now"]
    assert re.match(r"topk\(\d+, producerd:trouble\{[^}]*\} or .*\) by \(trouble\)$", target["expr"])


def test_each_panel_says_what_to_do_and_links_to_a_heading_that_helps() -> None:
    places = {page.name for page in OPERATE.glob("*.md")}
    for page in OPERATE.glob("*.md"):
        headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
        anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
        places.update(f"{page.name}#{anchor}" for anchor in anchors)
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        (link,) = panel["links"]
        assert link["url"].removeprefix("${docs}/") in places
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)


def test_each_panel_has_a_place_of_its_own() -> None:
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert {x for x, _ in taken} == set(range(24))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


# ---- Grafana's form


needs_types = pytest.mark.skipif(
    importlib.util.find_spec("grafana_foundation_sdk") is None, reason="grafana-foundation-sdk is not installed"
)


@pytest.mark.promise("dashboard-form-grafanas")
@needs_types
def test_the_dashboard_has_the_form_of_grafanas_own_types() -> None:
    assert misfits(DASHBOARD) == []
    assert DASHBOARD["schemaVersion"] >= 39
    assert "id" not in DASHBOARD, "Grafana numbers it"


# ---- what Grafana asks, and the picture


def test_variables_are_replaced_as_grafana_replaces_them() -> None:
    expression = 'rate(x{cluster=~"$cluster", stream=~"$stream"}[$__rate_interval])'
    assert filled(expression, 60) == 'rate(x{cluster=~".*", stream=~".*"}[60s])'
    assert filled(expression, 60, stream=chosen("(never stored)")).endswith(r'stream=~"\\(never stored\\)"}[60s])')
    assert chosen("a.b", "c") == r"(a\\.b|c)"


def test_the_picture_shows_panels_that_the_dashboard_has() -> None:
    shown = re.findall(r'id="([^":]*): ', (ROOT / "docs/pictures/dashboard-stream.svg").read_text())
    assert shown
    assert set(shown) <= {panel["title"] for panel in PANELS}
