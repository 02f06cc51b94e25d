"""The demo as anybody runs it: exit code 0 only if everything arrived, and nothing left behind however it ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from producerd.demo.children import Children
from producerd.demo.scenario import MADE_UP
from producerd.demo.stream import client
from tests.daemon import until

pytestmark = pytest.mark.spark


class Demo:
    """Starts it with a mark in its environment, which everything that it starts inherits."""

    def __init__(self, folder: Path) -> None:
        self.mark = f"DEMO_OF_THIS_TEST={uuid.uuid4()}"
        self.folder = folder

    def start(self, *options: str) -> subprocess.Popen[str]:
        name, value = self.mark.split("=")
        return subprocess.Popen(
            [sys.executable, "-m", "producerd", "demo", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, name: value, "TMPDIR": str(self.folder)},
        )

    def run(self, *options: str) -> tuple[int, list[str]]:
        with self.start(*options) as process:
            try:
                output, _ = process.communicate(timeout=300)
            except subprocess.TimeoutExpired as late:
                raise AssertionError(f"the demo did not end:\n{(late.output or b'').decode()}") from late
            finally:
                process.kill()
        return process.returncode, output.splitlines()

    def left(self) -> list[str]:
        """Processes and files that should be gone."""
        found = [path.name for path in self.folder.iterdir()]
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append((path / "cmdline").read_text().replace("\0", " "))
            except OSError:  # it has ended, or is not ours
                pass
        return found


@pytest.fixture
def demo() -> Iterator[Demo]:
    folder = Path(tempfile.mkdtemp(prefix="d-"))  # pytest's own is too long for a socket
    yield Demo(folder)
    shutil.rmtree(folder)


def test_every_flight_arrives_and_nothing_is_left(demo: Demo) -> None:
    code, lines = demo.run("--records", "3000", "--shards", "3")
    assert (code, lines[-1][:46]) == (0, "delivered 3000 of 3000 records, 0 missing, 0 d"), "\n".join(lines)
    assert any("KCL" in line for line in lines), "it says who can read aggregates"
    told = re.search(r"queue: at most (\d+) of 375 records; callers had to wait (\d+) times", "\n".join(lines))
    assert told is not None
    assert 0 < int(told[1]) <= 375
    assert int(told[2]) > 0
    assert not demo.left()


@pytest.mark.slow
def test_the_tasks_may_start_the_daemon_and_what_was_read_back_decides(demo: Demo) -> None:
    """And not the counters: of the records that are read back one is changed."""
    own = f"producerd-{os.geteuid()}-*"  # other tests make folders of other names meanwhile
    before = {*Path("/tmp").glob(own)}
    code, lines = demo.run("--records", "2000", "--no-daemon", "--break", "corrupt")
    last = "delivered 1999 of 2000 records, 1 missing, 0 duplicates"
    assert (code, lines[-1]) == (1, last), "\n".join(lines)
    assert not demo.left()
    assert {*Path("/tmp").glob(own)} <= before


@pytest.mark.parametrize("stop", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_running_and_nothing_on_disk(demo: Demo, stop: signal.Signals) -> None:
    with demo.start("--records", "100000") as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        if stop is signal.SIGINT:  # in full flight; the other one while Spark is still starting
            next(line for line in lines if "delivered" in line)
        else:
            next(line for line in lines if line.startswith("starting"))
            time.sleep(3)
        process.send_signal(stop)
        rest = process.communicate(timeout=30)[0]
    assert process.returncode == 128 + stop, rest
    assert "Traceback" not in rest
    assert not demo.left()


@pytest.mark.slow
def test_all_flights_of_a_year_arrive(demo: Demo) -> None:
    code, lines = demo.run("--aggregation", "kpl")
    assert code == 0, "\n".join(lines)
    assert lines[-1].startswith("delivered 336776 of 336776 records, 0 missing, ")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [None, signal.SIGTERM])
def test_an_endpoint_that_is_there_already_keeps_none_of_it(
    demo: Demo, stop: signal.Signals | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its user's credentials, a stream is made there and deleted, also where the demo is interrupted."""
    for name, value in MADE_UP.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="k-") as logs, Children(Path(logs), os.environ) as children:
        there = children.start("kinesis", ["-m", "producerd.demo.embedded_kinesis", "of-others", "1"])
        url = f"http://127.0.0.1:{there.line(60)}"
        with demo.start("--endpoint-url", url, "--records", "3000") as process:
            assert process.stdout is not None
            made = next(line for line in iter(process.stdout.readline, "") if line.startswith("making the stream "))
            if stop is not None:
                until(lambda: len(client(url).list_streams()["StreamNames"]) == 2)
                process.send_signal(stop)
            rest = process.communicate(timeout=150)[0]
        assert process.returncode == (0 if stop is None else 128 + stop), rest
        name = made.split()[3]
        assert f"deleted the stream {name}" in rest
        if stop is None:
            assert "delivered 3000 of 3000 records, 0 missing, 0 duplicates" in rest
        assert client(url).list_streams()["StreamNames"] == ["of-others"]
    assert not demo.left()


@pytest.mark.slow
def test_a_daemon_that_dies_ends_the_demo_with_its_log(demo: Demo) -> None:
    with demo.start("--records", "100000") as process:
        assert process.stdout is not None
        next(line for line in iter(process.stdout.readline, "") if "Spark plans the first micro-batch" in line)
        serve = [path for path in Path("/proc").glob("[0-9]*") if _is_serve(path, demo.folder)]
        os.kill(int(serve[0].name), signal.SIGKILL)
        rest = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "FAILED: the daemon ended with exit code -9; the end of its log:\n  | 20" in rest, rest
    assert not demo.left()


def _is_serve(process: Path, folder: Path) -> bool:
    try:
        words = (process / "cmdline").read_text().split("\0")
    except OSError:
        return False
    return "serve" in words and any(str(folder) in word for word in words)
