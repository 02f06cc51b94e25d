"""PutRecords goes in JSON or in CBOR, over each transport, and whatever the answer is in."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import cbor2
import pytest

from producerd import ctl
from producerd.core.encoding.entries import EncodedRequest, encode
from producerd.core.encoding.formats import Format
from producerd.core.sending.answers import Answer, RequestFailed
from producerd.testing import FakeKinesis, Fault, ServiceError
from producerd.testing.fake_kinesis import serve, serve_in_thread
from tests.core.pieces import FORMATS, pieces_of
from tests.daemon import DaemonProcess, daemon, rows, session
from tests.runtime.aws.reaching import FLIGHTS, reached, reaching
from tests.runtime.recording import recording, signed_headers
from tests.simulation.setting import make_rules

pytestmark = pytest.mark.usefixtures("bare_environment")

each_format = pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)
STORED = {"FailedRecordCount": 0, "Records": [{"SequenceNumber": "1", "ShardId": "s"}] * 3}


def shown(running: DaemonProcess, capsys: pytest.CaptureFixture[str]) -> str:
    """The format that `producerctl` shows for the only stream."""
    capsys.readouterr()
    admin_socket = running.socket.with_suffix(".admin.sock")
    assert ctl.main(["--admin-socket", str(admin_socket), "status", "--json"]) == 0
    (stream,) = json.loads(capsys.readouterr().out)["streams"]
    return str(stream["wire_format"])


def request_in(format_: Format) -> EncodedRequest:
    rows = pieces_of([(b"k%d" % number, bytes([number]) * 300, None) for number in range(3)])
    return encode(FLIGHTS, rows, make_rules().entries, format_=format_)


@each_format
async def test_records_are_stored_as_they_are(format_: Format) -> None:
    """By the first request, whose headers botocore writes, and by the next, which is made like it."""
    fake = FakeKinesis()
    stream = fake.create_stream("flights")
    async with serve(fake) as server, reaching(server.url) as kinesis:
        for _ in range(2):
            assert isinstance(await kinesis.put_records(FLIGHTS, request_in(format_), 5), Answer)
    stored = [(entry.partition_key, entry.data) for entry in stream.entries()]
    assert sorted(stored) == sorted([(f"k{number}", bytes([number]) * 300) for number in range(3)] * 2)


async def test_the_signature_covers_the_format_also_if_it_changes() -> None:
    answer = json.dumps(STORED).encode()
    async with recording(answer) as (url, requests), reaching(url) as kinesis:
        for name in ("json", "cbor", "json"):
            assert isinstance(await kinesis.put_records(FLIGHTS, request_in(FORMATS[name]), 5), Answer)
    types = [headers["Content-Type"] for headers, _ in requests]
    assert types == [FORMATS[name].content_type for name in ("json", "cbor", "json")]
    for headers, body in requests:
        assert "content-type" in signed_headers(url, headers, body)


@each_format
@pytest.mark.parametrize("in_cbor", [False, True], ids=["answered in json", "answered in cbor"])
async def test_an_answer_may_be_in_the_other_format(format_: Format, in_cbor: bool) -> None:
    async with (
        recording(cbor2.dumps(STORED) if in_cbor else json.dumps(STORED).encode()) as (url, _),
        reaching(url) as kinesis,
    ):
        answer = await kinesis.put_records(FLIGHTS, request_in(format_), 5)
    assert isinstance(answer, Answer)
    assert (answer.shards == 0).all()


@each_format
@pytest.mark.parametrize("before", [False, True], ids=["the first request", "a later one"])
@pytest.mark.parametrize("in_cbor", [False, True], ids=["answered in json", "answered in cbor"])
async def test_an_error_may_be_in_the_other_format(format_: Format, before: bool, in_cbor: bool) -> None:
    error = {"__type": "com.amazonaws.kinesis.v20131202#SerializationException", "message": "not mine"}
    answers = [(400, cbor2.dumps(error) if in_cbor else json.dumps(error).encode())]
    if before:
        answers.insert(0, (200, json.dumps(STORED).encode()))

    def answer(_: Any) -> tuple[int, bytes]:
        return answers.pop(0)

    async with recording(answer) as (url, _), reaching(url) as kinesis:
        if before:
            assert isinstance(await kinesis.put_records(FLIGHTS, request_in(format_), 5), Answer)
        failed = await kinesis.put_records(FLIGHTS, request_in(format_), 5)
    assert isinstance(failed, RequestFailed)
    assert (failed.code, failed.message, failed.status) == ("SerializationException", "not mine", 400)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("error", status=500),
        Fault("error", status=400, code="ResourceNotFoundException", message="no such stream"),
        Fault("error", status=400, code="AccessDeniedException", message="no"),
        Fault("error", status=502, code=""),
        Fault("replaced", status=403),
    ],
    ids=lambda fault: f"{fault.kind} {fault.status} {fault.code}",
)
async def test_a_failure_is_the_same_in_both_formats(fault: Fault) -> None:
    fake = FakeKinesis()
    fake.create_stream("flights")
    fake.standing.append(fault)
    failures = []
    async with serve(fake) as server, reaching(server.url) as kinesis:
        for name in FORMATS:
            failed = await kinesis.put_records(FLIGHTS, request_in(FORMATS[name]), 5)
            assert isinstance(failed, RequestFailed)
            failures.append(replace(failed, request_id=""))  # each request has its own
    assert failures[0] == failures[1]


@pytest.mark.parametrize(
    ("url", "is_aws"),
    [
        (None, True),
        ("https://vpce-0a1b-2c3d.kinesis.us-east-1.vpce.amazonaws.com", True),
        ("https://kinesis-fips.us-gov-west-1.amazonaws.com", True),
        ("https://kinesis.us-east-1.api.aws", True),
        ("https://kinesis.cn-north-1.amazonaws.com.cn/", True),
        ("https://111122223333.data-kinesis.us-east-1.amazonaws.com:443", True),
        ("http://kinesis.us-east-1.amazonaws.com", False),
        ("https://kinesis.us-east-1.amazonaws.com.example.com", False),
        ("https://example.com/kinesis.us-east-1.amazonaws.com", False),
        ("https://kinesis-amazonaws.com", False),
        ("https://localhost.localstack.cloud:4566", False),
        ("http://127.0.0.1:4567", False),
    ],
)
async def test_the_host_s_name_says_whether_it_is_aws_s(url: str | None, is_aws: bool) -> None:
    async with reached(url) as (kinesis, _):
        assert not kinesis.is_aws, "its host is not known yet"
        await kinesis.ready()
        assert kinesis.is_aws is is_aws


async def test_without_a_client_nothing_is_aws_s(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cannot(*_: Any) -> None:
        raise OSError("no client")

    async with reached() as (kinesis, client):
        monkeypatch.setattr(client, "_make", cannot)
        await kinesis.ready()
        assert not kinesis.is_aws


def test_a_service_that_refuses_cbor_gets_every_record_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """No caller sees it; the log says it once, and the status has it."""
    fake = FakeKinesis()
    stream = fake.create_stream("flights")
    fake.cbor_refusal = ServiceError("UnknownOperationException", "", 404)
    with (
        serve_in_thread(fake) as server,
        daemon(server.url, wire_format="cbor") as running,
        session(running) as client,
    ):
        for number in range(3):
            client.put(rows(1_000, name=f"frame-{number}"))
            assert client.acks()[0].stored == 1_000
        assert running.log.count("the service refuses CBOR") == 1
        assert shown(running, capsys) == "json"
    assert len({entry.data for entry in stream.entries()}) == len(stream.entries()) == 3_000
