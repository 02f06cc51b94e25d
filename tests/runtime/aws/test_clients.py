"""The daemon has one client for each way of reaching streams.  Hosts, proxies and certificates follow AWS's chain."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import structlog
from botocore.exceptions import BotoCoreError

from producerd import __version__
from producerd.config import Config, NodeSettings, StreamSettings
from producerd.core.failures import meaning_of
from producerd.core.sending.answers import Answer, RequestFailed
from producerd.errors import Code, ConfigurationError
from producerd.runtime.aws import internals, transport
from producerd.runtime.aws.clients import Access, access_of, accesses_of, open_clients
from producerd.runtime.aws.kinesis import AioKinesis
from producerd.runtime.kinesis import StreamSummary
from producerd.testing import FakeKinesis
from producerd.testing.certificate import self_signed
from producerd.testing.fake_kinesis import serve
from tests.runtime.aws.local_aws import LocalAws
from tests.runtime.aws.proxy import proxy
from tests.runtime.aws.reaching import BODY, FLIGHTS, access, fails, reached, reaching, request_of, stores

ARN = {"StreamARN": "arn:aws:kinesis:us-east-1:123456789012:stream/flights"}


# ---- which access


def test_a_streams_own_settings_come_before_the_nodes() -> None:
    node = NodeSettings(region="us-east-1", endpoint_url="http://a", role_arn=role("node"), external_id="42")
    assert access_of(node, StreamSettings()) == Access("us-east-1", "http://a", role("node"), "42")
    own = StreamSettings(region="eu-west-1", endpoint_url="http://b", role_arn=role("x"))
    assert access_of(node, own) == Access("eu-west-1", "http://b", role("x"), None), "the external id is the node's"
    arn = StreamSettings(stream_arn="arn:aws:kinesis:eu-north-1:123456789012:stream/x")
    assert access_of(node, arn).region == "eu-north-1"


def role(name: str) -> str:
    return f"arn:aws:iam::123456789012:role/{name}"


async def test_metrics_show_the_clock_that_is_most_off_and_all_refreshes(aws: LocalAws) -> None:
    async with open_clients([]) as clients:
        assert (clients.clock_offset_seconds, clients.credential_refreshes) == (0, {})
        ours = [clients.of(access(aws.url, region=f"us-east-{number}")) for number in (1, 2, 3)]
        for client, seconds in zip(ours, (5, -600, 60), strict=True):
            client.clock.offset = timedelta(seconds=seconds)
            await client.credentials.get_frozen_credentials()
        assert (clients.clock_offset_seconds, clients.credential_refreshes) == (-600, {"ok": 3})
        assert clients.troubles == [
            "this machine's clock is off by +600 s; requests are signed by the service's: set it"
        ]


@pytest.mark.parametrize(("role_arn", "of"), [(None, "the daemon"), (role("writer"), role("writer"))])
async def test_a_failure_of_credentials_says_whose_they_are(
    role_arn: str | None, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    async with open_clients([]) as clients:
        with structlog.testing.capture_logs() as log, pytest.raises(BotoCoreError):
            await clients.of(access(role_arn=role_arn)).credentials.get_frozen_credentials()
    assert [line["of"] for line in log if line["event"] == "credentials failed"] == [of]


async def test_requests_say_whose_they_are(aws: LocalAws) -> None:
    """In CloudTrail."""
    told: list[bytes] = []
    async with open_clients([access(aws.url)]) as clients:
        client = await clients.of(access(aws.url)).ready()
        client.meta.events.register(
            "before-send.kinesis", lambda request, **_: told.append(request.headers["User-Agent"])
        )
        await client.list_shards(**FLIGHTS)
    assert told[0].startswith(b"producerd/%b aiobotocore/" % __version__.encode())


async def test_there_is_one_client_for_each_access(aws: LocalAws) -> None:
    async with open_clients([access(aws.url)]) as clients:
        with ThreadPoolExecutor(1) as pool:
            one, other = clients.of(access(aws.url)), clients.of(access(aws.url, region="eu-west-1"))
            assert clients.of(access(aws.url)) is one
            assert one is not other
            await asyncio.gather(*(stores(AioKinesis(one, pool)) for _ in range(2)))
            made = await one.ready()
            assert await one.ready() is made
    before = aws.kinesis.requests["PutRecords"]
    failed = await fails(AioKinesis(one, pool))
    assert (failed.message.endswith("the daemon stops"), failed.maybe_stored) == (True, False)
    assert aws.kinesis.requests["PutRecords"] == before


# ---- settings that cannot work fail at the start


@pytest.mark.promise("variable-url-refused")
@pytest.mark.parametrize(
    ("variables", "over", "reason"),
    [
        ({}, {"region": None}, "AWS_REGION"),
        ({"AWS_PROFILE": "nobody"}, {}, "nobody"),
        ({"AWS_REGION": "EU West"}, {"region": None}, "EU West"),
        ({"AWS_CA_BUNDLE": "/nonexistent.pem"}, {}, "/nonexistent.pem"),
        ({"REQUESTS_CA_BUNDLE": __file__}, {}, f"AWS settings: {__file__}, .*: no certificates can be read"),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, {"endpoint_url": "https://here"}, "AWS_USE_FIPS_ENDPOINT"),
        ({"AWS_ENDPOINT_URL": "localhost:4599"}, {}, "AWS settings: Invalid endpoint: localhost:4599$"),
        ({"AWS_ENDPOINT_URL_KINESIS": "me:s3cret@here"}, {}, r"AWS settings: Invalid endpoint: \*\*\*@here$"),
        ({"AWS_ENDPOINT_URL": "ftp://me:s3cret@here"}, {}, r"AWS settings: Invalid endpoint: ftp://\*\*\*@here$"),
        ({"AWS_MAX_ATTEMPTS": "abc"}, {}, "AWS settings: invalid literal for int"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
async def test_an_access_that_cannot_work_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], over: dict[str, Any], reason: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=reason):
        async with open_clients([access(**over), access(**over)]):
            pass


@pytest.mark.promise("variable-url-refused")
async def test_an_endpoint_of_aws_s_file_that_is_not_a_url_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_endpoint(monkeypatch, tmp_path, "localhost:4599")
    with pytest.raises(ConfigurationError, match="Invalid endpoint: see the config file of AWS"):
        async with open_clients([access()]):
            pass


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
async def test_the_region_may_come_from_the_environment(
    aws: LocalAws, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "eu-north-1")
    async with reaching(aws.url, region=None) as client:
        await stores(client)


def test_a_region_is_needed_for_streams_that_nobody_listed_only_where_these_may_be_opened() -> None:
    listed = {"x": StreamSettings(region="eu-west-1")}
    assert [one.region for one in accesses_of(Config(NodeSettings(), StreamSettings(), listed))] == ["eu-west-1", None]
    only = NodeSettings(streams_allowed="listed")
    assert [one.region for one in accesses_of(Config(only, StreamSettings(), listed))] == ["eu-west-1"]


# ---- hosts, proxies, certificates


@pytest.mark.promise("bundle-extended-read")
@pytest.mark.parametrize("source", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "profile"])
async def test_a_bundle_that_is_extended_is_read_again_when_a_certificate_is_refused(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    monkeypatch.setattr(transport, "REREAD_SECONDS", 0.0)
    _, other = self_signed(tmp_path, "other.test")
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(other.read_bytes())
    if source == "profile":
        (tmp_path / "config").write_text(f"[default]\nca_bundle = {bundle}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    else:
        monkeypatch.setenv(source, str(bundle))
    async with serve(kinesis, tls=True) as server, reaching(server.url) as client:
        assert server.certificate is not None
        for unreadable in (other.read_bytes(), b"half of a file"):
            bundle.write_bytes(unreadable)
            failed = await fails(client)
            assert (failed.code, "certificate verify failed" in failed.message) == (Code.UNREACHABLE, True)
        bundle.write_bytes(server.certificate.read_bytes() + other.read_bytes())
        await stores(client)


async def test_a_refused_certificate_has_the_bundle_read_at_most_every_few_seconds(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, other = self_signed(tmp_path, "other.test")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(other))
    monkeypatch.setattr(internals, "tls_of", read := MagicMock(side_effect=internals.tls_of))
    async with serve(kinesis, tls=True) as server, reaching(server.url) as client:
        for _ in range(5):
            assert isinstance(await client.put_records(FLIGHTS, request_of(), 5), RequestFailed)
    assert read.call_count == 2


@pytest.mark.promise("bundle-extended-read")
async def test_a_reload_reads_the_bundle_of_every_client_and_names_the_file_that_has_others(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with serve(kinesis, tls=True) as server, open_clients([]) as clients:
        assert server.certificate is not None
        bundle = tmp_path / "bundle.pem"
        bundle.write_bytes(server.certificate.read_bytes())
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
        with ThreadPoolExecutor(1) as pool:
            client = AioKinesis(clients.of(access(server.url)), pool)
            assert await clients.read_certificates() == []
            await stores(client)
            assert await clients.read_certificates() == []
            _, other = self_signed(tmp_path, "other.test")
            bundle.write_bytes(other.read_bytes())
            assert await clients.read_certificates() == [f"certificates: {bundle} has others"]
            await stores(client)  # over what is open
            bundle.write_bytes(b"not a certificate")
            with pytest.raises(ConfigurationError, match=str(bundle)):
                await clients.read_certificates()


@pytest.mark.parametrize(
    ("variables", "over", "address", "hosts"),
    [
        ({}, {}, FLIGHTS, ("kinesis.us-east-1.amazonaws.com",) * 2),
        ({}, {"region": "cn-north-1"}, FLIGHTS, ("kinesis.cn-north-1.amazonaws.com.cn",) * 2),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, {}, FLIGHTS, ("kinesis-fips.us-east-1.amazonaws.com",) * 2),
        (
            {},
            {},
            ARN,
            (
                "123456789012.data-kinesis.us-east-1.amazonaws.com",
                "123456789012.control-kinesis.us-east-1.amazonaws.com",
            ),
        ),
        (
            {"AWS_ACCOUNT_ID": "210987654321"},
            {},
            FLIGHTS,
            (
                "210987654321.data-kinesis.us-east-1.amazonaws.com",
                "210987654321.control-kinesis.us-east-1.amazonaws.com",
            ),
        ),
        (
            {"AWS_ACCOUNT_ID": "210987654321", "AWS_ACCOUNT_ID_ENDPOINT_MODE": "disabled"},
            {},
            FLIGHTS,
            ("kinesis.us-east-1.amazonaws.com",) * 2,
        ),
        ({}, {"endpoint_url": "https://vpce-1.kinesis.here"}, ARN, ("vpce-1.kinesis.here",) * 2),
        ({}, {"endpoint_url": "https://vpce-1.kinesis.here"}, FLIGHTS, ("vpce-1.kinesis.here",) * 2),
    ],
    ids=["region", "partition", "FIPS", "ARN", "account", "account off", "ARN and endpoint_url", "endpoint_url"],
)
async def test_which_hosts_are_called(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    over: dict[str, Any],
    address: dict[str, str],
    hosts: tuple[str, str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with proxy(monkeypatch) as between, reaching(**over) as client:
        failed = await client.put_records(address, request_of(), 5)
        assert isinstance(failed, RequestFailed)
        assert (failed.code, failed.maybe_stored, failed.timed_out) == (Code.UNREACHABLE, False, False)
        await client.list_shards(address)
        await client.describe_stream_summary(address)
    data, control = (f"{host}:443" for host in hosts)
    assert between.asked == [data, control, control]


async def test_a_stream_is_reached_by_its_arn(aws: LocalAws) -> None:
    address = {"StreamARN": aws.kinesis.streams["flights"].arn}
    body = BODY.replace(b'"StreamName":"flights"', b'"StreamARN":"%s"' % address["StreamARN"].encode())
    async with reaching(aws.url) as client:
        assert isinstance(await client.put_records(address, request_of(body), 5), Answer)
        assert isinstance(await client.list_shards(address), list)
        assert isinstance(await client.describe_stream_summary(address), StreamSummary)
    assert len(aws.kinesis.streams["flights"].entries()) == 2


@pytest.mark.promise("requests-aws-encrypted")
async def test_a_file_of_aws_that_names_an_unencrypted_endpoint_of_aws_sends_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No setting and no variable of ours says so, and botocore would go there."""
    write_endpoint(monkeypatch, tmp_path, "http://kinesis.us-east-1.amazonaws.com")
    async with reached() as (kinesis, client):
        for _ in range(2):
            tried = await kinesis.try_storing(FLIGHTS, aggregates=False)
            assert tried.failed is not None
            assert meaning_of(tried.failed.code).code == Code.CONFIGURATION
            assert "must be encrypted" in tried.failed.message
        assert not client.is_aws


async def test_a_client_whose_endpoint_is_refused_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each try makes another one, so that a corrected file is noticed."""
    closed: list[transport.Transport] = []
    close = transport.Transport.__aexit__

    async def note(one: transport.Transport, *raised: object) -> None:
        closed.append(one)
        await close(one, *raised)

    monkeypatch.setattr(transport.Transport, "__aexit__", note)
    write_endpoint(monkeypatch, tmp_path, "http://kinesis.us-east-1.amazonaws.com")
    async with reached() as (_, client):
        for times in (1, 2):
            with pytest.raises(ConfigurationError):
                await client.ready()
            assert len(set(closed)) == times
        write_endpoint(monkeypatch, tmp_path, "")
        await client.ready()
        assert client.is_aws
        assert len(set(closed)) == 2
    assert len(set(closed)) == 3


def write_endpoint(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str) -> None:
    """Have AWS's own file name an endpoint, if the URL is not empty."""
    (folder / "config").write_text("[default]\n" + (f"endpoint_url = {url}\n" if url else ""))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
