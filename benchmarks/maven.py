"""Build Java projects with Maven, once.  Until their sources change, runs use the result without Maven and offline.

The result is in the ignored folder ``build/java``, under a name with a digest of the sources.  Maven keeps its
downloads
in its own place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

BUILT: Final = Path(__file__).resolve().parents[1] / "build" / "java"
BUILD_SECONDS: Final = 600.0
"""Longest time of a build.  The first one downloads about 100 MB."""
GOALS: Final = ("compiler:compile", "dependency:copy-dependencies")
"""Goals of the build.  `package` would also download the tools for tests and jars."""
SHOWN_ERRORS: Final = 3
SHORT_RUN: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that lives for seconds.  With them the KCL judges 100,000 records in a third of the CPU time."""


class Unavailable(Exception):
    """A Java project cannot run on this machine.  The message says why."""


def command(project: Path, main: str, *options: str) -> list[str]:
    """Return a command line that runs the class ``main`` of a project, after building it if needed.

    Raise `Unavailable` if this machine cannot build it.
    """
    sources = [project / "pom.xml", *sorted((project / "src").rglob("*.java"))]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    folder = BUILT / f"{project.name}-{digest[:16]}"
    if not folder.exists():
        _build(project, folder)
    return [java(), *options, "-cp", f"{folder / 'classes'}{os.pathsep}{folder / 'lib'}/*", main]


def java() -> str:
    """Return the path of the java program.  Raise `Unavailable` if there is no JDK."""
    return str(_jdk() / "bin" / "java")


def _jdk() -> Path:
    """Return the home of a Java with a compiler: JAVA_HOME, or the JDK of the javac on PATH."""
    home = os.environ.get("JAVA_HOME", "")
    if home and Path(home, "bin", "javac").exists():
        return Path(home)
    if compiler := shutil.which("javac"):
        return Path(compiler).resolve().parents[1]
    raise Unavailable("no javac, in JAVA_HOME or on PATH: install a JDK 17 or newer")


def _build(project: Path, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("no mvn on PATH: install Maven 3")
    print(f"{project.name}: building it with Maven, once", file=sys.stderr, flush=True)
    BUILT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as unfinished:
        made = Path(unfinished, "made")
        places = [f"-Dbuild.folder={made}", f"-DoutputDirectory={made / 'lib'}", "-DincludeScope=runtime"]
        quiet = ["--batch-mode", "--quiet", "-Dstyle.color=never"]
        try:
            done = subprocess.run(
                [maven, *quiet, "-f", str(project / "pom.xml"), *GOALS, *places],
                env=dict(os.environ, JAVA_HOME=str(_jdk())),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"Maven did not build {project.name} within {BUILD_SECONDS:.0f} s") from None
        if done.returncode:
            errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
            raise Unavailable("\n".join([f"Maven could not build {project.name}:", *errors[:SHOWN_ERRORS]]))
        for old in BUILT.glob(f"{project.name}-*"):
            shutil.rmtree(old)
        made.rename(folder)
