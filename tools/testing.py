"""How ``./dev test`` runs the tests, and ``./dev check`` the tools that read the source."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

from tools.environments import LANES, OWN, find_python, set_up, variables
from tools.kubernetes import install_kubernetes_tools
from tools.packaging import CLIENT_SIDE
from tools.processes import run

MOST_WORKERS, WORKER_GIB = 4, 3  # each may start a Spark of its own
SPARK_TESTS = ["tests/spark_client", "tests/spark"]
SYSTEM_PACKAGES = [
    *("systemd", "podman", "runc", "mmdebstrap", "containernetworking-plugins", "prometheus", "chromium"),
    "prometheus-alertmanager",
    *("qemu-user", "gcc", "libc6-dev"),  # to count instructions
    "shellcheck",
    "libfaketime",  # for the fault scenario of the wall clock
    "tmux",  # a terminal for `producerctl top`
]
HANGS = ["-o", "faulthandler_timeout=600", "-o", "faulthandler_exit_on_timeout=true"]
"""A test that hangs for ten minutes ends its process with the stack of every thread.  Pytest of Python 3.9 cannot."""
APT = shutil.which("apt-get")


def test(arguments: list[str]) -> int:
    """Run pytest as the options of ``./dev test`` say, which all but those named here are pytest's own."""
    parser = argparse.ArgumentParser("./dev test", add_help=False, allow_abbrev=False)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--system", action="store_true")
    parser.add_argument("--spark", choices=LANES)
    ours, options = parser.parse_known_args(arguments)
    if ours.system:
        install_packages()
        install_kubernetes_tools()
    selection = ["-m", "system", "-rs"] if ours.system else [] if ours.all else ["-m", "not slow"]
    if not {"--pdb", "--trace", "no:xdist"} & set(options):
        selection += [f"-n{workers(alone=not ours.all)}", "--dist=loadfile", "--no-loadscope-reorder"]
        selection += ["--max-worker-restart=0"]
    if not ours.spark:
        return run([str(OWN.python), "-m", "pytest", *HANGS, *selection, *options], variables(), tidies_up=True)
    of = LANES[ours.spark]
    if not find_python(of.version):
        needed = f"Python {of.version}, which is neither on PATH nor among pyenv's versions"
        print(f"skipped: Spark {ours.spark} is tested on {needed}: `pyenv install {of.version}` brings it")
        return 0
    set_up(of)
    selection += ["-o", f"testpaths={' '.join(SPARK_TESTS)}"]
    # The daemon and the fake Kinesis need a newer Python than that Spark has.
    env = dict(variables(of), PRODUCERD_TEST_PYTHON=str(OWN.python))
    return run([str(of.python), "-m", "pytest", *selection, *options], env, tidies_up=True)


def workers(*, alone: bool) -> int:
    """Return how many processes run the tests: more than cores, as tests also wait, if the memory suffices.

    ``alone``: no other part of CI runs at the same time.
    """
    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return max(1, min(MOST_WORKERS, 2 * cores if alone else cores + 1, int(memory_gib / WORKER_GIB)))


def install_packages() -> None:
    """Install what the tests with a real system need, if this is a Debian and we are root.

    Without the packages these tests are skipped.
    """
    asked = (
        subprocess.run(["dpkg-query", "--show", *SYSTEM_PACKAGES], capture_output=True, check=False) if APT else None
    )
    if asked is None or not asked.returncode:
        return
    if os.geteuid():
        print(f"./dev: only root can: apt-get install {' '.join(SYSTEM_PACKAGES)}", file=sys.stderr)
        return
    print(f"Installing {' '.join(SYSTEM_PACKAGES)} ...", flush=True)
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    install = ["apt-get", "install", "--yes", "-qq", "--no-install-recommends", *SYSTEM_PACKAGES]
    if run(["apt-get", "update", "-qq"], env, show="([EW]: .*)") or run(install, env, show="([EW]: .*)"):
        print("./dev: not installed; the tests say what they miss", file=sys.stderr)


def check() -> int:
    """Run every check of the source, go on after a failure, and print a line for each."""
    old_python = [*CLIENT_SIDE, "producerd/ctl", "producerd/printing.py", "pyspark_producerd.py", *SPARK_TESTS]
    vermin = str(OWN.python.with_name("vermin"))
    steps = {
        "format": ["-m", "ruff", "format", "--check", "."],
        "lint": ["-m", "ruff", "check", "--quiet", "."],
        "types": ["-m", "mypy"],
        "arrows": ["tests/import_arrows.py"],
        "voice": ["-m", "tools.voice"],
        "spelling": ["-m", "codespell_lib"],
        "docs": ["-m", "tools.docs", "--check"],
        "python 3.9": [vermin, "-t=3.9-", "--no-tips", "--violations", "--quiet", *old_python],
    }
    codes = {name: run([str(OWN.python), *step]) for name, step in steps.items()}
    print(*(f"{'FAILED' if code else 'ok':8}{name}" for name, code in codes.items()), sep="\n")
    return int(any(codes.values()))
