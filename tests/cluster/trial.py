"""What a case is made of: releases of the chart, clients and Spark jobs that write, and the count of what is missing.

Clients say in their logs how many records are acknowledged.  Each of those must be in the fake Kinesis.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import time
import traceback
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.table import say
from tests.cluster import nodes
from tests.cluster.images import PRODUCERD, spark_image
from tests.cluster.keys import kubeconfig
from tests.cluster.nodes import CONTROL, KINESIS_PORT, NODES, STREAM, ask_kinesis, get, helm, kubectl
from tests.cluster.place import FOLDER, RUN, Failed, Place, end, until
from tests.cluster.programs import KUBECTL
from tests.system.charts import CHART, EXAMPLES

VALUES: Final = FOLDER / "values"
DAEMONS, TEAM = "producerd", "team"
"""Namespaces of the DaemonSet and its executors, and of the executors with sidecars."""
ROLL_OUT_SECONDS: Final = 240.0
WAIT_SECONDS: Final = 900.0
RECORD: Final = re.compile(rb"([\w-]+):(\d+):")
SPARK_USER: Final = 185
"""User of Spark's own images."""
RESTRICTED: Final = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What the Pod Security Standard `restricted` asks of a container."""
SETTING: Final = 'log_format = "json"'
"""A line of both examples' settings, behind which a case adds its own."""
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A job here is short: it spends most of its time in starting Java."""
SPARK_PROPERTIES: Final[Mapping[str, object]] = {
    "spark.kubernetes.authenticate.driver.serviceAccountName": "spark",
    "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
    "spark.kubernetes.executor.podTemplateFile": "/template/executor.yaml",
    "spark.kubernetes.executor.terminationGracePeriodSeconds": "90s",
    "spark.kubernetes.executor.request.cores": "100m",
    "spark.kubernetes.driver.request.cores": "100m",
    "spark.kubernetes.submission.waitAppCompletion": "false",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.instances": 2,
    "spark.executor.memory": "512m",
    "spark.driver.memory": "600m",
    "spark.ui.enabled": "false",
    "spark.kubernetes.executor.deleteOnTermination": "false",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """One case.  ``missing`` counts acknowledged records that cannot be read.  None: the case failed."""

    case: str
    acknowledged: int
    missing: int | None
    seconds: int
    what_the_operator_sees: str


CASES: Final[dict[str, Callable[[Trial], str]]] = {}


def case(act: Callable[[Trial], str]) -> Callable[[Trial], str]:
    CASES[act.__name__] = act
    return act


class Trial:
    """What a case works with."""

    def __init__(self, case: str) -> None:
        self.name = f"{case.replace('_', '-')}-{int(time.time()) % 100_000}"
        self._clients: list[str] = []
        self._numbers = itertools.count(1)
        nodes.up()

    # ---- releases

    def values(self, mode: str, setting: str) -> Path:
        """Write the example's values for a mode, for this cluster, with one setting more."""
        endpoint = f'endpoint_url = "http://{CONTROL.address}:{KINESIS_PORT}"'
        text = EXAMPLES[mode].read_text()
        for old, new in {
            "REGISTRY/producerd": PRODUCERD.partition(":")[0],
            'region = "eu-west-1"': f'region = "us-east-1"\n  {endpoint}',
            "  [streams.flights]": f"  [streams.{STREAM}]\n\n  [streams.flights]",
            SETTING: f"{SETTING}\n  {setting}",
        }.items():
            assert old in text, f"{old} is not in the example"
            text = text.replace(old, new)
        values = yaml.safe_load(text)
        keys = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
        values["extraEnv"] = [{"name": name, "value": "any"} for name in keys]
        VALUES.mkdir(exist_ok=True)
        file = VALUES / f"{self.name}-{next(self._numbers)}.yaml"
        file.write_text(yaml.safe_dump(values))
        return file

    def upgrade(
        self,
        *options: str,
        mode: str = "daemonset",
        namespace: str = "",
        setting: str = "",
    ) -> None:
        """Install or upgrade the release of a namespace, with one setting more."""
        namespace = namespace or {"daemonset": DAEMONS, "sidecar": TEAM}[mode]
        file = self.values(mode, setting)
        told = ["upgrade", "--install", "producerd", str(CHART), "--namespace", namespace, "--create-namespace"]
        helm(*told, "--values", file, *options)

    def serve(self, *options: str, setting: str = "") -> None:
        """Install or upgrade the DaemonSet, and wait until each node's daemon serves."""
        self.upgrade(*options, setting=setting)
        self.rolled_out()

    def sidecars(
        self,
        *options: str,
        security: str = "privileged",
        setting: str = "",
    ) -> None:
        """Install or upgrade the release for sidecars, in a namespace that admits by this standard."""
        make_namespace(TEAM, security)
        self.upgrade(*options, mode="sidecar", setting=setting)

    def rolled_out(self) -> None:
        status = ["rollout", "status", "daemonset/producerd", f"--timeout={ROLL_OUT_SECONDS:.0f}s"]
        kubectl("-n", DAEMONS, *status, seconds=ROLL_OUT_SECONDS + 10)

    def roll_back(self) -> None:
        helm("rollback", "producerd", "--namespace", DAEMONS)
        self.rolled_out()

    # ---- daemons

    def daemon(self, node: Place) -> Any:
        """Return the daemon's pod on a node."""
        on = f"--field-selector=spec.nodeName={node.name}"
        found = get("-n", DAEMONS, "pods", "-l", "app.kubernetes.io/name=producerd", on)["items"]
        return next(pod for pod in found if "deletionTimestamp" not in pod["metadata"])

    def kill(self, node: Place, pod: Any, name: str = "producerd") -> None:
        """End a container of a pod by SIGKILL."""
        container = status_of(pod, name)["containerID"].partition("//")[2]
        tasks = node.run("ctr", "-n", "k8s.io", "tasks", "ls")
        os.kill(next(int(line.split()[1]) for line in tasks.splitlines() if line.startswith(container)), signal.SIGKILL)

    def restarts(self, namespace: str, name: str, restarts: int = 1) -> None:
        """Wait until a daemon was started again, and serves."""

        def serves() -> bool:
            status = status_of(get("-n", namespace, "pod", name))
            return bool(status["restartCount"] >= restarts and status["ready"])

        until(serves, f"{name} serves again", 120.0)

    def settings(self, namespace: str, pod: str) -> str:
        """Return the settings that a daemon of a pod would start with now."""
        return kubectl("-n", namespace, "exec", pod, "-c", "producerd", "--", "producerd", "config", "print")

    # ---- clients

    def client(self, node: Place, records: int = 30_000, *, namespace: str = DAEMONS, security: Any = None) -> str:
        """Start a client's pod, made of the executors' template as Spark does, that writes this many records."""
        name = f"{self.name}-{next(self._numbers)}"
        path = r"jsonpath={.data.executor\.yaml}"
        pod = yaml.safe_load(kubectl("-n", namespace, "get", "configmap", "producerd-executor", "-o", path))
        pod.setdefault("metadata", {})["name"] = name
        spec = pod["spec"]
        spec |= {"restartPolicy": "Never", "nodeSelector": {"kubernetes.io/hostname": node.name}}
        spec["securityContext"] |= {"runAsUser": SPARK_USER, "runAsGroup": SPARK_USER}
        spec["containers"][0] |= {
            "image": spark_image(),
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "/opt/jobs/load.py", STREAM, name, str(records), "0.1"],
            "securityContext": security or {},
        }
        kubectl("-n", namespace, "apply", "-f", "-", text=json.dumps(pod))
        self._follow(namespace, name)
        return name

    def job(
        self,
        properties: Mapping[str, object] | None = None,
        *,
        rows: int = 20_000,
        batches: int = 4,
        more: tuple[object, ...] = (),
        namespace: str = DAEMONS,
        spark: str = "",
    ) -> str:
        """Submit a Spark job in cluster mode, and return the name of its driver's pod, which runs."""
        name = f"{self.name}-{next(self._numbers)}"
        image = spark_image(spark) if spark else spark_image()
        binding = ["create", "rolebinding", "spark", "--clusterrole=edit", f"--serviceaccount={namespace}:spark"]
        for order in (["create", "serviceaccount", "spark"], binding):
            with contextlib.suppress(Failed):  # it is there
                kubectl("-n", namespace, *order)
        asked = {
            **SPARK_PROPERTIES,
            "spark.kubernetes.namespace": namespace,
            "spark.kubernetes.container.image": image,
            "spark.kubernetes.driver.pod.name": name,
            **(properties or {}),
        }
        command = ["spark-submit", "--master=k8s://https://kubernetes.default.svc", "--deploy-mode=cluster"]
        command += [f"--name={name}", *(f"--conf={key}={value}" for key, value in asked.items())]
        command += ["local:///opt/jobs/batch.py", *map(str, (STREAM, name, rows, batches, *more))]
        submit: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-submit"},
            "spec": {
                "serviceAccountName": "spark",
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "submit",
                        "image": image,
                        "command": command,
                        "volumeMounts": [{"name": "template", "mountPath": "/template"}],
                    }
                ],
                "volumes": [{"name": "template", "configMap": {"name": "producerd-executor"}}],
            },
        }
        kubectl("-n", namespace, "apply", "-f", "-", text=json.dumps(submit))
        self._follow(namespace, name)
        return name

    def _follow(self, namespace: str, name: str) -> None:
        """Wait until a client runs, and keep what it says: its pod may be lost."""
        self._clients.append(name)
        until(lambda: self.phase(namespace, name) != "Pending", f"{name} runs", WAIT_SECONDS)
        CONTROL.start(f"log-{name}", KUBECTL, kubeconfig("admin"), "-n", namespace, "logs", "--follow", name)

    @contextlib.contextmanager
    def load(self, records: int = 30_000) -> Iterator[None]:
        """Let a client on each node write during the block, whose end waits until their records are stored."""
        names = [self.client(node, records) for node in NODES]
        self.wait_for(1, *names)
        yield
        for name in names:
            self.ends_well(name)

    def acknowledged(self, name: str) -> int:
        """Return how many records of a client are acknowledged, as its log has it."""
        return int((re.findall(rf"^ACKNOWLEDGED {name} (\d+)$", self.log(name), re.MULTILINE) or [0])[-1])

    def log(self, name: str) -> str:
        return Path(RUN, "log", f"log-{name}.log").read_text()

    def executors(self, namespace: str, job: str) -> dict[str, str]:
        """Return the node of each pod of a job's executors."""
        found = get("-n", namespace, "pods", "-l", executors_of(job))["items"]
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in found}

    def wait_for(self, records: int, *names: str) -> None:
        """Wait until each of these clients has stored that many records."""
        told = f"{' and '.join(names)}: {records:,} records are stored"
        until(lambda: all(self.acknowledged(name) >= records for name in names), told, WAIT_SECONDS)

    def phase(self, namespace: str, name: str) -> str:
        return str(get("-n", namespace, "pod", name)["status"]["phase"])

    def ends_well(self, name: str, namespace: str = DAEMONS) -> None:
        """Wait until a client has ended without an error."""
        ended = "Succeeded", "Failed"
        until(lambda: self.phase(namespace, name) in ended, f"{name} has ended", WAIT_SECONDS)
        assert self.phase(namespace, name) == "Succeeded", kubectl("-n", namespace, "logs", name, "--tail=20")

    # ---- what is seen

    def pods(self, namespace: str = DAEMONS, which: str = "app.kubernetes.io/name=producerd") -> str:
        """Return what ``kubectl get pods`` says, in short."""
        said = kubectl("-n", namespace, "get", "pods", "-l", which, "-o", "wide", "--no-headers").splitlines()
        told = (line.split() for line in said)
        lines = [f"{next(w for w in words if w in ('n1', 'n2', '<none>'))} {' '.join(words[1:4])}" for words in told]
        return ", ".join(sorted(lines))

    def events(self, namespace: str, pattern: str) -> list[str]:
        """Return the messages of events that match, each once."""
        found = get("-n", namespace, "events")["items"]
        return list(dict.fromkeys(str(one["message"]) for one in found if re.search(pattern, str(one["message"]))))

    def count(self) -> tuple[int, int]:
        """Return the number of acknowledged records, and how many of them Kinesis lacks."""
        acknowledged = {name: self.acknowledged(name) for name in self._clients}
        stored: dict[str, set[int]] = {name: set() for name in acknowledged}
        for record in ask_kinesis(f"records?stream={STREAM}")["records"]:
            match = RECORD.match(b64decode(record["data"]))
            if match and (name := match[1].decode()) in stored:
                stored[name].add(int(match[2]))
        missing = sum(len(set(range(number)) - stored[name]) for name, number in acknowledged.items())
        return sum(acknowledged.values()), missing

    def end(self) -> None:
        """End the clients.  They still write what they have."""
        for namespace in (DAEMONS, TEAM):
            names = [f"{name}{tail}" for name in self._clients for tail in ("", "-submit")]
            with contextlib.suppress(Failed):
                kubectl("-n", namespace, "delete", "pod", *names, "--ignore-not-found", "--timeout=100s")
        for name in self._clients:
            end(f"log-{name}")


