"""Make the images of the cluster: producerd by its own Dockerfile, Spark with the client, and what holds a pod.

They are made of packages of Debian and PyPI, so no registry of images is needed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.table import say
from producerd import __version__
from tests.cluster.place import FOLDER, Failed
from tests.daemon import ROOT
from tests.system.machine import bootstrap
from tools.environments import LANES, OWN
from tools.packaging import write_wheels

TARS: Final = FOLDER / "images"
BASE: Final = "docker.io/library/python:3.11-slim-bookworm"
SPARK_FILES: Final = Path(__file__).parent / "spark"
PRODUCERD: Final = f"registry.test/producerd:{__version__}"
PAUSE: Final = "registry.test/pause:1"
BUNDLE: Final = Path("/etc/ssl/certs/ca-certificates.crt")
CACHE: Final = Path("~/.cache/pip").expanduser()
"""pip's own, if it is where pip has it by default: it keeps the wheel that pip makes of pyspark."""
NEWEST_SPARK: Final = "4"


def spark_image(spark: str = NEWEST_SPARK) -> str:
    return f"registry.test/spark:{spark}"


def make(spark: str = NEWEST_SPARK) -> None:
    """Make the images whose files have changed."""
    TARS.mkdir(parents=True, exist_ok=True)
    base = TARS / "base.tar"
    if not base.exists():
        say("fetching Debian's packages for the base of the images ...")
        bootstrap(base)
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        context = Path(folder, "context")
        shutil.copytree(ROOT / "deploy/container", context / "deploy/container")
        shutil.copy(ROOT / "deploy/daemon.lock", context / "deploy")
        shutil.copytree(SPARK_FILES, context / "spark")
        if write_wheels(context / "dist", ROOT):
            raise Failed("the wheels were not built")
        engine = Engine(Path(folder))
        engine.import_base(base)
        engine.build(PRODUCERD, context / "deploy/container/Dockerfile", context, f"VERSION={__version__}")
        engine.build(spark_image(spark), context / "spark/Dockerfile", context, f"PYSPARK={pyspark_of(spark)}")


def tar_of(image: str) -> Path:
    return TARS / f"{image.rpartition('/')[2].replace(':', '-')}.tar"


def pyspark_of(spark: str) -> str:
    """Return the version of pyspark in the lock of a Spark."""
    (version,) = re.findall(r"^pyspark==(\S+)", LANES.get(spark, OWN).lock.read_text(), re.MULTILINE)
    return str(version)


class Engine:
    """podman with a storage of its own, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._command = ["podman", "--storage-driver=overlay", f"--root={folder}/storage", f"--runroot={folder}/run"]
        self._command += [f"--runtime={shutil.which('runc')}", "--cgroup-manager=cgroupfs"]

    def run(self, *command: str | Path) -> None:
        done = subprocess.run([*self._command, *map(str, command)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"podman {command[0]}: {done.stderr[-2_000:]}")

    def import_base(self, tar: Path) -> None:
        """Make the base of the others, and what holds a pod: containerd ends that by SIGKILL."""
        self.run("import", "--quiet", tar, BASE)
        if not tar_of(PAUSE).exists():
            self.run("import", "--quiet", '--change=ENTRYPOINT ["/bin/sleep", "infinity"]', tar, PAUSE)
            self.run("save", "--quiet", "--format=docker-archive", "-o", tar_of(PAUSE), PAUSE)

    def build(self, image: str, file: Path, context: Path, argument: str) -> None:
        """Build an image and save it for containerd, unless one of the same files is there."""
        tar, stamp, key = tar_of(image), tar_of(image).with_suffix(".key"), _digest(context, argument)
        if tar.exists() and stamp.exists() and stamp.read_text() == key:
            return
        say(f"building {image} ...")
        how = ["--quiet", "--layers=false", "--isolation=chroot", "--pull=never", "--format=docker"]
        for path, name in (BUNDLE, "PIP_CERT"), (CACHE, "PIP_CACHE_DIR"):
            if path.exists():
                how += ["-v", f"{path}:{path}", f"--env={name}={path}"]
        self.run("build", *how, f"--build-arg={argument}", "-f", file, "-t", image, context)
        tar.unlink(missing_ok=True)
        self.run("save", "--quiet", "--format=docker-archive", "-o", tar, image)
        self.run("rmi", "--force", image)
        stamp.write_text(key)


def _digest(context: Path, argument: str) -> str:
    digest = hashlib.sha256(argument.encode())
    for path in sorted(context.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(context)}".encode() + path.read_bytes())
    return digest.hexdigest()
