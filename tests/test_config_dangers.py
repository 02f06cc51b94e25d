"""Settings that expose something to others say so, and those that can only be a mistake are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from producerd.config import load
from producerd.config.dangers import check_possible, dangers
from producerd.errors import ConfigurationError

NOBODY: Mapping[str, str] = {}


def found(*sets: str, environ: Mapping[str, str] = NOBODY) -> list[str]:
    return list(dangers(load(sets=["socket=/run/nowhere/p.sock", *sets], environ=NOBODY), environ))


def refused(*sets: str, environ: Mapping[str, str] = NOBODY) -> list[str]:
    try:
        check_possible(load(sets=sets, environ=NOBODY), environ)
    except ConfigurationError as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("endpoint_url=https://vpce-1.kinesis.eu-west-1.vpce.amazonaws.com",),
        ("endpoint_url=http://127.0.0.1:4567",),
        ("endpoint_url=http://[::1]:4567",),
        ("endpoint_url=http://localhost:4567", "streams.a.queue_limit=5"),
        ("endpoint_url=http://kinesis.localhost.:4567",),
        ("socket_mode=0666", "allowed_uids=7"),
        ("metrics_listen=10.0.0.1:9474",),
        ("metrics_listen=",),
    ],
)
def test_what_exposes_nothing_makes_no_warning(sets: tuple[str, ...]) -> None:
    assert found(*sets) == refused(*sets) == []


@pytest.mark.promise("setting-exposes-something")
@pytest.mark.parametrize(
    ("sets", "names"),
    [
        (("endpoint_url=http://kinesis.example:4567",), 'endpoint_url = "http://kinesis.example:4567": records go'),
        (("defaults.endpoint_url=http://10.0.0.1", "streams.a.queue_limit=5"), "defaults.endpoint_url"),
        (("streams.a.endpoint_url=http://10.0.0.1",), 'streams."a".endpoint_url'),
        (("metrics_listen=0.0.0.0:9474",), 'metrics_listen = "0.0.0.0:9474": all who reach'),
        (("metrics_listen=[::]:9474",), "metrics_listen"),
        (("socket_mode=0666",), 'socket_mode = "0666": every user'),
        (("socket_mode=0662",), "socket_mode"),
    ],
)
def test_each_setting_that_exposes_something_is_named_once(sets: tuple[str, ...], names: str) -> None:
    (line,) = found(*sets)
    assert line.startswith(names)
    assert not refused(*sets)


@pytest.mark.promise("setting-exposes-something")
def test_a_folder_that_everybody_may_write_to_is_named(tmp_path: Path) -> None:
    ours, open_to_all = tmp_path / "ours", tmp_path / "all"
    ours.mkdir()
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    assert not found(f"socket={ours}/p.sock")
    (line,) = found(f"socket={open_to_all}/p.sock")
    assert line.startswith(f"socket: every user may write to {open_to_all}, ")
    (line,) = found(f"socket={ours}/p.sock", f"admin_socket={open_to_all}/a.sock")
    assert line.startswith("admin_socket: ")


@pytest.mark.promise("setting-exposes-something")
def test_a_variable_of_aws_that_redirects_all_records_is_named() -> None:
    url = "https://elsewhere.example"
    (line,) = found(environ={"AWS_ENDPOINT_URL": url})
    assert line.startswith(f'AWS_ENDPOINT_URL = "{url}" (environment): all records go there')
    both = {"AWS_ENDPOINT_URL": "https://other.example", "AWS_ENDPOINT_URL_KINESIS": url}
    (line,) = found(environ=both)
    assert line.startswith("AWS_ENDPOINT_URL_KINESIS")
    for table in ("", "defaults."):
        assert not found(f"{table}endpoint_url=https://ours.example", environ=both)
    assert not found(environ={**both, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "TRUE"})
    assert len(found(environ={"AWS_ENDPOINT_URL": "http://elsewhere.example"})) == 2, "it is not encrypted either"


@pytest.mark.promise("requests-aws-encrypted")
@pytest.mark.parametrize(
    "host", ["kinesis.eu-west-1.amazonaws.com", "kinesis.cn-north-1.amazonaws.com.cn", "kinesis.eu-west-1.api.aws."]
)
def test_requests_to_aws_are_encrypted_or_refused(host: str) -> None:
    for key in ("endpoint_url", "defaults.endpoint_url", "streams.a.endpoint_url"):
        assert any("must be encrypted" in line for line in refused(f"{key}=http://{host}"))
        assert not refused(f"{key}=https://{host}")
    (line,) = refused(environ={"AWS_ENDPOINT_URL_KINESIS": f"http://{host}"})
    assert line.startswith("AWS_ENDPOINT_URL_KINESIS = ")


def test_a_group_that_does_not_exist_is_refused() -> None:
    assert refused("socket_group=nobody-has-this") == [
        'socket_group = "nobody-has-this": there is no such group on this machine'
    ]
    assert not refused("socket_group=root")


@pytest.mark.promise("variable-url-refused")
@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://kinesis.eu\uff0fwest",
        "https://[x]",
        "localhost:4599",
        "localhost",
        "ftp://localhost",
        "http://",
        "http://a b",
        "http://h:99999",
    ],
)
def test_a_variable_that_is_not_a_url_is_refused_and_raises_nothing_else(url: str) -> None:
    lines = refused(environ={"AWS_ENDPOINT_URL": url})
    assert all(line.startswith("AWS_ENDPOINT_URL = ") for line in lines)
    assert lines
    assert found(environ={"AWS_ENDPOINT_URL": url})
    assert refused(environ={"AWS_ENDPOINT_URL_STS": url})
    ignored = {"AWS_ENDPOINT_URL": url, "AWS_ENDPOINT_URL_STS": url, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
    assert not refused(environ=ignored)


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_an_entry_of_no_proxy_that_matches_no_host_is_named(name: str) -> None:
    """Python compares each with the end of a host's name: a network or a pattern is ignored in silence."""
    given = {name: "localhost, 169.254.0.0/16,.example.com,*.amazonaws.com"}
    assert not found(environ=given), "there is no proxy"
    network, pattern = found(environ=given | {"HTTPS_PROXY": "http://proxy:3128"})
    assert network.startswith(f"{name}: 169.254.0.0/16 matches no host")
    assert pattern.startswith(f"{name}: *.amazonaws.com matches no host")
    assert not found(environ={name: "*", "http_proxy": "http://proxy:3128"})


def test_the_service_of_credentials_is_asked_encrypted_too_and_no_password_is_shown() -> None:
    (line,) = refused(environ={"AWS_ENDPOINT_URL_STS": "http://sts.eu-west-1.amazonaws.com"})
    assert line.startswith("AWS_ENDPOINT_URL_STS")
    for url in (
        "https://me:secret@elsewhere.example",
        "https://me:sec/ret@elsewhere.example",
        "me:secret@elsewhere.example",
    ):
        lines = [*found(environ={"AWS_ENDPOINT_URL": url}), *refused(environ={"AWS_ENDPOINT_URL": url})]
        assert lines
        assert all("***@elsewhere.example" in line and "ret@" not in line for line in lines)
