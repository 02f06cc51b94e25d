"""What pages the operator of a fleet, and what does not: in each case something happens to a fleet of 40 nodes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from producerd.runtime.metrics import NEVER_STORED
from tests.daemon import ROOT

RULES: Final = ROOT / "deploy/prometheus/alerts.yml"
NODES: Final = 40
STEADY: Final = "x140"

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed"),
]


@dataclass
class Fleet:
    """Nodes of one cluster, which write to a stream without trouble.  ``changed`` replaces values of some nodes."""

    cluster: str = "a"
    nodes: int = NODES
    stream: str = "flights"
    changed: dict[tuple[str, int], str] = field(default_factory=dict)
    others: list[tuple[str, str]] = field(default_factory=list)

    def on(self, share: float, **values: str) -> Fleet:
        """Give other values to this share of the nodes."""
        for node in range(round(share * self.nodes)):
            self.changed |= {(name, node): values_ for name, values_ in values.items()}
        return self

    def also(self, series: str, values: str) -> Fleet:
        """Add a series of the first node."""
        self.others.append((series, values))
        return self

    def series(self) -> Iterator[dict[str, str]]:
        of_stream = {
            "stream_up": f"1{STEADY}",
            "stream_paused": f"0{STEADY}",
            "queue_records": f"10{STEADY}",
            "queue_oldest_record_age_seconds": f"1{STEADY}",
            "ingest_records_total": f"0+600{STEADY}",
            "delivered_records_total": f"0+600{STEADY}",
            "delivery_latency_seconds_count": f"0+600{STEADY}",
            "credentials_expiry_timestamp_seconds": f"99999{STEADY}",
        }
        labelled = {
            "failed_records_total": ('reason="INTERNAL"', f"0{STEADY}"),
            "discarded_records_total": ('reason="abandoned"', f"0{STEADY}"),
            "delivery_latency_seconds_bucket": ('le="60.0"', f"0+600{STEADY}"),
        }
        for node in range(self.nodes):
            where = f'cluster="{self.cluster}", region="eu", job="producerd", instance="{node}"'

            def one(name: str, labels: str, values: str, node: int = node) -> dict[str, str]:
                key = name.removeprefix("producerd_")
                return {"series": f"{name}{{{labels}}}", "values": self.changed.get((key, node), values)}

            yield one("up", where, f"1{STEADY}")
            yield one("producerd_ready", where, f"1{STEADY}")
            yield one("producerd_state", f'{where}, state="serving"', f"1{STEADY}")
            for name, values in of_stream.items():
                yield one(f"producerd_{name}", f'{where}, stream="{self.stream}"', values)
            for name, (label, values) in labelled.items():
                yield one(f"producerd_{name}", f'{where}, stream="{self.stream}", {label}', values)
        where = f'cluster="{self.cluster}", region="eu", job="producerd", instance="0"'
        for series, values in self.others:
            name, labels = series.split("{")
            yield {"series": f"{name}{{{where}, {labels}", "values": values}


def alerts(tmp_path: Path, *fleets: Fleet, severity: str = "page", at: str = "120m") -> list[str]:
    """Return what fires at that time, by name and cluster."""
    shutil.copy(RULES, tmp_path)
    ask = f'group by (alertname, cluster, stream) (ALERTS{{alertstate="firing", severity="{severity}"}})'
    test = {
        "interval": "1m",
        "input_series": [one for fleet in fleets for one in fleet.series()],
        "promql_expr_test": [{"expr": ask, "eval_time": at, "exp_samples": [{"labels": "nothing", "value": 0}]}],
    }
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": [RULES.name], "evaluation_interval": "5m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=100)
    told = (done.stdout + done.stderr).partition("got:")[2]
    assert told, done.stdout + done.stderr
    found = [part.partition("}")[0] for part in told.split("{")[1:]]
    labels = [dict(label.split("=", 1) for label in one.replace('"', "").split(", ")) for one in found if one.strip()]
    return sorted(" ".join(filter(None, map(one.get, ("alertname", "cluster", "stream")))) for one in labels)


def test_a_healthy_fleet_is_silent(tmp_path: Path) -> None:
    assert alerts(tmp_path, Fleet()) == []
    assert alerts(tmp_path, Fleet(), severity="ticket") == []


def test_a_typing_error_of_a_user_on_one_node_pages_nobody(tmp_path: Path) -> None:
    fleet = (
        Fleet()
        .also(f'producerd_stream_up{{stream="{NEVER_STORED}"}}', f"0{STEADY}")
        .also(f'producerd_queue_records{{stream="{NEVER_STORED}"}}', f"7{STEADY}")
        .also(f'producerd_ingest_records_total{{stream="{NEVER_STORED}"}}', f"0+9{STEADY}")
        .also(f'producerd_delivered_records_total{{stream="{NEVER_STORED}"}}', f"0{STEADY}")
        .also(f'producerd_failed_records_total{{stream="{NEVER_STORED}", reason="STREAM_NOT_FOUND"}}', f"0+9{STEADY}")
    )
    assert alerts(tmp_path, fleet) == []
    assert alerts(tmp_path, fleet, severity="ticket") == ["ProducerdNodesInTrouble a"]


def test_a_rolling_restart_pages_nobody(tmp_path: Path) -> None:
    """One node after the other, a minute each."""
    fleet = Fleet()
    for node in range(NODES):
        down = 60 + node
        fleet.changed["up", node] = f"1x{down - 1} 0 1x200"
        fleet.changed["ready", node] = f"1x{down - 1} 0 1x200"
        fleet.changed["delivered_records_total", node] = f"0+600x{down} 0+600x200"
        fleet.changed["ingest_records_total", node] = f"0+600x{down} 0+600x200"
    for at in ("65m", "80m", "100m", "120m"):
        assert alerts(tmp_path, fleet, at=at) == []


def test_a_record_that_is_too_large_pages_nobody(tmp_path: Path) -> None:
    reason = 'stream="flights", reason="RECORD_TOO_LARGE"'
    fleet = (
        Fleet()
        .also(f"producerd_failed_records_total{{{reason}}}", "0x115 1x200")
        .also(f"producerd_ingest_rejected_records_total{{{reason}}}", "0x115 1x200")
    )
    assert alerts(tmp_path, fleet) == []


def test_a_paused_stream_pages_nobody(tmp_path: Path) -> None:
    """On every node, and for hours."""
    fleet = Fleet().on(
        1.0,
        stream_paused=f"1{STEADY}",
        queue_oldest_record_age_seconds=f"0+60{STEADY}",
        delivered_records_total=f"0{STEADY}",
        ingest_records_total="0+600x10 6000x130",
        delivery_latency_seconds_count=f"0{STEADY}",
        delivery_latency_seconds_bucket=f"0{STEADY}",
    )
    assert alerts(tmp_path, fleet) == []


def test_a_lost_node_pages_nobody(tmp_path: Path) -> None:
    gone = dict.fromkeys(("stream_up", "queue_records", "ready"), "1x60 _x300")
    fleet = Fleet().on(0.025, up="1x60 0x300", **gone)
    assert alerts(tmp_path, fleet) == []
    assert alerts(tmp_path, fleet, severity="ticket") == ["ProducerdNodesInTrouble a"]


@pytest.mark.parametrize("clusters", [1, 2])
def test_all_targets_gone_is_noticed(tmp_path: Path, clusters: int) -> None:
    gone = Fleet("a").on(1.0, up="1x90 _x300")
    stays = [Fleet("b")] if clusters == 2 else []
    found = alerts(tmp_path, gone, *stays)
    assert "ProducerdDaemonsAbsent a" in found
    assert not [name for name in found if name.endswith((" b", " b flights"))]


def test_a_stream_that_most_nodes_are_refused_is_noticed(tmp_path: Path) -> None:
    fleet = Fleet().on(0.9, stream_up="1x90 0x300")
    assert alerts(tmp_path, fleet) == ["ProducerdStreamRefused a flights"]


def test_nothing_delivered_is_noticed_where_nobody_has_paused(tmp_path: Path) -> None:
    fleet = Fleet().on(1.0, delivered_records_total="0+600x90 54000x300")
    assert alerts(tmp_path, fleet) == ["ProducerdNothingDelivered a flights"]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"stream_up": "1x90 0x300"}, "ProducerdStreamRefused a flights"),
        ({"queue_oldest_record_age_seconds": f"0+60{STEADY}"}, "ProducerdRecordsStuck a flights"),
        ({"up": "1x90 0x300"}, "ProducerdDaemonsDown a"),
        ({"ready": "1x90 0x300"}, "ProducerdNobodyCanConnect a"),
    ],
)
def test_a_sick_twentieth_of_the_nodes_is_noticed(tmp_path: Path, values: dict[str, str], name: str) -> None:
    assert alerts(tmp_path, Fleet().on(0.05, **values)) == [name]
    assert alerts(tmp_path, Fleet().on(0.025, **values)) == []


def test_records_that_are_abandoned_are_noticed(tmp_path: Path) -> None:
    fleet = Fleet().on(0.025, discarded_records_total="0x115 40x200")
    assert alerts(tmp_path, fleet) == ["ProducerdRecordsAbandoned a flights"]


def test_records_that_fail_are_noticed_by_their_share(tmp_path: Path) -> None:
    burning = ["ProducerdFailedBurn a flights", "ProducerdRecordsFailed a flights"]
    assert alerts(tmp_path, Fleet().on(1.0, failed_records_total=f"0+30{STEADY}")) == burning
    assert alerts(tmp_path, Fleet().on(0.025, failed_records_total="0+1x10 10x130")) == []


def test_records_that_are_late_are_noticed(tmp_path: Path) -> None:
    fleet = Fleet().on(1.0, delivery_latency_seconds_bucket=f"0+480{STEADY}")
    assert alerts(tmp_path, fleet) == ["ProducerdLateBurn a flights"]


def test_two_clusters_with_a_stream_of_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    """The sick one is an eighth of the other, which would hide it."""
    sick = Fleet("b", nodes=5).on(1.0, stream_up="1x90 0x300", delivered_records_total="0+600x90 54000x300")
    assert alerts(tmp_path, Fleet("a"), sick) == [
        "ProducerdNothingDelivered b flights",
        "ProducerdStreamRefused b flights",
    ]


def test_credentials_that_end_while_a_stream_is_idle_page_nobody(tmp_path: Path) -> None:
    """They end at 118 minutes of promtool's clock."""
    ends = {"credentials_expiry_timestamp_seconds": f"7100{STEADY}"}
    idle = {
        "queue_records": f"0{STEADY}",
        "ingest_records_total": f"5{STEADY}",
        "delivered_records_total": f"5{STEADY}",
    }
    assert alerts(tmp_path, Fleet().on(0.025, **ends)) == ["ProducerdCredentialsExpire a flights"]
    assert alerts(tmp_path, Fleet().on(0.025, **ends, **idle)) == []
