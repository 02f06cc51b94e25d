"""A Prometheus that discovers its targets in the cluster, with the settings that the operator makes of monitors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import yaml

from tests.cluster.keys import PKI
from tests.cluster.nodes import CONTROL, get, kubectl
from tests.cluster.place import RUN, end
from tests.cluster.programs import build_prometheus
from tools.kubernetes import DEFINITIONS, FOLDER

PORT: Final = 9090
NAMES: Final = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
KEYS: Final = {"ca_file": "ca.crt", "cert_file": "admin.crt", "key_file": "admin.key"}
POD: Final = "__meta_kubernetes_pod"


def define_kinds() -> None:
    """Let the cluster know the operator's kinds."""
    for name in DEFINITIONS:
        kubectl("apply", "--server-side", "-f", FOLDER / name)


def start() -> None:
    """Start a Prometheus for the monitors and rules that are in the cluster."""
    end("prometheus")
    folder = RUN / "prometheus"
    folder.mkdir(exist_ok=True)
    monitors, rules = get("podmonitors", "-A")["items"], get("prometheusrules", "-A")["items"]
    files = [_written(folder / f"rules{number}.yml", rule["spec"]) for number, rule in enumerate(rules)]
    told = {
        "global": {"evaluation_interval": "15s"},
        "rule_files": files,
        "scrape_configs": [
            _scrape(one, endpoint) for one in monitors for endpoint in one["spec"]["podMetricsEndpoints"]
        ],
    }
    config = _written(folder / "prometheus.yml", told)
    listen = f"--web.listen-address={CONTROL.address}:{PORT}"
    data = f"--storage.tsdb.path={folder}/data"
    CONTROL.start("prometheus", build_prometheus(), f"--config.file={config}", data, listen)


def ask(expression: str) -> Any:
    """Return the series of an expression."""
    url = f"http://{CONTROL.address}:{PORT}/api/v1/query?query={quote(expression)}"
    told = CONTROL.run("python3", "-c", f"import urllib.request as u; print(u.urlopen({url!r}).read().decode())")
    return json.loads(told)["data"]["result"]


def _written(path: Path, what: object) -> str:
    path.write_text(yaml.safe_dump(what))
    return str(path)


def _scrape(monitor: Any, endpoint: Any) -> dict[str, Any]:
    """Return the job of a monitor's endpoint, as the operator makes it."""
    spec, own = monitor["spec"], monitor["metadata"]
    namespaces = spec.get("namespaceSelector", {}).get("matchNames", [own["namespace"]])

    def keep(source: str, value: str) -> dict[str, Any]:
        return {"action": "keep", "source_labels": [source], "regex": value}

    relabel: list[dict[str, Any]] = [
        {"action": "drop", "source_labels": [f"{POD}_phase"], "regex": "(Failed|Succeeded)"}
    ]
    for key, value in spec["selector"]["matchLabels"].items():
        relabel.append(keep(f"{POD}_label_{re.sub(r'[^A-Za-z0-9_]', '_', key)}", value))
    relabel.append(keep(f"{POD}_container_port_name", endpoint["port"]))
    for label, source in {"namespace": "__meta_kubernetes_namespace", "pod": f"{POD}_name"}.items():
        relabel.append({"source_labels": [source], "target_label": label})
    relabel += [{NAMES.get(key, key): value for key, value in one.items()} for one in endpoint["relabelings"]]
    reach = {
        "api_server": f"https://{CONTROL.address}:6443",
        "tls_config": {name: str(PKI / file) for name, file in KEYS.items()},
    }
    return {
        "job_name": f"podMonitor/{own['namespace']}/{own['name']}",
        "scrape_interval": endpoint["interval"],
        "relabel_configs": relabel,
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": namespaces}, **reach}],
    }
