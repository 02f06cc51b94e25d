"""What is tried with Spark's executors.  A case returns what the operator sees."""

from __future__ import annotations

import re
import time
from collections import Counter

from tests.cluster import images
from tests.cluster.nodes import NODES, get, import_image, kubectl
from tests.cluster.trial import DAEMONS, TEAM, Trial, case, executors_of
from tools.environments import LANES


@case
def executor_out_of_memory(trial: Trial) -> str:
    """A task takes too much memory; and an executor is killed as cgroups of version 2 would; in both modes."""
    trial.serve()
    trial.sidecars()
    small = {"spark.executor.memoryOverhead": "300m"}
    seen = []
    for namespace in (DAEMONS, TEAM):
        job = trial.job(small, namespace=namespace, batches=4, more=(0, 1_000))
        trial.wait_for(40_000, job)
        pod, name = next(iter(trial.executors(namespace, job).items()))
        (node,) = (node for node in NODES if node.name == name)
        trial.kill(node, get("-n", namespace, "pod", pod), "spark-kubernetes-executor")
        trial.ends_well(job, namespace)
        log = trial.log(job)
        lost = {kind: len(set(re.findall(rf"Lost {kind} ([\d.]+)", log))) for kind in ("executor", "task")}
        seen.append(f"{namespace}: lost {lost}, {trial.pods(namespace, executors_of(job))}")
    return "; ".join(seen)


@case
def dynamic_allocation(trial: Trial) -> str:
    """Spark's executors come and go every 20 s, in both modes."""
    trial.serve()
    trial.sidecars()
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
    jobs = {
        namespace: trial.job(properties, namespace=namespace, batches=3, more=(20,)) for namespace in (DAEMONS, TEAM)
    }
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
    trial.sidecars()
    properties = {
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.kubernetes.executor.terminationGracePeriodSeconds": "150s",
    }
    seen = []
    for namespace in (DAEMONS, TEAM):
        job = trial.job(properties, namespace=namespace, batches=4)
        trial.wait_for(20_000, job)
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
    trial.sidecars()
    properties = {
        "spark.executor.instances": 20,
        "spark.kubernetes.executor.request.cores": "20m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.kubernetes.allocation.batch.size": 5,
    }
    job = trial.job(properties, namespace=TEAM, rows=50_000, batches=2)
    trial.ends_well(job, TEAM)
    on = Counter(trial.executors(TEAM, job).values())
    return f"executors: {dict(on)}"


@case
def older_sparks(trial: Trial) -> str:
    """A job on each older Spark, in both modes."""
    trial.serve()
    trial.sidecars()
    node, seen = NODES[1], []
    for spark in LANES:
        images.make(spark)
        import_image(node, images.spark_image(spark))
        images.tar_of(images.spark_image(spark)).unlink()  # it has a gigabyte
        properties = {"spark.kubernetes.node.selector.kubernetes.io/hostname": node.name}
        for namespace in (DAEMONS, TEAM):
            trial.ends_well(trial.job(properties, namespace=namespace, batches=2, spark=spark), namespace)
        node.run("ctr", "-n", "k8s.io", "images", "rm", images.spark_image(spark))
        seen.append(f"Spark {images.pyspark_of(spark)}: both jobs succeed")
    return "; ".join(seen)
