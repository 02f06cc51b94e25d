"""AwsClients: one botocore client for each way to reach streams, made when its first stream needs it."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from platform import python_version
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

import aiobotocore
import botocore.exceptions as boto_errors
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore import UNSIGNED
from botocore.utils import validate_region_name

from producerd import __version__
from producerd.config import Config, NodeSettings, StreamSettings
from producerd.config.dangers import HOSTS_OF_AWS
from producerd.config.redaction import redacted_url
from producerd.config.tuning import TUNING, Tuning
from producerd.config.values import is_endpoint
from producerd.core.encoding.entries import EncodedRequest
from producerd.errors import ConfigurationError
from producerd.runtime.aside import aside
from producerd.runtime.aws import internals
from producerd.runtime.aws.building import build_request, keep_from_sending, put_body
from producerd.runtime.aws.clock import ServiceClock
from producerd.runtime.aws.connections import Sending
from producerd.runtime.aws.credentials import (
    SOURCES,
    NamedSource,
    RenewedCredentials,
    role_credentials,
    uses_helper,
)
from producerd.runtime.aws.errors import error_of
from producerd.runtime.aws.sources import words_of
from producerd.runtime.aws.template import RequestTemplate
from producerd.runtime.aws.transport import Transport, headers_of, unreadable


@dataclass(frozen=True, slots=True)
class Access:
    """The settings by which a stream is reached.  None leaves a setting to AWS's own configuration."""

    region: str | None
    endpoint_url: str | None
    role_arn: str | None
    external_id: str | None = field(repr=False)


def access_of(node: NodeSettings, stream: StreamSettings) -> Access:
    """Return a stream's access: its own settings override the node's.

    An external id belongs to the role of its own table.
    """
    role = node if stream.role_arn is None else stream
    return Access(
        region=stream.stream_region or node.region,
        endpoint_url=stream.endpoint_url or node.endpoint_url,
        role_arn=role.role_arn,
        external_id=role.external_id,
    )


def accesses_of(config: Config) -> list[Access]:
    """Return the accesses that are known before a client opens a stream."""
    streams = list(config.streams.values())
    if config.node.streams_allowed == "any":
        streams.append(config.defaults)
    return [access_of(config.node, stream) for stream in streams]


USER_AGENT: Final = f"producerd/{__version__} aiobotocore/{aiobotocore.__version__} Python/{python_version()}"
"""The user agent, which CloudTrail shows.  botocore would assemble one for each request, in 40 µs of CPU."""


