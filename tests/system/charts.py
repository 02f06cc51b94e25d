"""The chart as Helm renders it.  ``python -m tests.system.charts`` writes deploy/kubernetes/pod-templates again."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tools.kubernetes import HELMS, helm_path

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
CHART: Final = DEPLOY / "chart"
EXAMPLES: Final = {path.stem: path for path in sorted((DEPLOY / "examples").glob("*.yaml"))}
"""Values for each mode, by its name."""
POD_TEMPLATES: Final = {mode: DEPLOY / "pod-templates" / f"{mode}.yaml" for mode in EXAMPLES}
NEWEST: Final = max(HELMS, key=lambda version: [int(number) for number in version.split(".")])
LEAST: Final = """
image: {repository: REGISTRY/producerd}
config: |
  region = "eu-west-1"
"""
"""The values that have no default."""
WATCHED: Final = [f"--set=monitoring.{name}.enabled=true" for name in ("podMonitor", "prometheusRule", "dashboard")]
"""What the examples leave out, because a cluster may lack the kinds."""
Manifest = dict[str, Any]


def missing() -> str:
    """What this machine lacks; empty: nothing."""
    absent = [version for version in HELMS if not helm_path(version).exists()]
    return f"needs Helm {', '.join(absent)}: ./dev test --system brings it on x86-64" if absent else ""


def helm(*arguments: str | Path, version: str = NEWEST) -> subprocess.CompletedProcess[str]:
    """What Helm did, whether it failed or not.  ``--values=-`` stands for `LEAST`."""
    command = [str(helm_path(version)), *map(str, arguments)]
    return subprocess.run(command, input=LEAST, capture_output=True, text=True, timeout=60, check=False)


def render(*arguments: str | Path, version: str = NEWEST) -> subprocess.CompletedProcess[str]:
    """What Helm did with a release of these arguments, which need not name what has no default."""
    return helm("template", "producerd", CHART, "--namespace=jobs", "--values=-", *arguments, version=version)


@functools.cache
def rendered(*arguments: str | Path, version: str = NEWEST) -> Sequence[Manifest]:
    """The objects of a release with these arguments, each of which must be a mapping."""
    done = render(*arguments, version=version)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest is not None]


def example(mode: str, *arguments: str, version: str = NEWEST) -> Sequence[Manifest]:
    """The objects of a release with the example's values for this mode, and with all that watches it."""
    return rendered("--values", EXAMPLES[mode], *WATCHED, *arguments, version=version)


def one(manifests: Sequence[Manifest], kind: str, name: str = "producerd") -> Manifest:
    (found,) = (one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def configuration(manifests: Sequence[Manifest]) -> str:
    """The text of the producerd.toml that the daemon's pod mounts."""
    pod = daemon_pod(manifests)
    (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == "producerd-config")
    (item,) = volume["downwardAPI"]["items"]
    assert item == {"path": "producerd.toml", "fieldRef": {"fieldPath": "metadata.annotations['producerd.toml']"}}
    text: str = pod["metadata"]["annotations"]["producerd.toml"]
    return text


def executor(manifests: Sequence[Manifest]) -> str:
    """The file that spark.kubernetes.executor.podTemplateFile names."""
    text: str = one(manifests, "ConfigMap", "producerd-executor")["data"]["executor.yaml"]
    return text


def daemon_pod(manifests: Sequence[Manifest]) -> Manifest:
    """The pod in which the daemon runs: the DaemonSet's, or the executors'."""
    for manifest in manifests:
        if manifest["kind"] == "DaemonSet":
            return dict(manifest["spec"]["template"])
    return dict(yaml.safe_load(executor(manifests)))


def daemon_container(manifests: Sequence[Manifest]) -> Manifest:
    spec = daemon_pod(manifests)["spec"]
    (container,) = (one for one in (*spec["initContainers"], *spec["containers"]) if one["name"] == "producerd")
    return dict(container)


def scraped(manifests: Sequence[Manifest], pod: str, node: str) -> Mapping[str, str]:
    """The labels of a pod's series: as the operator sets them first, and then by the monitor's own relabelling."""
    (endpoint,) = one(manifests, "PodMonitor")["spec"]["podMetricsEndpoints"]
    labels = {"pod": pod, "instance": f"{pod}:9474", "__meta_kubernetes_pod_node_name": node}
    for each in endpoint["relabelings"]:
        if each.get("action") == "labeldrop":
            labels = {name: value for name, value in labels.items() if not re.fullmatch(each["regex"], name)}
        else:
            sources = [labels[name] for name in each.get("sourceLabels", ())]
            labels[each["targetLabel"]] = each.get("replacement", ";".join(sources))
    return {name: value for name, value in labels.items() if not name.startswith("__")}


if __name__ == "__main__":
    for mode, path in POD_TEMPLATES.items():
        path.write_text(executor(example(mode)))
