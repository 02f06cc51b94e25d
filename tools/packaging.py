"""What ``./dev build`` makes: two wheels, the zip for Spark's ``--py-files``, and pexes of the daemon for executors.

The second wheel holds the demo and the Kinesis in memory.  It installs next to the first one, into the same package.
A pex is one file with a daemon and all its packages, for one Python and machine.  Spark ships it (docs/spark.md).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tools import ROOT
from tools.environments import DAEMON_LOCK, OWN
from tools.processes import run

CLIENT_SIDE = ["spark_client", "producerd/wire", "producerd/errors.py", "producerd/__init__.py"]
WHEEL_SIDE = ["pyproject.toml", "README.md", "LICENSE", "producerd", "spark_client", "pyspark_producerd.py"]
DEMO_SIDE = ["LICENSE", "producerd/demo", "producerd/testing"]
DEMO_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "producerd-demo"
version = "{version}"
description = "The demo of producerd, and a Kinesis in memory for tests"
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = ">=3.11"
dependencies = ["producerd[demo]=={version}"]

[tool.setuptools]
packages = ["producerd.demo", "producerd.testing"]
"""
PEXES = [f"cp3{minor}-{machine}" for machine in ("x86_64", "aarch64") for minor in (11, 12, 13)]
GLIBC = 28
"""Oldest glibc 2 that a pex runs on, as PyArrow's wheels: Amazon Linux 2023, Debian 10, Ubuntu 18.10."""


def command(arguments: list[str]) -> int:
    """Run ``./dev build``."""
    parser = argparse.ArgumentParser(prog="./dev build", description="Build into dist/ and print the paths.")
    of_pexes = parser.add_mutually_exclusive_group()
    of_pexes.add_argument("--pex", nargs="+", choices=PEXES, default=PEXES, metavar="TAG", help=", ".join(PEXES))
    of_pexes.add_argument("--no-pex", action="store_const", const=[], dest="pex", help="the wheel and the zip alone")
    return build(pexes=parser.parse_args(arguments).pex)


def build(tree: Path = ROOT, pexes: Iterable[str] = ()) -> int:
    """Build the wheels, the zip and these pexes into dist/ and print their paths."""
    version = (tree / "producerd" / "__init__.py").read_text().split('__version__ = "')[1].split('"')[0]
    for side, project in ((WHEEL_SIDE, None), (DEMO_SIDE, DEMO_PROJECT.format(version=version))):
        if code := _write_wheel(tree, side, project):
            return code
    made = [tree / "dist" / f"{name}-{version}-py3-none-any.whl" for name in ("producerd", "producerd_demo")]
    made.append(tree / "dist" / f"producerd-client-{version}.zip")
    write_client_zip(made[-1], tree)
    print(*made, sep="\n", flush=True)
    return write_pexes(made[0], tree / "dist" / f"producerd-{version}", pexes)


def _write_wheel(tree: Path, side: Iterable[str], project: str | None) -> int:
    """Write a wheel of these files and folders of the tree, by its own pyproject.toml or by ``project``."""
    with tempfile.TemporaryDirectory() as folder:  # a clean copy: setuptools would pack what an old build/ holds
        for name in side:
            if (tree / name).is_dir():
                shutil.copytree(tree / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(tree / name, folder)
        if project is not None:
            Path(folder, "pyproject.toml").write_text(project)
        wheel = [str(OWN.python), "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tree / "dist"), folder]
        env = dict(os.environ, SOURCE_DATE_EPOCH="315532800")  # 1980, as in the zip
        return run(wheel, env, show="(ERROR.*)")


def write_client_zip(target: Path, tree: Path = ROOT) -> None:
    """Write the client's side.  Spark puts a zip on the executors' path, but no wheel.

    The same tree gives the same bytes.
    """
    tops = [tree / name for name in (*CLIENT_SIDE, "producerd/py.typed", "pyspark_producerd.py")]
    paths = {path for top in tops for path in (top, *top.rglob("*")) if path.suffix in (".py", ".typed", ".json")}
    paths.add(tree / "LICENSE")
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(filter(Path.is_file, paths)):
            entry = zipfile.ZipInfo(str(path.relative_to(tree)))  # dated 1980
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


def write_pexes(wheel: Path, prefix: Path, tags: Iterable[str]) -> int:
    """Write a pex for each tag, of a wheel of ours and the packages of the daemon's lock, checked by hash."""
    with tempfile.TemporaryDirectory(dir=OWN.folder) as folder:  # pex keeps 1.6 GB there, and /tmp may be small
        unpacked = Path(folder, "wheel")
        zipfile.ZipFile(wheel).extractall(unpacked)  # it has no hash in the lock, and pip would ask for one
        for tag in tags:
            print(f"  {prefix}-{tag}.pex ...", flush=True)
            what = ["-r", str(DAEMON_LOCK), "-D", str(unpacked), "-m", "producerd", "-o", f"{prefix}-{tag}.pex"]
            # As a venv a pex that is unpacked starts as soon as an installed daemon.
            how = ["--venv", "--no-build", "--complete-platform", platform_of(tag)]
            env = dict(os.environ, PEX_ROOT=f"{folder}/pex", PIP_REQUIRE_HASHES="1")
            if code := run([str(OWN.python), "-m", "pex", *what, *how], env):
                return code
    return 0


def platform_of(tag: str) -> str:
    """Return pex's JSON of the Python and machine of a tag, with the wheel tags (PEP 425, PEP 600) that fit it."""
    python, machine = tag.split("-")
    minor = int(python[len("cp3") :])
    # The names before PEP 600 stand for glibc 2.5, 2.12 and 2.17.
    platforms = [f"manylinux_2_{number}_{machine}" for number in range(GLIBC, 4, -1)]
    platforms += [f"manylinux{name}_{machine}" for name in ("2014", "2010", "1")]
    interpreters = [(python, python), *((f"cp3{number}", "abi3") for number in range(minor, 1, -1)), ("py3", "none")]
    tags = [f"{interpreter}-{abi}-{platform}" for interpreter, abi in interpreters for platform in platforms]
    markers = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"3.{minor}.0",
        "python_version": f"3.{minor}",
        "sys_platform": "linux",
    }
    return json.dumps({"marker_environment": markers, "compatible_tags": [*tags, "py3-none-any"]})