class AwsClient:
    """A botocore client for one access, with its credentials and clock.

    ``is_aws``: whether the endpoint is AWS's own, by its URL, which TLS proves.  False before `ready` has returned.
    """

    def __init__(
        self, access: Access, loader: Any, tasks: asyncio.TaskGroup, opened: AsyncExitStack, tuning: Tuning
    ) -> None:
        self.was_answered = False  # whether the endpoint ever answered, even with an error other than a bare 400
        self.is_aws = False
        self.clock = ServiceClock()
        self.credentials = RenewedCredentials(self._resolve, self.clock, tasks, of=access.role_arn or "the daemon")
        self._access = access
        self._loader = loader
        self._opened = opened
        self._tuning = tuning
        self._making = asyncio.Lock()
        self._client: Any = None
        self._transport: Transport | None = None
        self._templates: dict[str | None, RequestTemplate] = {}  # by the stream's ARN, which decides the host

    def note_answer(self) -> None:
        """Note that the endpoint has answered, so it exists."""
        self.was_answered = True

    async def ready(self) -> Any:
        """Return botocore's client, and make it at the first call."""
        if self._client is None:
            async with self._making:
                if self._client is None:
                    self._client = await self._make()
        return self._client

    def _check_encrypted(self, endpoint_url: str) -> None:
        """Note whether the endpoint is AWS's own, which AWS's own settings files may name, too.

        Raise ConfigurationError if requests would go there unencrypted.
        """
        url = urlsplit(endpoint_url)
        of_aws = (url.hostname or "").rstrip(".").endswith(HOSTS_OF_AWS)
        if of_aws and url.scheme == "http":
            raise ConfigurationError(
                (f"{redacted_url(endpoint_url)}: requests to AWS must be encrypted: write https://",)
            )
        self.is_aws = of_aws

    async def put_records(self, address: Mapping[str, str], encoded: EncodedRequest, sending: Sending) -> bytes:
        """Send a PutRecords and return the body of its answer as it came.  Raise what botocore raises."""
        url, headers = await self._signed(address, encoded)
        assert self._transport is not None
        answer = await self._transport.post(url, headers, sending)
        if answer.status >= 300:
            raise error_of(answer)
        return answer.body

    async def _signed(self, address: Mapping[str, str], encoded: EncodedRequest) -> tuple[str, dict[str, str]]:
        """Return the URL and the headers of a PutRecords."""
        arn, credentials = address.get("StreamARN"), await self.credentials.get_frozen_credentials()
        template = self._templates.get(arn)
        if template is None or template.credentials is not credentials:
            request = await build_request(await self.ready(), address, encoded)
            template = RequestTemplate.of(request, credentials)
            if template is None:  # only botocore can sign such a request
                return request.url, headers_of(request)
            self._templates[arn] = template
        return template.url, template.headers(encoded, self.clock.now())

    async def why_no_dry_run(self) -> str:
        """Return why PutRecords must not be tried as a dry run, or ""."""
        made = await self.ready()
        if self._access.endpoint_url or not self.is_aws:
            return "an endpoint other than AWS's own may store the records of a dry run"
        if "DryRun" not in made.meta.service_model.operation_model("PutRecords").input_shape.members:
            return "the installed botocore does not know DryRun"
        return ""

    async def _make(self) -> Any:
        session = await aside(self._fresh_session)
        session.register_component("credential_provider", self.credentials)
        session.register("before-call.kinesis.PutRecords", put_body)
        session.register("before-send.kinesis.PutRecords", keep_from_sending)
        config = AioConfig(
            http_session_cls=self._open_transport,
            user_agent=USER_AGENT,
            connect_timeout=self._tuning.connect_timeout_seconds,
            retries={"total_max_attempts": 1},  # the daemon retries entries, not requests
            parameter_validation=False,
        )
        made = session.create_client("kinesis", endpoint_url=self._access.endpoint_url, config=config)
        async with AsyncExitStack() as opening:  # closes a client that is refused: each try makes another one
            try:
                client = await opening.enter_async_context(made)
            except ValueError as error:  # such as an endpoint in a file of AWS that has changed
                raise ConfigurationError((_words_of_value(error),)) from None
            self._check_encrypted(client.meta.endpoint_url)
            self._opened.push_async_exit(opening.pop_all())
        return client

    def _open_transport(self, **options: Any) -> Transport:
        self._transport = Transport(bundle=self._bundle, **options)
        return self._transport

    def _bundle(self) -> str | bool:
        """Return the file of trusted certificates that AWS's variables and files name now, or True for botocore's."""
        named: str | None = self._fresh_session().get_config_variable("ca_bundle")
        return named or environ.get("REQUESTS_CA_BUNDLE") or True

    async def read_certificates(self) -> str:
        """Read the trusted certificates again.  Return their file if they are others, or "".

        Raise ConfigurationError if that fails; the certificates that were trusted before stay.
        """
        return "" if self._transport is None else await self._transport.read_again()

    async def _resolve(self) -> Any:
        """Return this access's credentials, from a new session that reads the environment and AWS's files again."""
        session = await aside(self._fresh_session)
        session.set_default_client_config(SOURCES)
        internals.never_prompt(session)
        self.credentials.has_helper(uses_helper(session))
        sources = session.get_component("credential_provider").providers
        sources[:] = [NamedSource(provider) for provider in sources]
        source, access = await session.get_credentials(), self._access
        if source is None or access.role_arn is None:
            return source
        return role_credentials(session, source, access.role_arn, access.external_id)

    def _fresh_session(self) -> Any:
        """Make a session.  It needs 5 ms of CPU and reads files, so call it in a thread."""
        session = get_session()
        session.register_component("data_loader", self._loader)
        for operation in ("kinesis", "sts.AssumeRole"):
            session.register(f"choose-signer.{operation}", self.clock.choose_signer)
        if region := self._access.region or environ.get(_REGION):
            session.set_config_variable("region", region)  # also for the chain's requests to STS
        session.full_config  # noqa: B018 - read AWS's files now, in this thread
        return session


class AwsClients:
    """The clients of the daemon, one for each `Access`."""

    def __init__(self, loader: Any, tasks: asyncio.TaskGroup, opened: AsyncExitStack, tuning: Tuning) -> None:
        self._loader = loader
        self._tasks = tasks
        self._opened = opened
        self._tuning = tuning
        self._clients: dict[Access, AwsClient] = {}

    def look_for_credentials(self, accesses: Iterable[Access]) -> None:
        """Begin to get the credentials of these accesses, so that a warning says early if there are none."""
        for access in accesses:
            self.of(access).credentials.renew()

    def close(self) -> None:
        """Stop renewing credentials."""
        for client in self._clients.values():
            client.credentials.close()

    @property
    def clock_offset_seconds(self) -> float:
        """The services' time minus this machine's, where they differ most."""
        return max([client.clock.offset.total_seconds() for client in self._clients.values()], key=abs, default=0.0)

    @property
    def troubles(self) -> list[str]:
        """What an operator must know about the clock and the credentials, in sentences."""
        told = [client.credentials.trouble for client in self._clients.values()]
        if offset := self.clock_offset_seconds:
            told.append(
                f"this machine's clock is off by {-offset:+,.0f} s; requests are signed by the service's: set it"
            )
        return [one for one in dict.fromkeys(told) if one]

    @property
    def credential_refreshes(self) -> Counter[str]:
        """The renewals of all clients' credentials, by their results."""
        return sum([client.credentials.refreshes for client in self._clients.values()], Counter())

    async def read_certificates(self) -> list[str]:
        """Read the trusted certificates again, and return a line for each file that has others.

        Raise ConfigurationError if that fails; the certificates that were trusted before stay.
        """
        with _settings_of_aws():
            files = [await client.read_certificates() for client in [*self._clients.values()]]
        return [f"certificates: {path} has others" for path in dict.fromkeys(files) if path]

    def of(self, access: Access) -> AwsClient:
        """Return the client of an access, and make it at the first call."""
        client = self._clients.get(access)
        if client is None:
            client = self._clients[access] = AwsClient(access, self._loader, self._tasks, self._opened, self._tuning)
        return client


