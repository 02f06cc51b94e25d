"""What AWS answers to these settings, for `producerd check --online`.

The check prints the region, host and credentials of each access, and asks AWS about each stream what the daemon will
ask.  It stores nothing: PutRecords is tried as a dry run, and only at AWS itself.  It shows no secret, and only the
ends of an access key.  It prints each line as soon as the answer arrives, and waits up to `PATIENCE_SECONDS` for an
answer.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from producerd.config import STREAM_NAME, Config, StreamSettings
from producerd.config.redaction import redacted_url
from producerd.config.summary import in_seconds, queue_warning
from producerd.config.values import size
from producerd.core.failures import OF_THE_DAEMON, meaning_of
from producerd.core.sending.answers import RequestFailed
from producerd.errors import Code
from producerd.runtime.aws.clients import Access, AwsClient, access_of, open_clients
from producerd.runtime.aws.errors import NoCredentials, failure_of
from producerd.runtime.aws.kinesis import CONTROL_TIMEOUT_SECONDS, AioKinesis
from producerd.runtime.kinesis import Address, StreamSummary, address_of

PATIENCE_SECONDS: Final = CONTROL_TIMEOUT_SECONDS
"""Longest wait for a client or its credentials."""
KEY_OF_AWS: Final = "alias/aws/kinesis"
"""The key that AWS itself owns: it needs no permission of the producer."""

Say = Callable[[str], None]
"""A function that prints one line of the report."""


def run(config: Config, names: Iterable[str] = (), *, deny_warnings: bool = False) -> bool:
    """Print the report and return whether nothing failed.  Raise ConfigurationError if an access cannot work.

    ``names`` are streams to check in addition to the configured ones.  ``deny_warnings``: a warning is a failure, too.
    """
    structlog.configure(processors=[_drop])  # the printed lines say what a daemon would log
    return asyncio.run(check(config, names, lambda line: print(line, flush=True), deny_warnings=deny_warnings))


def _drop(*_: object) -> str:
    raise structlog.DropEvent


async def check(config: Config, names: Iterable[str], say: Say, *, deny_warnings: bool = False) -> bool:
    """Report on the streams of the settings and on ``names``, and return whether nothing failed."""
    report = Report(say, deny_warnings)
    groups: dict[Access, dict[str, StreamSettings]] = {}
    if config.node.streams_allowed == "any":
        groups[access_of(config.node, config.defaults)] = {}
    for name in dict.fromkeys([*config.streams, *names]):
        if not STREAM_NAME.fullmatch(name):
            report.print_failure(f"{name!r}: not a stream's name: 1 to 128 of a-z A-Z 0-9 _ . -")
            continue
        if config.node.streams_allowed == "listed" and name not in config.streams:
            report.warning(f'stream {name}: the daemon would refuse it: add [streams."{name}"]')
        groups.setdefault(access_of(config.node, config.stream(name)), {})[name] = config.stream(name)
    async with open_clients(groups) as clients:
        with ThreadPoolExecutor(1) as pool:
            for access, streams in groups.items():
                client = clients.of(access)
                await _AccessCheck(report, access, client, AioKinesis(client, pool)).run(streams)
    if not any(groups.values()):
        report.warning("no stream is listed: check one with --stream NAME")
    return report.nothing_failed


class Report:
    """The lines of the report, which begin with OK, WARNING or FAILED."""

    def __init__(self, say: Say, deny_warnings: bool) -> None:
        self._say = say
        self._deny_warnings = deny_warnings
        self.nothing_failed = True

    def ok(self, text: str) -> None:
        """Print that a check passed."""
        self._say(f"OK       {text}")

    def warning(self, text: str) -> None:
        """Print what the operator should know.  It fails the report only if warnings are denied."""
        self.nothing_failed &= not self._deny_warnings
        self._say(f"WARNING  {text}")

    def print_failure(self, text: str) -> None:
        """Print a failure, which also fails the whole report."""
        self.nothing_failed = False
        self._say(f"FAILED   {text}")


class _AccessCheck:
    """The check of one access and its streams."""

    def __init__(self, report: Report, access: Access, client: AwsClient, kinesis: AioKinesis) -> None:
        self._report = report
        self._access = access
        self._client = client
        self._kinesis = kinesis

    async def run(self, streams: Mapping[str, StreamSettings]) -> None:
        of = f"streams {', '.join(streams)}" if streams else "streams that are not listed"
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                made = await self._client.ready()
        except Exception as error:  # botocore and AWS's files: anything may keep a client from being made
            self._report.print_failure(f"{of}: {failure_of(error, body_written=False).message}")
            return
        self._report.ok(f"{of}: region {made.meta.region_name}, {redacted_url(made.meta.endpoint_url)}")
        if await self._credentials():
            with suppress(_AskNoMore):
                for name, settings in streams.items():
                    await self._stream(f"stream {name}", settings, address_of(name, settings))
        if offset := self._client.clock.offset.total_seconds():
            self._report.warning(
                f"this machine's clock is off by {-offset:+.0f} s: the daemon signs with the service's time"
            )

    async def _credentials(self) -> bool:
        """Report on the credentials, and return whether there are any."""
        credentials = self._client.credentials
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                frozen = await credentials.get_frozen_credentials()
            if frozen is None:
                raise NoCredentials
        except Exception as error:  # files, processes, metadata services and STS raise anything
            message = failure_of(error, body_written=False).message
            if isinstance(error, NoCredentials):
                message = f"{message}: {why_there_are_none()}"
            elif isinstance(error, TimeoutError):
                message = f"none within {PATIENCE_SECONDS:g} s"
            self._report.print_failure(f"credentials: {message}")
            return False
        method = credentials.method + (f" of {self._access.role_arn}" if self._access.role_arn else "")
        ends = credentials.expires_at
        until = (
            "do not say when they expire" if ends is None else f"expire at {datetime.fromtimestamp(ends, UTC):%FT%TZ}"
        )
        self._report.ok(f"credentials: by {method}, key {masked(frozen.access_key)}; they {until}")
        return True

    async def _stream(self, of: str, settings: StreamSettings, address: Address) -> None:
        """Report on one stream.  Raise _AskNoMore if every further question would fail in the same way."""
        summary = await self._kinesis.describe_stream_summary(address)
        if not isinstance(summary, RequestFailed):
            self._described(of, settings, summary)
        elif self._report_failure(of, "DescribeStreamSummary", summary, _ANY_SIZE, flows=True) != Code.ACCESS_DENIED:
            return
        pages = await self._kinesis.list_shards(address)
        if not isinstance(pages, RequestFailed):
            self._listed(of, settings, sum(len(page["Shards"]) for page in pages))
        else:
            plain = settings.aggregation == "none"
            self._report_failure(of, "ListShards", pages, _NO_LANES if plain else _NO_AGGREGATES, flows=plain)
        await self._put_records(of, address)

    def _described(self, of: str, settings: StreamSettings, summary: StreamSummary) -> None:
        key = summary.kms_key
        encryption = f"encrypted with {key}" if key else "not encrypted"
        if key not in ("", KEY_OF_AWS):
            encryption += " (the daemon needs kms:GenerateDataKey on it)"
        state = " ".join(filter(None, (summary.status, summary.mode))) or "it exists"
        text = f"{of}: {state}, records of at most {size(summary.max_record_bytes)}, {encryption}"
        if summary.status in ("CREATING", "DELETING"):
            self._report.print_failure(f"{text}: it takes no records")
        else:
            self._report.ok(text)
        if settings.aggregation == "kpl" and summary.record_distribution_strategy == "AUTO":
            self._report.print_failure(f'{of}: aggregation = "kpl" is refused: its shards do not follow keys (AUTO)')

    def _listed(self, of: str, settings: StreamSettings, shards: int) -> None:
        lasts = in_seconds(settings.queue_seconds(max(1, shards)))
        queue = f"{settings.queue_limit:,} records, {size(settings.queue_limit_bytes)}"
        self._report.ok(f"{of}: {shards:,} open shards; its queue, {queue}, is {lasts} of them")
        if warning := queue_warning(settings, max(1, shards)):
            self._report.warning(f"{of}: {warning}")

    async def _put_records(self, of: str, address: Address) -> None:
        if reason := await self._client.why_no_dry_run():
            self._report.warning(f"{of}: PutRecords: not tried: {reason}")
        elif failed := await self._kinesis.dry_run(address):
            self._report_failure(of, "PutRecords", failed, "nothing can be sent")
        else:
            self._report.ok(f"{of}: PutRecords is allowed (a dry run: nothing was stored)")

    def _report_failure(self, of: str, action: str, failed: RequestFailed, means: str, *, flows: bool = False) -> str:
        """Report a failed action, and what a denial of it means; return its `Code`.

        With ``flows``, records flow even if the action is denied.  Raise _AskNoMore if every further question would
        fail too.
        """
        code = meaning_of(failed.code).code
        denied = code == Code.ACCESS_DENIED
        say = self._report.warning if denied and flows else self._report.print_failure
        say(f"{of}: {action}: {failed.code}: {failed.message}" + (f": {means}" if denied else ""))
        if code in {Code.UNREACHABLE, *OF_THE_DAEMON}:
            raise _AskNoMore
        return code


class _AskNoMore(Exception):
    """Every further question to this access would fail in the same way."""


_ANY_SIZE: Final = "records that are too large are found when the service refuses them"
_NO_LANES: Final = "records flow, and a hot shard slows the others"
_NO_AGGREGATES: Final = 'aggregation = "kpl" needs it: callers are refused'


def masked(access_key: str) -> str:
    """Return the ends of an access key, which are enough to distinguish keys.

    Return "..." for a text that AWS does not give as one: it may be the secret key in the wrong place.
    """
    return f"{access_key[:4]}...{access_key[-4:]}" if re.fullmatch("[A-Z0-9]{16,128}", access_key) else "..."


def why_there_are_none(environ: Mapping[str, str] = os.environ, system: Path = Path("/")) -> str:
    """Return why AWS's standard chain found no credentials, up to its last step, the instance's metadata."""
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return "AWS_EC2_METADATA_DISABLED turns the instance's metadata off, and nothing else provides any"
    marks = (system / ".dockerenv", system / "run/.containerenv")
    if "KUBERNETES_SERVICE_HOST" in environ or any(mark.exists() for mark in marks):
        return (
            "the instance's metadata (IMDS) provides none either: with a hop limit of 1, it does not answer a "
            "container on a bridged network. Raise the limit with `aws ec2 modify-instance-metadata-options "
            "--http-put-response-hop-limit 2`, or give the container credentials of its own"
        )
    return "no variables, files, container's endpoint or instance's metadata (IMDS) provide any"
