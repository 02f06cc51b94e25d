"""Servers of Spark as processes: a standalone cluster whose nodes have a daemon each, and Spark Connect."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from producerd.demo.ports import free_port
from tests.daemon import until
from tests.spark.drivers import PLAIN_CONF, READY_SECONDS, spark_environ
from tests.spark.processes import of_session

HOST = "127.0.0.1"
DEPLOY = "org.apache.spark.deploy"


@contextlib.contextmanager
def cluster(folder: Path, sockets: Sequence[Path]) -> Iterator[str]:
    """The master's URL, when as many nodes as there are sockets are there: at 127.0.0.2 and upwards."""
    port = free_port()
    url = f"spark://{HOST}:{port}"
    with contextlib.ExitStack() as ends:
        ends.enter_context(
            _spark(folder, "master", f"spark-class {DEPLOY}.master.Master --host {HOST} --port {port} --webui-port 0")
        )
        _wait_for_line(folder / "master.log", "New state: ALIVE")
        for number, path in enumerate(sockets, 2):
            options = f"--host 127.0.0.{number} --port 0 --webui-port 0 --cores 2 --memory 2g"
            command = f"spark-class {DEPLOY}.worker.Worker {options} --work-dir {folder / f'work-{number}'} {url}"
            own = {"SPARK_LOCAL_IP": f"127.0.0.{number}", "PRODUCERD_SOCKET": str(path)}
            ends.enter_context(_spark(folder, f"worker-{number}", command, **own))
        for number, _ in enumerate(sockets, 2):  # the master knows of a worker before it gives it executors
            _wait_for_line(folder / f"worker-{number}.log", "Successfully registered with master")
        yield url


@contextlib.contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A server of Spark Connect, on ``local[2]``; its URL."""
    port = free_port()
    conf = {**PLAIN_CONF, "spark.master": "local[2]", "spark.connect.grpc.binding.port": str(port)}
    options = " ".join(f"--conf {name}={value}" for name, value in conf.items())
    command = f"spark-submit {options} --class org.apache.spark.sql.connect.service.SparkConnectServer spark-internal"
    with _spark(folder, "connect", command):
        until(lambda: _listens(port), "Spark Connect", READY_SECONDS)
        yield f"sc://{HOST}:{port}"


@contextlib.contextmanager
def _spark(folder: Path, name: str, command: str, **environ: str) -> Iterator[None]:
    """A command of Spark's ``bin``, in a session of its own; its log is ``name.log``."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = Path(found.origin).parent
    script, *arguments = command.split()
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(home / "bin" / script), *arguments],
            env=spark_environ(folder, SPARK_HOME=str(home), **environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        for member in of_session(process.pid):  # executors and Python workers, too
            member.kill()
        process.wait()


def _wait_for_line(log: Path, line: str) -> None:
    until(lambda: line in log.read_text(), f"{line!r} in {log.name}", READY_SECONDS)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex((HOST, port))
