"""A wrong endpoint is one clear error, before a write and during one.  Faults that may pass fail no caller.

The daemons are real, and so are names that do not exist and certificates that no authority signed.  The wait for the
first contact is a fraction of a second, and faults last many times as long.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from producerd.errors import Code, FlushTimeout
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from producerd.wire import frames
from spark_client import checks
from spark_client.connection import Connection
from spark_client.task import Plan
from tests.daemon import DaemonProcess, daemon, directory, rows, until

HELLO: Final = frames.Hello(1, 1, client="test", pid=os.getpid())
NOWHERE: Final = "https://no-such-host.invalid"
WAIT_SECONDS: Final = 0.4
MANY_TIMES_AS_LONG: Final = 8 * WAIT_SECONDS


def resolves(name: str) -> int:
    try:
        socket.getaddrinfo(name, 443)
    except socket.gaierror as error:
        return error.errno or 0
    return 0


needs_no_such_host = pytest.mark.skipif(
    resolves("no-such-host.invalid") != socket.EAI_NONAME, reason="this machine's resolver has no word for no such name"
)


@contextmanager
def connected(path: Path, seconds: float = 30.0) -> Iterator[Connection]:
    with Connection(HELLO, [str(path)], connect_timeout_seconds=5, reconnect_timeout_seconds=seconds) as client:
        yield client


def put_and_flush(running: DaemonProcess) -> tuple[int, str, str]:
    """How many rows are stored; the code and the words of those that are not."""
    with connected(running.socket) as client:
        client.put("flights", rows(10), 10)
        client.flush(20)
        (failure,) = client.tally.failures
        assert not failure.maybe_stored
        return client.tally.stored, failure.code, failure.message


@pytest.mark.promise("rows-name-exist-end")
@needs_no_such_host
def test_rows_for_a_name_that_does_not_exist_end_with_the_name_and_what_to_look_at() -> None:
    with daemon(NOWHERE, first_contact_timeout_seconds=WAIT_SECONDS, aggregation="kpl") as running:
        stored, code, message = put_and_flush(running)
        assert (stored, code) == (0, Code.UNREACHABLE)
        assert "no-such-host.invalid" in message
        assert "look at region and endpoint_url" in message
        assert running.metrics()["stream_up"] == 0
        assert "stream cannot be reached" in running.log


@pytest.mark.promise("rows-name-exist-end")
def test_rows_for_a_certificate_that_is_refused_end_so_too(kinesis: FakeKinesis) -> None:
    with (
        serve_in_thread(kinesis, tls=True) as serving,
        daemon(serving.url, first_contact_timeout_seconds=WAIT_SECONDS) as running,
    ):
        stored, code, message = put_and_flush(running)
        assert (stored, code) == (0, Code.UNREACHABLE)
        assert "certificate" in message.lower()
        assert "AWS_CA_BUNDLE" in message


# ---- what may pass


@contextmanager
def nobody_listens() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and is not listened on
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def black_hole() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:  # nothing is ever accepted
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def unavailable() -> Iterator[str]:
    kinesis = FakeKinesis()
    kinesis.create_stream("flights", shards=4)
    kinesis.standing.append(Fault("error", action="*", status=503))
    with serve_in_thread(kinesis) as serving:
        yield serving.url


@contextmanager
def no_resolver() -> Iterator[str]:
    yield "https://kinesis.us-east-1.amazonaws.com"  # asked where no name server can be reached


FAULTS: Final[dict[Callable[[], Any], str]] = {
    nobody_listens: "Connect call failed",
    black_hole: "no answer within",
    unavailable: "ServiceUnavailable",
    no_resolver: "Temporary failure in name resolution",
}
"""What the daemon says of each."""


@pytest.mark.promise("whatever-pass-waited")
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_daemon_is_killed_and_what_may_pass_fails_no_task(
    fault: Callable[[], Any], kinesis: FakeKinesis, server: FakeServer
) -> None:
    """Its successor finds the service so for many times the wait; then comes one that finds it well."""
    if fault is no_resolver and (os.geteuid() or not shutil.which("unshare")):
        pytest.skip("only root can take a daemon's network away")
    sets: dict[str, Any] = {"first_contact_timeout_seconds": WAIT_SECONDS, "request_timeout_seconds": 0.2}
    sets["metrics_listen"] = ""  # there is no 127.0.0.1 without a network
    with ExitStack() as stack:
        path = stack.enter_context(directory()) / "daemon.sock"
        enter = stack.enter_context
        first = enter(daemon(server.url, socket_path=path, exit_code=None, **sets))
        resumed = enter(connected(path))
        resumed.put("flights", rows(10, name="stored"), 10)
        resumed.flush(20)
        kinesis.standing.append(Fault("hang"))
        resumed.put("flights", rows(10, name="resent"), 10)
        first.signal(signal.SIGKILL)
        first.wait()
        kinesis.standing.clear()
        alone = ["unshare", "--net"] if fault is no_resolver else []
        second = enter(daemon(enter(fault()), socket_path=path, exit_code=None, prefix=alone, **sets))
        fresh = enter(connected(path))
        fresh.put("flights", rows(10, name="fresh"), 10)
        resumed.settle_arrived()
        until_is_over = time.monotonic() + MANY_TIMES_AS_LONG
        until(lambda: time.monotonic() > until_is_over, "the time")
        for client in (fresh, resumed):
            client.settle_arrived()
            assert client.tally.failures == ()
        assert FAULTS[fault] in fresh.reason("flights")
        second.signal(signal.SIGKILL)
        second.wait()
        enter(daemon(server.url, socket_path=path, exit_code=None, **sets))
        for client in (fresh, resumed):
            client.flush(30)
            assert client.tally.failures == ()
        names = {record.data.split(b"-")[0] for record in kinesis.streams["flights"].read().records}
        assert names == {b"stored", b"resent", b"fresh"}


# ---- before a write


def checked(running: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[str]], str]:
    """What an executor's part of `spark_client.check` finds wrong, and what it says of the service."""
    monkeypatch.setattr(checks, "HOLD_SECONDS", 0)
    told = json.loads(checks.probe(**Plan("flights", str(running.socket), connect_timeout_seconds=5).plain()))
    return told["problems"], checks.ExecutorCheck(*told["executor"]).service


