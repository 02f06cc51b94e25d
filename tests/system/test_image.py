"""The image of deploy/container, built from Debian's packages and run by podman as a cluster would run it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from producerd import __version__
from producerd.config import load
from producerd.config.memory import needed_bytes
from producerd.config.values import MIB
from spark_client import KinesisClient
from tests.daemon import ROOT, until
from tests.licences import rows
from tests.spark.jvm import short_jvm
from tests.spark.service import Kinesis, fake_kinesis
from tests.system.load import Load
from tests.system.machine import SYSTEM_SECONDS, missing
from tools.environments import OWN, variables

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.skipif(bool(missing()), reason=missing())]

BASE: Final = "docker.io/library/python:3.11-slim-bookworm"
OURS_AT_MOST: Final = 220_000_000
"""Size of what the image adds to its base.  Of the 350 MB that the image may have, it leaves 130 to the base."""
UID: Final = 9474
SHELLS: Final = ("/usr/bin/sh", "/usr/bin/dash", "/usr/bin/bash")
# As docs/operate/containers.md has it.  The network is this machine's, where the fake Kinesis is.
HARDENED: Final = "--read-only --cap-drop=all --security-opt=no-new-privileges --network=host"
LIMITS: Final = "--ulimit nofile=4096:4096 --ulimit nproc=4096:4096"  # no engine may raise what this machine allows
BUNDLES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")

LIST: Final = """
import importlib.metadata, sysconfig
print(*(one.name for one in importlib.metadata.distributions(path=[sysconfig.get_path("purelib")])))
"""


class Engine:
    """podman with a storage of its own, in a folder."""

    def __init__(self, folder: Path) -> None:
        driver = "overlay" if _has_overlay(folder) else "vfs"
        self._command = ["podman", f"--storage-driver={driver}", f"--root={folder}/storage", f"--runroot={folder}/run"]
        self._command += [f"--runtime={shutil.which('runc')}", "--cgroup-manager=cgroupfs"]

    def run(self, command: str, *, check: bool = True, errors: bool = False) -> str:
        """Return what a command of podman says on its standard output, or on its standard error."""
        done = subprocess.run([*self._command, *shlex.split(command)], capture_output=True, text=True, timeout=300)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return (done.stderr if errors else done.stdout).strip()

    def size(self, image: str) -> int:
        return int(self.run(f"image inspect --format '{{{{.Size}}}}' {image}"))


class Container:
    """A daemon of the image, whose socket is in ``folder``."""

    def __init__(self, engine: Engine, name: str, folder: Path, options: str) -> None:
        self.socket = folder / "producerd.sock"
        self._engine, self._name = engine, name
        mounts = f"-v {folder}:/run/producerd " + " ".join(f"-v /dev/null:{shell}:ro" for shell in SHELLS)
        engine.run(f"create --name {name} {HARDENED} {LIMITS} {mounts} {options} producerd serve")

    def start(self) -> None:
        """Start it, and return when it is ready or has failed."""
        self._engine.run(f"start {self._name}")
        until(lambda: self.is_ready() or self.state()["Status"] == "exited", "ready", SYSTEM_SECONDS)

    def state(self) -> Any:
        return json.loads(self._engine.run(f"inspect {self._name}"))[0]["State"]

    def is_ready(self) -> bool:
        """Ask as the image's own health check does."""
        return self.order("ready") == "ready"

    def ends(self) -> Any:
        """Wait for its end and return its state."""
        until(lambda: self.state()["Status"] == "exited", "exited", SYSTEM_SECONDS)
        return self.state()

    def order(self, command: str) -> str:
        """Run producerctl in it.  It may end meanwhile."""
        return self._engine.run(f"exec {self._name} producerctl {command}", check=False)

    def send(self, signal: str) -> None:
        self._engine.run(f"kill --signal={signal} {self._name}")

    def log(self) -> str:
        return self._engine.run(f"logs {self._name}", errors=True)


@pytest.fixture(scope="module")
def engine(tree: Path, dist: Path, debian: Path) -> Iterator[Engine]:
    """An engine that has the image, made of a copy of this tree and of the wheel in its dist/."""
    folder = Path(tempfile.mkdtemp(prefix="producerd-image-"))
    try:
        engine = Engine(folder)
        engine.run(f"import --quiet {debian} {BASE}")
        trust = " ".join(f"-v {path}:{path}:ro --env=PIP_CERT={path}" for path in BUNDLES if Path(path).exists())
        what = f"-f {tree}/deploy/container/Dockerfile -t producerd --build-arg VERSION={__version__} {tree}"
        engine.run(f"build --quiet --layers=false --isolation=chroot --pull=never --format=docker {trust} {what}")
        yield engine
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def kinesis() -> Iterator[Kinesis]:
    with fake_kinesis() as serving:
        yield serving