def executors_of(job: str) -> str:
    """Return the selector of a job's executors."""
    return f"spark-role=executor,spark-app-name={job}"


def status_of(pod: Any, container: str = "producerd") -> Any:
    """Return the status of a pod's container, which may be a sidecar."""
    statuses = [*pod["status"].get("initContainerStatuses", []), *pod["status"].get("containerStatuses", [])]
    return next(one for one in statuses if one["name"] == container)


def is_ready(pod: Any) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


def make_namespace(name: str, security: str = "privileged") -> None:
    with contextlib.suppress(Failed):  # it is there
        kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, f"pod-security.kubernetes.io/enforce={security}", "--overwrite")


def run(name: str, act: Callable[[Trial], str]) -> Figures:
    """Run a case, and count."""
    began, trial = time.monotonic(), Trial(name)
    acknowledged, missing = 0, None
    try:
        try:
            seen = act(trial)
        finally:
            trial.end()
        acknowledged, missing = trial.count()
    except Exception as error:  # the other cases are still to be tried
        traceback.print_exc()
        seen = f"FAILED: {type(error).__name__}: {error}"
    seconds = round(time.monotonic() - began)
    say(f"{name}: {acknowledged:,} records acknowledged, {missing} missing, {seconds} s: {seen}")
    return Figures(name, acknowledged, missing, seconds, seen.replace("\n", " "))
