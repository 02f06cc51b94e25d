"""What is tried with the chart and the nodes.  A case returns what the operator sees."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.cluster import nodes, prometheus
from tests.cluster.nodes import NODES, get, helm, kubectl
from tests.cluster.place import Failed, end, until
from tests.cluster.trial import DAEMONS, RESTRICTED, TEAM, WAIT_SECONDS, Trial, case, is_ready, make_namespace


@case
def smoke(trial: Trial) -> str:
    """Both modes with clients and a Spark job, an upgrade and a kill -9 under load."""
    trial.serve()
    with trial.load(60_000):
        job = trial.job()
        trial.serve(setting="drain_timeout_seconds = 50")
        pod = trial.daemon(NODES[0])
        trial.kill(NODES[0], pod)
        trial.restarts(DAEMONS, pod["metadata"]["name"])
        seen = trial.pods()
        trial.sidecars(security="restricted")
        name = trial.client(NODES[1], 40_000, namespace=TEAM, security=RESTRICTED)
        trial.ends_well(name, TEAM)
        trial.ends_well(job)
    return f"daemons: {seen}"


@case
def held_roll_out(trial: Trial) -> str:
    """A version that does not start rolls out; an old daemon crashes, also after its kubelet's restart."""
    trial.serve(setting="drain_timeout_seconds = 41")
    seen = []
    with trial.load(80_000):
        broken = "--set-json=extraEnv=" + json.dumps([{"name": "PYTHONHOME", "value": "/nowhere"}])
        trial.upgrade(broken, "--no-hooks", setting="drain_timeout_seconds = 42")
        time.sleep(25)
        seen.append(f"held: {trial.pods()}")
        (node,) = [node for node in NODES if is_ready(trial.daemon(node))]
        old = trial.daemon(node)["metadata"]["name"]
        end("controllers")  # it would replace the old pod once its container has crashed
        for restarts in 1, 2:
            if restarts == 2:
                nodes.start_kubelet(node)
            trial.kill(node, get("-n", DAEMONS, "pod", old))
            trial.restarts(DAEMONS, old, restarts)
            assert "drain_timeout_seconds = 41" in trial.settings(DAEMONS, old)
        seen.append("the old pod starts again with its old settings, also after its kubelet's restart")
        time.sleep(12)  # it becomes available after minReadySeconds
        nodes.start_controllers()
        time.sleep(10)
        began = time.monotonic()
        trial.kill(node, trial.daemon(node))
        until(lambda: trial.daemon(node)["metadata"]["name"] != old, "another pod is in its place", 60.0)
        seen.append(f"a kill -9 puts the new pod in its place in {time.monotonic() - began:.1f} s: {trial.pods()}")
        trial.roll_back()
    return "; ".join([*seen, f"rolled back: {trial.pods()}"])


@case
def sidecar_settings(trial: Trial) -> str:
    """A sidecar crashes after its release was upgraded."""
    trial.sidecars(security="restricted", setting="drain_timeout_seconds = 41")
    node = NODES[1]
    name = trial.client(node, 60_000, namespace=TEAM, security=RESTRICTED)
    trial.wait_for(1, name)
    trial.sidecars(security="restricted", setting="drain_timeout_seconds = 42")
    trial.kill(node, get("-n", TEAM, "pod", name))
    trial.restarts(TEAM, name)
    assert "drain_timeout_seconds = 41" in trial.settings(TEAM, name)
    seen = trial.pods(TEAM, "producerd")
    trial.ends_well(name, TEAM)
    return f"the sidecar starts again with its old settings: {seen}"


