"""A daemon that cannot start says why in one line, exits with 78 or 75, and breaks nothing on its path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer
from tests.daemon import PATIENCE_SECONDS, ROOT, daemon, one, serve_once, session, until


def refused(log: str) -> str:
    """The one line that says why."""
    (line,) = log.splitlines()
    assert line.startswith("producerd: configuration: ")
    return line


def test_a_socket_in_use_is_left_alone(kinesis: FakeKinesis, server: FakeServer) -> None:
    with daemon(server.url) as running:
        code, log = serve_once(socket_path=running.socket, endpoint_url=server.url)
        assert code == 75
        assert f"socket = {running.socket}: in use by another producerd" in refused(log)
        with session(running) as client:
            client.put(one())
            assert client.acks()[0].stored == 1


@pytest.mark.promise("sigterm-ends-daemon")
@pytest.mark.parametrize("first", [False, True], ids=["next to others", "as the first process, as in a container"])
def test_sigterm_ends_a_daemon_that_does_not_serve_yet(first: bool, tmp_path: Path) -> None:
    """The kernel keeps a signal without a handler from a container's first process, which would serve on."""
    if first and os.geteuid():
        pytest.skip("needs root, for a process namespace")
    settings = tmp_path / "settings.toml"
    os.mkfifo(settings)
    command = [sys.executable, "-m", "producerd", "serve", "-c", os.fspath(settings)]
    alone = ["unshare", "--pid", "--fork", "--kill-child"] if first else []
    with (
        subprocess.Popen([*alone, *command], cwd=ROOT) as outer,
        settings.open("w"),  # returns when the daemon reads its settings, which have no end
    ):
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        os.kill(int(children[0]) if first else outer.pid, signal.SIGTERM)
        try:
            assert outer.wait(PATIENCE_SECONDS) == 0
        finally:
            outer.kill()


@pytest.mark.parametrize(
    ("number", "closed"), [(signal.SIGTERM, "<&-"), (signal.SIGINT, ">&-")], ids=["SIGTERM, no 0", "SIGINT, no 1"]
)
def test_either_signal_ends_it_well_also_without_a_standard_stream(number: int, closed: str) -> None:
    """libuv aborts the process if one of its own descriptors has the number of a standard stream."""
    with daemon("http://127.0.0.1:1", prefix=["bash", "-c", f'exec "$@" {closed}', "bash"]) as running:
        running.signal(number)
        assert running.wait() == 0


def test_it_idles_without_working() -> None:
    with daemon("http://127.0.0.1:1") as running, session(running):
        until(lambda: "ListShards failed" in running.log)
        begin = running.cpu_seconds()
        signal.sigtimedwait([], 1.0)
        assert running.cpu_seconds() - begin < 0.1


def test_warnings_of_python_itself_are_none(kinesis: FakeKinesis, server: FakeServer) -> None:
    """With development mode on: no resource is left open, nothing is awaited twice or never."""
    with daemon(
        server.url, environ={"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "PYTHONDEVMODE": "1"}
    ) as running:
        with session(running) as client:
            client.put(one())
            client.acks()
        assert running.end() == 0
        assert "Warning" not in running.log, running.log
