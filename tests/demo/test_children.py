"""Nothing that was started outlives the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from producerd.demo.children import INTERRUPTS, ChildFailed, Children
from producerd.demo.scenario import interrupts

# A child whose own child leaves its process group, as pyspark's daemon does, and ignores polite signals.
NESTED = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print(inner.pid, flush=True)
time.sleep(600)
"""
# A demo that is killed outright.
OUTER = """
import os, sys, time
from pathlib import Path
from producerd.demo.children import Children
children = Children(Path(sys.argv[1]), dict(os.environ)).__enter__()
child = children.start("x", ["-c", sys.argv[2]])
print(child.process.pid, child.line(30), flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


@pytest.fixture
def children(tmp_path: Path) -> Children:
    return Children(tmp_path, dict(os.environ))


def test_leaving_ends_every_child_and_theirs_in_whatever_group(children: Children) -> None:
    with children:
        child = children.start("nested", ["-c", NESTED])
        inner = int(child.line(30))
        assert alive(inner)
    assert gone(inner)
    assert child.process.returncode == -signal.SIGKILL


def test_a_demo_that_is_killed_outright_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OUTER, str(tmp_path), NESTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        child, inner = map(int, outer.stdout.readline().split())
        assert alive(child)
        assert alive(inner)
        outer.kill()
    assert gone(child)
    assert gone(inner)


@pytest.mark.parametrize("number", INTERRUPTS)
def test_a_child_that_was_being_started_when_a_signal_came_is_not_left(
    children: Children, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            if program in arguments[0]:  # and not the warden
                started.append(self.pid)
                signal.raise_signal(number)

    program = "import time; time.sleep(600)"
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(SystemExit) as ended, interrupts(), children:
        children.start("x", ["-c", program])
    assert ended.value.code == 128 + number
    assert gone(*started)


def test_a_child_that_ends_is_told_with_its_exit_code_and_the_end_of_its_log(children: Children) -> None:
    program = "import sys; print(*range(100), '\\tat a.java.frame', sep='\\n', file=sys.stderr); sys.exit(3)"
    with children, pytest.raises(ChildFailed, match="x ended with exit code 3") as caught:
        children.start("x", ["-c", program]).line(30)
    assert caught.value.tail.splitlines()[-1] == "  | 99"
    assert len(caught.value.tail.splitlines()) == 25


def test_a_silent_child_is_not_waited_for_for_ever(children: Children) -> None:
    with children, pytest.raises(ChildFailed, match="said nothing"):
        children.start("x", ["-c", "import time; time.sleep(600)"]).line(0.1)


def test_telling_a_child_that_has_ended_is_no_error_of_its_own(children: Children) -> None:
    with children:
        child = children.start("x", ["-c", ""])
        child.process.wait()
        child.tell("anybody?")
        with pytest.raises(ChildFailed, match="exit code 0"):
            child.line(30)


def test_a_polite_stop_gives_the_exit_code(children: Children) -> None:
    program = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print('up', flush=True); signal.pause()"
    with children:
        child = children.start("x", ["-c", program])
        child.line(30)
        assert child.stop(30) == 0
        deaf = children.start(
            "y", ["-c", "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"]
        )
        deaf.line(30)
        assert deaf.stop(0.1) is None
