"""The tests fork a daemon only where it behaves as one with an interpreter of its own does."""

from __future__ import annotations

import subprocess

import pytest

from tests.daemon import CREDENTIALS, daemon
from tests.forks import Forked, can_fork


@pytest.mark.parametrize("name", ["PYTHONDEVMODE", "PYTHONPATH", "LD_PRELOAD", "MALLOC_ARENA_MAX", "NOTIFY_SOCKET"])
def test_a_variable_that_the_interpreter_or_c_code_may_read_forbids_a_fork(name: str) -> None:
    assert can_fork(CREDENTIALS)
    assert not can_fork({**CREDENTIALS, name: "1"})


def test_a_forked_daemon_is_waited_for_and_ended_like_any_process() -> None:
    with daemon("http://127.0.0.1:1", exit_code=None) as running:
        assert isinstance(running.process, Forked)
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(0.01)
        running.process.kill()
        assert running.process.wait(10) == -9
        running.process.kill()  # it has ended: nobody else who has its number by now is hit


def test_a_daemon_that_a_test_wants_to_start_by_itself_does() -> None:
    with daemon("http://127.0.0.1:1", forked=False) as running:
        assert isinstance(running.process, subprocess.Popen)
