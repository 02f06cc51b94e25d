"""What ``./dev build`` makes: two wheels, the zip for Spark's ``--py-files``, pexes of the daemon, and bundles for EMR.

The second wheel holds the demo and the Kinesis in memory.  It installs next to the first one, into the same package.
A pex is one file with a daemon and all its packages, for one Python and machine.  Spark ships it
(docs/use/platforms.md), or a bundle brings it to a node (docs/use/emr.md).  With ``--sbom`` there is also the bill of
materials: what the daemon's packages are, and their licences.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools import ROOT
from tools.environments import DAEMON_LOCK, OWN, PYTHONS, SBOM_LOCK, choose_pip
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
MINORS = [python.partition(".")[2] for python in PYTHONS]
PEXES = [f"cp3{minor}-{machine}" for machine in ("x86_64", "aarch64") for minor in MINORS]
EMR_PYTHON = "cp311"
"""Of the daemon's Pythons the one that Amazon Linux 2023 has as a package."""
EMR_FILES = {
    "etc/systemd/system/producerd.service": "deploy/systemd/producerd.service",
    "etc/systemd/system/producerd.service.d/emr.conf": "deploy/emr/producerd.service.d/emr.conf",
    "etc/systemd/system/producerd.socket": "deploy/systemd/producerd.socket",
    "etc/systemd/system/producerd.socket.d/emr.conf": "deploy/emr/producerd.socket.d/emr.conf",
    "etc/sysusers.d/producerd.conf": "deploy/systemd/sysusers.d/producerd.conf",
    "etc/tmpfiles.d/producerd.conf": "deploy/systemd/tmpfiles.d/producerd.conf",
}
"""What a bundle for EMR holds in addition to the pex and the zip, by its name there."""
OF_A_BUILD = re.compile(r"producerd(_demo|-client)?-(?P<version>\d[^-]*?)(-.*\.(whl|pex|tar)|\.zip|\.cdx\.json)")
"""The name of a file that a build writes."""
DATE = 315_532_800
"""The date of every file that is packed: 1980, the oldest of a zip."""
GLIBC = 28
"""Oldest glibc 2 that a pex runs on, as PyArrow's wheels: Amazon Linux 2023, Debian 10, Ubuntu 18.10."""


def command(arguments: list[str]) -> int:
    """Run ``./dev build``."""
    parser = argparse.ArgumentParser(prog="./dev build", description="Build into dist/ and print the paths.")
    tags = f"a pex of the daemon for each TAG, or for all: {', '.join(PEXES)}"
    parser.add_argument("--pex", nargs="*", choices=PEXES, metavar="TAG", help=tags)
    parser.add_argument("--sbom", action="store_true", help="the bill of materials of the daemon, too (CycloneDX)")
    options = parser.parse_args(arguments)
    pexes = [] if options.pex is None else options.pex or PEXES
    return build(pexes=pexes, sbom=options.sbom)


def build(tree: Path = ROOT, pexes: Iterable[str] = (), *, sbom: bool = False) -> int:
    """Build the wheels, the zip and what else is asked for into dist/, and print their sizes and paths."""
    version, dist = version_of(tree), tree / "dist"
    wheel, demo = (dist / f"{name}-{version}-py3-none-any.whl" for name in ("producerd", "producerd_demo"))
    client = dist / f"producerd-client-{version}.zip"
    of_pexes = {dist / f"producerd-{version}-{tag}.pex": tag for tag in pexes}
    bill = [dist / f"producerd-{version}.cdx.json"] if sbom else []
    remove_other_versions(dist, version)
    if code := write_wheels(dist, tree):
        return code
    write_client_zip(client, tree)
    if code := write_pexes(wheel, of_pexes):
        return code
    for target in bill:
        if code := write_sbom_of_daemon(target, version):
            return code
    bundles = []
    for pex, tag in of_pexes.items():
        python, machine = tag.split("-")
        if python == EMR_PYTHON:
            bundles.append(dist / f"producerd-{version}-emr-{machine}.tar")
            write_emr_bundle(bundles[-1], pex, client, tree)
    for path in (wheel, demo, client, *of_pexes, *bundles, *bill):
        print(f"{path.stat().st_size / 1e6:7.2f} MB  {path}", flush=True)
    return 0


def version_of(tree: Path = ROOT) -> str:
    """Return the version of a tree: what its ``producerd.__version__`` says."""
    return (tree / "producerd" / "__init__.py").read_text().split('__version__ = "')[1].split('"')[0]


def remove_other_versions(dist: Path, version: str) -> None:
    """Remove what builds of other versions left: the image takes the one wheel that is there."""
    for path in dist.glob("producerd*"):
        named = OF_A_BUILD.fullmatch(path.name)
        if named is not None and named["version"] != version:
            path.unlink()


