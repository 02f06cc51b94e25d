"""`./dev faults` refuses what it cannot run, and leaves nothing behind when it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.daemon import ROOT, directory, until
from tests.faults.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["lost_answer"], "no scenario 'lost_answer'; did you mean lost_answers or "),
        (["--seed", "999999", "--seeds", "2"], "--seed 999999 and --seeds 2 pass the largest seed, 999,999"),
        (["--seeds", "0"], "argument --seeds: '0' is not a number of 1 or more"),
    ],
)
def test_a_wrong_option_is_told_before_anything_runs(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_is_interrupted_is_no_failure_and_leaves_no_file() -> None:
    command = [sys.executable, "-m", "tests.faults", "frozen_daemon", "--short", "--json"]
    pipe = subprocess.PIPE
    with directory() as folder:
        env = {**os.environ, "TMPDIR": str(folder)}
        with subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=pipe, stderr=pipe) as process:
            until(lambda: list(folder.glob("faults-*/f-*/s/daemon.sock")), "the daemon of the run is there", 60)
            process.send_signal(signal.SIGINT)
            rows, told = process.communicate(timeout=60)
        left = list(folder.iterdir())
    assert process.returncode == 128 + signal.SIGINT, told
    assert json.loads(rows) == []
    assert "1 runs: 0 ok, 0 BROKEN, 0 FAILED, 0 skipped, interrupted" in told
    assert left == []