@contextlib.contextmanager
def serving(engine: Engine, kinesis: Kinesis, memory_bytes: int, **settings: Any) -> Iterator[Container]:
    """A container, created, with this limit of memory.  It is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="producerd-run-"))
    os.chown(folder, UID, UID)
    folder.chmod(0o750)
    environment = {
        **{f"PRODUCERD_{name.upper()}": value for name, value in settings.items()},
        "PRODUCERD_REGION": "us-east-1",
        "PRODUCERD_ENDPOINT_URL": kinesis.url,
        "PRODUCERD_METRICS_LISTEN": "127.0.0.1:0",
        "PRODUCERD_STREAMS_ALLOWED": "any",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    options = shlex.join([*(f"--env={key}={value}" for key, value in environment.items()), f"--memory={memory_bytes}"])
    try:
        yield Container(engine, folder.name, folder, options)
    finally:
        engine.run(f"rm --force --time 0 {folder.name}")
        shutil.rmtree(folder)


def law_bytes() -> int:
    """Return the memory that `producerd check` says a daemon with the default settings may need."""
    whole_mib = needed_bytes(load(None, [], environ={})).mib.removesuffix(" MiB")
    return int(whole_mib.replace(",", "")) * MIB


@pytest.mark.promise("image-says-needs")
def test_the_image_says_what_it_is_and_has_no_more_than_it_needs(engine: Engine) -> None:
    told = json.loads(engine.run("image inspect producerd"))[0]
    config = told["Config"]
    assert config["User"] == f"{UID}:{UID}"
    assert config["Entrypoint"] == ["/opt/producerd/bin/producerd"]
    assert told["Healthcheck"]["Test"] == ["CMD", "/opt/producerd/bin/producerctl", "ready"]
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert engine.size("producerd") - engine.size(BASE) <= OURS_AT_MOST
    python = f"run --rm --network=none {LIMITS} --entrypoint=/opt/producerd/bin/python producerd"
    packages = {name.lower().replace("_", "-") for name in engine.run(f"{python} -c {shlex.quote(LIST)}").split()}
    assert packages == {"producerd", *(name for name, (_, extra) in rows().items() if extra == "daemon")}


@pytest.mark.promise("spark-job-writes-through")
def test_a_spark_job_writes_through_the_shared_socket_of_a_hardened_container(
    engine: Engine, kinesis: Kinesis, tmp_path: Path
) -> None:
    """The root is read-only, there is no shell and no capability, and the memory is what the law says."""
    stream = kinesis.stream()
    with serving(engine, kinesis, law_bytes()) as container:
        container.start()
        socket = container.socket.stat()
        assert (socket.st_uid, socket.st_gid, oct(socket.st_mode & 0o777)) == (UID, UID, "0o660")
        command = [str(OWN.python), str(ROOT / "deploy/container/job.py"), stream, "2000"]
        env = {**variables(), "PRODUCERD_SOCKET": str(container.socket), "PYTHONPATH": str(ROOT)}
        env["SPARK_SUBMIT_OPTS"] = short_jvm()
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=3 * SYSTEM_SECONDS
        )
        match = re.search(rf"^([\d,]+) rows are in {stream}$", done.stdout, re.MULTILINE)
        assert match is not None, done.stdout + done.stderr
        values = {json.loads(data)["value"] for data in kinesis.data(stream)}
        written = int(match[1].replace(",", ""))
        assert written >= 2_000
        assert set(range(written)) <= values
        assert not container.state()["OOMKilled"]


@pytest.mark.promise("sigterm-under-load-loses")
def test_sigterm_under_load_loses_nothing_and_the_next_start_goes_on(engine: Engine, kinesis: Kinesis) -> None:
    stream = kinesis.stream()
    with serving(engine, kinesis, law_bytes()) as container:
        container.start()
        with Load(lambda: client(stream, container), 4) as load:
            until(lambda: len(load.calls) > 20)
            container.send("TERM")
            assert container.ends()["ExitCode"] == 0, container.log()
            before = len(load.calls)
            container.start()
            until(lambda: len(load.calls) > before + 20)
        assert sorted(kinesis.data(stream)) == sorted(load.sent)


@pytest.mark.promise("hook-before-stop-delivers")
def test_the_hook_before_a_stop_delivers_the_queue(engine: Engine, kinesis: Kinesis) -> None:
    """Without the hook these rows would go back to their client, which waits for the next daemon."""
    stream = kinesis.stream()
    with serving(engine, kinesis, law_bytes(), linger_seconds=3_600) as container:
        container.start()
        with client(stream, container) as own:
            call = own.put_many([(f"row {i}", f"k{i}") for i in range(500)])
            until(lambda: json.loads(container.order("status --json"))["node_queue_bytes"])
            container.order("drain --wait")
            assert container.ends()["ExitCode"] == 0
            call.result(SYSTEM_SECONDS)
    assert len(kinesis.data(stream)) == 500


@pytest.mark.promise("little-memory-refused")
def test_too_little_memory_is_refused_with_what_is_needed(engine: Engine, kinesis: Kinesis) -> None:
    with serving(engine, kinesis, 128 * MIB) as container:
        container.start()
        assert container.state()["ExitCode"] == 78
        assert "the limit of this cgroup is 128 MiB" in container.log()


def client(stream: str, container: Container) -> KinesisClient:
    return KinesisClient(stream, socket=str(container.socket), connect_timeout_seconds=60, reconnect_timeout_seconds=60)


def _has_overlay(folder: Path) -> bool:
    """Return whether a folder may be an overlay's.  It is not, if it is on an overlay itself."""
    names = [folder / name for name in ("lower", "upper", "work", "merged")]
    for name in names:
        name.mkdir()
    options = f"lowerdir={names[0]},upperdir={names[1]},workdir={names[2]}"
    done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(names[3])], capture_output=True)
    if done.returncode == 0:
        subprocess.run(["umount", str(names[3])], check=True)
    return done.returncode == 0
