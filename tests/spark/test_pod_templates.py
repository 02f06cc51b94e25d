"""Spark makes its executors' pods from our templates, and what the daemon needs in them is still there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEMPLATES = Path(__file__).resolve().parents[2] / "deploy/kubernetes/pod-templates"
GRACE_SECONDS = 90
GRACE = "spark.kubernetes.executor.terminationGracePeriodSeconds"
Pod = dict[str, Any]
EMPTY: Mapping[str, str] = MappingProxyType({})
pytestmark = [pytest.mark.spark, pytest.mark.spark_lane]


@pytest.fixture(scope="module")
def executor(spark: SparkSession) -> Callable[..., Pod]:
    """The pod that Spark would ask a cluster for, from one of the templates and with these settings."""
    jvm: Any = spark.sparkContext._jvm
    model = jvm.io.fabric8.kubernetes.client
    none = jvm.scala.Option.empty()

    def make(mode: str, own: Mapping[str, str] = EMPTY) -> Pod:
        settings = {
            "spark.app.name": "flights",
            "spark.master": "k8s://https://127.0.0.1:1",
            "spark.driver.host": "driver",
            "spark.driver.port": "7078",
            "spark.kubernetes.container.image": "spark",
            "spark.kubernetes.executor.podNamePrefix": "flights",
            "spark.kubernetes.authenticate.driver.serviceAccountName": "the-drivers",
            "spark.kubernetes.executor.podTemplateFile": (TEMPLATES / f"{mode}.yaml").as_uri(),
            GRACE: f"{GRACE_SECONDS}s",
            **own,
        }
        conf = jvm.org.apache.spark.SparkConf(False)
        for name, value in settings.items():
            conf.set(name, value)
        # What Scala fills in by itself has names of its own in Java.
        profiles = getattr(getattr(jvm.org.apache.spark.resource, "ResourceProfile$"), "MODULE$")
        security = jvm.org.apache.spark.SecurityManager
        secrets = getattr(security, "$lessinit$greater$default$3")()
        of_executor = jvm.org.apache.spark.deploy.k8s.KubernetesConf.createExecutorConf(conf, "1", "app", none, 0)
        client = model.KubernetesClientBuilder().build()
        try:
            made = jvm.org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder().buildFromFeatures(
                of_executor, security(conf, none, secrets), client, profiles.getOrCreateDefaultProfile(conf)
            )
        finally:
            client.close()
        pod: Pod = json.loads(model.utils.Serialization.asJson(made.pod().pod()))
        pod["spec"]["containers"] = [json.loads(model.utils.Serialization.asJson(made.pod().container()))]
        return pod

    return make


@pytest.mark.promise("executors-open-socket")
@pytest.mark.parametrize("mode", ["daemonset", "sidecar"])
def test_executors_may_open_the_socket(executor: Callable[..., Pod], mode: str) -> None:
    spec = executor(mode)["spec"]
    assert spec["securityContext"]["supplementalGroups"] == [9474]
    (container,) = spec["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["producerd"] == "/run/producerd"
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "producerd")
    kind = {"daemonset": "hostPath", "sidecar": "emptyDir"}[mode]
    assert kind in volume


@pytest.mark.promise("executors-open-socket")
def test_the_daemon_is_a_native_sidecar_and_has_its_time_and_its_account(executor: Callable[..., Pod]) -> None:
    """Without the older name of the account Spark puts the driver's there."""
    pod = executor("sidecar")
    assert pod["metadata"]["labels"]["producerd"] == "producerd"
    (container,) = pod["spec"]["initContainers"]
    assert container["restartPolicy"] == "Always"
    assert container["startupProbe"]["exec"]["command"][-1] == "ready"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["serviceAccountName"] == "producerd"
    assert pod["spec"]["terminationGracePeriodSeconds"] == GRACE_SECONDS


@pytest.mark.promise("spark-puts-own-grace")
def test_spark_puts_its_own_grace_and_a_hook_of_its_own_into_the_pod(
    executor: Callable[..., Pod], spark: SparkSession
) -> None:
    """So the grace is named to Spark, too, and the hook's time comes out of it before the daemon's."""
    pod = executor("sidecar", {GRACE: "150s", "spark.decommission.enabled": "true"})
    keeps_the_templates = spark.version.startswith(("3.5.", "4.0."))
    assert pod["spec"]["terminationGracePeriodSeconds"] == (GRACE_SECONDS if keeps_the_templates else 150)
    (container,), (daemon,) = pod["spec"]["containers"], pod["spec"]["initContainers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["/opt/decom.sh"]
    assert "lifecycle" not in daemon
