"""Every rival: its name, the place that pins its version, and the way to start it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks import load, maven
from benchmarks.harness import START_SECONDS, Rig
from benchmarks.rivals import rows
from benchmarks.rivals.builds import HERE, Builds
from benchmarks.rivals.kpl import RUN
from producerd.demo.children import Child

PLAIN: Final = ("none",)
BOTH: Final = ("none", "kpl")
MOST_ROWS: Final = 10_000
"""Records of a file, as many as in a frame of ours."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A rival.

    ``worth`` is the number of our records for each record of the rival, so that its runs take about as long.
    ``warm_seconds`` is the CPU time that a JVM may use before its runs count.  ``command`` builds what it needs, and
    returns a command line for the arguments of `benchmarks.rivals.rows`.  ``toolchain`` returns the version of what
    builds and runs it, besides Python.  Both raise `maven.Unavailable`.
    """

    name: str
    version: str
    aggregations: tuple[str, ...]
    worth: int
    command: Callable[[Builds], list[str]]
    warm_seconds: float = 0.0
    toolchain: Callable[[], list[str]] | None = None


def _pinned(path: str, pattern: str) -> str:
    found = re.search(pattern, (HERE / path).read_text())
    assert found is not None, f"{path} pins no version"
    return found[1]


def _python(package: str, module: str, aggregations: tuple[str, ...], worth: int) -> Rival:
    lock = f"locks/{package}.txt"

    def command(builds: Builds) -> list[str]:
        return [builds.python(HERE / lock), "-m", f"benchmarks.rivals.{module}"]

    return Rival(package, _pinned(lock, rf"(?m)^{package}==(\S+)"), aggregations, worth, command)


def _java_version(folder: str, artifact: str) -> str:
    return _pinned(f"{folder}/pom.xml", rf"<artifactId>{artifact}</artifactId>\s*<version>([^<]+)")


RIVALS: Final = (
    _python("boto3", "boto3_by_hand", BOTH, 10),
    _python("aiobotocore", "stock_aiobotocore", PLAIN, 10),
    _python("async-kinesis", "async_kinesis", BOTH, 100),
    Rival(
        "official-kpl",
        _java_version("kpl", "amazon-kinesis-producer"),
        BOTH,
        10,
        lambda _: maven.command(HERE / "kpl", "Load", "-Xmx2g"),
        warm_seconds=5.0,
        toolchain=lambda: [maven.java(), "-version"],
    ),
    Rival(
        "aws-sdk-java",
        _java_version("java", "kinesis"),
        PLAIN,
        1,
        lambda _: maven.command(HERE / "java", "Load", "-Xmx1g"),
        warm_seconds=15.0,
        toolchain=lambda: [maven.java(), "-version"],
    ),
    Rival(
        "aws-sdk-go",
        _pinned("go/go.mod", r"service/kinesis v(\S+)"),
        PLAIN,
        1,
        lambda builds: [builds.go(HERE / "go")],
        toolchain=lambda: ["go", "version"],
    ),
    Rival(
        "aws-sdk-rust",
        _pinned("rust/Cargo.toml", r'aws-sdk-kinesis = \{ version = "=([^"]+)'),
        PLAIN,
        1,
        lambda builds: [builds.rust(HERE / "rust")],
        toolchain=lambda: ["rustc", "--version"],
    ),
)
KPL: Final = next(rival for rival in RIVALS if rival.name == "official-kpl")


def start(rival: Rival, command: list[str], rig: Rig, record_bytes: int, aggregation: str) -> Child:
    """Start a rival that puts records to the sink, and wait until it is ready."""
    path = rig.work / f"records-{record_bytes}"
    if not path.exists():
        count = min(MOST_ROWS, load.CHUNK_BYTES // (load.KEY_BYTES + record_bytes))
        rows.write(path, *load.rows(count, record_bytes))
    # A record that an SDK sends again would count twice.
    environ = {**rig.trust, "PYTHONPATH": str(HERE.parents[1]), "AWS_MAX_ATTEMPTS": "1"}
    arguments = [*command, rig.endpoint_url, str(path), load.STREAM, aggregation]
    child = rig.children.start(rival.name, ["-c", RUN, *arguments], environ)
    child.line(START_SECONDS)
    return child
