"""A wrong endpoint is one clear error, before a write and during one.

The daemons are real, and so are names that do not exist and certificates that no authority signed.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Final

import pytest

from producerd.errors import Code
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from producerd.wire import messages
from spark_client import checks
from spark_client.connection import Connection
from spark_client.task import Plan
from tests.daemon import DaemonProcess, daemon, rows, until

HELLO: Final = messages.Hello(1, 1, client="test", pid=os.getpid())
NOWHERE: Final = "https://no-such-host.invalid"
TUNING: Final = {"first_contact_timeout_seconds": 0.4}


def resolves(name: str) -> int:
    try:
        socket.getaddrinfo(name, 443)
    except socket.gaierror as error:
        return error.errno or 0
    return 0


needs_no_such_host = pytest.mark.skipif(
    resolves("no-such-host.invalid") != socket.EAI_NONAME, reason="this machine's resolver has no word for no such name"
)


def put_and_flush(running: DaemonProcess) -> tuple[int, str, str]:
    """How many rows are stored; the code and the words of those that are not."""
    with Connection(HELLO, [str(running.socket)], connect_timeout_seconds=5) as client:
        client.put("flights", rows(10), 10)
        client.flush(20)
        (failure,) = client.tally.failures
        assert not failure.maybe_stored
        return client.tally.stored, failure.code, failure.message


@pytest.mark.promise("rows-name-exist-end")
@needs_no_such_host
def test_rows_for_a_name_that_does_not_exist_end_with_the_name_and_what_to_look_at() -> None:
    with daemon(NOWHERE, tuning=TUNING, aggregation="kpl") as running:
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
        daemon(serving.url, tuning=TUNING) as running,
    ):
        stored, code, message = put_and_flush(running)
        assert (stored, code) == (0, Code.UNREACHABLE)
        assert "certificate" in message.lower()
        assert "AWS_CA_BUNDLE" in message


# ---- before a write


def checked(running: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[str]], str]:
    """What an executor's part of `spark_client.check` finds wrong, and what it says of the service."""
    monkeypatch.setattr(checks, "HOLD_SECONDS", 0)
    told = json.loads(checks.probe(**Plan("flights", str(running.socket), connect_timeout_seconds=5).plain()))
    return told["problems"], checks.ExecutorCheck(*told["executor"]).service


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