def test_a_service_that_answers_is_ready_also_where_it_throttles(
    kinesis: FakeKinesis, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = f"ready: ListShards answers; PutRecords was not tried, at {server.url}"
    kinesis.standing.append(Fault("error", action="ListShards", status=400, code="LimitExceededException"))
    with daemon(server.url) as running:
        assert checked(running, monkeypatch) == ([], ready)


def test_a_daemon_that_may_not_list_the_shards_that_it_needs_is_found(
    kinesis: FakeKinesis, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinesis.standing.append(Fault("error", action="ListShards", status=400, code="AccessDeniedException"))
    with daemon(server.url, aggregation="kpl") as running:
        ((code, text),) = checked(running, monkeypatch)[0]
    assert code == Code.ACCESS_DENIED
    assert text.endswith('aggregation = "kpl" needs kinesis:ListShards')


def test_an_endpoint_where_nobody_listens_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with nobody_listens() as url, daemon(url) as running:
        assert checked(running, monkeypatch)[0][0][0] == Code.UNREACHABLE


def test_a_stream_that_does_not_exist_is_found_and_the_question_changes_nothing(
    kinesis: FakeKinesis, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinesis.delete_stream("flights")
    with daemon(server.url) as running:
        assert checked(running, monkeypatch)[0][0][0] == Code.STREAM_NOT_FOUND
        assert running.metrics()["stream_up"] == 1, "nothing was to be sent"
        assert "ERROR" not in running.log
        kinesis.create_stream("flights", shards=4)
        until(lambda: checked(running, monkeypatch)[0] == [], "the stream is found")


# ---- what the daemon reports


def test_a_total_outage_is_told_from_working(kinesis: FakeKinesis, server: FakeServer) -> None:
    with daemon(server.url, request_timeout_seconds=0.2) as running, connected(running.socket) as client:
        client.put("flights", rows(10), 10)
        client.flush(20)
        assert running.metrics()["stream_up"] == 1
        kinesis.standing.append(Fault("error", status=503))
        client.put("flights", rows(10), 10)
        until(lambda: running.metrics()["stream_up"] == 0, "the outage")
        admin = str(running.socket.with_suffix(".admin.sock"))
        asked = [sys.executable, "-m", "producerd.ctl", "--admin-socket", admin, "status"]
        shown = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert "outage" in shown.stdout, shown
        kinesis.standing.clear()
        client.flush(30)
        assert running.metrics()["stream_up"] == 1


@needs_no_such_host
def test_a_flush_that_times_out_names_the_service_and_not_the_shards(server: FakeServer) -> None:
    with daemon(NOWHERE) as running, connected(running.socket) as client:
        client.put("flights", rows(1_000), 10)

        def told() -> str:
            with pytest.raises(FlushTimeout) as caught:
                client.flush(1)
            return str(caught.value)

        words = "the service cannot be reached: look at region, endpoint_url"
        message = until(lambda: next((line for line in [told()] if words in line), ""), words)
        assert "shards" not in message
