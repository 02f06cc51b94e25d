"""`producerctl top` draws one picture on a terminal, and writes plain text without one and without rich.

Its rates are of one daemon, also where that has restarted between two readings.

A terminal is tmux's (``apt-get install tmux``); tests that need it are skipped without it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from producerd import ctl
from producerd.ctl.daemon import Failed
from producerd.ctl.live import StatusPair
from producerd.ctl.tables import rates
from producerd.testing import FakeKinesis, hash_of
from producerd.testing.fake_kinesis import serve_in_thread
from producerd.wire.columns import lay_out
from tests.ctl_asking import Replies, node, stream
from tests.daemon import ROOT, DaemonProcess, daemon, directory, one, session, until

WITHOUT_RICH = "import sys; sys.modules['rich'] = None; from producerd.ctl import main; sys.exit(main(sys.argv[1:]))"
HOT = lay_out([b"key"] * 1_000, [b"x" * 900] * 1_000)
SHARD = f"shardId-{hash_of('key', None) * 4 >> 128:012}"
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


# tmux 3.3 may lose the exit code of what ran in it, so a shell tells it.
TOLD = 'trap : INT; "$@"; echo "exit code $?"; read _'


class Terminal:
    """One tmux with a window of its own size."""

    def __init__(self, socket: Path, columns: int, lines: int, *command: object) -> None:
        self.columns = columns
        self._socket = socket
        size = f"-x {columns} -y {lines}".split()
        environ = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT), "NO_COLOR": ""}
        for name in ("COLUMNS", "LINES"):  # rich would believe them
            environ.pop(name, None)
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", *size, "sh", "-c", TOLD, "sh", *map(str, command), environ=environ
        )

    def _tmux(self, *arguments: str, environ: dict[str, str] | None = None) -> str:
        command = ["tmux", "-S", str(self._socket), *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=10).stdout

    def shown(self, *options: str) -> str:
        return self._tmux("capture-pane", "-p", *options)

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def close(self) -> None:
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, check=False)


@contextmanager
def terminal(running: DaemonProcess, columns: int, lines: int, *python: str) -> Iterator[Terminal]:
    """A terminal on which ``producerctl top`` runs.  ``python`` says how, if not as it is installed."""
    how = python or ("-m", "producerd.ctl")
    with directory() as folder:
        admin = running.socket.with_suffix(".admin.sock")
        command = [sys.executable, *how, "--admin-socket", admin, "top", "--every", "0.5"]
        opened = Terminal(folder / "tmux", columns, lines, *command)
        try:
            yield opened
        finally:
            opened.close()


@pytest.fixture(scope="module")
def blocked() -> Iterator[DaemonProcess]:
    """A daemon with a stream whose hot shard blocks a caller, and with one that does not exist."""
    fake = FakeKinesis()
    fake.enforce_limits = True
    fake.create_stream("flights", shards=4)
    with (
        serve_in_thread(fake) as server,
        daemon(server.url, shard_rate_fraction=0.01, queue_limit=3_500, drain_timeout_seconds=0.1) as running,
        session(running) as hot,
        session(running, "misspelt") as other,
    ):
        for _ in range(3):
            hot.put(HOT)
        hot.reserve(HOT.layout)
        other.put(one())
        other.acks(1)
        yield running


@pytest.mark.promise("terminal-shows-streams")
@needs_tmux
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50), (40, 12)])
def test_a_terminal_shows_streams_in_trouble_and_their_shards(blocked: DaemonProcess, columns: int, lines: int) -> None:
    with terminal(blocked, columns, lines) as shown:
        until(lambda: "WAITING" in shown.shown(), "a picture")
        text = shown.shown()
        told = text.splitlines()
        assert told[0].startswith("producerd ")
        assert told[1].split()[0] == "STREAM"
        assert [line.split()[0] for line in told[2:4]] == ["misspelt", "flights"], "the one that is refused comes first"
        assert re.search(r"#{5,10}-{0,5} +\d+%", told[3])
        assert SHARD in text
        assert ("RETRIES/S" in told[1]) == (columns == 200)
        if columns >= 80:
            assert re.search(r" broken .* working ", " ".join(told[2:4]))
            assert "spread its keys, or split the shard" in " ".join(text.split())
        colours = shown.shown("-e").splitlines()
        assert "\x1b[31m" in colours[2], "what is refused is red"
        shown.press("C-c")
        until(lambda: "exit code 130" in shown.shown(), "its end")
        assert "Traceback" not in shown.shown()


@pytest.mark.promise("terminal-shows-streams")
@needs_tmux
def test_a_terminal_without_rich_shows_plain_text(blocked: DaemonProcess) -> None:
    with terminal(blocked, 120, 30, "-c", WITHOUT_RICH) as shown:
        until(lambda: re.search(r"^misspelt +broken .*\n(.*\n)*flights +working ", shown.shown(), re.MULTILINE))
        assert "Traceback" not in shown.shown()


def test_no_command_but_top_on_a_terminal_loads_rich(blocked: DaemonProcess) -> None:
    admin = blocked.socket.with_suffix(".admin.sock")
    for command in ("status", "top --count 1 --every 0.1"):
        code = "import sys; from producerd.ctl import main; main(sys.argv[1:]); sys.exit('rich' in sys.modules)"
        arguments = [sys.executable, "-c", code, "--admin-socket", str(admin), *command.split()]
        assert subprocess.run(arguments, capture_output=True, cwd=ROOT, check=False).returncode == 0, command


def status(uptime_seconds: float, records: int) -> dict[str, Any]:
    """The status of a daemon that has stored this many records."""
    return node(stream(ingest_records=records, delivered_records=records), uptime_seconds=uptime_seconds)


def stored_per_second(reading: StatusPair) -> str:
    _, head, row, *_ = rates(*reading)
    return row.split()[head.split().index("STORED/S")]


@pytest.mark.promise("top-daemon-restarts")
@pytest.mark.parametrize(
    ("before", "now", "seconds", "rate"),
    [
        ((100.0, 7_000), (102.0, 9_000), 2.0, "1,000"),
        ((100.0, 7_000), (2.0, 9_000), 2.0, "4,500"),  # it has restarted at once
        ((3.0, 7_000), (10.0, 9_000), 20.0, "900"),  # and has served for longer than the one before
        ((100.0, 7_000), (100.0, 7_010), 0.05, "100"),  # the uptime is in tenths of a second
    ],
)
def test_the_rates_of_a_daemon_that_has_restarted_are_since_its_start(
    before: tuple[float, int], now: tuple[float, int], seconds: float, rate: str
) -> None:
    assert stored_per_second(StatusPair.of(status(*now), status(*before), seconds)) == rate


@pytest.mark.promise("top-daemon-restarts")
def test_top_goes_on_while_a_daemon_restarts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Failed("no daemon answers: /x: Connection refused")
    Replies(status(100.0, 7_000), gone, gone, status(2.0, 9_000)).serve(monkeypatch)
    assert ctl.main(["top", "--every", "0", "--count", "3"]) == 0
    told = capsys.readouterr().out.split("\n\n")
    assert told[:2] == ["no daemon answers: /x: Connection refused"] * 2
    assert "4,500" in told[2]


def test_top_ends_where_no_daemon_answered_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["--admin-socket", "/nonexistent/s", "top"]) == 1
    assert capsys.readouterr().err.startswith("producerctl: no daemon answers: /nonexistent/s: ")
