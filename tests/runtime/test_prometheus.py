"""Prometheus reads the daemon's metrics, and every alert for them is tested and explained.

Tests that ask Prometheus itself need its Debian package (``apt-get install prometheus``) and are skipped without it.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from producerd.runtime.metrics import NODE_FAMILIES, PREFIX, STREAM_FAMILIES
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer
from tests.daemon import PATIENCE_SECONDS, ROOT, daemon, rows, session, until
from tests.runtime.under_faults import daemon_under_faults

RULES: Final = ROOT / "deploy/prometheus/alerts.yml"
RULES_TEST: Final = ROOT / "deploy/prometheus/alerts_test.yml"
SCRAPE: Final = ROOT / "deploy/prometheus/scrape.yml"
ALERTS: Final = re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)
RECORDED: Final = re.findall(r"^ +- record: (\S+)$", RULES.read_text(), re.MULTILINE)
OPERATE: Final = ROOT / "docs/operate"

pytestmark = pytest.mark.system
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")


def promtool(*arguments: str | Path, stdin: str = "") -> str:
    """What it says; nothing may be wrong."""
    done = subprocess.run(
        ["promtool", *arguments], input=stdin, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# ---- what is scraped


@needs_promtool
def test_scrapes_are_clean_while_everything_fails(kinesis: FakeKinesis, server: FakeServer) -> None:
    with daemon_under_faults(kinesis, server) as running:
        assert promtool("check", "metrics", stdin=running.get("/metrics")[1]) == ""
        until(lambda: running.metrics().get("failed_records_total") and running.metrics()["delivered_records_total"])
        for _ in range(5):
            assert promtool("check", "metrics", stdin=running.get("/metrics")[1]) == ""


@pytest.mark.promise("real-prometheus-scrapes")
@pytest.mark.slow
@needs_prometheus
def test_a_real_prometheus_scrapes_the_daemon(kinesis: FakeKinesis, server: FakeServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with daemon(server.url) as running, session(running) as client:
        client.put(rows(7))
        assert client.acks()[0].stored == 7
        text = SCRAPE.read_text().replace("127.0.0.1:9474", running.url.removeprefix("http://"))
        (tmp_path / "prometheus.yml").write_text(text.replace("scrape_interval: 15s", "scrape_interval: 1s"))
        shutil.copy(RULES, tmp_path)
        command = [
            "prometheus",
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as prometheus:

            def ask(query: str) -> list[Any]:
                url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
                try:
                    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
                        return [found["value"][1] for found in json.load(answer)["data"]["result"]]
                except (urllib.error.URLError, ConnectionError):  # it does not serve yet
                    return []

            try:
                until(lambda: ask('up{job="producerd"}') == ["1"], "Prometheus has scraped the daemon", 30)
                assert ask('producerd_delivered_records_total{stream="flights"}') == ["7"]
                assert ask('producerd_delivery_latency_seconds_count{stream="flights"}') == ["7"]
                assert ask('{__name__=~"producerd_.+", instance=""}') == []
                client.put(rows(5))
                assert client.acks()[0].stored == 5
                until(lambda: ask('producerd_delivered_records_total{stream="flights"}') == ["12"], "the next scrape")
                until(lambda: ask("count(producerd_stream_up{stream='flights'} == 1)") == ["1"])
                assert ask("ALERTS") == []
            finally:
                prometheus.terminate()
                prometheus.wait(PATIENCE_SECONDS)


# ---- alerts


@needs_promtool
def test_the_rules_and_the_example_of_a_scrape_are_right() -> None:
    assert f"{len(ALERTS) + len(RECORDED)} rules found" in promtool("check", "rules", "--lint-fatal", RULES)
    promtool("check", "config", SCRAPE)


@pytest.mark.promise("prometheus-finds-nodes")
@needs_promtool
def test_prometheus_finds_the_nodes_of_emr_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/use/emr.md").read_text()
    example = page.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "prometheus.yml").write_text(example)
    promtool("check", "config", tmp_path / "prometheus.yml")
    (scrape,) = yaml.safe_load(example)["scrape_configs"]
    (sd,) = scrape["ec2_sd_configs"]
    tag = sd["filters"][0]["values"][0]
    assert (scrape["job_name"], f"--tags {tag}=" in page) == ("producerd", True)
    assert f"metrics_listen=0.0.0.0:{sd['port']}" in page
    labels = {each["target_label"]: each.get("source_labels") for each in scrape["relabel_configs"]}
    assert labels == {"cluster": [f"__meta_ec2_tag_{tag}"], "region": None, "instance": ["__meta_ec2_instance_id"]}


@pytest.mark.slow
@needs_promtool
def test_each_alert_fires_when_it_should_and_only_then() -> None:
    promtool("test", "rules", RULES_TEST)


def test_each_alert_is_tested_both_ways() -> None:
    parts = re.split(r"^  - name: ", RULES_TEST.read_text(), flags=re.MULTILINE)[1:]
    tested = {re.match(r"\w+", part)[0]: part for part in parts}  # type: ignore[index] # each has a name
    assert list(tested) == ALERTS
    for name, part in tested.items():
        assert f"alertname: {name}\n        exp_alerts: []" in part, "silent"
        assert f"alertname: {name}\n        exp_alerts:\n          - exp_labels" in part, "fires"
        assert part.count("- exp_labels") == 1, "one alert, whatever the number of nodes"


def test_each_alert_has_an_entry_in_the_runbook_and_each_entry_an_alert() -> None:
    """In the order of the rules, on the page of its severity."""
    rules = re.findall(
        r"- alert: (\w+)\n(?:(?! +- ).*\n)* +severity: (\w+)\n(?:(?! +- ).*\n)* +runbook_url: (\S+)", RULES.read_text()
    )
    assert [name for name, _, _ in rules] == ALERTS
    for severity in ("page", "ticket"):
        page = OPERATE / f"runbook-{severity}s.md"
        links = {name: url for name, of, url in rules if of == severity}
        assert re.findall(r"^## (\w+)$", page.read_text(), re.MULTILINE) == list(links)
        assert list(links.values()) == [f"docs/operate/{page.name}#{name.lower()}" for name in links]


def test_each_alert_says_whether_records_are_lost_and_whether_one_may_restart() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        if "alert" in rule:
            description = rule["annotations"]["description"]
            assert re.search(r"\b(is|are) (lost|unknown)\b|\bcallers know it\b", description), rule["alert"]
            assert re.search(r"\b[Rr]estart\b", description), rule["alert"]


def test_alerts_are_never_by_node_and_name_metrics_that_are_there() -> None:
    text = RULES.read_text()
    names = {PREFIX + family.name for family in (*NODE_FAMILIES, *STREAM_FAMILIES)}
    used = {re.sub("_(bucket|count|sum)$", "", name) for name in re.findall(r"producerd_\w+", text)} - {
        "producerd_objectives"
    }
    assert used <= names, used - names
    for labels in re.findall(r"\bby \(([^)]*)\)", text):
        assert {"cluster", "region"} <= set(labels.split(", "))
        assert set(labels.split(", ")) <= {
            "cluster",
            "region",
            "stream",
            "reason",
            "code",
            "cause",
            "trouble",
            "le",
            "hash",
            "release",
            "version",
        }
    assert len(ALERTS) + len(RECORDED) == text.count("expr: ")
    for kind, expression in re.findall(r"^ +- (alert|record): .*\n +expr: (.*(?:\n {10}.*)*)", text, re.MULTILINE):
        assert kind == "record" or " by (" in expression, expression


# ---- documents


def test_every_metric_that_a_page_for_operators_names_is_there() -> None:
    names = {PREFIX + family.name for family in (*NODE_FAMILIES, *STREAM_FAMILIES)}
    pages = "".join(page.read_text() for page in OPERATE.glob("*.md"))
    named = set(re.findall(r"\b(producerd_[a-z_]+?)(?:_sum)?\b", pages)) - {"producerd_demo"}  # a package
    assert named <= names, named - names
