"""Start and end the cluster: one control plane and two nodes, each in a place of its own, without a way out.

What this does in another way than a distribution has a reason in the machines that it runs on: cgroups of version 1,
no CAP_SYS_RESOURCE, and sysctls that belong to the whole machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.table import say
from tests.cluster.images import PAUSE, PRODUCERD, spark_image, tar_of
from tests.cluster.keys import PKI, kubeconfig, make_keys
from tests.cluster.place import RUN, Failed, Place, end, pid_of, until
from tests.cluster.programs import BIN, KUBECTL, PLUGINS
from tests.system.charts import NEWEST
from tools.kubernetes import helm_path

CONTROL: Final = Place("control", "192.0.2.1")
"""Machines have addresses for documentation (RFC 5737), and pods those for benchmarks (RFC 2544)."""
NODES: Final = (Place("n1", "192.0.2.11"), Place("n2", "192.0.2.12"))
SERVICES: Final = "198.18.100.0/24"
KINESIS_PORT: Final = 4567
STREAM: Final = "jobs"
STREAMS: Final = ("flights", "bookings", STREAM)
OWN_FOLDERS: Final = (
    *("run", "var/lib/kubelet", "var/lib/containerd", "var/lib/cni", "var/log/pods", "var/log/containers"),
    *("etc/cni/net.d", "opt/cni/bin"),
)
SYSCTLS: Final = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""What a kubelet would set for the whole machine.  It finds files of its own with these values."""
CGROUPS: Final = """
set -e
umount -R /sys/fs/cgroup
mount -t tmpfs tmpfs /sys/fs/cgroup
while IFS=: read -r _ of _; do
    [ -n "$of" ] || continue
    at=/sys/fs/cgroup/${of#name=}; mkdir $at; options=$of; [ $of = ${of#name=} ] || options=none,$of
    mount -t cgroup -o $options cgroup $at; mkdir -p $at/k8s-NODE
done < /proc/self/cgroup
for what in cpuset.cpus cpuset.mems; do
    cat /sys/fs/cgroup/cpuset/$what > /sys/fs/cgroup/cpuset/k8s-NODE/$what
done
"""
"""containerd asks each hierarchy of /proc/self/cgroup for a process's group, also one that is mounted nowhere."""
CONTAINERD: Final = f"""
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true  # nobody may lower it here
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
"""


def kubectl(*words: str | Path, text: str = "", seconds: float = 120.0) -> str:
    return CONTROL.run(KUBECTL, kubeconfig("admin"), *words, text=text, seconds=seconds)


def get(*words: str) -> Any:
    """Return an object of the cluster."""
    return json.loads(kubectl("get", *words, "-o", "json"))


def helm(*words: str | Path, seconds: float = 300.0) -> str:
    return CONTROL.run(helm_path(NEWEST), kubeconfig("admin"), *words, seconds=seconds)


def up() -> None:
    """Start what does not run yet."""
    make_keys(CONTROL, NODES, f"{SERVICES.rpartition('.')[0]}.1")
    if CONTROL.make():
        say("starting the cluster ...")
        for order in ("ip link add br0 type bridge", f"ip addr add {CONTROL.address}/24 dev br0", "ip link set br0 up"):
            CONTROL.run(*order.split())
        (RUN / "etcd").mkdir(exist_ok=True)
        CONTROL.run("mount", "-t", "tmpfs", "tmpfs", RUN / "etcd")
    (RUN / "resolv.conf").write_text("")
    _start_control_plane()
    start_kinesis()
    for place in NODES:
        power_on(place)


def power_on(place: Place) -> None:
    """Start a node, and wait until it is ready."""
    if place.make():
        _prepare(place)
    start_node(place)
    ready = ["wait", "--for=condition=Ready", "node", place.name, "--timeout=1s"]
    until(lambda: kubectl(*ready), f"{place.name} is ready", 180.0)


def start_kinesis() -> None:
    """Start the fake Kinesis, or start it again without records."""
    end("kinesis")
    streams = [f"--stream={name}" for name in STREAMS]
    fake = ["-m", "producerd.testing.fake_kinesis", "--host", CONTROL.address, "--port", str(KINESIS_PORT), *streams]
    CONTROL.start("kinesis", sys.executable, *fake)


