"""Nothing that a source of credentials says is repeated, however it fails: not in the log, and not in an error."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, CredentialRetrievalError, InvalidConfigError, UnauthorizedSSOTokenError

from producerd.core.failures import meaning_of_answer
from producerd.core.sending.answers import RequestFailed
from producerd.errors import Code, ConfigurationError
from producerd.runtime import logs
from producerd.runtime.aws import credentials as module
from producerd.runtime.aws.errors import CredentialsFailed, credentials_failed, failure_of
from producerd.runtime.aws.sources import words_of
from tests.runtime.aws.leaky import (
    EXTERNAL_ID,
    IN_JSON,
    JWT,
    KEY,
    LOGIN,
    OF_STS,
    PORTAL,
    ROLE,
    TOKEN,
    answers,
    lines_with_secrets,
    service,
)
from tests.runtime.aws.reaching import FLIGHTS, reached, request_of

OF_METADATA = [
    *answers(
        json.dumps(IN_JSON),
        json.dumps({**IN_JSON, "Expiration": KEY}),
        json.dumps({"Code": KEY, "Message": TOKEN, "message": KEY}),
        json.dumps([KEY, TOKEN]),
        f'"{KEY}"',
    )
]
OF_SSO = [
    *answers(
        json.dumps(PORTAL),
        json.dumps({"roleCredentials": {"secretAccessKey": KEY, "sessionToken": TOKEN}}),
        json.dumps({"__type": KEY, "message": TOKEN}),
    )
]
SOURCES = {
    "STS": OF_STS,
    "web identity": OF_STS,
    "container": OF_METADATA,
    "IMDS": OF_METADATA,
    "SSO": OF_SSO,
}


@pytest.fixture(autouse=True)
def failures(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What renewals failed with.  They need not wait for each other."""
    made: list[Exception] = []

    def note(error: Exception, method: str) -> Exception:
        made.append(credentials_failed(error, method))
        return made[-1]

    monkeypatch.setattr(module, "credentials_failed", note)
    monkeypatch.setattr(module, "RENEWAL_SECONDS", 0.0)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0.0)
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.RETRY_ATTEMPTS", 1)
    return made


def lead_to(source: str, url: str, patch: pytest.MonkeyPatch, home: Path) -> dict[str, Any]:
    """Set the environment and the files so that credentials come from this source; return what an access has."""
    if source == "STS":
        patch.setenv("AWS_ENDPOINT_URL_STS", url)
        return {"role_arn": ROLE, "external_id": EXTERNAL_ID}
    patch.delenv("AWS_ACCESS_KEY_ID")
    if source == "web identity":
        (home / "jwt").write_text(JWT)
        for name, value in (("ENDPOINT_URL_STS", url), ("WEB_IDENTITY_TOKEN_FILE", f"{home}/jwt"), ("ROLE_ARN", ROLE)):
            patch.setenv(f"AWS_{name}", value)
    elif source == "container":
        patch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/{LOGIN}")
        patch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", JWT)
    elif source == "IMDS":
        patch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        patch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
    elif source == "SSO":
        start = "https://start.example"
        write_config(home, patch, f"sso_start_url={start}\nsso_region=eu-west-1\nsso_account_id=1\nsso_role_name=r")
        patch.setattr("botocore.credentials.SSOProvider._SSO_TOKEN_CACHE_DIR", str(home))  # made of HOME at the import
        login = {"accessToken": LOGIN, "expiresAt": "2099-01-01T00:00:00Z", "startUrl": start, "region": "eu-west-1"}
        (home / f"{hashlib.sha1(start.encode()).hexdigest()}.json").write_text(json.dumps(login))
        patch.setenv("AWS_ENDPOINT_URL_SSO", url)
    return {}


def write_config(home: Path, patch: pytest.MonkeyPatch, text: str) -> None:
    (home / "config").write_text(f"[default]\n{text}\n")
    patch.setenv("AWS_CONFIG_FILE", str(home / "config"))


