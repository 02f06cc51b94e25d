"""Daemons, and fake Kinesis services, forked from one process that has imported them already.

A daemon uses a second of CPU time to start, nearly all of it to import its packages.  Tests start some 200 of them.
So each process of the tests keeps one template, ``python -m tests.forks daemon``, which imports once and forks at each
order.  The forked process then runs ``producerd serve`` from reading its settings until the end of its interpreter.  It
has its own settings, environment, log and exit code.  ``python -m tests.forks kinesis`` does the same for the service.

Orders and answers are lines of JSON on the template's stdin and stdout.  The template ends with the tests, and ends its
daemons then.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, Literal

Program = Literal["daemon", "unchanged_daemon", "kinesis"]
"""What a template forks.  A ``daemon`` renders its metrics whenever it is asked, and an unchanged one once a second."""
ROOT: Final = Path(__file__).resolve().parents[1]
NO_TUNING: Final[Mapping[str, Any]] = MappingProxyType({})
AFTER_THE_START: Final = ("PATH", "HOME", "AWS_", "PRODUCERD_")
"""Beginnings of the variables that a daemon reads while it runs.  Others may matter to its interpreter or to C code."""


def can_fork(environ: Mapping[str, str]) -> bool:
    """Whether a forked daemon sees this environment as one with an interpreter of its own does."""
    return all(name.startswith(AFTER_THE_START) for name in environ)


class Template:
    """The process that forks, from the side of the tests."""

    def __init__(self, python: str, program: Program) -> None:
        self._lock = Lock()
        self._process = subprocess.Popen(
            [python, "-m", "tests.forks", program],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._end)

    def ask(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def _end(self) -> None:
        self._process.communicate()


_made = cache(Template)
_making = Lock()


def template(python: str, program: Program) -> Template:
    """The one template of this interpreter and program, also for several threads."""
    with _making:
        return _made(python, program)


class Forked:
    """A forked process, with what `subprocess.Popen` offers of it.  ``log`` gets what it prints."""

    def __init__(
        self,
        python: str,
        options: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        program: Program = "daemon",
        tuning: Mapping[str, Any] = NO_TUNING,
    ) -> None:
        self._template = template(python, program)
        self.returncode: int | None = None
        self.pid: int = self._template.ask(options=options, environ=environ, log=str(log), tuning=dict(tuning))

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._template.ask(ended=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


# ---- in the template


def daemon(*, renders_at_once: bool) -> Callable[[list[str], Mapping[str, Any]], int]:
    """Import a daemon, and return its entry point."""
    import producerd.runtime.rendering
    from tests import tuned  # it imports the daemon, nearly all of the time that a start takes

    if renders_at_once:  # tests ask more often than a Prometheus
        producerd.runtime.rendering.RENDERING_SECONDS = 0.0  # type: ignore[misc]
    return lambda options, tuning: tuned.main(tuning, ["serve", *options])


def kinesis() -> Callable[[list[str], Mapping[str, Any]], int]:
    """Import a fake Kinesis, and return its entry point."""
    from producerd.testing import fake_kinesis

    return lambda options, _: fake_kinesis.main(options)


def serve_orders(program: str) -> int:
    """Fork at each order.  Return the exit code of this process, which is the template or a forked process."""
    run = kinesis() if program == "kinesis" else daemon(renders_at_once=program == "daemon")
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemons end with their tests
    running: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "ended" in order:
            pid, status = os.waitpid(order["ended"], os.WNOHANG)
            running.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if not answer:
                become(order["environ"], order["log"])
                return run(order["options"], order["tuning"])
            running.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return 0


def become(environ: Mapping[str, str], log: str) -> None:
    """Give a forked process its environment, its log for stdout and stderr, and Python's own answer to SIGINT."""
    os.environ.clear()
    os.environ.update(environ)
    for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY), (2, log, os.O_WRONLY)):
        opened = os.open(path, flags | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(serve_orders(sys.argv[1]))