def check_accesses(accesses: Iterable[Access]) -> None:
    """Raise ConfigurationError if an access cannot work.  It reads AWS's files, which needs some milliseconds."""
    session = get_session()
    with _settings_of_aws():
        problems = [problem for access in accesses for problem in _problems(session, access)]
    if problems:
        raise ConfigurationError(tuple(dict.fromkeys(problems)))


@contextmanager
def _settings_of_aws() -> Iterator[None]:
    """Turn what botocore raises for AWS's variables and files, which people write by hand, into ConfigurationError."""
    try:
        yield
    except boto_errors.BotoCoreError as error:  # such as a profile that does not exist
        raise ConfigurationError((f"AWS settings: {words_of(error)}",)) from None
    except ValueError as error:  # such as an endpoint, maybe with a login, or a number that is not one
        raise ConfigurationError((_words_of_value(error),)) from None


def _words_of_value(error: ValueError) -> str:
    """Return a sentence about a value in a variable or a file of AWS.  It repeats only what variables have."""
    text = str(error)
    shown = [value for name, value in environ.items() if re.fullmatch("AWS_(?!.*(KEY|TOKEN)).*", name) and value]
    of_variable = any(text.endswith((f" {value}", repr(value))) for value in shown)
    kind = re.match("Invalid endpoint|invalid literal for int", text)
    in_file = f"{kind[0] if kind else 'a value is not valid'}: see the config file of AWS"
    return f"AWS settings: {' '.join(map(redacted_url, text.split())) if of_variable else in_file}"


@asynccontextmanager
async def open_clients(accesses: Iterable[Access], tuning: Tuning = TUNING) -> AsyncIterator[AwsClients]:
    """Provide clients until the block ends.

    Raise ConfigurationError if an access cannot work, or if an installed library lacks a name that the daemon uses.
    """
    internals.check()
    check_accesses(accesses)
    session = get_session()
    # Read botocore's models, which needs 40 to 80 ms of CPU, once for all clients and before the daemon serves.
    with _settings_of_aws():
        async with session.create_client("kinesis", region_name="us-east-1", config=_UNSIGNED) as made:
            if not is_endpoint(made.meta.endpoint_url):  # a variable or a file of AWS names it
                raise ValueError(f"Invalid endpoint: {made.meta.endpoint_url}")
    raised: BaseException | None = None
    async with AsyncExitStack() as opened, asyncio.TaskGroup() as tasks:
        clients = AwsClients(session.get_component("data_loader"), tasks, opened, tuning)
        try:
            yield clients
        except BaseException as error:  # the group would wrap an exception that is not of its tasks
            raised = error
        clients.close()
    if raised is not None:
        raise raised


def _problems(session: Any, access: Access) -> Iterator[str]:
    region = access.region or environ.get(_REGION) or session.get_config_variable("region")
    if region is None:
        yield f"region: none is set; set region, or {_REGION}, or a profile that has one"
    else:
        try:
            validate_region_name(region)
        except boto_errors.InvalidRegionError:
            given = {access.region, environ.get(_REGION), environ.get("AWS_DEFAULT_REGION")}
            yield f"region: {region if region in given else 'the one in the config file of AWS'}: not a region's name"
    scheme = "http" if (access.endpoint_url or "").startswith("http:") else "https"
    if (proxy := getproxies().get(scheme)) is not None and not _is_proxy(proxy):
        yield f"{scheme.upper()}_PROXY: not the URL of a proxy, http://HOST:PORT"  # it may hold a password
    bundle = session.get_config_variable("ca_bundle") or environ.get("REQUESTS_CA_BUNDLE")
    if bundle and not Path(bundle).is_fifo():  # reading one may never end
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(bundle)
        except OSError as error:
            yield unreadable(bundle, error)
    if access.endpoint_url and session.get_config_variable("use_fips_endpoint"):
        yield f'endpoint_url = "{access.endpoint_url}": AWS_USE_FIPS_ENDPOINT chooses the host itself; use one of them'


def _is_proxy(text: str) -> bool:
    """Return whether a text names a proxy as botocore takes it: a URL, or a host with or without a port."""
    try:
        parts = urlsplit(text if text.startswith(("http:", "https:")) else f"http://{text.removeprefix('//')}")
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


_REGION: Final = "AWS_REGION"
"""The region's variable in containers and AWS's other SDKs; botocore itself reads only AWS_DEFAULT_REGION."""
_UNSIGNED: Final = AioConfig(signature_version=UNSIGNED)  # otherwise botocore would look for credentials
