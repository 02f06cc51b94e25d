"""The daemon is killed, stopped and frozen."""

from __future__ import annotations

import signal
from typing import Final

from tests.faults.oracle import Law
from tests.faults.scenarios import scenario
from tests.faults.stage import Stage

REPLAYS: Final = {Law.COPIES: "a daemon that is killed counts nothing: its client sends again what it had"}


@scenario("kill -9 of the daemon 100 times under load", exempt=REPLAYS)
def killed_daemon(stage: Stage) -> None:
    for _ in stage.times(100, 3):
        stage.wait_a_while(0.1, 1.0)
        stage.kill_daemon()
        stage.start_daemon()


@scenario("SIGTERM under load, and a new daemon, 20 times", exempt=REPLAYS)
def stopped_daemon(stage: Stage) -> None:
    for _ in stage.times(20, 2):
        stage.wait_a_while(0.1, 1.0)
        code = stage.stop_daemon()
        stage.must(Law.CALM, code == 0, f"exit code {code}: {stage.daemon.log[-500:]}")
        stage.start_daemon()


@scenario("SIGSTOP of the daemon for a minute")
def frozen_daemon(stage: Stage) -> None:
    stage.daemon.signal(signal.SIGSTOP)
    stage.wait(60, 4)
    stage.daemon.signal(signal.SIGCONT)