def write_wheels(dist: Path, tree: Path = ROOT) -> int:
    """Write both wheels.  The same tree gives the same bytes, wherever it lies and whatever modes its files have."""
    demo = DEMO_PROJECT.format(version=version_of(tree))
    umask = os.umask(0o022)  # a wheel keeps the modes of its files
    try:
        return write_wheel(dist, tree, WHEEL_SIDE) or write_wheel(dist, tree, DEMO_SIDE, demo)
    finally:
        os.umask(umask)


def write_wheel(dist: Path, tree: Path, side: Iterable[str], project: str = "") -> int:
    """Write a wheel of these files and folders of the tree, by its own pyproject.toml or by this one."""
    with tempfile.TemporaryDirectory() as folder:  # a clean copy: setuptools would pack what an old build/ holds
        for name in side:
            copy_without_modes(tree / name, Path(folder, name))
        if project:
            Path(folder, "pyproject.toml").write_text(project)
        wheel = [str(OWN.python), "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), folder]
        env = dict(os.environ, SOURCE_DATE_EPOCH=str(DATE))
        return run(wheel, env, show="(ERROR.*)")


def copy_without_modes(source: Path, target: Path) -> None:
    if source.is_dir():
        others = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, ignore=others, copy_function=shutil.copyfile)
    else:
        shutil.copyfile(source, target)


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


def write_pexes(wheel: Path, tags: Mapping[Path, str]) -> int:
    """Write a pex of each tag, of a wheel of ours and the packages of the daemon's lock, checked by hash."""
    with tempfile.TemporaryDirectory(dir=OWN.folder) as folder:  # pex keeps 1.6 GB there, and /tmp may be small
        ours = Path(folder, "ours.txt")  # pip asks for a hash of our own wheel, too
        ours.write_text(f"{wheel} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
        for target, tag in tags.items():
            print(f"  {target.name} ...", flush=True)
            what = ["-r", str(DAEMON_LOCK), "-r", str(ours), "-m", "producerd", "-o", str(target)]
            # As a venv a pex that is unpacked starts as soon as an installed daemon.  The tools make one that lasts.
            how = ["--venv", "--include-tools", "--no-build", "--complete-platform", platform_of(tag)]
            env = dict(os.environ, PEX_ROOT=f"{folder}/pex", PIP_REQUIRE_HASHES="1")
            if code := run([str(OWN.python), "-m", "pex", *what, *how], env):
                return code
    return 0


def write_emr_bundle(target: Path, pex: Path, client: Path, tree: Path = ROOT) -> None:
    """Write what deploy/emr/bootstrap.sh installs.  The same files give the same bytes."""
    files = {pex.name: pex, client.name: client, **{name: tree / path for name, path in EMR_FILES.items()}}
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, path in files.items():
            entry = tarfile.TarInfo(name)  # of root, mode 0644
            entry.size, entry.mtime = path.stat().st_size, DATE
            with path.open("rb") as content:
                archive.addfile(entry, content)


def write_sbom_of_daemon(target: Path, version: str) -> int:
    """Write the bill of materials of an environment that holds the packages of the daemon's lock."""
    with tempfile.TemporaryDirectory(dir=OWN.folder) as folder:
        return install(Path(folder), DAEMON_LOCK) or write_sbom(Path(folder, "bin", "python"), target, version)


def write_sbom(daemon: Path, target: Path, version: str) -> int:
    """Write what is installed for this Python as CycloneDX, which the tool holds against the schema."""
    print(f"  {target.name} ...", flush=True)
    with tempfile.TemporaryDirectory(dir=OWN.folder) as folder:
        project = Path(folder, "pyproject.toml")
        project.write_text((ROOT / project.name).read_text().replace('dynamic = ["version"]', f'version = "{version}"'))
        tool = [f"{folder}/bin/python", "-m", "cyclonedx_py", "environment", str(daemon), "--pyproject", str(project)]
        return install(Path(folder), SBOM_LOCK) or run([*tool, "--output-reproducible", "--output-file", str(target)])


def install(environment: Path, lock: Path) -> int:
    """Make an environment of the packages of a lock, checked by hash."""
    python = os.path.realpath(sys.executable)
    pip = [choose_pip(python), "-m", "pip", "--python", f"{environment}/bin/python", "--disable-pip-version-check"]
    options = ["--quiet", "--no-compile", "--require-hashes", "--only-binary=:all:", "-r", str(lock)]
    return run([python, "-m", "venv", "--without-pip", str(environment)]) or run([*pip, "install", *options])


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
