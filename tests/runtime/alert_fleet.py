"""A fleet as Prometheus sees it, what happens to it, and what the alerts say of that by promtool."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from tests.daemon import ROOT

RULES: Final = ROOT / "deploy/prometheus/alerts.yml"
NODES: Final = 20
STEADY: Final = "x140"
OUTAGE: Final = {
    "stream_up": "1x30 0x38 1x70",
    "queue_oldest_record_age_seconds": "1x30 60+60x38 1x70",
    "ingest_records_total": "0+600x30 18000x38 18600+600x70",
    "delivered_records_total": "0+600x30 18000x38 20000+2000x5 30600+600x65",
    "delivery_latency_seconds_count": "0+600x30 18000x38 20000+2000x5 30600+600x65",
    "delivery_latency_seconds_bucket": "0+600x30 18000x38 18600+600x5 22200+600x65",
    "failed_records_total": "0x36 0+30x32 960x70",
    "credentials_expiry_timestamp_seconds": "3600x69 99999x70",
}
"""What a node shows in an outage of its region from the 31st to the 69th minute, in which its credentials end, too."""
DEAD_STS: Final = {
    "credentials_expiry_timestamp_seconds": f"3600{STEADY}",
    "credential_refreshes_total": "0x45 0+12x95",
    "stream_up": "1x60 0x80",
    "queue_oldest_record_age_seconds": "1x60 60+60x80",
    "delivered_records_total": "0+600x60 36000x80",
    "ingest_records_total": "0+600x60 36000x80",
    "failed_records_total": "0x61 0+30x80",
}
"""What a node shows whose credentials are not renewed, and end after an hour."""
LOST_ZONE: Final = {"up": "1x60 0x80"}


@dataclass
class Fleet:
    """Nodes of one cluster, which write to a stream without trouble.  ``changed`` replaces values of some nodes."""

    cluster: str = "a"
    nodes: int = NODES
    stream: str = "flights"
    release: str = ""
    held_by: str = "quota"
    changed: dict[tuple[str, int], str] = field(default_factory=dict)
    others: list[tuple[str, str]] = field(default_factory=list)

    def on(self, share: float, **values: str) -> Fleet:
        """Give other values to the first nodes, of which this is the share."""
        for node in range(round(share * self.nodes)):
            self.changed |= {(name, node): values_ for name, values_ in values.items()}
        return self

    def also(self, series: str, values: str) -> Fleet:
        """Add a series of the first node."""
        self.others.append((series, values))
        return self

    def series(self) -> Iterator[dict[str, str]]:
        of_node = {
            "up": f"1{STEADY}",
            "process_start_time_seconds": f"1{STEADY}",
            "process_resident_memory_bytes": f"10{STEADY}",
            "producerd_memory_limit_bytes": f"100{STEADY}",
            "producerd_memory_needed_bytes": f"90{STEADY}",
            "process_open_fds": f"50{STEADY}",
            "process_max_fds": f"1024{STEADY}",
            "producerd_clock_offset_seconds": f"0{STEADY}",
            "producerd_event_loop_lag_seconds_sum": f"0+0.3{STEADY}",
            "producerd_ready": f"1{STEADY}",
        }
        of_stream = {
            "stream_up": f"1{STEADY}",
            "stream_paused": f"0{STEADY}",
            "queue_records": f"10{STEADY}",
            "queue_oldest_record_age_seconds": f"1{STEADY}",
            "ingest_records_total": f"0+600{STEADY}",
            "refused_records_total": f"0{STEADY}",
            "delivered_records_total": f"0+600{STEADY}",
            "delivery_latency_seconds_count": f"0+600{STEADY}",
            "backpressure_active_seconds_total": f"0{STEADY}",
            "shards_silent": f"0{STEADY}",
            "shard_utilization_max_ratio": f"0{STEADY}",
            "credentials_expiry_timestamp_seconds": f"99999{STEADY}",
        }
        labelled = {
            "failed_records_total": ('reason="INTERNAL"', f"0{STEADY}"),
            "discarded_records_total": ('reason="abandoned"', f"0{STEADY}"),
            "delivery_latency_seconds_bucket": ('le="60.0"', f"0+600{STEADY}"),
            "backpressure_cause_seconds_total": ('cause="hot_shard"', f"0{STEADY}"),
            "slow_seconds_total": (f'held_by="{self.held_by}"', f"0{STEADY}"),
        }
        for node in range(self.nodes):
            where = f'cluster="{self.cluster}", region="eu", job="producerd", instance="{node}"'
            where += f', release="{self.release}"' * bool(self.release)

            def one(name: str, labels: str, values: str, node: int = node) -> dict[str, str]:
                key = name.removeprefix("producerd_")
                return {"series": f"{name}{{{labels}}}", "values": self.changed.get((key, node), values)}

            for name, values in of_node.items():
                yield one(name, where, values)
            yield one("producerd_refused_opens_total", f'{where}, reason="NOT_AUTHORIZED"', f"0{STEADY}")
            yield one("producerd_log_lines_lost_total", f'{where}, reason="full"', f"0{STEADY}")
            yield one("producerd_credential_refreshes_total", f'{where}, result="failed"', f"0{STEADY}")
            yield one("producerd_state", f'{where}, state="serving"', f"1{STEADY}")
            for name, values in of_stream.items():
                yield one(f"producerd_{name}", f'{where}, stream="{self.stream}"', values)
            for name, (label, values) in labelled.items():
                yield one(f"producerd_{name}", f'{where}, stream="{self.stream}", {label}', values)
        where = f'cluster="{self.cluster}", region="eu", job="producerd", instance="0"'
        for series, values in self.others:
            name, labels = series.split("{")
            yield {"series": f"{name}{{{where}, {labels}", "values": values}


class Fired(NamedTuple):
    """What fires, by name, cluster, and stream or trouble."""

    pages: list[str]
    tickets: list[str]


def alerts(tmp_path: Path, *fleets: Fleet, at: tuple[str, ...]) -> Fired:
    """Return what fires at one of these times."""
    return together(fired_at(tmp_path, *fleets, at=at), at)


def together(fired: Mapping[str, Fired], at: Iterable[str]) -> Fired:
    """Return what has fired at one of these times."""
    pages, tickets = zip(*(fired[each] for each in at), strict=True)
    return Fired(sorted({*chain(*pages)}), sorted({*chain(*tickets)}))


def fired_at(tmp_path: Path, *fleets: Fleet, at: Sequence[str]) -> dict[str, Fired]:
    """Return what fires at each of these times."""
    shutil.copy(RULES, tmp_path)
    asked = [
        {
            "expr": f'group by (alertname, cluster, stream, trouble) (ALERTS{{alertstate="firing", severity="{of}"}})',
            "eval_time": each,
            "exp_samples": [{"labels": "nothing", "value": 0}],
        }
        for each in at
        for of in ("page", "ticket")
    ]
    test = {
        "interval": "1m",
        "input_series": [one for fleet in fleets for one in fleet.series()],
        "promql_expr_test": asked,
    }
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": [RULES.name], "evaluation_interval": "5m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=100)
    told = [named(one) for one in (done.stdout + done.stderr).split("got:")[1:]]
    assert len(told) == len(asked), done.stdout + done.stderr
    return {each: Fired(*told[2 * number : 2 * number + 2]) for number, each in enumerate(at)}


def named(told: str) -> list[str]:
    """Return the alerts in an answer of promtool."""
    found = [part.partition("}")[0] for part in told.partition("expr:")[0].split("{")[1:]]
    labels = [dict(label.split("=", 1) for label in one.replace('"', "").split(", ")) for one in found if one.strip()]
    parts = ("alertname", "cluster", "stream", "trouble")
    return [" ".join(filter(None, map(one.get, parts))) for one in labels]
