"""A cluster would take what the chart renders, and the daemon in it would start with its memory, socket and grace."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest
import yaml

from producerd.config import Config, load
from producerd.config.memory import needed_bytes
from producerd.config.values import GIB, KIB, MIB
from producerd.runtime.shutdown import LAST_SCRAPE_SECONDS, LAST_WORDS_SECONDS
from tests.daemon import ROOT, daemon
from tests.system.charts import (
    CHART,
    EXAMPLES,
    LEAST,
    POD_TEMPLATES,
    Manifest,
    configuration,
    daemon_container,
    daemon_pod,
    example,
    executor,
    helm,
    missing,
    one,
    render,
    rendered,
    scraped,
)
from tools.kubernetes import DEFINITIONS, FOLDER, HELMS

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.skipif(bool(missing()), reason=missing())]
OLDEST: Final = "1.29"
"""The oldest Kubernetes of the chart: it has native sidecars."""
VERSIONS: Final = (OLDEST, "1.33", "1.37")
OPERATORS_KINDS: Final = ("PodMonitor", "PrometheusRule")
EVERYTHING: Final = """
imagePullSecrets: [{name: registry}]
image: {digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
extraEnv: [{name: HTTPS_PROXY, value: "http://proxy:3128"}]
extraVolumes: [{name: certificates, configMap: {name: certificates}}]
extraVolumeMounts: [{name: certificates, mountPath: /certificates}]
metricsListen: "[::]:9475"
podLabels: {team: data}
podAnnotations: {note: hello}
serviceAccount: {create: false}
daemonset:
  hostPath: /var/run/producerd
  maxUnavailable: 1
  affinity: {nodeAffinity: {}}
networkPolicy: {enabled: true, scrapeNamespaces: []}
monitoring:
  podMonitor: {enabled: true, namespaces: [jobs], relabelings: [{targetLabel: team, replacement: data}]}
  prometheusRule: {enabled: true, runbookUrl: "https://example.com/operate"}
  dashboard: {enabled: true, annotations: {folder: producerd}}
"""
"""Each value in another way than by default."""
REFUSED: Final = (
    'mood="sidecar"',
    'mode="deployment"',
    "daemonset.maxSurge=1",
    'daemonset.hostPath="/run"',
    'daemonset.hostPath="/var/lib/kubelet"',
    'daemonset.hostPath="/etc/../producerd"',
    'metricsListen=""',
    'metricsListen="127.0.0.1:9474"',
    'metricsListen="localhost:9474"',
    'metricsListen="[::1]:9474"',
    'metricsListen="0.0.0.0:65536"',
    "terminationGracePeriodSeconds=0",
    "config=null",
    "resources=null",
    "image=null",
    'resources.limits.memory="1 GiB"',
    'resources.limits.memory="512mi"',
    "securityContext.runAsUser=0",
    "securityContext.bogus=true",
    "securityContext.privileged=true",
    "securityContext.allowPrivilegeEscalation=true",
    "securityContext.readOnlyRootFilesystem=false",
    "securityContext.runAsNonRoot=false",
    "securityContext.runAsNonRoot=null",
    'securityContext.procMount="Unmasked"',
    'securityContext.seccompProfile.type="Unconfined"',
    'securityContext.appArmorProfile={"type": "Unconfined"}',
    'securityContext.capabilities.add=["SYS_ADMIN"]',
    'securityContext.capabilities.drop=["NET_RAW"]',
    'securityContext.readOnlyRootFilesystem="yes"',
    'extraEnv=[{"name": "PRODUCERD_METRICS_LISTEN", "value": "[::]:1"}]',
    'extraEnv=[{"name": "PRODUCERD_SOCKET", "value": "/tmp/a.sock"}]',
    'extraEnv=[{"name": "PRODUCERD_DRAIN_TIMEOUT_SECONDS", "value": "600"}]',
    'extraEnv=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]',
    'extraEnv=[{"name": "A", "value": 1}]',
    'extraEnv=[{"nam": "A", "value": "1"}]',
    'extraVolumes=[{"name": "producerd", "emptyDir": {}}]',
    'extraVolumes=[{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]',
    'extraVolumeMounts=[{"name": "a", "path": "/a"}]',
    'daemonset.tolerations=[{"key": "spark", "value": true}]',
    'daemonset.tolerations=[{"key": "spark", "operator": "Exist"}]',
    'daemonset.tolerations=[{"key": "spark", "effect": "NoStart"}]',
    'monitoring.podMonitor.interval=""',
    'monitoring.dashboard.labels={"app.kubernetes.io/name": "mine"}',
)
"""Values that would fail in the cluster, or do something else than they say."""
NO_VOLUME: Final = "extraVolumeMounts: no volume is named a: add it to extraVolumes"
NO_IDLE_END: Final = "leave it out, as the kubelet starts a daemon that has ended again, and waits longer each time"
WHAT_TO_DO: Final = {
    'image.repository="REGISTRY/producerd:0.2.0"': "REGISTRY/producerd:0.2.0 has a tag or a digest: move it to",
    'image.repository="host:5000/producerd:0.2.0"': "move it to image.tag or image.digest",
    'image.repository="REGISTRY/producerd@sha256:0"': "move it to image.tag or image.digest",
    'extraVolumeMounts=[{"name": "a", "mountPath": "/a"}]': NO_VOLUME,
    'mode="sidecar",extraVolumeMounts=[{"name": "a", "mountPath": "/a"}]': NO_VOLUME,
    **{
        f'extraVolumeMounts=[{{"name": "producerd", "mountPath": "{path}"}}]': f"{path} collides with {needed}"
        for path, needed in {
            "/etc/producerd": "/etc/producerd, which the daemon needs: take another path",
            "etc//producerd/": "/etc/producerd",
            "/etc/producerd/certificates": "/etc/producerd",
            "/etc": "/etc/producerd",
            "/": "/etc/producerd",
            "/run/producerd": "/run/producerd",
            "/opt": "/opt/producerd",
        }.items()
    },
    'extraVolumeMounts=[{"name": "producerd", "mountPath": "/a"}, {"name": "producerd-config", "mountPath": "/a/"}]': (
        "extraVolumeMounts: /a/ is there already"
    ),
    **{
        f'config="drain_timeout_seconds = {seconds}"': f"config: drain_timeout_seconds = {seconds}: write it as"
        for seconds in ("1e2", "0x10", "0b11")
    },
    'podLabels={"app.kubernetes.io/name": "mine"}': "podLabels: the chart itself sets app.kubernetes.io/name",
    'mode="sidecar",podLabels={"producerd": "mine"}': "podLabels: the chart itself sets producerd",
    'podAnnotations={"producerd.toml": "mine"}': "podAnnotations: the chart itself sets producerd.toml",
    'config="exit_when_idle_seconds = 60"': f"config: exit_when_idle_seconds = 60: {NO_IDLE_END}",
    'mode="sidecar",config="exit_when_idle_seconds = 0.5 # soon"': NO_IDLE_END,
    'extraEnv=[{"name": "PRODUCERD_EXIT_WHEN_IDLE_SECONDS", "value": "60"}]': (
        f"extraEnv: PRODUCERD_EXIT_WHEN_IDLE_SECONDS: {NO_IDLE_END}"
    ),
    'serviceAccount={"create": false, "annotations": {"eks.amazonaws.com/role-arn": "arn"}}': (
        "serviceAccount.annotations: with create: false the chart makes no account to annotate: annotate default "
        "yourself, or set create: true"
    ),
}
"""More of these values, each with words of its refusal."""
DASHBOARD: Final = "producerd-dashboard"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("values") / "everything.yaml"
    path.write_text(EVERYTHING)
    return path


@cache
def definition(kind: str) -> dict[str, Any]:
    """The operator's schema of its kind, which takes no field that it does not name."""
    (name,) = (name for name in DEFINITIONS if name.startswith(kind.lower()))
    if not (FOLDER / name).exists():
        pytest.skip("needs the Prometheus operator's definitions: ./dev test --system brings them where `go` is")
    schema: dict[str, Any] = json.loads((FOLDER / name).read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    forbid_unknown(schema)
    return schema


def forbid_unknown(schema: Any) -> None:
    if isinstance(schema, dict):
        for each in schema.values():
            forbid_unknown(each)
        if isinstance(schema.get("properties"), dict):
            schema.setdefault("additionalProperties", False)


def validate(manifest: Manifest, version: str) -> None:
    """Raise jsonschema.ValidationError for what a cluster of this version would not take."""
    if manifest["kind"] in OPERATORS_KINDS:
        jsonschema.Draft202012Validator(definition(manifest["kind"])).validate(manifest)
    else:
        kubernetes_validate.validate(manifest, version, strict=True)


def optional(values: Manifest, schema: Manifest, above: str = "") -> Iterator[str]:
    """The values that may be taken away: those that the schema does not require."""
    for name, value in values.items():
        if name not in schema.get("required", ()):
            yield f"{above}{name}"
        elif isinstance(value, dict):
            yield from optional(value, schema["properties"][name], f"{above}{name}.")


def with_pod(manifests: Sequence[Manifest]) -> Iterator[Manifest]:
    """The objects, and the pod of executors that is in one of them."""
    yield from manifests
    yield yaml.safe_load(executor(manifests))


def config(manifests: Sequence[Manifest], tmp_path: Path) -> Config:
    """The settings that the daemon reads there."""
    path = tmp_path / "producerd.toml"
    path.write_text(configuration(manifests))
    env = {each["name"]: each["value"] for each in daemon_container(manifests)["env"]}
    assert env.pop("PRODUCERD_CONFIG") == "/etc/producerd/producerd.toml"
    return load(path, environ=env)


def quantity(text: str) -> int:
    units = {"Ki": KIB, "Mi": MIB, "Gi": GIB}
    return int(text[:-2]) * units[text[-2:]]


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize("mode", EXAMPLES)
def test_helm_finds_nothing_wrong_with_the_chart(mode: str, version: str) -> None:
    done = helm("lint", "--strict", "--values", EXAMPLES[mode], CHART, version=version)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("mode", EXAMPLES)
def test_each_helm_renders_the_same(mode: str) -> None:
    first, *others = (example(mode, version=version) for version in HELMS)
    assert others
    assert all(other == first for other in others)


@pytest.mark.promise("kubernetes-knows-field")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", EXAMPLES)
def test_each_kubernetes_knows_every_field(mode: str, version: str, everything: Path) -> None:
    plain, full = rendered(f"--set=mode={mode}"), rendered(f"--set=mode={mode}", "--values", everything)
    for manifests in (example(mode), plain, full):
        for manifest in with_pod(manifests):
            if manifest["kind"] not in OPERATORS_KINDS:
                validate(manifest, version)


@pytest.mark.promise("kubernetes-knows-field")
@pytest.mark.parametrize("kind", OPERATORS_KINDS)
@pytest.mark.parametrize("mode", EXAMPLES)
def test_the_prometheus_operator_knows_every_field(mode: str, kind: str, everything: Path) -> None:
    for manifests in (example("daemonset"), rendered(f"--set=mode={mode}", "--values", everything)):
        validate(one(manifests, kind), OLDEST)


@pytest.mark.promise("kubernetes-knows-field")
@pytest.mark.parametrize("kind", ["DaemonSet", "PodMonitor"])
def test_an_unknown_field_is_noticed(kind: str) -> None:
    manifest = copy.deepcopy(one(example("daemonset"), kind))
    manifest["spec"]["replicaz"] = "1"
    with pytest.raises(jsonschema.ValidationError, match="replicaz"):
        validate(manifest, OLDEST)


@pytest.mark.promise("value-could-work-refused", "value-could-work-refused-name")
@pytest.mark.parametrize("setting", REFUSED)
def test_a_value_that_could_not_work_is_refused_by_its_name(setting: str) -> None:
    done = render("--set-json", setting)
    assert done.returncode != 0
    assert setting.partition("=")[0].rpartition(".")[2] in done.stderr
    assert "nil pointer" not in done.stderr


@pytest.mark.promise("value-could-work-refused")
@pytest.mark.parametrize("setting", WHAT_TO_DO)
def test_a_refusal_says_what_to_do(setting: str) -> None:
    done = render("--set-json", setting)
    assert done.returncode != 0
    assert WHAT_TO_DO[setting] in done.stderr


@pytest.mark.promise("value-could-work-refused")
def test_what_only_resembles_a_mistake_is_rendered() -> None:
    values = (
        'image={"repository": "host:5000/data/producerd", "tag": "0.2.0"}',
        'config="exit_when_idle_seconds = 0\\n# exit_when_idle_seconds = 60"',
        'serviceAccount={"create": false, "name": "own"}',
        'securityContext={"privileged": false, "seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"}}',
        'extraVolumes=[{"name": "a", "emptyDir": {}}]',
        'extraVolumeMounts=[{"name": "a", "mountPath": "/etc/producerd-a"}, {"name": "a", "mountPath": "/etc/ssl"}]',
    )
    for mode in EXAMPLES:
        manifests = rendered(f"--set=mode={mode}", *(f"--set-json={value}" for value in values))
        container = daemon_container(manifests)
        assert container["image"] == "host:5000/data/producerd:0.2.0"
        assert [mount["mountPath"] for mount in container["volumeMounts"]][2:] == ["/etc/producerd-a", "/etc/ssl"]


@pytest.mark.promise("value-could-work-refused")
def test_every_problem_is_named_at_once() -> None:
    done = render("--set=image.repository=", "--set=config=", "--set=terminationGracePeriodSeconds=5")
    assert all(name in done.stderr for name in ("image.repository", "config", "terminationGracePeriodSeconds"))


def test_what_need_not_be_there_may_be_taken_away() -> None:
    """The schema refuses the others by their name, as it does in test_a_value_that_could_not_work."""
    values, schema = (yaml.safe_load((CHART / f"values.{end}").read_text()) for end in ("yaml", "schema.json"))
    away = list(optional(values, schema))
    assert {"daemonset.tolerations", "monitoring.podMonitor.labels"} <= set(away)
    switches = ("networkPolicy", *(f"monitoring.{name}" for name in values["monitoring"]))
    flags = [*(f"--set={name}.enabled=true" for name in switches), *(f"--set={name}=null" for name in away)]
    for mode in EXAMPLES:
        assert rendered(f"--set=mode={mode}", *flags)


@pytest.mark.promise("daemon-time-drain")
@pytest.mark.parametrize(
    ("drain", "grace", "holds"),
    [
        ("drain_timeout_seconds = 60", 85, True),
        ("drain_timeout_seconds = 60", 84, False),
        ("drain_timeout_seconds=5.5#", 31, True),
        ("'drain_timeout_seconds' = 1_200.5", 1225, False),
        ("# drain_timeout_seconds = 1000", 90, True),
    ],
)
def test_the_grace_must_be_longer_than_the_time_to_drain(drain: str, grace: int, holds: bool) -> None:
    config = f"config=region = 'a-1'\n{drain}\n"
    done = render(f"--set=terminationGracePeriodSeconds={grace}", f"--set={config}")
    assert (done.returncode == 0) == holds
    assert ("killed before it has ended" in done.stderr) != holds


@pytest.mark.promise("daemon-lost-records")
@pytest.mark.parametrize(
    ("interval", "holds"), [("15s", True), ("20s", True), ("21s", False), ("60s", False), ("1m", False)]
)
def test_each_daemon_that_lost_records_is_scraped_before_it_ends(interval: str, holds: bool) -> None:
    """The interval of a monitor that is not rendered does not count."""
    assert LAST_SCRAPE_SECONDS == 20.0
    flag = f"--set=monitoring.podMonitor.interval={interval}"
    done = render(flag, "--set=monitoring.podMonitor.enabled=true")
    assert (done.returncode == 0) == holds
    assert (f"interval: {interval} is not 1s to 20s: a daemon that has lost records ends" in done.stderr) != holds
    assert render(flag, "--set=monitoring.podMonitor.enabled=false").returncode == 0


def test_a_directory_of_the_node_may_have_any_name() -> None:
    manifests = rendered("--set-literal", "daemonset.hostPath=/a/producerd{b: #c")
    for pod in (daemon_pod(manifests), yaml.safe_load(executor(manifests))):
        assert pod["spec"]["volumes"][0]["hostPath"]["path"] == "/a/producerd{b: #c"


@pytest.mark.promise("executors-probes-find")
@pytest.mark.parametrize("mode", EXAMPLES)
def test_executors_and_probes_find_the_daemon_whatever_its_file_says(mode: str, tmp_path: Path) -> None:
    file = "socket = '/tmp/a.sock'\nadmin_socket = '/tmp/b.sock'\nmetrics_listen = '127.0.0.1:1'\nregion = 'a-1'"
    manifests = rendered(f"--set=mode={mode}", f"--set=config={file}")
    node = config(manifests, tmp_path).node
    (mount,) = (each for each in daemon_container(manifests)["volumeMounts"] if each["name"] == "producerd")
    assert node.socket == Path(mount["mountPath"], "producerd.sock")
    assert node.admin_path == Path(mount["mountPath"], "producerd.admin.sock")
    assert node.metrics_address == ("0.0.0.0", daemon_container(manifests)["ports"][0]["containerPort"])


@pytest.mark.promise("user-knows-default-upgrade")
@pytest.mark.parametrize("setting", ["image.repository", "config"])
def test_what_only_the_user_knows_has_no_default_that_an_upgrade_could_bring_back(setting: str) -> None:
    """Helm forgets the options of earlier calls where new values are given."""
    done = render(f"--set={setting}=")
    assert done.returncode != 0
    assert f"{setting}: " in done.stderr


@pytest.mark.promise("user-knows-default-upgrade")
def test_the_commands_of_the_page_take_the_image_from_the_values() -> None:
    page = (ROOT / "docs/use/kubernetes.md").read_text()
    commands = re.findall(r"helm upgrade [^`]*?[^\\]\n", page)
    assert len(commands) > 2
    assert not [command for command in commands if "--values values.yaml" not in command or "--set " in command]
    for path in EXAMPLES.values():
        assert yaml.safe_load(path.read_text())["image"]["repository"] == "REGISTRY/producerd"
    others = [" ".join(command.split()) for command in re.findall(r"helm (?:rollback|uninstall)[^`#\n]*", page)]
    # An upgrade that the check refused is a revision, to which a rollback without a number would go.
    assert set(others) == {
        f"helm {what} --namespace producerd" for what in ("rollback producerd REVISION", "uninstall producerd")
    }


def test_another_chart_may_depend_on_it(tmp_path: Path) -> None:
    """Its switch and its global values then come along."""
    shutil.copytree(CHART, tmp_path / "charts/producerd")
    depends = "{name: producerd, version: '*', condition: producerd.enabled}"
    (tmp_path / "Chart.yaml").write_text(f"{{apiVersion: v2, name: spark, version: 1.0.0, dependencies: [{depends}]}}")
    values = {
        "global": {"region": "eu-west-1"},
        "producerd": {"enabled": True, "mode": "sidecar", **yaml.safe_load(LEAST)},
    }
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    done = helm("template", "producerd", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "restartPolicy: Always" in done.stdout


@pytest.mark.promise("check-knows-memory-another")
@pytest.mark.parametrize("arguments", [(), *(("--values", path) for path in EXAMPLES.values())])
def test_the_memory_is_what_the_settings_need(arguments: Sequence[str | Path], tmp_path: Path) -> None:
    manifests = rendered(*arguments)
    resources = daemon_container(manifests)["resources"]
    limit_bytes, need_bytes = quantity(resources["limits"]["memory"]), needed_bytes(config(manifests, tmp_path)).bytes
    assert need_bytes <= limit_bytes <= need_bytes + 64 * MIB
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


@pytest.mark.promise("daemon-charts-settings")
@pytest.mark.parametrize("mode", EXAMPLES)
def test_a_daemon_with_the_charts_settings_answers_its_probes(mode: str, tmp_path: Path) -> None:
    manifests = example(mode)
    path = tmp_path / "producerd.toml"
    path.write_text(configuration(manifests))
    container = daemon_container(manifests)
    producerctl, *starts = container["startupProbe"]["exec"]["command"]
    assert producerctl == "/opt/producerd/bin/producerctl"
    with daemon("http://127.0.0.1:9", options=["-c", str(path)], log_format="text") as running:
        for probe in ("readinessProbe", "livenessProbe"):
            assert running.get(container[probe]["httpGet"]["path"])[0] == 200
        env = dict(os.environ, PRODUCERD_ADMIN_SOCKET=str(running.socket.with_suffix(".admin.sock")))
        subprocess.run([sys.executable, "-m", "producerd.ctl", *starts], env=env, cwd=ROOT, check=True, timeout=30)


@pytest.mark.promise("daemon-time-drain")
@pytest.mark.parametrize("mode", EXAMPLES)
def test_the_daemon_has_the_time_that_it_may_drain_for(mode: str, tmp_path: Path) -> None:
    manifests = example(mode)
    ends = config(manifests, tmp_path).node.drain_timeout_seconds + LAST_WORDS_SECONDS + LAST_SCRAPE_SECONDS
    assert daemon_pod(manifests)["spec"]["terminationGracePeriodSeconds"] > ends


@pytest.mark.promise("daemon-must", "value-could-work-refused-name")
@pytest.mark.parametrize("mode", EXAMPLES)
def test_the_daemon_may_do_no_more_than_it_must(mode: str) -> None:
    """So it also fits into a namespace that enforces the restricted standard, where its pod is a sidecar's."""
    assert daemon_container(example(mode))["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsGroup": 9474,
        "runAsNonRoot": True,
        "runAsUser": 9474,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.promise("init-container-gives")
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_the_init_container_gives_the_directory_to_the_daemon(tmp_path: Path) -> None:
    """With the capabilities that it has, at the first start and at a later one."""
    (container,) = one(example("daemonset"), "DaemonSet")["spec"]["template"]["spec"]["initContainers"]
    may = container["securityContext"]
    assert (may["runAsUser"], may["runAsGroup"], may["runAsNonRoot"]) == (0, 0, False)
    python, *arguments = container["command"] + container["args"]
    assert python == "/opt/producerd/bin/python"
    mounted = container["volumeMounts"][0]["mountPath"]
    capabilities = ",".join(["-all", *(f"+{name.lower()}" for name in may["capabilities"]["add"])])
    command = ["setpriv", "--no-new-privs", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}"]
    directory = tmp_path / "producerd"
    directory.mkdir()
    for _ in range(2):
        subprocess.run(
            [*command, sys.executable, *(argument.replace(mounted, str(directory)) for argument in arguments)],
            check=True,
            timeout=30,
        )
        found = directory.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (9474, 9474, 0o750)


@pytest.mark.promise("two-daemons-never-share")
def test_two_daemons_never_share_a_nodes_directory() -> None:
    strategy = one(example("daemonset"), "DaemonSet")["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}


@pytest.mark.promise("change-configuration-restarts")
def test_a_change_of_the_configuration_restarts_the_pods_and_one_around_them_not() -> None:
    def pod(*arguments: str) -> Manifest:
        return daemon_pod(rendered(*arguments))

    assert pod("--set=config=region = 'eu-west-1'") != pod("--set=config=region = 'us-east-1'")
    around = ("networkPolicy.enabled", "monitoring.podMonitor.enabled", "monitoring.prometheusRule.enabled")
    assert pod() == pod(*(f"--set={name}=true" for name in around), "--set=daemonset.maxUnavailable=1")


@pytest.mark.promise("daemonset-pods-keep")
@pytest.mark.parametrize("mode", EXAMPLES)
def test_a_pod_has_its_settings_with_it_and_nothing_that_an_upgrade_changes(mode: str) -> None:
    own = '--set-json=podAnnotations={"note": "hello"}'
    both = [rendered(f"--set=mode={mode}", own, f"--set=config=region = '{region}'") for region in ("a-1", "b-1")]
    assert [configuration(manifests) for manifests in both] == ["region = 'a-1'", "region = 'b-1'"]
    for manifests in both:
        assert not [volume for volume in daemon_pod(manifests)["spec"]["volumes"] if "configMap" in volume]
        assert daemon_pod(manifests)["metadata"]["annotations"]["note"] == "hello"


@pytest.mark.promise("upgrade-checked-first")
def test_an_upgrade_first_checks_the_settings_where_the_daemons_will_run() -> None:
    """As the daemon, on its nodes, with its memory limit and its variables; no other mode has anything to hold back."""
    manifests = rendered('--set-json=extraEnv=[{"name": "HTTPS_PROXY", "value": "http://proxy"}]')
    check, daemons = one(manifests, "Job", "producerd-check"), one(manifests, "DaemonSet")
    assert check["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    pod, pods = check["spec"]["template"], daemons["spec"]["template"]
    assert not pods["metadata"]["labels"].items() <= pod["metadata"].get("labels", {}).items()
    for name in ("serviceAccountName", "nodeSelector"):
        assert pod["spec"][name] == pods["spec"][name]
    (container,), daemon_s = pod["spec"]["containers"], daemon_container(manifests)
    for name in ("image", "env", "securityContext"):
        assert container[name] == daemon_s[name]
    assert container["resources"]["limits"] == daemon_s["resources"]["limits"]
    assert container["command"] == ["/opt/producerd/bin/producerd", "check", "--online"]
    assert pod["metadata"]["annotations"] == pods["metadata"]["annotations"]
    assert not [each for each in example("sidecar") if each["kind"] == "Job"]


def test_the_init_container_has_what_a_quota_asks_of_each_container() -> None:
    (container,) = daemon_pod(rendered("--set=resources.limits.cpu=2"))["spec"]["initContainers"]
    assert container["resources"]["limits"] == {"cpu": 2, "memory": "896Mi"}


@pytest.mark.promise("change-configuration-restarts")
def test_the_configuration_is_taken_as_it_is_written(tmp_path: Path) -> None:
    """Indented, with tabs, quotes, and what looks like a template."""
    written = '  region = \'eu-west-1\'\n\n\t# {{ .Values }}: "quoted" \\ |\n[streams."a.b"]\n  linger_seconds = 1'
    (tmp_path / "own.toml").write_text(written)
    manifests = rendered("--set-file", f"config={tmp_path / 'own.toml'}")
    assert configuration(manifests) == written


@pytest.mark.promise("nobody-reads-metrics")
@pytest.mark.parametrize(("namespaces", "rules"), [("[]", []), ('["one","two"]', [["one", "two"]])])
def test_nobody_reads_the_metrics_but_pods_of_the_listed_namespaces(namespaces: str, rules: list[Any]) -> None:
    flags = ("--set=networkPolicy.enabled=true", "--set-json", f"networkPolicy.scrapeNamespaces={namespaces}")
    manifests = rendered(*flags)
    policy = one(manifests, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    ingress = policy.get("ingress", [])
    assert [rule["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"] for rule in ingress] == rules
    assert all(
        len(rule["from"]) == 1 and rule["ports"] == [{"protocol": "TCP", "port": "producerd"}] for rule in ingress
    )


@pytest.mark.promise("monitor-finds-pods-names")
@pytest.mark.parametrize("mode", EXAMPLES)
def test_the_monitor_finds_the_pods_and_names_them_as_the_alerts_do(mode: str) -> None:
    manifests = example(mode, "--set=monitoring.podMonitor.cluster=analytics")
    monitor = one(manifests, "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= daemon_pod(manifests)["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    (port,) = daemon_container(manifests)["ports"]
    assert endpoint["port"] == port["name"]
    labels = scraped(manifests, "producerd-1", "node-1")
    assert [labels[name] for name in ("job", "cluster", "node")] == ["producerd", "analytics", "node-1"]
    assert labels["release"] == "jobs/producerd"


@pytest.mark.promise("pod-replaces-another")
def test_a_pod_that_replaces_another_goes_on_with_the_series_of_its_node() -> None:
    manifests = example("daemonset")
    assert scraped(manifests, "producerd-1", "node-1") == scraped(manifests, "producerd-2", "node-1")
    assert scraped(manifests, "producerd-1", "node-1")["instance"] == "node-1"
    assert scraped(manifests, "producerd-3", "node-2")["instance"] == "node-2"
    executors = example("sidecar")
    instances = {scraped(executors, pod, "node-1")["instance"] for pod in ("flights-exec-1", "flights-exec-2")}
    assert len(instances) == 2


@pytest.mark.promise("alert-runbook-address")
def test_each_alert_has_the_runbook_at_the_address_that_is_given() -> None:
    address = "https://example.com/operate"
    flags = [f"--set=monitoring.prometheusRule.{each}" for each in ("enabled=true", f"runbookUrl={address}")]
    given, source = one(rendered(*flags), "PrometheusRule")["spec"], (CHART / "files/alerts.yml").read_text()
    assert given == yaml.safe_load(source.replace("runbook_url: docs/operate/", f"runbook_url: {address}/"))
    urls = [
        rule["annotations"]["runbook_url"] for group in given["groups"] for rule in group["rules"] if "alert" in rule
    ]
    assert len(urls) > 20
    assert all(url.startswith(f"{address}/runbook-") for url in urls)


@pytest.mark.promise("alert-runbook-address")
def test_alerts_may_be_left_out_by_their_names_and_by_no_other() -> None:
    def alerts(*arguments: str) -> set[str]:
        groups = one(example("daemonset", *arguments), "PrometheusRule")["spec"]["groups"]
        return {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}

    left_out = ["ProducerdDaemonsAbsent", "ProducerdSettingsDiffer"]
    disabled = f"--set=monitoring.prometheusRule.disabled={{{','.join(left_out)}}}"
    assert alerts() - alerts(disabled) == set(left_out)
    done = render("--set=monitoring.prometheusRule.enabled=true", disabled.replace("Absent", "Apsent"))
    assert done.returncode != 0
    assert "no alert is named ProducerdDaemonsApsent" in done.stderr


@pytest.mark.promise("alert-runbook-address")
@pytest.mark.parametrize("address", ["docs/operate", "https://wiki/ops?a=b&c=d"])
def test_grafana_gets_the_dashboard_with_the_address_of_the_runbook(address: str) -> None:
    found = one(example("daemonset", f"--set=monitoring.prometheusRule.runbookUrl={address}"), "ConfigMap", DASHBOARD)
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    expected = json.loads((CHART / "files/producerd.json").read_text())
    (docs,) = (variable for variable in expected["templating"]["list"] if variable["name"] == "docs")
    docs["query"] = address
    assert json.loads(found["data"]["producerd.json"]) == expected


@pytest.mark.parametrize("mode", EXAMPLES)
def test_the_pod_templates_are_those_of_the_chart(mode: str) -> None:
    """``python -m tests.system.charts`` writes them again."""
    assert POD_TEMPLATES[mode].read_text() == executor(example(mode))


@pytest.mark.promise("notes-name")
@pytest.mark.parametrize("release", ["producerd", "etl"])
@pytest.mark.parametrize("mode", EXAMPLES)
def test_the_notes_name_what_there_is(mode: str, release: str) -> None:
    arguments = (release, CHART, "--values", EXAMPLES[mode])
    done = helm("install", *arguments, "--dry-run=client")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("\nNOTES:\n")[2]
    named = set(re.findall(r"\S*producerd-executor|(?<=daemonset/)\S+", notes))
    manifests = yaml.safe_load_all(helm("template", *arguments).stdout)
    there = {each["metadata"]["name"] for each in manifests if each["kind"] in ("ConfigMap", "DaemonSet")}
    assert len(named) == (2 if mode == "daemonset" else 1)
    assert named <= there
    assert ("terminationGracePeriodSeconds=90s" in notes) == (mode == "sidecar")
