"""What is tried in the cluster.  A case returns what the operator sees."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final

from tests.cluster import nodes
from tests.cluster.nodes import NODES, get
from tests.cluster.place import end
from tests.cluster.trial import DAEMONS, RESTRICTED, TEAM, Trial, is_ready, make_namespace

CASES: Final[dict[str, Callable[[Trial], str]]] = {}


def case(act: Callable[[Trial], str]) -> Callable[[Trial], str]:
    CASES[act.__name__] = act
    return act


@case
def smoke(trial: Trial) -> str:
    """Both modes with clients and a Spark job, an upgrade and a kill -9 under load."""
    trial.serve()
    with trial.load(60_000):
        job = trial.job()
        trial.serve(setting="drain_timeout_seconds = 50")
        pod = trial.daemon(NODES[0])
        trial.kill_daemon(NODES[0], pod)
        trial.restarts(DAEMONS, pod["metadata"]["name"])
        seen = trial.pods()
        make_namespace(TEAM, "restricted")
        trial.upgrade(mode="sidecar")
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
            trial.kill_daemon(node, get("-n", DAEMONS, "pod", old))
            trial.restarts(DAEMONS, old, restarts)
            assert "drain_timeout_seconds = 41" in trial.settings(DAEMONS, old)
        seen.append("the old pod starts again with its old settings, also after its kubelet's restart")
        time.sleep(12)  # it becomes available after minReadySeconds
        nodes.start_controllers()
        time.sleep(10)
        began = time.monotonic()
        trial.kill_daemon(node, trial.daemon(node))
        while trial.daemon(node)["metadata"]["name"] == old and time.monotonic() < began + 60:
            time.sleep(0.2)
        seen.append(f"a kill -9 puts the new pod in its place in {time.monotonic() - began:.1f} s: {trial.pods()}")
        trial.roll_back()
    return "; ".join([*seen, f"rolled back: {trial.pods()}"])