@case
def drain(trial: Trial) -> str:
    """A node is drained: executors with the DaemonSet and with sidecars are evicted, and come back on the other."""
    trial.serve()
    trial.sidecars(security="restricted")
    gone, stays = NODES
    names = [trial.client(gone, 10**6), trial.client(gone, 10**6, namespace=TEAM, security=RESTRICTED)]
    trial.wait_for(2_000, *names)
    began = time.monotonic()
    kubectl("drain", gone.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", seconds=WAIT_SECONDS)
    seconds = time.monotonic() - began
    seen = f"drained in {seconds:.0f} s; {trial.pods()}"
    trial.ends_well(trial.client(stays, 10_000))
    kubectl("uncordon", gone.name)
    trial.ends_well(trial.client(gone, 10_000))
    return seen


@case
def node_lost(trial: Trial) -> str:
    """A node loses its power under load, and comes back after it was found missing."""
    trial.serve()
    lost, stays = NODES
    names = [trial.client(lost, 10**6), trial.client(stays, 60_000)]
    trial.wait_for(2_000, *names)
    nodes.power_off(lost)
    began = time.monotonic()
    not_ready = ["wait", "--for=condition=Ready=Unknown", "node", lost.name, "--timeout=1s"]
    until(lambda: kubectl(*not_ready), f"{lost.name} is found missing", 180.0)
    seen = [f"NotReady after {time.monotonic() - began:.0f} s: {trial.pods()}"]
    trial.ends_well(names[1])
    began = time.monotonic()
    nodes.power_on(lost)
    until(lambda: is_ready(trial.daemon(lost)), f"the daemon of {lost.name} serves again", 240.0)
    seen.append(f"the daemon serves {time.monotonic() - began:.0f} s after the node starts: {trial.pods()}")
    seen.append(f"its executor is {trial.phase(DAEMONS, names[0])}")
    trial.ends_well(trial.client(lost, 10_000))
    return "; ".join(seen)


@case
def disk_pressure(trial: Trial) -> str:
    """A node has too little disk, and its kubelet evicts executors."""
    trial.serve()
    node, other = NODES
    names = [trial.client(node, 10**6), trial.client(other, 60_000)]
    trial.wait_for(2_000, *names)
    nodes.start_kubelet(node, evictionHard={"nodefs.available": "99%"})
    try:
        until(lambda: trial.phase(DAEMONS, names[0]) != "Running", f"{names[0]} is evicted", 240.0)
        (told,) = trial.events(DAEMONS, "DiskPressure|low on resource")[-1:]
        seen = [f"the executor {trial.phase(DAEMONS, names[0])}: {told}"]
        time.sleep(20)
        seen.append(f"daemons: {trial.pods()}")
    finally:
        nodes.start_kubelet(node)
    until(lambda: "taints" not in get("node", node.name)["spec"], f"{node.name} has disk again", 240.0)
    for stamp in node.folder.glob("*.imported"):  # the kubelet has removed images that no container used
        stamp.unlink()
    nodes.start_node(node)
    trial.ends_well(names[1])
    trial.rolled_out()
    trial.ends_well(trial.client(node, 10_000))
    return "; ".join(seen)


@case
def quota(trial: Trial) -> str:
    """A ResourceQuota asks for CPU limits, which a chart does not give and then gives."""
    make_namespace("quota")
    kubectl("-n", "quota", "create", "quota", "q", "--hard=limits.cpu=4,limits.memory=8Gi")
    apart = ("--set=daemonset.hostPath=/run/producerd-quota", "--set=daemonset.priorityClassName=")
    try:
        trial.upgrade(*apart, namespace="quota")
        until(lambda: trial.events("quota", "failed quota"), "the quota refuses pods", 60.0)
        seen = [f"Helm says deployed; events: {trial.events('quota', 'failed quota')[0]}"]
        try:
            trial.upgrade(*apart, "--set=resources.limits.cpu=1", namespace="quota")
            seen.append("then with resources.limits.cpu: the upgrade succeeds")
        except Failed as error:
            seen.append(f"then with resources.limits.cpu: {str(error)[-300:]}")
        kubectl("-n", "quota", "rollout", "status", "daemonset/producerd", "--timeout=120s")
        seen.append(trial.pods("quota"))
    finally:
        helm("uninstall", "producerd", "--namespace", "quota")
        kubectl("delete", "namespace", "quota", seconds=200.0)
    return "; ".join(seen)


@case
def admission(trial: Trial) -> str:
    """Namespaces admit by `baseline` for the DaemonSet, and by `restricted` for sidecars."""
    make_namespace("baseline", "baseline")
    seen = []
    try:
        apart = ("--set=daemonset.hostPath=/run/producerd-baseline", "--set=daemonset.priorityClassName=")
        trial.upgrade(*apart, namespace="baseline")
        until(lambda: trial.events("baseline", "violates"), "the namespace refuses pods", 60.0)
        seen.append(f"baseline, DaemonSet: Helm says deployed; events: {trial.events('baseline', 'violates')[0]}")
    finally:
        helm("uninstall", "producerd", "--namespace", "baseline")
        kubectl("delete", "namespace", "baseline", seconds=200.0)
    trial.sidecars(security="restricted")
    try:
        trial.client(NODES[0], 10_000, namespace=TEAM)
    except Failed as error:
        seen.append(f"restricted, an executor as Spark makes it: {str(error)[-400:].strip()}")
    trial.ends_well(trial.client(NODES[0], 10_000, namespace=TEAM, security=RESTRICTED), TEAM)
    seen.append("restricted, an executor with a security context that fits: admitted")
    return "; ".join(seen)


@case
def monitoring(trial: Trial) -> str:
    """A Prometheus with its own discovery scrapes both modes, and a daemon's pod is replaced."""
    prometheus.define_kinds()
    watched = "--set=monitoring.podMonitor.enabled=true"
    trial.serve(watched, "--set=monitoring.prometheusRule.enabled=true")
    trial.sidecars(watched, security="restricted")
    for node in NODES:
        trial.client(node, 10**6)
    trial.client(NODES[0], 10**6, namespace=TEAM, security=RESTRICTED)
    prometheus.start()
    until(lambda: len(prometheus.ask("up == 1")) == 3, "three targets are up", 120.0)
    seen = [f"up: {', '.join(sorted(_labels(one) for one in prometheus.ask('up')))}"]
    kubectl("-n", DAEMONS, "delete", "pod", trial.daemon(NODES[0])["metadata"]["name"])
    trial.rolled_out()
    up = f"up{{namespace='{DAEMONS}'}} == 1"
    until(lambda: len(prometheus.ask(up)) == 2, "the new pod is scraped", 120.0)
    firing = sorted(one["metric"]["alertname"] for one in prometheus.ask("ALERTS{alertstate='firing'}"))
    seen.append(f"a pod was replaced: {len(prometheus.ask(up))} daemons are up; alerts: {', '.join(firing) or 'none'}")
    end("prometheus")
    trial.serve()
    return "; ".join(seen)


def _labels(series: Any) -> str:
    return " ".join(f"{name}={series['metric'].get(name)}" for name in ("job", "node", "release", "instance"))
