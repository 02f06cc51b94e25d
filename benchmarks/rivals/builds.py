"""Build what rivals run in, once: an environment with the packages of a lock, or a program from its sources.

Until the lock or the sources change, runs use the result offline.  It is in the ignored folder ``build/rivals``, under
a
name with a digest of its origin.  Go's own files are there too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.maven import Unavailable
from benchmarks.rivals.kpl import RUN
from producerd.demo.children import ChildFailed, Children

HERE: Final = Path(__file__).resolve().parent
BUILT: Final = HERE.parents[1] / "build" / "rivals"
BUILD_SECONDS: Final = 1_800.0
"""Longest time of a build.  Rust's SDK needs 5 minutes on two idle cores."""
VERSION_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Builds:
    """The builder of rivals.  It calls ``say`` before a long build.  All methods raise `Unavailable`."""

    children: Children
    say: Callable[[str], None]

    def python(self, lock: Path) -> str:
        """Return a Python with the packages of a lock."""

        def make(folder: Path) -> None:
            base = os.path.realpath(sys.executable)  # our environment may have no pip
            self._run([base, "-m", "venv", "--without-pip", str(folder)])
            python = str(folder / "bin" / "python")
            pip = [base, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
            self._run([*pip, "--require-hashes", "-r", str(lock)])

        return str(self._made(lock.stem, [lock], make) / "bin" / "python")

    def go(self, project: Path) -> str:
        go = _found("go")

        def make(folder: Path) -> None:
            self._run(
                [go, "build", "-C", str(project), "-mod=readonly", "-modcacherw", "-o", str(folder / "rival"), "."]
            )

        sources = [project / "go.mod", project / "go.sum", *sorted(project.glob("*.go"))]
        return str(self._made("go", sources, make) / "rival")

    def rust(self, project: Path) -> str:
        cargo = _found("cargo")

        def make(folder: Path) -> None:
            target, manifest = folder.with_name("target"), str(project / "Cargo.toml")
            command = [cargo, "build", "--quiet", "--release", "--locked", f"--manifest-path={manifest}"]
            self._run(command, {"CARGO_TARGET_DIR": str(target)})
            folder.mkdir()
            (target / "release" / "rival").rename(folder / "rival")

        sources = [project / "Cargo.toml", project / "Cargo.lock", *sorted(project.glob("src/*.rs"))]
        return str(self._made("rust", sources, make) / "rival")

    def _made(self, name: str, sources: Iterable[Path], make: Callable[[Path], None]) -> Path:
        digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
        folder = BUILT / f"{name}-{digest[:16]}"
        if not folder.exists():
            self.say(f"{name}: building it, once ...")
            BUILT.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=BUILT) as unfinished:
                made = Path(unfinished, "made")
                make(made)
                for old in BUILT.glob(f"{name}-*"):
                    shutil.rmtree(old)
                made.rename(folder)
        return folder

    def _run(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Run a command as a child, so that neither it nor its own children outlive an interrupt."""
        child = self.children.start("build", ["-c", RUN, *command], {**kept_here(), **(environ or {})})
        code = child.ended(BUILD_SECONDS)
        if code != 0:
            how = f"took more than {BUILD_SECONDS:.0f} s" if code is None else f"ended with exit code {code}"
            raise Unavailable(f"{' '.join(command[:3])} ... {how}:\n{ChildFailed('', child.log).tail}")


def kept_here() -> dict[str, str]:
    """Return variables for Go, so that it keeps its files here and not in HOME.  The user's own variables stay."""
    kept, config = BUILT / "kept", os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return {
        "GOPATH": str(kept / "go"),
        "GOCACHE": str(kept / "go-build"),
        "XDG_CONFIG_HOME": str(kept / "config"),  # Go writes telemetry there, and no variable turns it off
        "GOENV": os.environ.get("GOENV") or str(Path(config, "go", "env")),
    }


def told_version(command: Sequence[str]) -> str:
    """Return the first line with which a toolchain reports its version, or "" if it is missing."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **kept_here()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # Java writes its version there
            text=True,
            timeout=VERSION_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(
        (line for line in done.stdout.splitlines() if not line.startswith("Picked up ")), ""
    )  # JAVA_TOOL_OPTIONS


def _found(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        raise Unavailable(f"no {tool} on PATH")
    return path
