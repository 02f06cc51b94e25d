"""A daemon whose process may have less than its settings need does not start, and says what to raise."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from producerd.config import load
from producerd.config.process_limits import LOG_BYTES, SMALLER, check_limits
from producerd.config.values import MIB
from producerd.errors import ConfigurationError
from producerd.runtime.log_lines import MAX_FILE_BYTES
from tests.daemon import ROOT

CONFIG = load(None, ["memory=384 MiB"], {})
NEEDED = {"AS": 808 * MIB, "DATA": 548 * MIB, "NOFILE": 403, "FSIZE": 4 * MIB}


def problems(**limits: int) -> list[str]:
    try:
        check_limits(CONFIG, {**NEEDED, **limits}.__getitem__)
    except ConfigurationError as error:
        return list(error.problems)
    return []


def test_a_limit_is_enough_if_it_is_what_the_daemon_says_that_it_needs() -> None:
    assert problems() == []


def test_no_limit_is_enough() -> None:
    assert problems(**dict.fromkeys(NEEDED, resource.RLIM_INFINITY)) == []


@pytest.mark.promise("daemon-keeps-least-memory")
def test_each_limit_that_is_too_low_is_named_with_what_is_needed_and_what_to_raise() -> None:
    in_spark = "(in Spark it is spark.executor.pyspark.memory, divided by spark.executor.cores), or lower memory"
    fewer = "or lower max_connections"
    needs = "and a daemon with these settings needs"
    assert problems(AS=512 * MIB, DATA=512 * MIB, NOFILE=256, FSIZE=MIB) == [
        f"the address space of this process is limited to 512 MiB (RLIMIT_AS), {needs} 808 MiB: raise it {in_spark}",
        f"the data of this process is limited to 512 MiB (RLIMIT_DATA), {needs} 548 MiB: raise it, or lower memory",
        f"the number of open files of this process is limited to 256 (RLIMIT_NOFILE), {needs} 403: raise it, {fewer}",
        f"the size of a file of this process is limited to 1 MiB (RLIMIT_FSIZE), {needs} 4 MiB: raise it",
    ]


def test_a_task_s_daemon_writes_no_larger_file_than_is_said_here() -> None:
    assert LOG_BYTES == MAX_FILE_BYTES


@pytest.mark.parametrize("limited", [False, True])
def test_the_daemon_takes_the_hard_limit_of_files_and_saves_address_space_if_that_is_limited(limited: bool) -> None:
    code = """if True:
        import os, resource
        from producerd.config.process_limits import SMALLER, use_limits
        use_limits()
        print(resource.getrlimit(resource.RLIMIT_NOFILE), *map(os.environ.get, SMALLER))
    """
    limits = ["--nofile=300:400", *["--as=2000000000"] * limited]
    done = subprocess.run(
        ["prlimit", *limits, sys.executable, "-c", code], cwd=ROOT, env={}, capture_output=True, text=True
    )
    assert done.stdout.strip() == f"(400, 400) {' '.join(SMALLER.values() if limited else ['None'] * len(SMALLER))}"


@pytest.mark.promise("low-found-check-start")
@pytest.mark.parametrize("command", ["check", "serve"])
def test_what_is_too_low_is_found_by_check_and_at_the_start(command: str) -> None:
    limits = ["prlimit", f"--as={512 * MIB}"]
    start = [*limits, sys.executable, "-m", "producerd", command, "--set=region=us-east-1"]
    done = subprocess.run(start, cwd=ROOT, env={}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 78
    (line,) = done.stderr.splitlines()
    assert line.startswith("producerd: configuration: the address space of this process is limited to 512 MiB")
