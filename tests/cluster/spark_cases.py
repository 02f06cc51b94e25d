"""What is tried with Spark's executors.  A case returns what the operator sees."""

from __future__ import annotations

import re
import time
from collections import Counter

from tests.cluster.nodes import kubectl
from tests.cluster.trial import DAEMONS, TEAM, Trial, case, executors_of, make_namespace


@case
def executor_out_of_memory(trial: Trial) -> str:
    """A task takes more memory than its executor's container may have, in both modes."""
    trial.serve()
    make_namespace(TEAM)
    trial.upgrade(mode="sidecar")
    small = {"spark.executor.memoryOverhead": "300m"}
    seen = []
    for namespace in (DAEMONS, TEAM):
        job = trial.job(small, namespace=namespace, batches=6, more=(0, 1_000))
        trial.ends_well(job, namespace)
        log = trial.log(job)
        lost = {kind: len(set(re.findall(rf"Lost {kind} ([\d.]+)", log))) for kind in ("executor", "task")}
        seen.append(f"{namespace}: lost {lost}, {trial.pods(namespace, executors_of(job))}")
    return "; ".join(seen)


@case
def dynamic_allocation(trial: Trial) -> str:
    """Spark's executors come and go every 20 s, in both modes."""
    trial.serve()
    make_namespace(TEAM)
    trial.upgrade(mode="sidecar")
    properties = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "5s",
        "spark.dynamicAllocation.cachedExecutorIdleTimeout": "5s",
        "spark.dynamicAllocation.minExecutors": 0,
        "spark.dynamicAllocation.maxExecutors": 3,
        "spark.dynamicAllocation.initialExecutors": 1,
        "spark.executor.instances": 0,
    }
    jobs = {namespace: trial.job(properties, namespace=namespace, more=(20,)) for namespace in (DAEMONS, TEAM)}
    seen = []
    for namespace, job in jobs.items():
        trial.ends_well(job, namespace)
        executors = set(re.findall(r"with ID (\d+)", trial.log(job)))
        seen.append(f"{namespace}: {len(executors)} executors came and went")
    return "; ".join(seen)


@case
def decommissioning(trial: Trial) -> str:
    """Spark decommissions executors whose pods are deleted while they write, in both modes."""
    trial.serve()
    make_namespace(TEAM)
    trial.upgrade(mode="sidecar")
    properties = {
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.kubernetes.executor.terminationGracePeriodSeconds": "150s",
    }
    seen = []
    for namespace in (DAEMONS, TEAM):
        job = trial.job(properties, namespace=namespace, batches=8)
        trial.wait_for(job, 20_000)
        pod = next(iter(trial.executors(namespace, job)))
        began = time.monotonic()
        kubectl("-n", namespace, "delete", "pod", pod, "--timeout=180s", seconds=200.0)
        seconds = time.monotonic() - began
        trial.ends_well(job, namespace)
        log = trial.log(job)
        told = sorted(set(re.findall(r"[Dd]ecommission(?:ed|ing)? executors?", log)))
        seen.append(f"{namespace}: the pod is gone after {seconds:.0f} s {told}")
    return "; ".join(seen)


@case
def twenty_sidecars(trial: Trial) -> str:
    """Twenty executors of one job, each with a sidecar, on two nodes."""
    make_namespace(TEAM)
    small = {'memory = "384 MiB"': 'memory = "184 MiB"'}
    less = ("--set=resources.requests.memory=200Mi", "--set=resources.limits.memory=200Mi")
    trial.upgrade(*less, "--set=resources.requests.cpu=20m", mode="sidecar", changes=small)
    properties = {
        "spark.executor.instances": 20,
        "spark.kubernetes.executor.request.cores": "20m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.kubernetes.allocation.batch.size": 5,
    }
    job = trial.job(properties, namespace=TEAM, rows=50_000, batches=3)
    trial.ends_well(job, TEAM)
    on = Counter(trial.executors(TEAM, job).values())
    return f"executors: {dict(on)}"
