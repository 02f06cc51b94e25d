"""`producerd check --online` reports each answer of AWS.  It stores nothing, shows no secret, and ends in time."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from producerd.config import load
from producerd.errors import ConfigurationError
from producerd.runtime import online
from producerd.runtime.aws.clients import AwsClient
from producerd.runtime.aws.credentials import RenewedCredentials
from producerd.runtime.online import check, masked, why_there_are_none
from producerd.testing import FakeKinesis, FakeStream, fake_kinesis, rules
from producerd.testing.certificate import self_signed
from producerd.testing.fake_kinesis import FakeServer, serve
from tests.daemon import ROOT
from tests.runtime.aws.local_aws import local_aws
from tests.runtime.aws.proxy import proxy

pytestmark = pytest.mark.usefixtures("bare_environment")
KEY = "AKIAABCDEFGHIJKLMNOP"
SECRET = "a secret that nobody is shown"
ROLE = "arn:aws:iam::123456789012:role/producer"
FLIGHTS = "streams.flights.linger_seconds=1"
NOT_TRIED = "PutRecords: not tried: an endpoint other than AWS's own may store the records of a dry run"


@pytest.fixture
def keys(bare_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


async def checked(*sets: str, names: tuple[str, ...] = (), holds: bool = True) -> list[str]:
    """The lines, and whether something failed is as it says."""
    lines: list[str] = []
    assert await check(load(None, ["region=us-east-1", *sets], {}), names, lines.append) is holds, lines
    assert holds != any(line.startswith("FAILED  ") for line in lines)
    assert all(line.split(" ", 1)[0] in ("OK", "WARNING", "FAILED") for line in lines)
    assert SECRET not in "\n".join(lines)
    assert KEY not in "\n".join(lines)
    return lines


async def checked_at(kinesis: FakeKinesis, *sets: str, names: tuple[str, ...] = (), holds: bool = True) -> list[str]:
    """The lines about flights and whatever else is set or named, with the fake as the endpoint."""
    async with serve(kinesis) as server:
        return await checked(f"endpoint_url={server.url}", FLIGHTS, *sets, names=names, holds=holds)


@asynccontextmanager
async def aws_itself(kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeServer]:
    """The fake, at the host of AWS: by a proxy, and a certificate that is believed."""
    host = "kinesis.us-east-1.amazonaws.com"
    monkeypatch.setattr(fake_kinesis, "self_signed", lambda directory, _: self_signed(directory, host))
    async with serve(kinesis, tls=True) as server:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(server.certificate))
        async with proxy(monkeypatch, int(server.url.rpartition(":")[2])):
            yield server


# ---- all is well


@pytest.mark.usefixtures("keys")
async def test_what_aws_itself_says_and_that_records_may_be_sent(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aws_itself(kinesis, monkeypatch):
        assert await checked(FLIGHTS) == [
            "OK       streams flights: region us-east-1, https://kinesis.us-east-1.amazonaws.com",
            "OK       credentials: by env, key AKIA...MNOP; they do not say when they expire",
            "OK       stream flights: ACTIVE PROVISIONED, records of at most 1 MiB, not encrypted",
            "OK       stream flights: 4 open shards; its queue, 1,000,000 records, 64 MiB, is 16 s of them",
            "OK       stream flights: PutRecords is allowed (a dry run: nothing was stored)",
        ]
    assert kinesis.requests == {"DescribeStreamSummary": 1, "ListShards": 1, "PutRecords": 1}
    assert kinesis.streams["flights"].entries() == []


async def test_records_that_may_not_be_sent_are_a_failure(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinesis.denied = {"PutRecords"}
    async with aws_itself(kinesis, monkeypatch):
        line = (await checked(FLIGHTS, holds=False))[-1]
    assert line.startswith("FAILED   stream flights: PutRecords: AccessDeniedException: User: arn:aws:iam::")
    assert line.endswith(": nothing can be sent")


async def test_whoever_stores_a_dry_run_is_told_of(kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "refuse_dry_run", lambda request: None)
    async with aws_itself(kinesis, monkeypatch):
        lines = await checked(FLIGHTS, holds=False)
    assert lines[-1].endswith("a dry run was answered as if it had stored")


@pytest.mark.promise("put-records-reaches")
@pytest.mark.parametrize(
    ("by", "tls"),
    [
        ("node", False),
        ("node", True),
        ("stream", False),
        ("stream", True),
        ("AWS_ENDPOINT_URL", True),
        ("AWS_ENDPOINT_URL_KINESIS", False),
        ("profile", True),
    ],
)
async def test_no_put_records_ever_reaches_another_endpoint_than_awss_own(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str, tls: bool
) -> None:
    """It may know nothing of dry runs, and store the record."""
    async with serve(kinesis, tls=tls) as server:
        if tls:
            monkeypatch.setenv("AWS_CA_BUNDLE", str(server.certificate))
        sets = [FLIGHTS]
        if by == "node":
            sets.append(f"endpoint_url={server.url}")
        elif by == "stream":
            sets.append(f"streams.flights.endpoint_url={server.url}")
        elif by == "profile":
            (tmp_path / "config").write_text(f"[default]\nendpoint_url = {server.url}\n")
            monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        else:
            monkeypatch.setenv(by, server.url)
        lines = await checked(*sets, "streams_allowed=listed")
    assert lines[-1] == f"WARNING  stream flights: {NOT_TRIED}"
    assert kinesis.requests == {"DescribeStreamSummary": 1, "ListShards": 1}


async def test_an_endpoint_that_is_set_is_not_trusted_with_a_dry_run_whatever_its_name(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aws_itself(kinesis, monkeypatch):
        lines = await checked(FLIGHTS, "endpoint_url=https://kinesis.us-east-1.amazonaws.com")
    assert lines[-1] == f"WARNING  stream flights: {NOT_TRIED}"
    assert kinesis.requests["PutRecords"] == 0


async def test_a_botocore_without_dry_runs_is_not_asked_for_one(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = AwsClient.ready

    async def older(self: Any) -> Any:
        made = await ready(self)
        made.meta.service_model.operation_model("PutRecords").input_shape.members.pop("DryRun", None)
        return made

    monkeypatch.setattr(AwsClient, "ready", older)
    async with aws_itself(kinesis, monkeypatch):
        lines = await checked(FLIGHTS)
    assert lines[-1].endswith("PutRecords: not tried: the installed botocore does not know DryRun")
    assert kinesis.requests["PutRecords"] == 0


# ---- streams


async def test_each_stream_is_asked_for_those_listed_and_those_named(kinesis: FakeKinesis) -> None:
    kinesis.create_stream("orders", shards=80)
    async with serve(kinesis) as server:
        url = f"endpoint_url={server.url}"
        both = await checked(url, FLIGHTS, names=("orders", "flights"))
        assert both[0].startswith("OK       streams flights, orders: ")
        assert sum("open shards" in line for line in both) == 2
        assert "OK       stream orders: 80 open shards; its queue, 1,000,000 records, 64 MiB, is 0.8 s of them" in both
        assert "WARNING  stream orders: a full queue is 0.8 s of its 80 shards: they will wait for callers; raise" in (
            "\n".join(both)
        )
        none = await checked(url)
        assert none[0].startswith("OK       streams that are not listed: ")
        assert none[-1] == "WARNING  no stream is listed: check one with --stream NAME"
        strange = await checked(url, FLIGHTS, "streams_allowed=listed", names=("orders", "orders"))
        assert strange[0] == 'WARNING  stream orders: the daemon would refuse it: add [streams."orders"]'
        assert strange.count(strange[0]) == 1
        wrong = await checked(url, names=("no name",), holds=False)
        assert wrong[0].startswith("FAILED   'no name': not a stream's name")


async def test_streams_that_are_reached_in_the_same_way_share_their_lines(kinesis: FakeKinesis) -> None:
    arn = kinesis.streams["flights"].arn
    sets = [
        FLIGHTS,
        f"streams.by-arn.stream_arn={arn}",
        "streams.away.region=eu-west-1",
        "streams.away.stream_name=flights",
    ]
    async with serve(kinesis) as server:
        lines = await checked(f"endpoint_url={server.url}", *sets)
    assert [line.partition(": region ")[::2] for line in lines if ": region " in line] == [
        ("OK       streams flights, by-arn", f"us-east-1, {server.url}"),
        ("OK       streams away", f"eu-west-1, {server.url}"),
    ]
    assert sum("4 open shards" in line for line in lines) == 3


@pytest.mark.parametrize(
    ("denied", "aggregation", "begins", "ends"),
    [
        ("ListShards", "none", "WARNING", "records flow, and a hot shard slows the others"),
        ("ListShards", "kpl", "FAILED ", 'aggregation = "kpl" needs it: callers are refused'),
        (
            "DescribeStreamSummary",
            "kpl",
            "WARNING",
            "records that are too large are found when the service refuses them",
        ),
    ],
)
async def test_what_is_denied_and_what_that_means(
    kinesis: FakeKinesis, denied: str, aggregation: str, begins: str, ends: str
) -> None:
    kinesis.denied = {denied}
    async with serve(kinesis) as server:
        sets = [f"endpoint_url={server.url}", f"streams.flights.aggregation={aggregation}"]
        lines = await checked(*sets, holds=begins == "WARNING")
    (line,) = [line for line in lines if "AccessDeniedException" in line]
    assert line.startswith(f"{begins}  stream flights: {denied}: AccessDeniedException: ")
    assert line.endswith(f": {ends}")
    assert lines[-1].endswith(NOT_TRIED), "the rest is asked all the same"


async def test_a_stream_that_is_missing_does_not_hide_the_next(kinesis: FakeKinesis) -> None:
    async with serve(kinesis) as server:
        sets = [f"endpoint_url={server.url}", "streams.away.queue_limit=5000", FLIGHTS]
        lines = await checked(*sets, holds=False)
    reached, failed = [line for line in lines if "away" in line]
    assert reached.startswith("OK       streams away, flights: region us-east-1, ")
    assert failed.startswith("FAILED   stream away: DescribeStreamSummary: ResourceNotFoundException: ")
    assert any("flights: 4 open shards" in line for line in lines)


@pytest.mark.parametrize(
    ("over", "begins", "ends"),
    [
        ({"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"}, "OK", "MiB, encrypted with alias/aws/kinesis"),
        (
            *({"EncryptionType": "KMS", "KeyId": "alias/mine"}, "OK"),
            "MiB, encrypted with alias/mine (the daemon needs kms:GenerateDataKey on it)",
        ),
        ({"StreamStatus": "CREATING"}, "FAILED", ": it takes no records"),
        ({"StreamStatus": "DELETING"}, "FAILED", ": it takes no records"),
        (
            *({"StreamStatus": "", "StreamModeDetails": {}}, "OK"),
            "stream flights: it exists, records of at most 1 MiB, not encrypted",
        ),
    ],
)
async def test_what_a_stream_says_of_itself(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch, over: dict[str, Any], begins: str, ends: str
) -> None:
    describe = FakeStream.describe
    monkeypatch.setattr(FakeStream, "describe", lambda stream: describe(stream) | over)
    lines = await checked_at(kinesis, holds=begins == "OK")
    (line,) = [line for line in lines if "records of at most" in line]
    state = over.get("StreamStatus", "ACTIVE")
    assert line.startswith(f"{begins:9}stream flights: {state or 'it exists'}")
    assert line.endswith(ends)


async def test_a_stream_whose_shards_do_not_follow_keys_cannot_be_aggregated_for(kinesis: FakeKinesis) -> None:
    kinesis.create_stream("auto", record_distribution_strategy="AUTO")
    async with serve(kinesis) as server:
        url = f"endpoint_url={server.url}"
        plain = await checked(url, names=("auto",))
        assert any("ACTIVE ON_DEMAND" in line for line in plain)
        followed = await checked(url, "aggregation=kpl", FLIGHTS)
        assert not any("refused" in line for line in followed)
        lines = await checked(url, "aggregation=kpl", names=("auto",), holds=False)
    assert 'FAILED   stream auto: aggregation = "kpl" is refused: its shards do not follow keys (AUTO)' in lines


async def test_the_queue_of_a_stream_with_one_shard_is_told_in_its_seconds(kinesis: FakeKinesis) -> None:
    kinesis.create_stream("one", shards=1)
    async with serve(kinesis) as server:
        lines = await checked(f"endpoint_url={server.url}", f"streams.one.queue_limit_bytes={128 << 20}")
    warning = "a full queue is 128 s of its 1 shards: records may wait that long; lower queue_limit_bytes"
    assert [line for line in lines if "queue" in line] == [
        "OK       stream one: 1 open shards; its queue, 1,000,000 records, 128 MiB, is 128 s of them",
        f"WARNING  stream one: {warning}",
    ]


# ---- credentials


@pytest.mark.usefixtures("keys")
async def test_credentials_that_are_refused_end_it(kinesis: FakeKinesis) -> None:
    async with serve(kinesis) as server:
        server.accepted_access_keys = {"another"}
        lines = await checked(f"endpoint_url={server.url}", FLIGHTS, names=("more",), holds=False)
    assert len(lines) == 3
    assert lines[-1] == (
        "FAILED   stream flights: DescribeStreamSummary: UnrecognizedClientException: "
        "The security token included in the request is invalid."
    )
    assert kinesis.replies == {"UnrecognizedClientException": 1}


async def test_a_role_is_told_with_its_end_and_its_refusal(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_aws(kinesis) as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws.url)
        sets = [f"endpoint_url={aws.url}", f"role_arn={ROLE}", FLIGHTS]
        refused = await checked(*sets, holds=False)
        assert refused[-1] == (
            "FAILED   credentials: assume-role: AssumeRole was answered with AccessDenied, status 403: "
            f"not authorized to perform sts:AssumeRole on {ROLE}"
        )
        aws.role = ROLE
        lines = await checked(*sets)
        ends = aws.now() + aws.lifetime
    told, _, at = lines[1].rpartition("; they expire at ")
    assert told == f"OK       credentials: by assume-role of {ROLE}, key ..."
    assert abs(datetime.fromisoformat(at) - ends) < timedelta(minutes=1)


async def test_where_there_are_no_credentials_it_says_where_they_were_looked_for(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    lines = await checked_at(kinesis, holds=False)
    assert len(lines) == 2
    assert lines[-1] == (
        "FAILED   credentials: Unable to locate credentials: AWS_EC2_METADATA_DISABLED turns the instance's metadata "
        "off, and nothing else provides any"
    )
    assert not kinesis.requests


async def test_credentials_that_do_not_come_are_waited_for_as_long_as_an_answer(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(_: RenewedCredentials) -> None:
        raise TimeoutError

    monkeypatch.setattr(RenewedCredentials, "get_frozen_credentials", late)
    lines = await checked_at(kinesis, holds=False)
    assert lines[1:] == ["FAILED   credentials: none within 10 s"]
    assert not kinesis.requests


def test_a_container_is_told_by_its_marks(tmp_path: Path) -> None:
    assert "hop limit" not in why_there_are_none({}, tmp_path)
    assert "hop limit" in why_there_are_none({"KUBERNETES_SERVICE_HOST": "h"}, tmp_path)
    (tmp_path / ".dockerenv").touch()
    assert "hop limit" in why_there_are_none({}, tmp_path)
    assert "hop limit" not in why_there_are_none({"AWS_EC2_METADATA_DISABLED": "True"}, tmp_path)


def test_a_key_is_masked() -> None:
    assert masked("AKIAABCDEFGHIJKLMNOP") == "AKIA...MNOP"
    assert masked("AKIA" + 8 * "B" + "MNOP") == "AKIA...MNOP"
    assert masked("AKIA" + 7 * "B" + "MNOP") == "..."
    assert masked("wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY") == "...", "a secret key in its place"


# ---- endpoints


async def test_a_clock_that_is_off_is_told(kinesis: FakeKinesis) -> None:
    async with serve(kinesis) as server:
        server.checks_clock = True
        server.clock_offset_seconds = 600.0
        lines = await checked(f"endpoint_url={server.url}", FLIGHTS)
    told = re.fullmatch(
        r"WARNING  this machine's clock is off by -(\d+) s: the daemon signs with the service's time", lines[-1]
    )
    assert told is not None
    assert 590 <= int(told[1]) <= 600


async def test_an_endpoint_that_nobody_serves_is_told_once(kinesis: FakeKinesis) -> None:
    async with serve(kinesis) as server:
        url = server.url
    lines = await checked(f"endpoint_url={url}", FLIGHTS, names=("more",), holds=False)
    assert len(lines) == 3, "more is not asked"
    assert lines[-1].startswith("FAILED   stream flights: DescribeStreamSummary: UNREACHABLE: Could not connect to")


@pytest.mark.promise("url-shown-login-query")
@pytest.mark.usefixtures("keys")
async def test_the_login_of_an_endpoint_is_not_shown(kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(kinesis) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.replace("//", f"//user:{SECRET.replace(' ', '')}@"))
        port = server.url.rpartition(":")[2]
    lines = await checked(FLIGHTS, holds=False)
    assert lines[0].startswith("OK       streams flights: region us-east-1, http://***@")
    assert any(f"http://***@127.0.0.1:{port}" in line for line in lines[1:])
    assert SECRET.replace(" ", "") not in "\n".join(lines)


@pytest.mark.promise("variable-url-refused")
async def test_an_access_that_cannot_work_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="AWS_REGION"):
        await check(load(None, (), {}), (), print)


async def test_a_client_that_cannot_be_made_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ready(_: AwsClient) -> None:
        raise OSError("a file of AWS cannot be read")

    monkeypatch.setattr(AwsClient, "ready", ready)
    assert await checked(FLIGHTS, holds=False) == ["FAILED   streams flights: a file of AWS cannot be read"]


# ---- the command


@pytest.fixture
def log_of_the_command() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("log_of_the_command")
def test_each_line_is_printed_at_once_and_the_result_says_whether_nothing_failed(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing of a log: the lines say it."""
    printed: list[tuple[str, bool]] = []
    monkeypatch.setattr(online, "print", lambda line, *, flush: printed.append((line, flush)), raising=False)
    config = load(None, ["region=us-east-1", f"endpoint_url={server.url}", FLIGHTS], {})
    assert online.run(config, ("flights",)) is True
    assert [line.split()[0] for line, _ in printed] == ["OK", "OK", "OK", "OK", "WARNING"]
    assert all(flushed for _, flushed in printed)
    assert online.run(config, ("flights",), deny_warnings=True) is False
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    printed.clear()
    assert online.run(config) is False
    assert [line.split()[0] for line, _ in printed] == ["OK", "FAILED"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_the_command_prints_as_it_goes_and_exits_by_what_failed(kinesis: FakeKinesis, server: FakeServer) -> None:
    def run(*arguments: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "producerd", "check", f"--set=endpoint_url={server.url}", *arguments],
            cwd=ROOT,
            env=os.environ | {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": SECRET},
            capture_output=True,
            text=True,
            timeout=60,
        )

    region = "--set=region=us-east-1"
    done = run(region, "--online", "--stream", "flights")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("OK: the settings hold\nregion: us-east-1\n")
    assert "\nOK       stream flights: 4 open shards; " in done.stdout
    assert done.stdout.endswith("\nOK: nothing failed\n")
    done = run(region, "--online", "--stream", "away")
    assert (done.returncode, done.stderr) == (1, "")
    assert "\nFAILED   stream away: " in done.stdout
    done = run(region, "--online", key="")
    assert (done.returncode, done.stderr) == (1, "")
    beyond = done.stdout.partition("\nOK       streams that are not listed: ")[2].splitlines()[1:]
    *lines, verdict = beyond
    assert [line[:22] for line in lines] == ["FAILED   credentials: ", "WARNING  no stream is "], "no line of a log"
    assert verdict == "FAILED: see above"


async def test_each_line_is_said_before_the_next_is_asked_for(kinesis: FakeKinesis) -> None:
    said: list[tuple[str, int]] = []

    def say(line: str) -> None:
        said.append((line, kinesis.requests.total()))

    async with serve(kinesis) as server:
        config = load(None, ["region=us-east-1", f"endpoint_url={server.url}", FLIGHTS], {})
        async with asyncio.timeout(30):
            await check(config, (), say)
    assert [asked for _, asked in said] == [0, 0, 1, 2, 2]
