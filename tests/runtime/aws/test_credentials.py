"""While credentials rotate, expire, are refused or are absent, the daemon uses the valid ones, and then recovers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from errno import EHOSTUNREACH
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials, AioRefreshableCredentials
from aiobotocore.session import get_session
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES
from botocore.exceptions import NoCredentialsError
from structlog.testing import capture_logs

from producerd.config.tuning import TUNING
from producerd.core.failures import CREDENTIALS_LATE, meaning_of
from producerd.errors import Code
from producerd.runtime.aws import clients
from producerd.runtime.aws import credentials as module
from producerd.runtime.aws.clock import ServiceClock
from producerd.runtime.aws.credentials import RenewedCredentials, role_session
from producerd.runtime.aws.errors import CredentialsFailed
from producerd.runtime.aws.kinesis import AioKinesis
from producerd.testing import FakeKinesis
from tests.daemon import PATIENCE_SECONDS, until_on_loop
from tests.runtime.aws.local_aws import LocalAws, secret_of
from tests.runtime.aws.mute import mute
from tests.runtime.aws.reaching import fails, reached, reaching, stores

ROLE = "arn:aws:iam::123456789012:role/producer"
KEYS = "aws_access_key_id = A\naws_secret_access_key = secret"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals need not wait for each other."""
    monkeypatch.setattr(module, "RENEWAL_SECONDS", 0.0)


