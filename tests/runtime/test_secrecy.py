"""A process whose memory is private has no core file, is not dumpable, and can still read all that it needs of itself.

tests/runtime/test_own_daemon.py shows that a daemon's memory is.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import traceback
from pathlib import Path

import pytest

from producerd.config.cgroup import memory_limit
from producerd.runtime.metrics import OwnProcess
from producerd.runtime.secrecy import keep_memory_private

SET_DUMPABLE, GET_DUMPABLE, NOBODY = 4, 3, 65_534


def read_of_itself() -> object:
    metrics = {metric.name for metric in OwnProcess(registry=None).collect()}
    memory = [line.partition(":")[0] for line in Path("/proc/self/status").read_text().splitlines()]
    return memory, memory_limit(), metrics, bool(os.listdir("/proc/self/fd"))


def look_at_itself() -> None:
    """Become a user that is not root, and private, and read what a daemon reads of itself."""
    if os.geteuid() == 0:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 1, 0, 0, 0)  # the change of the user has taken it away
    before = read_of_itself()
    assert Path("/proc/self/environ").stat().st_uid == os.geteuid()
    keep_memory_private()
    assert ctypes.CDLL(None).prctl(GET_DUMPABLE, 0, 0, 0, 0) == 0
    assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
    assert Path("/proc/self/environ").stat().st_uid == 0, "others of this user may not look"
    assert read_of_itself() == before


@pytest.mark.promise("private-process-read")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has dumpable processes")
def test_a_private_process_can_read_what_it_needs_of_itself() -> None:
    child = os.fork()
    if child == 0:
        try:
            look_at_itself()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