async def told_by(
    url: str, over: dict[str, Any], changes: Iterable[Callable[[], object]], failures: list[Exception]
) -> list[str]:
    """All that comes out about credentials while each change comes in turn, at the log's finest level."""
    said = []
    with logs.running("debug", "text"):
        async with reached(url, **over) as (client, of):
            for change in changes:
                change()
                answer = await client.put_records(FLIGHTS, request_of(), 10)
                assert isinstance(answer, RequestFailed)
                said.append(repr(answer))
                of.credentials.doubt(of.credentials.found)
    for error in failures:
        said += traceback.format_exception(error)
        assert (error.__cause__, error.__context__) == (None, None)
    return said


@pytest.mark.promise("nothing-service-answers")
@pytest.mark.parametrize("source", SOURCES)
async def test_nothing_that_a_service_answers_is_repeated(
    source: str,
    failures: list[Exception],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with service() as serving:
        over = lead_to(source, serving.url, monkeypatch, tmp_path)

        def give(status: int, body: str) -> None:
            serving.status, serving.body = status, body

        changes = (partial(give, *one) for one in SOURCES[source])
        said = await told_by(serving.url, over, changes, failures)
        assert serving.asked >= len(SOURCES[source]), "each was an answer"
    said += capfd.readouterr()
    assert "credentials failed" in said[-1]
    assert lines_with_secrets("".join(said)) == []


@pytest.mark.promise("nothing-service-answers")
async def test_nothing_that_a_process_prints_is_repeated(
    failures: list[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    (tmp_path / "run").write_text("cat $0.out; cat $0.err >&2; exit $(cat $0.code)")
    write_config(tmp_path, monkeypatch, f"credential_process = sh {tmp_path}/run")
    whole = json.dumps({"Version": 1, **IN_JSON})
    prints = [("", whole, 1), (whole, "", 1), (whole[:-20], "", 0), (json.dumps({"Version": KEY, "x": TOKEN}), "", 0)]
    prints += [(json.dumps([KEY]), "", 0), (f"{KEY}={TOKEN}", "", 0), (whole.replace("2099-01-01", KEY), "", 0)]

    def write(out: str, err: str, code: int) -> None:
        for end, text in (("out", out), ("err", err), ("code", str(code))):
            (tmp_path / f"run.{end}").write_text(text)

    async with service() as serving:
        said = await told_by(serving.url, {}, (partial(write, *one) for one in prints), failures)
    said += capfd.readouterr()
    assert "Error when retrieving credentials from custom-process; run its credential_process" in said[0]
    assert lines_with_secrets("".join(said)) == []


PROFILES = [
    f"aws_access_key_id = {KEY}",
    f"aws_access_key_id = A\naws_secret_access_key = {KEY}\naws_session_token",
    f"role_arn = {KEY}\nsource_profile = {TOKEN}",
    f"role_arn = {ROLE}\ncredential_source = {KEY}",
    f"role_arn = {ROLE}\nsource_profile = other\n[profile other]\naws_secret_access_key = {KEY}",
    f"role_arn = {ROLE}\nweb_identity_token_file = /{KEY}/{TOKEN}",
    f"credential_process = {KEY} {TOKEN}",
    f"credential_process = '{KEY}",
    f"sso_session = {KEY}\nsso_account_id = {TOKEN}\nsso_role_name = r",
    f"{KEY} = {TOKEN}\n{KEY}",
]
AT_THE_START = [
    f"region = {KEY}/",
    f"endpoint_url = {KEY}",
    f"max_attempts = {KEY}",
    f"retry_mode = {KEY}",
    f"{KEY}\n{TOKEN}",
]


@pytest.mark.promise("nothing-service-answers")
async def test_nothing_in_a_profile_is_repeated(
    failures: list[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    write_config(tmp_path, monkeypatch, "")
    changes = (partial(write_config, tmp_path, monkeypatch, text) for text in PROFILES)
    async with service() as serving:
        said = await told_by(serving.url, {}, changes, failures)
    monkeypatch.delenv("AWS_MAX_ATTEMPTS")
    for text in AT_THE_START:
        write_config(tmp_path, monkeypatch, text)
        with pytest.raises(ConfigurationError) as caught:
            async with reached(None, region=None if "region" in text else "eu-west-1"):
                pass
        said += traceback.format_exception(caught.value)
    said += capfd.readouterr()
    assert lines_with_secrets("".join(said)) == []


@pytest.mark.promise("nothing-service-answers")
async def test_nothing_in_the_environment_is_repeated(
    failures: list[Exception], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CREDENTIAL_EXPIRATION")
    places: list[tuple[str, ...]] = [(KEY, ""), (KEY, TOKEN, KEY, TOKEN), ("A", KEY, f"{TOKEN}\n{TOKEN}"), (TOKEN, KEY)]

    def put(values: tuple[str, ...]) -> None:
        for name, value in zip(names, (*values, *[""] * 4), strict=False):
            monkeypatch.setenv(name, value)

    async with service() as serving:
        said = await told_by(serving.url, {}, (partial(put, values) for values in places), failures)
    said += capfd.readouterr()
    assert "missing: AWS_SECRET_ACCESS_KEY" in said[0]
    assert lines_with_secrets("".join(said)) == []


# ---- the words instead


def refusal(code: str, status: int, message: str, request_id: str = "") -> ClientError:
    metadata = {"HTTPStatusCode": status, "RequestId": request_id}
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata}, "AssumeRole")


REQUEST_ID = "4d1e2f30-0a1b-4c2d-8e3f-9a8b7c6d5e4f"


def test_a_refusal_says_who_may_not_do_what_and_why() -> None:
    text = (
        "User: arn:aws:sts::123456789012:assumed-role/node/i-0ab is not authorized to perform: sts:AssumeRole on "
        f"resource: {ROLE} because no identity-based policy allows the sts:AssumeRole action {KEY}"
    )
    error = credentials_failed(refusal("AccessDenied", 403, text, REQUEST_ID), "assume-role")
    assert failure_of(error, body_written=True) == RequestFailed(
        "AccessDenied",
        "assume-role: AssumeRole was answered with AccessDenied, status 403: "
        "arn:aws:sts::123456789012:assumed-role/node/i-0ab is not authorized to perform sts:AssumeRole on "
        f"{ROLE} because no identity-based policy",
        maybe_stored=True,
        request_id=REQUEST_ID,
    )


@pytest.mark.parametrize("code", ["ResourceNotFoundException", "ValidationException", "400", KEY])
def test_what_a_source_answers_is_no_verdict_on_a_stream_or_a_record(code: str) -> None:
    error = credentials_failed(refusal(code, 404, KEY, KEY), "sso")
    assert isinstance(error, CredentialsFailed)
    failed = error.failed
    assert failed.code in (Code.CREDENTIALS, Code.SERVICE_FAULT)
    assert meaning_of_answer(failed.code, failed.message, failed.status, failed.request_id).code == failed.code
    assert failed.request_id == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigurationError(["mfa_serial: of our own"]), "mfa_serial: of our own"),
        (InvalidConfigError(error_msg=f'The source_profile "{KEY}" has no role_arn'), "source_profile, role_arn"),
        (UnauthorizedSSOTokenError(), "The SSO session associated with this profile has expired"),
        (
            CredentialRetrievalError(
                provider="container-role",
                error_msg=f"Error retrieving metadata: Received non 200 response 503 from container metadata: {KEY}",
            ),
            "container-role, status 503",
        ),
        (RuntimeError("Credentials were refreshed, but the refreshed credentials are still expired."), "have expired"),
        (FileNotFoundError(2, "No such file or directory", f"/{KEY}"), "FileNotFoundError (No such file or directory)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_known_of_an_error_is_reported(error: Exception, words: str) -> None:
    assert words in words_of(error)
    assert lines_with_secrets(words_of(error)) == []
