"""A program that forgets to close a client loses no record without a word."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import weakref

import pytest

from producerd.wire import messages
from spark_client import unclosed
from tests.daemon import ROOT
from tests.spark_client.clients import abandon, client_of, client_threads, holds_back
from tests.spark_client.fake_daemon import INVALID, FakeDaemon, Session, ends, expects, takes

PROGRAM = """
import sys
from spark_client import KinesisClient, unclosed
unclosed.EXIT_SECONDS = 0.2
clients = [KinesisClient("s", socket=sys.argv[1]) for _ in range(2)]
for client in clients:
    client.put("x", timeout_seconds=10)
"""


@pytest.mark.promise("program-ends-close-stored")
@pytest.mark.parametrize("warns", [False, True])
def test_the_end_of_a_program_waits_for_a_time_and_says_what_is_not_stored(daemon: FakeDaemon, warns: bool) -> None:
    """As for a file, the warning is shown where warnings are."""

    def answers_slowly(session: Session) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                if isinstance(session.read(), messages.Status):
                    session.send(messages.Blocked(1, 3.0, "the service answers slowly"))

    daemon.runs(ends(takes(1), expects(messages.Flush), answers_slowly))
    command = [sys.executable, *["-X", "dev"] * warns, "-c", PROGRAM, daemon.path]
    done = subprocess.run(command, cwd=ROOT, env={}, timeout=60, stderr=subprocess.PIPE, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if "ResourceWarning" not in line]
    assert len(lines) == len(done.stderr.splitlines()) - 2 * warns
    assert sorted(line.partition(" s: the service answers slowly;")[0] for line in lines) == [
        "a KinesisClient was not closed before the program's end: PRODUCERD[FLUSH_TIMEOUT]: "
        f"1 record is not acknowledged after {seconds}"
        for seconds in ("0.0", "0.2")
    ]
    assert all(line.endswith("; 1 of these records are with the daemon") for line in lines)
    assert done.returncode == 0


def test_a_client_that_is_collected_unclosed_warns_and_its_records_end_as_they_would(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    daemon.runs(holds_back(go_on, lambda session: session.serve(lambda row: INVALID if row[1] == b"bad" else None)))
    client = client_of(daemon)
    futures = [client.put("x", timeout_seconds=10), client.put("y")]
    client.put("bad")
    thread, gone = client_threads()[-1], weakref.ref(client)
    with pytest.warns(ResourceWarning, match="^unclosed <KinesisClient"):
        del client
    assert gone() is None
    assert thread.is_alive()
    go_on.set()
    assert [future.result(10) for future in futures] == [None, None]
    thread.join(10)
    assert not thread.is_alive()
    (line,) = caplog.messages
    assert line.startswith("a KinesisClient was not closed: PRODUCERD[RECORD_INVALID]: 1 record failed since the last")


def test_a_client_that_an_error_has_closed_is_not_called_unclosed(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread may still be in a callback at the program's end."""
    begins, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begins.set()
        go_on.wait(10)

    client = client_of(daemon)
    client.put("x").add_done_callback(hold)
    assert begins.wait(10)
    abandon(client)
    unclosed.end_all()
    assert caplog.messages == []
    go_on.set()