async def refusal(client: AioKinesis) -> str:
    """The code (`producerd.errors.Code`) of a put that fails, of which nothing may be stored."""
    failed = await fails(client)
    assert not failed.maybe_stored
    return meaning_of(failed.code).code


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has no keys either."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], int]:
    """Write AWS's file of profiles."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return (tmp_path / "config").write_text


def write_keys(path: Path, key: str) -> None:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret_of(key)}\n")


# ---- the standard chain


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("place", ["home", "named"])
async def test_keys_that_are_rotated_in_a_file_are_read_after_the_old_ones_are_refused(
    aws: LocalAws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    path = tmp_path / ".aws" / "credentials"
    path.parent.mkdir()
    if place == "named":
        path = tmp_path / "elsewhere"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    write_keys(path, "A")
    async with reaching(aws.url) as client:
        aws.keys = {"A"}
        await stores(client)
        aws.keys = {"B"}
        assert await refusal(client) == Code.CREDENTIALS
        assert await refusal(client) == Code.CREDENTIALS
        write_keys(path, "B")
        await stores(client)
        aws.keys = {"C"}
        write_keys(path, "C")
        await stores(client)
    assert aws.used == {"A": 1, "B": 1, "C": 1}


@pytest.mark.usefixtures("at_once")
async def test_a_container_endpoint_that_fails_for_a_while(aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0.01)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{aws.url}/container")
    async with reaching(aws.url) as client:
        with capture_logs() as logs:
            assert await refusal(client) == Code.CREDENTIALS
            assert await refusal(client) == Code.CREDENTIALS
            aws.keys, aws.container_key = {"A", "B"}, "A"
            aws.container_lifetime = timedelta(minutes=12)  # already to be refreshed
            await stores(client)
            aws.container_key = ""
            async with asyncio.timeout(10):
                while logs[-1]["event"] != "credentials failed":
                    await stores(client)  # what is still valid serves
            aws.container_key = "B"
            async with asyncio.timeout(10):
                while not aws.used["B"]:
                    await stores(client)
    assert aws.used["A"] >= 2
    told = [(line["log_level"], line["event"]) for line in logs if line["log_level"] != "debug"]
    assert told == 2 * [("warning", "credentials failed"), ("info", "credentials works again")]


@pytest.mark.usefixtures("no_keys")
async def test_a_file_that_is_being_written_is_a_failure_to_get_credentials(
    aws: LocalAws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "half").write_text("[default]\naws_access_key_id = A\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "half"))
    async with reaching(aws.url) as client:
        assert await refusal(client) == Code.CREDENTIALS


VARIABLES = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_SESSION_TOKEN": "t0ken"}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("end", ["\n", "\r\nHost: x", "\x7f"])
@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("role_arn", [None, ROLE])
async def test_a_part_of_the_keys_that_cannot_be_sent_is_named_without_its_value(
    aws: LocalAws, monkeypatch: pytest.MonkeyPatch, variable: str, end: str, role_arn: str | None
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value + end * (name == variable))
    async with reaching(aws.url, role_arn=role_arn) as client:
        failed = await fails(client)
    assert failed.code == Code.CREDENTIALS
    assert f"from env: {variable} has a line break" in failed.message
    assert VARIABLES[variable] not in failed.message.replace(variable, "").replace("AWS_", "")


async def test_a_required_account_that_is_not_there_is_a_wrong_setting(
    kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCOUNT_ID_ENDPOINT_MODE", "required")
    async with reaching() as client:
        failed = await fails(client)
    assert failed.code == Code.CONFIGURATION
    assert "AWS_ACCOUNT_ID_ENDPOINT_MODE is required" in failed.message


@pytest.mark.promise("profile-asks-code-refused")
@pytest.mark.usefixtures("no_keys")
async def test_a_profile_that_asks_for_a_code_is_refused_and_never_asks(
    aws: LocalAws, monkeypatch: pytest.MonkeyPatch, config: Callable[[str], int]
) -> None:
    """botocore would ask at the terminal, and nothing would go on until a person answers."""
    monkeypatch.setattr("getpass.getpass", lambda _: pytest.fail("it asks"))
    asks = "mfa_serial = arn:aws:iam::1:mfa/me\nsource_profile = keys"
    config(f"[default]\nrole_arn = {ROLE}\n{asks}\n[profile keys]\n{KEYS}\n")
    async with reaching(aws.url) as client:
        failed = await fails(client)
    assert failed.code == Code.CREDENTIALS
    assert "use a profile without mfa_serial" in failed.message


# ---- sources that hang


@pytest.mark.promise("endpoint-metadata-hangs")
@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("variable", "path"),
    [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "/container"), ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "/")],
    ids=["container", "instance"],
)
async def test_an_endpoint_of_metadata_that_hangs_is_late_and_no_refusal(
    variable: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    short = ("metadata_service_timeout", "AWS_METADATA_SERVICE_TIMEOUT", 0.1, float)
    monkeypatch.setitem(BOTOCORE_DEFAUT_SESSION_VARIABLES, "metadata_service_timeout", short)
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0.01)
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.TIMEOUT_SECONDS", 0.1)
    with mute() as port:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{port}{path}")
        async with reaching("http://127.0.0.1:1") as client:
            failed = await fails(client)
    assert failed.code == CREDENTIALS_LATE
    assert "no answer in time" in failed.message


WAYS_TO_STS = {
    "role_arn": f"[default]\n{KEYS}\n",
    "profile": f"[default]\nrole_arn = {ROLE}\nsource_profile = keys\n[profile keys]\n{KEYS}\n",
    "web identity": f"[default]\nrole_arn = {ROLE}\nweb_identity_token_file = {{folder}}/token\n",
}


@pytest.mark.promise("endpoint-metadata-hangs")
@pytest.mark.usefixtures("at_once", "no_keys")
@pytest.mark.parametrize("of", WAYS_TO_STS)
async def test_a_hung_sts_is_given_up_within_seconds_and_waited_for_like_kinesis(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: Callable[[str], int], of: str
) -> None:
    monkeypatch.setattr(clients, "SOURCES", module.SOURCES.merge(AioConfig(read_timeout=0.1)))
    (tmp_path / "token").write_text("token")
    config(WAYS_TO_STS[of].format(folder=tmp_path))
    with mute() as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{port}")
        async with reaching("http://127.0.0.1:1", role_arn=ROLE if of == "role_arn" else None) as client:
            failed = await fails(client)
    assert failed.code == Code.UNREACHABLE
    assert f'Read timeout on endpoint URL: "http://127.0.0.1:{port}' in failed.message


def test_a_request_to_a_source_ends_before_its_renewal_and_a_grace_has_room_for_several() -> None:
    request = module.SOURCES.connect_timeout + module.SOURCES.read_timeout
    assert request < module.RENEWAL_TIMEOUT_SECONDS <= TUNING.permanent_error_grace_seconds / 4


# ---- a process that provides them


PROFILES = {
    "of its own": "[profile used]\ncredential_process = {process}\n",
    "of a role's source": f"[profile used]\nrole_arn = {ROLE}\nsource_profile = source\n"
    "[profile source]\ncredential_process = {process}\n",
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("at_once", "no_keys")
@pytest.mark.parametrize("profile", PROFILES)
async def test_a_credential_process_that_hangs_is_killed_when_it_is_given_up(
    profile: str, aws: LocalAws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: Callable[[str], int]
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "used")
    monkeypatch.setattr(module, "HELPER_TIMEOUT_SECONDS", 0.3)
    started = tmp_path / "started"
    process = f"sh -c 'echo $$ >> {started}; exec sleep 600'"
    config(PROFILES[profile].format(process=process))
    async with reaching(aws.url) as client:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not started.exists() or len(started.read_text().split()) < 2:
                assert await refusal(client) == Code.CREDENTIALS
        await until_on_loop(lambda: not any(Path("/proc", pid).exists() for pid in started.read_text().split()))


@pytest.mark.usefixtures("no_keys")
async def test_the_keys_that_a_credential_process_prints_are_used(aws: LocalAws, config: Callable[[str], int]) -> None:
    printed = json.dumps({"Version": 1, "AccessKeyId": "A", "SecretAccessKey": secret_of("A")})
    config(f"[default]\ncredential_process = echo '{printed}'\n")
    async with reaching(aws.url) as client:
        aws.keys = {"A"}
        await stores(client)


# ---- a role on top of it


@pytest.mark.promise("session-name-host-aws")
@pytest.mark.parametrize("host", ["node-7.example", "ip-10-0-0-1", "a b/c\xe9", "x" * 200, ""])
def test_the_session_s_name_has_the_host_and_is_one_that_aws_takes(host: str) -> None:
    name = role_session(host)
    assert re.fullmatch(r"[a-zA-Z0-9_+=,.@-]{2,64}", name)
    assert name.startswith("producerd-")
    assert host[:9].replace(" ", "-").replace("/", "-").replace("\xe9", "-") in name


@pytest.mark.usefixtures("at_once")
async def test_a_role_is_assumed_by_its_external_id_and_again_before_it_expires(aws: LocalAws) -> None:
    aws.role, aws.external_id = ROLE, "42"
    async with reaching(aws.url, role_arn=ROLE, external_id="42") as client:
        await stores(client)
        await stores(client)
        assert [asked["RoleSessionName"] for asked in aws.assumed] == [role_session(socket.gethostname())]
    aws.lifetime = timedelta(minutes=14)  # within what is refreshed early
    async with reaching(aws.url, role_arn=ROLE, external_id="42") as client:
        await stores(client)
        await stores(client)
        await until_on_loop(lambda: len(aws.assumed) >= 3)
    assert "testing" not in aws.used


@pytest.mark.usefixtures("at_once")
async def test_a_role_that_may_not_be_assumed_is_told_in_the_services_words(aws: LocalAws) -> None:
    aws.role, aws.external_id = ROLE, "42"
    async with reaching(aws.url, role_arn=ROLE) as client:
        failed = await fails(client)
        assert meaning_of(failed.code).code == Code.ACCESS_DENIED
        assert "sts:AssumeRole" in failed.message
        aws.external_id = ""  # the role's trust policy is fixed
        await stores(client)


@pytest.mark.usefixtures("at_once")
async def test_keys_that_assume_a_role_may_be_rotated(
    aws: LocalAws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    write_keys(tmp_path / "keys", "A")
    aws.role, aws.keys = ROLE, {"A"}
    async with reaching(aws.url, role_arn=ROLE) as client:
        await stores(client)
        aws.keys = {"B"}
        assert await refusal(client) == Code.CREDENTIALS
        assert await refusal(client) == Code.CREDENTIALS  # STS takes A no more
        write_keys(tmp_path / "keys", "B")
        await stores(client)


# ---- renewal


class Chain:
    """Stands in for the chain: hands out the credentials that a test gives it, when the test gives them."""

    def __init__(self) -> None:
        self.walks = 0
        self.walked = asyncio.Event()
        self.walked.set()
        self.found: Any = AioCredentials("A", "secret")
        self.clock = ServiceClock()

    def pass_seconds(self, seconds: float) -> None:
        self.clock.offset += timedelta(seconds=seconds)

    async def walk(self) -> Any:
        self.walks += 1
        await self.walked.wait()
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@asynccontextmanager
async def renewed(chain: Chain) -> AsyncIterator[RenewedCredentials]:
    async with asyncio.TaskGroup() as tasks:
        credentials = RenewedCredentials(chain.walk, chain.clock, tasks, of="test")
        yield credentials
        credentials.close()


def expiring(seconds: float, refresh: Callable[[], Awaitable[Any]]) -> AioRefreshableCredentials:
    ends = datetime.now(UTC) + timedelta(seconds=seconds)
    return AioRefreshableCredentials("A", "secret", "token", ends, refresh, "test")


async def key_of(credentials: RenewedCredentials) -> str:
    frozen = await credentials.get_frozen_credentials()
    assert frozen is not None
    key: str = frozen.access_key
    return key


async def test_the_chain_is_walked_once_for_all_and_again_only_after_a_refusal_and_a_while() -> None:
    chain = Chain()
    async with renewed(chain) as credentials:
        assert await asyncio.gather(*(key_of(credentials) for _ in range(20))) == ["A"] * 20
        for _ in range(20):
            credentials.doubt(credentials.found)
            await key_of(credentials)
        assert chain.walks == 1


@pytest.mark.usefixtures("at_once")
async def test_each_request_with_refused_keys_may_go_again_once_others_are_looked_for_or_found() -> None:
    chain = Chain()
    async with renewed(chain) as credentials:
        assert await key_of(credentials) == "A"
        refused = credentials.found
        assert refused is not None
        assert not credentials.may_replace(refused)
        chain.found = AioCredentials("B", "secret")
        credentials.doubt(credentials.found)
        assert credentials.may_replace(refused), "they are looked for"
        assert await key_of(credentials) == "B"
        assert credentials.may_replace(refused), "they are found"
        found = credentials.found
        assert found is not None
        credentials.doubt(refused)  # by an answer that comes late
        assert not credentials.may_replace(found)


@pytest.mark.usefixtures("at_once")
async def test_a_walk_goes_on_when_the_request_that_began_it_gives_up() -> None:
    chain = Chain()
    chain.walked.clear()
    async with renewed(chain) as credentials:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await credentials.get_frozen_credentials()
        chain.walked.set()
        assert await key_of(credentials) == "A"
        assert chain.walks == 1


@pytest.mark.promise("endpoint-metadata-hangs")
@pytest.mark.usefixtures("at_once")
async def test_what_still_holds_serves_also_after_a_renewal_that_failed_while_the_next_one_hangs() -> None:
    chain = Chain()

    async def refresh() -> Any:
        raise OSError("the endpoint is away")

    chain.found = expiring(400, refresh)  # for botocore a refresh is mandatory
    async with renewed(chain) as credentials:
        with pytest.raises(CredentialsFailed):
            await key_of(credentials)
        chain.found = expiring(4_000, refresh)
        assert "there are no valid credentials of test: " in credentials.trouble
        assert await key_of(credentials) == "A"
        assert credentials.trouble == ""
        chain.pass_seconds(3_600)
        assert await key_of(credentials) == "A"
        await until_on_loop(lambda: credentials.refreshes["failed"] == 2)
        assert re.match(
            r"do not restart, .+ the credentials of test serve until \S+Z, but are not renewed: ", credentials.trouble
        )
        chain.walked.clear()
        async with asyncio.timeout(5):
            assert [await key_of(credentials) for _ in range(5)] == ["A"] * 5
        assert not credentials.are_awaited


@pytest.mark.parametrize(
    ("profiles", "name", "helper"),
    [
        ("", "default", False),
        ("[default]\ncredential_process = x\n", "default", True),
        ("[default]\ncredential_process = x\n[profile other]\nregion = x\n", "other", False),
        ("[profile a]\nsource_profile = b\n[profile b]\ncredential_process = x\n", "a", True),
        ("[profile a]\nsource_profile = b\n[profile b]\nsource_profile = a\n", "a", False),
    ],
)
def test_a_credential_process_may_be_of_a_profile_or_of_its_source(
    config: Callable[[str], int], profiles: str, name: str, helper: bool
) -> None:
    config(profiles)
    session = get_session()
    session.set_config_variable("profile", name)
    assert module.uses_helper(session) is helper


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("helper", [False, True])
async def test_a_walk_that_never_ends_is_given_up_and_begun_again(
    monkeypatch: pytest.MonkeyPatch, helper: bool
) -> None:
    """A chain with a credential process has more time."""
    assert (module.RENEWAL_TIMEOUT_SECONDS, module.HELPER_TIMEOUT_SECONDS) == (10.0, 60.0)
    monkeypatch.setattr(module, "RENEWAL_TIMEOUT_SECONDS", 3_600.0 if helper else 0.01)
    monkeypatch.setattr(module, "HELPER_TIMEOUT_SECONDS", 0.01 if helper else 3_600.0)
    chain = Chain()
    chain.walked.clear()
    async with renewed(chain) as credentials:
        asked = asyncio.create_task(key_of(credentials))
        await until_on_loop(lambda: chain.walks == 1)
        credentials.has_helper(helper)
        with pytest.raises(CredentialsFailed, match="no answer in time"):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asked
        chain.walked.set()
        assert await key_of(credentials) == "A"


async def test_a_walk_that_is_being_given_up_has_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEWAL_TIMEOUT_SECONDS", 0.005)
    chain = Chain()
    chain.walked.clear()
    async with renewed(chain) as credentials:
        asked = asyncio.create_task(key_of(credentials))
        await until_on_loop(lambda: chain.walks == 1)
        time.sleep(0.01)  # the loop stands still, so that the time is over  # noqa: ASYNC251
        await asyncio.sleep(0)
        credentials.has_helper(False)
        with pytest.raises(CredentialsFailed, match="no answer in time"):
            await asked
        chain.walked.set()


@pytest.mark.usefixtures("at_once")
async def test_what_has_expired_and_cannot_be_renewed_is_an_error_and_what_has_not_expired_is_used() -> None:
    chain, fails = Chain(), False

    async def refresh() -> Any:
        if fails:
            raise OSError(EHOSTUNREACH, "the words of the source")
        return {"access_key": "B", "secret_key": "s", "token": "t", "expiry_time": soon.isoformat()}

    soon = datetime.now(UTC) + timedelta(seconds=500)  # a refresh is due, and for botocore it is mandatory
    chain.found = expiring(400, refresh)
    async with renewed(chain) as credentials:
        assert await key_of(credentials) == "B"
        fails = True
        assert await key_of(credentials) == "B"
        await until_on_loop(lambda: credentials.refreshes["failed"] == 1)
        chain.found = OSError(EHOSTUNREACH, "the words of the source")
        assert await key_of(credentials) == "B"
        chain.pass_seconds(501)
        with pytest.raises(CredentialsFailed, match=r"^credentials: OSError \(No route to host\)$"):
            await key_of(credentials)
        chain.found = AioCredentials("C", "secret")
        assert await key_of(credentials) == "C"


async def test_what_has_expired_only_by_a_wrong_clock_has_not_expired() -> None:
    chain = Chain()
    chain.found = expiring(-1_800, never)
    chain.pass_seconds(-3_600)
    async with renewed(chain) as credentials:
        assert await key_of(credentials) == "A"


async def never() -> Any:
    raise AssertionError("nothing is to be refreshed")


@pytest.mark.usefixtures("at_once")
async def test_credentials_that_are_not_there_yet_are_looked_for_again() -> None:
    chain = Chain()
    chain.found = None
    async with renewed(chain) as credentials:
        for _ in range(2):
            with pytest.raises(NoCredentialsError):
                await credentials.get_account_id()
        chain.found = AioCredentials("A", "secret", account_id="123456789012")
        assert await credentials.get_account_id() == "123456789012"
        assert chain.walks == 3
        assert credentials.refreshes == {"failed": 2, "ok": 1}


# ---- what is to be known of them


async def test_when_they_expire_is_known_without_asking_for_them(aws: LocalAws) -> None:
    async with reached(aws.url, role_arn=ROLE) as (client, of):
        aws.role = ROLE
        assert (of.credentials.expires_at, of.credentials.method) == (None, "")
        assert not aws.assumed
        await stores(client)
        ends = (aws.now() + aws.lifetime).timestamp()
        assert of.credentials.expires_at is not None
        assert abs(of.credentials.expires_at - ends) < 60
        assert of.credentials.method == "assume-role"


@pytest.mark.parametrize(("draw", "seconds"), [(min, 4.0), (max, 6.0)])
async def test_between_two_renewals_are_five_seconds_give_or_take_a_fifth(
    monkeypatch: pytest.MonkeyPatch, draw: Callable[[float, float], float], seconds: float
) -> None:
    now = 100.0
    monkeypatch.setattr(module, "uniform", draw)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(time=lambda: now))
    chain = Chain()
    async with renewed(chain) as credentials:
        for later, walks in ((0.0, 1), (seconds - 0.01, 1), (seconds, 2)):
            credentials.doubt(credentials.found)
            now = 100.0 + later
            asked = asyncio.create_task(credentials.get_frozen_credentials())
            await asyncio.wait({asked}, timeout=PATIENCE_SECONDS)
            assert (chain.walks, asked.done()) == (walks, True)
