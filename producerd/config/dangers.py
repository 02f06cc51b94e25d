"""Settings that hold, and that expose records, metrics or AWS access to others: a warning for each.

What can only be a mistake is an error: unencrypted requests to AWS, a group that does not exist.
"""

from __future__ import annotations

import grp
import ipaddress
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from producerd.config.redaction import shown
from producerd.config.settings import Config
from producerd.config.text import assignment
from producerd.config.values import is_endpoint
from producerd.errors import ConfigurationError

HOSTS_OF_AWS: Final = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu", ".api.aws")
"""Ends of the host names under which AWS serves its APIs."""
REDIRECTS: Final = ("AWS_ENDPOINT_URL_KINESIS", "AWS_ENDPOINT_URL")
"""Variables of AWS's SDKs that replace the region's own address, the more specific one first."""
REDIRECT_OF_STS: Final = "AWS_ENDPOINT_URL_STS"
"""The variable for the service that gives a role's credentials."""
IGNORES_REDIRECTS: Final = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"
PROXIES: Final = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")
"""The variables that name a proxy for requests to AWS, or for a container's credentials."""
_ALL_ADDRESSES: Final = ("0.0.0.0", "::", "*")


def check_possible(config: Config, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigurationError for settings with which the daemon could never work safely on this machine."""
    problems = [
        f"{setting}: this is not a URL http(s)://HOST[:PORT][/PATH]"
        for setting, url in _endpoints(config, environ)
        if not is_endpoint(url)
    ]
    problems += [
        f"{setting}: requests to AWS must be encrypted: write https://"
        for setting, url in _endpoints(config, environ)
        if _is_unencrypted(url) and is_of_aws(url)
    ]
    group = config.node.socket_group
    if group is not None and not _exists(group):
        problems.append(f"{assignment('socket_group', group)}: there is no such group on this machine")
    if problems:
        raise ConfigurationError(problems)


def dangers(config: Config, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield a line for each setting that exposes something to others, with what it exposes and what to do."""
    node = config.node
    for setting, url in _endpoints(config, environ):
        if _is_unencrypted(url) and not _is_this_machine(url):
            yield f"{setting}: records go to another machine unencrypted: write https://, unless this is a test"
    of_streams = (config.defaults, *config.streams.values())
    redirected = node.endpoint_url is None and any(settings.endpoint_url is None for settings in of_streams)
    if redirected and (name := _redirect(environ)):
        yield (
            f"{_shown(name, environ)}: all records go there instead of to AWS's own "
            "address: unset it, or write endpoint_url"
        )
    for name, entry in _without_effect(environ):
        yield (
            f"{name}: {entry} matches no host, so requests that it should keep from the proxy go there: list names "
            "and single addresses, without networks and *"
        )
    if node.metrics_address is not None and node.metrics_address[0] in _ALL_ADDRESSES:
        yield (
            f"{assignment('metrics_listen', node.metrics_listen)}: all who reach this machine may read the names "
            "and rates of its streams: give an address, or let a firewall decide"
        )
    if node.socket_mode & stat.S_IWOTH and not node.allowed_uids:
        yield (
            f"{assignment('socket_mode', node.socket_mode)}: every user of this machine may write with the daemon's "
            "access to AWS: give socket_group, or allowed_uids"
        )
    folders = {node.admin_path.parent: "admin_socket", node.socket.parent: "socket"}
    for folder, setting in folders.items():
        if _may_be_written_by_others(folder):
            yield (
                f"{setting}: every user may write to {folder}, and put a socket of their own in its place: "
                "use a directory of the daemon's own"
            )


def is_of_aws(url: str) -> bool:
    """Return whether a URL's host is one of AWS's own."""
    return _host(url).endswith(HOSTS_OF_AWS)


def _split(url: str) -> SplitResult:
    """Return the parts of a URL, which are all empty if it is not one."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _host(url: str) -> str:
    return (_split(url).hostname or "").rstrip(".")


def _endpoints(config: Config, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each address of Kinesis with the setting that names it."""
    given = {"": config.node.endpoint_url, "defaults.": config.defaults.endpoint_url}
    for name, settings in config.streams.items():
        if settings.endpoint_url != config.defaults.endpoint_url:
            given[f"streams.{json.dumps(name)}."] = settings.endpoint_url
    for place, url in given.items():
        if url is not None:
            yield place + assignment("endpoint_url", url), url
    for name in (_redirect(environ), "" if _ignores_redirects(environ) else REDIRECT_OF_STS):
        if environ.get(name):
            yield _shown(name, environ), environ[name]


def _without_effect(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each entry of NO_PROXY that Python compares with the whole name of a host, and that no host has."""
    name = next((name for name in ("no_proxy", "NO_PROXY") if environ.get(name)), "")
    if not name or environ[name].strip() == "*" or not any(environ.get(proxy) for proxy in PROXIES):
        return
    for entry in environ[name].split(","):
        if "/" in entry or "*" in entry:
            yield name, entry.strip()


def _shown(name: str, environ: Mapping[str, str]) -> str:
    return f"{name} = {shown(environ[name])} (environment)"


def _redirect(environ: Mapping[str, str]) -> str:
    if _ignores_redirects(environ):
        return ""
    return next((name for name in REDIRECTS if environ.get(name)), "")


def _ignores_redirects(environ: Mapping[str, str]) -> bool:
    return environ.get(IGNORES_REDIRECTS, "").lower() == "true"


def _is_unencrypted(url: str) -> bool:
    return _split(url).scheme == "http"


def _is_this_machine(url: str) -> bool:
    host = _host(url)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _exists(group: str) -> bool:
    try:
        grp.getgrnam(group)
    except KeyError:
        return False
    return True


def _may_be_written_by_others(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:  # the daemon makes it, with a mode of its own
        return False
