"""What is tried with what clouds add to a cluster: roles of service accounts, and a network plugin with policies."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from tests.cluster import sts
from tests.cluster.images import spark_image
from tests.cluster.keys import kubeconfig
from tests.cluster.nodes import CONTROL, KINESIS_PORT, NODES, SERVICES, ask_kinesis, get, kubectl
from tests.cluster.place import Failed, Place, end, until
from tests.cluster.programs import build_kube_router
from tests.cluster.trial import DAEMONS, RESTRICTED, TEAM, Trial, case, is_ready, make_namespace


@case
def irsa(trial: Trial) -> str:
    """Daemons have only a token such as EKS gives, and Kinesis takes only the credentials of its account."""
    trial.serve()
    CONTROL.start("sts", sys.executable, "-m", "tests.cluster.sts", CONTROL.address)
    ask_kinesis("settings", {"accepted_access_keys": [sts.access_key(name, "producerd") for name in (DAEMONS, TEAM)]})
    try:
        try:
            trial.upgrade(*_identity("another"))
            raise AssertionError("the upgrade is not refused")
        except Failed:
            log = kubectl("-n", DAEMONS, "logs", "job/producerd-check")
            seen = [f"another audience: the upgrade is refused: {_line(log, 'FAILED')}"]
        trial.serve(*_identity(sts.AUDIENCE))
        trial.sidecars(*_identity(sts.AUDIENCE), security="restricted")
        name = trial.client(NODES[1], 60_000, namespace=TEAM, security=RESTRICTED)
        for namespace, pod in (DAEMONS, trial.daemon(NODES[0])["metadata"]["name"]), (TEAM, name):
            told = kubectl("-n", namespace, "exec", pod, "-c", "producerd", "--", "producerd", "check", "--online")
            seen.append(f"{namespace}: {_line(told, 'credentials')}")
        trial.ends_well(trial.client(NODES[0], 10_000))
        trial.ends_well(name, TEAM)
    finally:
        ask_kinesis("settings", {"accepted_access_keys": None})
        end("sts")
    trial.serve()
    return "; ".join(seen)


def _identity(audience: str) -> tuple[str, ...]:
    """Return the options that give pods what EKS adds to the pods of an account with a role."""
    folder = "/var/run/secrets/eks.amazonaws.com/serviceaccount"
    env = {
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/producerd",
        "AWS_WEB_IDENTITY_TOKEN_FILE": f"{folder}/token",
        "AWS_ENDPOINT_URL_STS": f"http://{CONTROL.address}:{sts.PORT}",
    }
    token = {"serviceAccountToken": {"audience": audience, "expirationSeconds": 86_400, "path": "token"}}
    values = {
        "extraEnv": [{"name": name, "value": value} for name, value in env.items()],
        "extraVolumes": [{"name": "aws-iam-token", "projected": {"sources": [token]}}],
        "extraVolumeMounts": [{"name": "aws-iam-token", "mountPath": folder, "readOnly": True}],
    }
    return tuple(f"--set-json={name}={json.dumps(value)}" for name, value in values.items())


def _line(text: str, word: str) -> str:
    return next((line for line in text.splitlines() if word in line), text[-300:])


@case
def network_policy(trial: Trial) -> str:
    """A network plugin enforces the chart's policy: which pods read metrics, and where daemons may connect to."""
    program = build_kube_router()
    kinesis = [{"ports": [{"protocol": "TCP", "port": KINESIS_PORT}]}]
    trial.serve(_egress(kinesis))
    for node in NODES:
        services = ("--run-service-proxy=false", f"--service-cluster-ip-range={SERVICES}")
        this = (kubeconfig("admin"), f"--hostname-override={node.name}")
        node.start(f"router-{node.name}", program, *this, "--run-router=false", *services)
    try:
        node, seen = NODES[0], []
        for namespace in "monitoring", "elsewhere":
            _make_reader(namespace)
        until(lambda: _reads("monitoring", trial.daemon(node)), "monitoring reads the metrics", 60.0)
        until(lambda: not _reads("elsewhere", trial.daemon(node)), "another namespace does not", 60.0)
        assert _reads("monitoring", trial.daemon(node))
        assert is_ready(trial.daemon(node))
        seen.append("pods of `monitoring` read the metrics, other pods do not, the kubelet's probes pass")
        trial.ends_well(trial.client(node, 10_000))
        trial.serve(_egress([]), "--no-hooks")
        pod = trial.daemon(node)
        trial.kill(node, pod)  # a policy leaves connections alone that are there
        trial.restarts(DAEMONS, pod["metadata"]["name"])
        name = trial.client(node, 10_000)
        until(lambda: "UNREACHABLE" in _status(trial, node), "the daemon says that Kinesis is unreachable", 60.0)
        assert trial.acknowledged(name) == 0
        seen.append(
            f"without a rule for Kinesis the client waits; status: {_line(_status(trial, node), 'UNREACHABLE')}"
        )
        trial.upgrade(_egress(kinesis), "--no-hooks")
        trial.ends_well(name)
        seen.append("with the rule the daemon sends all")
    finally:
        for node in NODES:
            _end_router(node)
        kubectl("delete", "namespace", "monitoring", "elsewhere", "--ignore-not-found", seconds=200.0)
    trial.serve("--no-hooks")
    return "; ".join(seen)


def _end_router(node: Place) -> None:
    """End a node's kube-router and remove its rules: its own --cleanup-config fails where the kernel lacks IPVS."""
    end(f"router-{node.name}")
    rules = node.run("iptables-save").splitlines()
    kept = [rule for rule in rules if not re.search("KUBE-(ROUTER|NWPLCY|POD-FW)", rule)]
    node.run("iptables-restore", text="\n".join([*kept, ""]))


def _egress(rules: list[Any]) -> str:
    return f"--set-json=networkPolicy.egress={json.dumps(rules)}"


def _make_reader(namespace: str) -> None:
    """Start a pod that can read from others."""
    make_namespace(namespace)
    kubectl("-n", namespace, "run", "reader", f"--image={spark_image()}", "--command", "--", "sleep", "infinity")
    until(lambda: is_ready(get("-n", namespace, "pod", "reader")), f"{namespace} has a reader", 60.0)


def _reads(namespace: str, pod: Any) -> bool:
    """Return whether a namespace's reader gets the metrics of a daemon's pod."""
    url = f"http://{pod['status']['podIP']}:9474/metrics"
    ask = f"import urllib.request as u; u.urlopen({url!r}, timeout=3).read()"
    try:
        kubectl("-n", namespace, "exec", "reader", "--", "python", "-c", ask)
    except Failed:
        return False
    return True


def _status(trial: Trial, node: Place) -> str:
    pod = trial.daemon(node)["metadata"]["name"]
    return kubectl("-n", DAEMONS, "exec", pod, "-c", "producerd", "--", "producerctl", "status")