def ask_kinesis(path: str, settings: Mapping[str, object] | None = None) -> Any:
    """Return what the fake Kinesis answers to a call of its control.  With settings the call sets them."""
    url = f"http://{CONTROL.address}:{KINESIS_PORT}/_fake/{path}"
    body = None if settings is None else json.dumps(settings).encode()
    ask = f"import urllib.request as u; print(u.urlopen({url!r}, {body!r}).read().decode())"
    return json.loads(CONTROL.run("python3", "-c", ask))


def start_controllers() -> None:
    """Start what replaces pods."""
    CONTROL.start(
        *("controllers", BIN / "kube-controller-manager", kubeconfig("controllers")),
        *("--root-ca-file", PKI / "ca.crt", "--service-account-private-key-file", PKI / "sa.key"),
        *("--use-service-account-credentials", "--leader-elect=false", "--bind-address", "127.0.0.1"),
    )


def _start_control_plane() -> None:
    client = "http://127.0.0.1:2379"
    CONTROL.start(
        *("etcd", "etcd", "--data-dir", RUN / "etcd/data", "--log-level", "warn"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", "http://127.0.0.1:2380"),
    )
    CONTROL.start(
        *("apiserver", BIN / "kube-apiserver", "--etcd-servers", client, "--bind-address", "0.0.0.0"),
        *("--advertise-address", CONTROL.address, "--secure-port", "6443", "--service-cluster-ip-range", SERVICES),
        *("--tls-cert-file", PKI / "apiserver.crt", "--tls-private-key-file", PKI / "apiserver.key"),
        *("--client-ca-file", PKI / "ca.crt", "--kubelet-preferred-address-types", "InternalIP"),
        *("--kubelet-client-certificate", PKI / "admin.crt", "--kubelet-client-key", PKI / "admin.key"),
        *("--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction", "--allow-privileged"),
        *("--service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
        *("--service-account-key-file", PKI / "sa.pub", "--service-account-signing-key-file", PKI / "sa.key"),
        *("--feature-gates", "WatchList=false"),  # Debian has etcd 3.4, which lacks what it needs
    )
    until(lambda: kubectl("get", "--raw", "/readyz"), "the API is ready", 180.0)
    start_controllers()
    CONTROL.start(
        *("scheduler", BIN / "kube-scheduler", kubeconfig("scheduler")),
        *("--leader-elect=false", "--bind-address", "127.0.0.1"),
    )
    proxies = ["create", "clusterrolebinding", "kube-proxy", "--clusterrole=system:node-proxier"]
    with contextlib.suppress(Failed):  # it is there
        kubectl(*proxies, "--user=system:kube-proxy")
    CONTROL.start("dns", sys.executable, "-m", "tests.cluster.dns", CONTROL.address)


def _prepare(place: Place) -> None:
    """Give a new place its network, and folders, sysctls and cgroups that are a node's own."""
    number = place.name[1:]
    ends = str(CONTROL.holder), str(place.holder)
    link = f"ip link add v-{place.name} netns {ends[0]} type veth peer name eth0 netns {ends[1]}"
    subprocess.run(link.split(), check=True)
    CONTROL.run(*f"ip link set v-{place.name} master br0 up".split())
    for order in (
        f"ip addr add {place.address}/24 dev eth0",
        "ip link set eth0 up",
        f"ip route add default via {CONTROL.address}",
        *(f"ip route add 198.18.{one.name[1:]}.0/24 via {one.address}" for one in NODES if one is not place),
    ):
        place.run(*order.split())
    CONTROL.run(*f"ip route replace 198.18.{number}.0/24 via {place.address}".split())
    for folder in OWN_FOLDERS:
        (place.folder / folder).mkdir(parents=True, exist_ok=True)
        place.run("mkdir", "-p", f"/{folder}")
        place.run("mount", "--bind", place.folder / folder, f"/{folder}")
    place.run("mount", "--make-rshared", "/")
    place.run("mount", "-t", "tmpfs", "tmpfs", "/run")
    (place.folder / "sys").mkdir(exist_ok=True)
    for name, value in SYSCTLS.items():
        file = place.folder / "sys" / name.replace("/", "-")
        file.write_text(f"{value}\n")
        place.run("mount", "--bind", file, f"/proc/sys/{name}")
    place.run("bash", "-c", CGROUPS.replace("NODE", place.name))
    for plugin in PLUGINS.iterdir():
        shutil.copy(plugin, place.folder / "opt/cni/bin")
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": f"198.18.{number}.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
    network = {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}
    (place.folder / "etc/cni/net.d/10-bridge.conflist").write_text(json.dumps(network))
    (place.folder / "containerd.toml").write_text(CONTAINERD)


def _kubelet(place: Place) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(PKI / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(PKI / f"{place.name}.crt"),
        "tlsPrivateKeyFile": str(PKI / f"{place.name}.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/k8s-{place.name}",
        "clusterDomain": "cluster.local",
        "clusterDNS": [CONTROL.address],
        "resolvConf": str(RUN / "resolv.conf"),
        "failSwapOn": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "protectKernelDefaults": True,
        "oomScoreAdj": 0,
        "maxOpenFiles": 20_000,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionPressureTransitionPeriod": "20s",
        "evictionHard": {"memory.available": "500Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "shutdownGracePeriod": "0s",
        "syncFrequency": "10s",
    }


def start_node(place: Place) -> None:
    """Start what runs on a node, and give it the images that it does not have."""
    place.start(f"containerd-{place.name}", "containerd", "--config", place.folder / "containerd.toml")
    until(lambda: place.run("ctr", "version"), "containerd answers", 60.0)
    for image in (PAUSE, PRODUCERD, spark_image()):
        import_image(place, image)
    if not pid_of(f"kubelet-{place.name}"):
        start_kubelet(place)
    place.start(
        *(f"proxy-{place.name}", BIN / "kube-proxy", kubeconfig("proxy"), "--hostname-override", place.name),
        *("--proxy-mode", "iptables", "--conntrack-max-per-core", "0"),
        *("--conntrack-tcp-timeout-established", "0", "--conntrack-tcp-timeout-close-wait", "0"),
    )


def import_image(place: Place, image: str) -> None:
    """Give a node an image that it does not have, or that has changed."""
    tar = tar_of(image)
    stamp = place.folder / f"{tar.name}.imported"
    if not stamp.exists() or stamp.stat().st_mtime < tar.stat().st_mtime:
        place.run("ctr", "-n", "k8s.io", "images", "import", tar, seconds=600.0)
        stamp.touch()


def start_kubelet(place: Place, **changes: Any) -> None:
    """Start a node's kubelet, or start it again with settings changed."""
    end(f"kubelet-{place.name}")
    (place.folder / "kubelet.yaml").write_text(json.dumps(_kubelet(place) | changes))
    place.start(
        *(f"kubelet-{place.name}", BIN / "kubelet", "--config", place.folder / "kubelet.yaml"),
        *(kubeconfig(place.name), "--hostname-override", place.name, "--node-ip", place.address),
        *("--root-dir", "/var/lib/kubelet", "--node-labels", "workload=spark"),
    )


def power_off(place: Place) -> None:
    """End all that runs on a node by SIGKILL, and the node's place with it."""
    for path in RUN.glob(f"*-{place.name}.pid"):
        end(path.stem, signal.SIGKILL)
    holder = pid_of(f"{place.name}.holder")
    if not holder:
        return
    space = os.readlink(f"/proc/{holder}/ns/mnt")
    remove = f"find /sys/fs/cgroup/*/k8s-{place.name} -depth -type d -exec rmdir {{}} +"

    def is_empty() -> bool:
        pids = {pid for pid in _in_space(space) if pid != holder}  # containerd's shims
        for procs in Path("/sys/fs/cgroup/memory", f"k8s-{place.name}").rglob("cgroup.procs"):
            pids.update(map(int, procs.read_text().split()))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    until(is_empty, f"the processes of {place.name} have ended", 60.0)
    with contextlib.suppress(Failed):
        place.run("bash", "-c", remove)
    end(f"{place.name}.holder", signal.SIGKILL)
    with contextlib.suppress(Failed):
        CONTROL.run("ip", "link", "delete", f"v-{place.name}")


def down() -> None:
    """End every process that `up` has started, the pods, and the places."""
    for place in NODES:
        power_off(place)
    for path in sorted(RUN.glob("*.pid"), key=lambda path: path.stem == f"{CONTROL.name}.holder"):
        end(path.stem)
    shutil.rmtree(RUN, ignore_errors=True)


def _in_space(space: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/mnt") == space:
                found.append(int(name))
    return found
