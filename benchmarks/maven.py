"""Java projects, built by Maven once: until their sources change, what was built is used as it is, and offline.

What is built lies in the ignored folder ``build/java``, under a name that tells the sources; Maven's own downloads lie
where Maven puts them.
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
"""The first build downloads about 100 MB."""
GOALS: Final = ("compiler:compile", "dependency:copy-dependencies")
"""Not `package`: it would download the tools of tests and of jars too."""
SHOWN_ERRORS: Final = 3


class Unavailable(Exception):
    """Why a Java project cannot be run on this machine."""


def command(project: Path, main: str, *options: str) -> list[str]:
    """A command line that runs the class ``main`` of a project, built if need be.  Raises `Unavailable`."""
    sources = [project / "pom.xml", *sorted((project / "src").rglob("*.java"))]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    folder = BUILT / f"{project.name}-{digest[:16]}"
    if not folder.exists():
        _build(project, folder)
    return [java(), *options, "-cp", f"{folder / 'classes'}{os.pathsep}{folder / 'lib'}/*", main]


def java() -> str:
    """Raises `Unavailable`."""
    return str(_jdk() / "bin" / "java")


def _jdk() -> Path:
    """The home of a Java with a compiler: that of JAVA_HOME, else that of the javac on PATH."""
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
