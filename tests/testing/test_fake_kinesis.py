"""What the rules decide is what happens on the socket, seen by Amazon's own client and by bare sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import kinesis_of, main, serve, serve_in_thread
from tests.testing.calls import SHARDS, client_of, opened, refusal, service, until

PUT = (
    b"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: Kinesis_20131202.PutRecords\r\nContent-Length: 70\r\n\r\n"
    b'{"StreamName":"s","Records":[{"PartitionKey":"k","Data":"ZGF0YQ=="}]} '
)


def put(client: Any, count: int = 1) -> Any:
    return client.put_records(
        StreamName="s", Records=[{"PartitionKey": f"k{i}", "Data": b"%d" % i} for i in range(count)]
    )


def read_back(client: Any) -> list[tuple[str, bytes]]:
    found = []
    for shard in client.list_shards(StreamName="s")["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName="s", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        found += [(r["PartitionKey"], r["Data"]) for r in client.get_records(ShardIterator=iterator)["Records"]]
    return found


def test_boto3_makes_writes_reshards_reads_and_deletes_a_stream() -> None:
    kinesis = FakeKinesis(seed=7)
    with serve_in_thread(kinesis) as server, client_of(server) as client:
        client.create_stream(StreamName="s", ShardCount=4)
        client.get_waiter("stream_exists").wait(StreamName="s")
        answer = put(client, 100)
        assert answer["FailedRecordCount"] == 0
        assert {result["ShardId"] for result in answer["Records"]} == set(SHARDS[:4])
        metadata = answer["ResponseMetadata"]
        assert metadata["RequestId"]
        assert metadata["HTTPHeaders"]["content-type"] == "application/x-amz-json-1.1"
        client.split_shard(StreamName="s", ShardToSplit=SHARDS[0], NewStartingHashKey="1000")
        client.merge_shards(StreamName="s", ShardToMerge=SHARDS[5], AdjacentShardToMerge=SHARDS[1])
        assert sorted(read_back(client)) == sorted((f"k{i}", b"%d" % i) for i in range(100))
        summary = client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]
        assert (summary["OpenShardCount"], summary["MaxRecordSizeInKiB"]) == (4, 1024)
        client.update_shard_count(StreamName="s", TargetShardCount=8, ScalingType="UNIFORM_SCALING")
        assert len(kinesis.streams["s"].open_shards) == 8
        client.delete_stream(StreamName="s")
        client.get_waiter("stream_not_exists").wait(StreamName="s")
    assert kinesis.streams == {}


def test_errors_reach_boto3_as_their_classes() -> None:
    kinesis, _ = service()
    kinesis.denied.add("ListShards")
    kinesis.script(Fault("error"), Fault("error", status=503))
    with serve_in_thread(kinesis) as server, client_of(server) as client:
        records = [{"PartitionKey": "k", "Data": b""}]
        for status, code in ((500, "InternalFailure"), (503, "ServiceUnavailable")):
            response = refusal(client.put_records, StreamName="s", Records=records)
            assert (response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]) == (status, code)
        with pytest.raises(
            client.exceptions.ResourceNotFoundException, match="Stream other under account 000000000000"
        ):
            client.put_records(StreamName="other", Records=records)
        with pytest.raises(client.exceptions.AccessDeniedException, match="kinesis:ListShards"):
            client.list_shards(StreamName="s")
        with pytest.raises(client.exceptions.ValidationException, match="less than or equal to 500"):
            client.put_records(StreamName="s", Records=records * 501)
        with pytest.raises(client.exceptions.InvalidArgumentException, match="ExplicitHashKey"):
            client.put_records(StreamName="s", Records=[{**records[0], "ExplicitHashKey": str(2**128)}])
        assert refusal(client.list_streams)["Error"]["Code"] == "UnknownOperationException"


def test_the_clock_of_the_server_is_told_in_every_answer_and_checked_where_that_is_asked_for() -> None:
    kinesis, _ = service()
    with serve_in_thread(kinesis) as server, client_of(server) as client:
        server.checks_clock = True
        for offset, words in ((-3600.0, "not yet current"), (3600.0, "expired")):
            server.clock_offset_seconds = offset
            response = refusal(put, client=client)
            assert response["Error"]["Code"] == "InvalidSignatureException"
            assert f"Signature {words}: " in response["Error"]["Message"]
            told = parsedate_to_datetime(response["ResponseMetadata"]["HTTPHeaders"]["date"])
            assert told.timestamp() == pytest.approx(time.time() + offset, abs=60.0)
        server.checks_clock = False
        put(client)


def test_keys_are_rotated() -> None:
    kinesis, stream = service()
    with serve_in_thread(kinesis) as server, client_of(server, "OLD") as old, client_of(server, "NEW") as new:
        server.accepted_access_keys = {"OLD"}
        put(old)
        assert refusal(put, client=new)["Error"]["Code"] == "UnrecognizedClientException"
        server.accepted_access_keys, server.expired_access_keys = {"OLD", "NEW"}, {"OLD"}
        put(new)
        response = refusal(put, client=old)
    assert response["Error"]["Code"] == "ExpiredTokenException"
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert len(stream.entries()) == 2
    assert kinesis.replies == {"ok": 2, "UnrecognizedClientException": 1, "ExpiredTokenException": 1}


def test_a_reset_stores_nothing_and_a_lost_answer_is_stored() -> None:
    kinesis, stream = service()
    kinesis.script(Fault("reset"), Fault("lost"))
    with serve_in_thread(kinesis) as server, client_of(server) as client:
        for stored in (0, 1):
            with pytest.raises(ConnectionClosedError):
                put(client)
            assert len(stream.entries()) == stored
        assert put(client)["FailedRecordCount"] == 0


def test_a_replaced_answer_is_a_proxys_for_what_was_stored() -> None:
    kinesis, stream = service()
    kinesis.script(Fault("replaced", status=403))
    with serve_in_thread(kinesis) as server, client_of(server) as client:
        response = refusal(put, client=client)
    assert (response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]) == ("403", 403)
    assert "RequestId" not in response["ResponseMetadata"]
    assert len(stream.entries()) == 1


def test_a_hung_request_is_answered_when_it_is_released() -> None:
    kinesis, stream = service()
    kinesis.standing.append(Fault("hang"))
    with serve_in_thread(kinesis) as server:
        with client_of(server, read_timeout=0.2) as client, pytest.raises(ReadTimeoutError):
            put(client)
        assert stream.entries() == []
        with socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), timeout=10.0) as waiting:
            waiting.sendall(PUT)
            while kinesis.requests["PutRecords"] < 2:
                time.sleep(0)
            kinesis.standing.clear()
            server.release()
            assert waiting.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
    assert len(stream.entries()) == 1


def test_tls_is_verified_with_the_certificate_made_for_it() -> None:
    kinesis, stream = service()
    kinesis.script(Fault("answer"), Fault("reset"))
    with serve_in_thread(kinesis, tls=True) as server, client_of(server) as client:
        assert server.url.startswith("https://127.0.0.1:")
        assert server.certificate is not None
        put(client)
        with pytest.raises(ConnectionClosedError):
            put(client)
        put(client)
    assert len(stream.entries()) == 2
    assert not server.certificate.exists()


def test_what_keeps_the_server_from_starting_is_raised_to_the_caller() -> None:
    with serve_in_thread(FakeKinesis()) as server:
        second = serve_in_thread(FakeKinesis(), port=urlsplit(server.url).port or 0)
        with pytest.raises(OSError, match="address already in use"), second:
            pass


async def test_a_reset_is_a_real_one() -> None:
    kinesis, _ = service()
    kinesis.script(Fault("reset"))
    async with serve(kinesis) as server:
        reader, writer = await opened(server)
        writer.write(PUT)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_clients_that_give_up_leave_nothing_behind() -> None:
    kinesis, stream = service()
    kinesis.standing.append(Fault("hang"))
    async with serve(kinesis) as server:
        writers = [(await opened(server))[1] for _ in range(5)]
        for writer in writers:
            writer.write(PUT)
        await until(lambda: server.in_flight == 5)
        assert server.connections_open == 5
        for writer in writers:
            writer.transport.abort()
        await until(lambda: server.in_flight == server.connections_open == 0)
        assert (server.in_flight_peak, server.connections_peak) == (5, 5)
    assert stream.entries() == []


@pytest.mark.parametrize("steps", range(5))
def test_a_connection_that_comes_as_the_server_ends_leaves_no_open_socket(steps: int) -> None:
    """The event loop may just have accepted it: what is left open warns, and each warning fails the test."""

    async def run(client: socket.socket) -> None:
        async with serve(FakeKinesis()) as server:
            client.connect(("127.0.0.1", urlsplit(server.url).port))
            for _ in range(steps):
                await asyncio.sleep(0)

    with socket.socket() as client:
        asyncio.run(run(client))
    gc.collect()


async def test_the_end_of_the_server_cuts_whatever_waits() -> None:
    kinesis, stream = service()
    kinesis.script(Fault("hang"), Fault("answer", delay_seconds=math.inf))
    async with asyncio.timeout(10.0):
        async with serve(kinesis) as server:
            streams = [await opened(server) for _ in range(2)]
            for _, writer in streams:
                writer.write(PUT)
            await until(lambda: kinesis.requests["PutRecords"] == 2)
        for reader, writer in streams:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
    assert len(stream.entries()) == 1
    assert server.in_flight == 0


async def test_a_body_beyond_every_limit_is_refused_unread() -> None:
    kinesis, _ = service()
    async with asyncio.timeout(10.0), serve(kinesis) as server:
        reader, writer = await opened(server)
        writer.write(PUT.replace(b"Content-Length: 70", b"Content-Length: 99999999"))
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()
    assert kinesis.requests == {}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "producerd.testing.fake_kinesis", *arguments]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_its_url_serves_and_ends_cleanly(number: signal.Signals) -> None:
    arguments = ("--shards", "2", "--stream", "s", "--stream", "t", "--tls")
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            server = FakeServerAt(process.stdout.readline().strip(), process.stdout.readline().strip())
            with client_of(server) as client:  # type: ignore[arg-type]
                assert put(client)["FailedRecordCount"] == 0
                for name in ("s", "t"):
                    assert len(client.list_shards(StreamName=name)["Shards"]) == 2
            trust = ssl.create_default_context(cafile=server.certificate)
            with urllib.request.urlopen(server.url + "/_fake/counters", context=trust) as counters:
                assert json.load(counters)["results"] == {"stored": 1}
        finally:
            process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


class FakeServerAt:
    """As much of a server as a client needs to know."""

    def __init__(self, url: str, certificate: str) -> None:
        self.url = url
        self.certificate = certificate


def test_a_port_in_use_ends_the_command_with_one_line_and_leaves_signals_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with serve_in_thread(FakeKinesis()) as server, pytest.raises(SystemExit) as ended:
        main(["--port", str(urlsplit(server.url).port)])
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert message.startswith("fake_kinesis: ")
    assert message.count("\n") == 1
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "65536"], "port 65536: 1 to 65535, or 0 for any that is free"),
        (["--port", "-1"], "port -1: 1 to 65535, or 0 for any that is free"),
        (["--throttle-fraction", "2"], "fraction=2.0: above 0, and at most 1"),
        (["--latency-seconds", "-1"], "latency_seconds=-1.0: 0 or more, or a pair of such with the lower first"),
    ],
)
def test_an_option_that_means_nothing_ends_the_command_with_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1
    assert capsys.readouterr() == ("", f"fake_kinesis: {message}\n")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("clock_offset_seconds", 1e300, "clock_offset_seconds=1e+300: at most 3,153,600,000, a century, either way"),
        ("uplink_bytes_per_second", -1, "uplink_bytes_per_second=-1: 0 or more, or None"),
    ],
)
async def test_a_setting_of_the_server_that_means_nothing_is_refused_and_the_old_one_stays(
    name: str, value: float, message: str
) -> None:
    async with serve(FakeKinesis()) as server:
        before = getattr(server, name)
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            setattr(server, name, value)
        assert getattr(server, name) == before


def test_options_set_the_rules() -> None:
    limits = ["--enforce-limits", "--throttle-fraction", "0.1"]
    kinesis = kinesis_of(["--latency-seconds", "0.5", *limits, "--hang", "--forget"])
    assert kinesis.latency_seconds == 0.5
    assert kinesis.enforce_limits
    assert kinesis.standing == [Fault("throttle", fraction=0.1), Fault("hang", action="*")]
    assert list(kinesis.streams) == ["stream"]
    assert not kinesis.streams["stream"].keeps_entries
