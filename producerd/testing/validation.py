"""Check a request as Kinesis does, and refuse it with the words of Kinesis.

A request passes as a whole, or raises a ServiceError before anything of it is stored.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import pybase64

from producerd.testing.aggregates import hash_of
from producerd.testing.streams import ACCOUNT, HASH_END, REGION, FakeStream, ServiceError

# https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html
MAX_ENTRIES: Final = 500
MAX_REQUEST_BYTES: Final = 10 * 1024 * 1024
MAX_KEY_CHARACTERS: Final = 256

HASH_KEY: Final = re.compile(r"0|[1-9][0-9]{0,38}")
STREAM_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
STREAM_ARN: Final = re.compile(r"(arn:aws[^:]*:kinesis:[^:]*):([0-9]{12}):stream/(\S+)")


class Row(NamedTuple):
    """A checked entry of a request."""

    partition_key: str
    explicit_hash_key: str | None
    data: bytes
    size: int
    hash_key: int


def stream_name(request: dict[str, Any]) -> str:
    """Return the name of the stream that a request names by name, ARN or both."""
    name, arn = request.get("StreamName"), request.get("StreamARN")
    if arn is None:
        if name is None:
            raise ServiceError("InvalidArgumentException", "Either StreamName or StreamARN must be provided.")
        return str(name)
    found = STREAM_ARN.fullmatch(str(arn))
    if found is None:
        pattern = "arn:aws.*:kinesis:.*:\\d{12}:stream/\\S+"
        raise violation(f"Value '{arn}' at 'streamARN'", f"Member must satisfy regular expression pattern: {pattern}")
    region, account, named = found.groups()
    if (region, account) != (f"arn:aws:kinesis:{REGION}", ACCOUNT):
        raise stream_not_found(named, account)
    if name not in (None, named):
        raise ServiceError("InvalidArgumentException", f"StreamName {name} and StreamARN {arn} are not one stream.")
    return named


def stream_not_found(name: str, account: str = ACCOUNT) -> ServiceError:
    """Return the error for a stream that does not exist."""
    return ServiceError("ResourceNotFoundException", f"Stream {name} under account {account} not found.")


def access_denied(action: str, request: dict[str, Any]) -> ServiceError:
    """Return the error for an action that no policy allows."""
    name = request.get("StreamName") or str(request.get("StreamARN") or "").rpartition(":stream/")[2]
    return ServiceError(
        "AccessDeniedException",
        f"User: arn:aws:iam::{ACCOUNT}:user/producer is not authorized to perform: kinesis:{action} on resource:"
        f" arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{name} because no identity-based policy allows"
        f" the kinesis:{action} action",
    )


def refuse_dry_run(request: dict[str, Any]) -> None:
    """Raise the error that ends a dry run, if this is one.  Call it after all checks, before anything changes.

    https://docs.aws.amazon.com/streams/latest/dev/kds-dryrun-validation.html
    """
    if request.get("DryRun"):
        message = "The request was rejected because the DryRun parameter was specified."
        raise ServiceError("DryRunOperationException", message)


def checked_rows(records: Any, stream: FakeStream, *, in_cbor: bool = False) -> list[Row]:
    """Return the checked entries of a request.  Raise the ServiceError that refuses all of them.

    In CBOR an entry's data are bytes, and in JSON base64.
    """
    if records is None:
        raise violation("Value null at 'records'", "Member must not be null")
    if not isinstance(records, list):
        raise ServiceError("SerializationException", "Expected list or null")
    if not records:
        raise violation("Value '[]' at 'records'", "Member must have length greater than or equal to 1")
    if len(records) > MAX_ENTRIES:
        raise violation(
            f"Value '[{len(records)} records]' at 'records'",
            f"Member must have length less than or equal to {MAX_ENTRIES}",
        )
    key_needed = stream.record_distribution_strategy != "AUTO"
    rows = [_checked_row(record, number, key_needed, in_cbor) for number, record in enumerate(records, 1)]
    sizes = [row.size for row in rows]
    limit = stream.max_record_kib * 1024
    if (largest := max(sizes)) > limit:
        raise ServiceError(
            "InvalidArgumentException",
            f"Record {sizes.index(largest) + 1} of stream {stream.name} under account {ACCOUNT} has {largest} bytes,"
            f" more than the maximum record size of {limit} bytes.",
        )
    if sum(sizes) > MAX_REQUEST_BYTES:
        raise ServiceError("InvalidArgumentException", "Records size exceeds 10 MB limit")
    return rows


def _checked_row(record: Any, number: int, key_needed: bool, in_cbor: bool) -> Row:
    if not isinstance(record, dict):
        raise ServiceError("SerializationException", "Start of structure or map expected.")
    key, explicit, blob = record.get("PartitionKey"), record.get("ExplicitHashKey"), record.get("Data")
    if key is None and not key_needed:
        key = ""
    elif not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARACTERS:
        raise _bad_key(f"records.{number}.member.partitionKey", key)
    if not isinstance(blob, bytes if in_cbor else str):
        raise _not_a_string(f"records.{number}.member.data", blob)
    data = blob if isinstance(blob, bytes) else _decoded(blob)
    size = len(data) + (len(key) if key.isascii() else len(key.encode()))
    if explicit is None:
        hash_key = hash_of(key, None)
    else:
        hash_key = checked_hash_key(f"records.{number}.member.explicitHashKey", explicit)
    return Row(key, explicit, data, size, hash_key)


def _decoded(text: str) -> bytes:
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError:  # also raised for characters beyond ASCII
        raise ServiceError("SerializationException", f"'{text[:32]}' can not be converted to a Blob") from None


def checked_hash_key(where: str, value: Any) -> int:
    """Return an explicit hash key as a number.  Raise the ServiceError for any other value."""
    if not isinstance(value, str) or not HASH_KEY.fullmatch(value):
        pattern = "0|([1-9]\\d{0,38})"
        raise violation(f"Value '{value}' at '{where}'", f"Member must satisfy regular expression pattern: {pattern}")
    if (number := int(value)) >= HASH_END:
        raise ServiceError(
            "InvalidArgumentException",
            f"Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was {value}",
        )
    return number


def _bad_key(where: str, key: Any) -> ServiceError:
    if not isinstance(key, str):
        return _not_a_string(where, key)
    constraint = "greater than or equal to 1" if not key else f"less than or equal to {MAX_KEY_CHARACTERS}"
    return violation(f"Value '{key}' at '{where}'", f"Member must have length {constraint}")


def _not_a_string(where: str, value: Any) -> ServiceError:
    if value is None:
        return violation(f"Value null at '{where}'", "Member must not be null")
    return ServiceError("SerializationException", "class java.math.BigDecimal can not be converted to an String")


def violation(value: str, constraint: str) -> ServiceError:
    message = f"1 validation error detected: {value} failed to satisfy constraint: {constraint}"
    return ServiceError("ValidationException", message)
