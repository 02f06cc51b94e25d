"""The table of error codes, and what the daemon does about each.

No other module interprets codes of Kinesis or of the transport.  The tables follow the Kinesis API reference
(PutRecords, common errors) and botocore's service model.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from producerd.errors import Code


class Kind(Enum):
    """What the daemon does about a failure."""

    THROTTLED = "throttled"  # slow down the lane
    TRANSIENT = "transient"  # send again after a delay
    INVALID = "invalid"  # a record is bad: find it by halving the request, and end it
    REFUSED = "refused"  # not about a record: halve the request, and let a row that is refused by itself wait
    PERMANENT = "permanent"  # nothing passes until an operator fixes the cause


class Meaning(NamedTuple):
    """A failure's kind, and the code under which callers see it (docs/operate/error-codes.md).

    ``judges``: if a request of a single row fails so, that very row can never be stored.
    """

    kind: Kind
    code: str
    judges: bool = False


CREDENTIALS_LATE: Final = "CredentialsTimeout"
"""The code of a request for which the source of credentials did not answer in time.

It may pass, so a stream that never worked has its grace, too.
"""
CREDENTIALS_AWAITED: Final = "CredentialsAwaited"
"""The code of a request that ended while the source of credentials still had time to answer."""
OF_THE_DAEMON: Final = frozenset({Code.CREDENTIALS, Code.CONFIGURATION})
"""The codes of failures of the daemon's own access, which fails each call in the same way."""
_OF_KINESIS: Final = {
    "ProvisionedThroughputExceededException": Meaning(Kind.THROTTLED, Code.THROTTLED),
    # These fail a whole request: the limit of the account or of the API was reached, not a shard's.
    "ThrottlingException": Meaning(Kind.TRANSIENT, Code.THROTTLED),
    "LimitExceededException": Meaning(Kind.TRANSIENT, Code.THROTTLED),
    "KMSThrottlingException": Meaning(Kind.TRANSIENT, Code.THROTTLED),
    "ResourceInUseException": Meaning(Kind.TRANSIENT, Code.SERVICE_FAULT),
    "RequestTimeTooSkewed": Meaning(Kind.TRANSIENT, Code.CREDENTIALS),
    "RequestInTheFuture": Meaning(Kind.TRANSIENT, Code.CREDENTIALS),
    "RequestExpired": Meaning(Kind.TRANSIENT, Code.CREDENTIALS),
    "ResourceNotFoundException": Meaning(Kind.PERMANENT, Code.STREAM_NOT_FOUND),
    "AccessDeniedException": Meaning(Kind.PERMANENT, Code.ACCESS_DENIED),
    "AccessDenied": Meaning(Kind.PERMANENT, Code.ACCESS_DENIED),
    "NotAuthorized": Meaning(Kind.PERMANENT, Code.ACCESS_DENIED),
    "OptInRequired": Meaning(Kind.PERMANENT, Code.ACCESS_DENIED),
    "KMSDisabledException": Meaning(Kind.PERMANENT, Code.KMS),
    "KMSInvalidStateException": Meaning(Kind.PERMANENT, Code.KMS),
    "KMSNotFoundException": Meaning(Kind.PERMANENT, Code.KMS),
    "KMSAccessDeniedException": Meaning(Kind.PERMANENT, Code.KMS),
    "KMSOptInRequired": Meaning(Kind.PERMANENT, Code.KMS),
    "UnrecognizedClientException": Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    "InvalidClientTokenId": Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    "ExpiredTokenException": Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    "ExpiredToken": Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    "InvalidSignatureException": Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    "SignatureDoesNotMatch": Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    "AuthFailure": Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    "IncompleteSignature": Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    "MissingAuthenticationTokenException": Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    # The whole API is not Kinesis's, or the format of the request is not known there.
    "UnknownOperationException": Meaning(Kind.TRANSIENT, Code.SERVICE_FAULT),
    "ValidationException": Meaning(Kind.REFUSED, Code.REQUEST_REFUSED),
    "InvalidArgumentException": Meaning(Kind.REFUSED, Code.REQUEST_REFUSED),
    "SerializationException": Meaning(Kind.REFUSED, Code.REQUEST_REFUSED),
    "MissingParameter": Meaning(Kind.REFUSED, Code.REQUEST_REFUSED),
}
"""The error types of Kinesis itself, which an answer with a status 4xx may have."""
_MEANINGS: Final = _OF_KINESIS | {
    Code.CREDENTIALS: Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    CREDENTIALS_LATE: Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    CREDENTIALS_AWAITED: Meaning(Kind.TRANSIENT, Code.CREDENTIALS),
    Code.CONFIGURATION: Meaning(Kind.PERMANENT, Code.CONFIGURATION),
    Code.INTERNAL: Meaning(Kind.INVALID, Code.INTERNAL),
    Code.UNREACHABLE: Meaning(Kind.TRANSIENT, Code.UNREACHABLE),
    Code.RESULT_COUNT: Meaning(Kind.TRANSIENT, Code.RESULT_COUNT),
    Code.PROXY_REFUSED: Meaning(Kind.REFUSED, Code.PROXY_REFUSED),
}
_UNKNOWN: Final = Meaning(Kind.TRANSIENT, Code.SERVICE_FAULT)
"""The meaning of InternalFailure, ServiceUnavailable and any code that is not in the table: send again, with back-off.
"""


_BARE: Final = _MEANINGS[Code.PROXY_REFUSED]
"""The meaning of a 4xx that Kinesis did not send: a proxy or a firewall rejects the body, its size, or all requests."""
_PASSING_STATUSES: Final = frozenset({408, 425, 429})
"""Statuses 4xx that reject nothing: the same request may pass later."""
_VIOLATIONS: Final = re.compile(r"(\d+) validation errors? detected")
_PATHS: Final = re.compile(
    r" at '([^']*)' failed to satisfy constraint(?!: Member must (?:not be null|have length greater))"
)
"""The path of a violation.  A value that is null or empty judges nothing: the service could not read the request, as no
request has such a value.
"""
_PATH_OF_RECORD: Final = re.compile(r"records[.\[]\d+\]?\.(member\.)?\w+", re.IGNORECASE)
_JUDGING: Final = re.compile(
    r"Invalid (PartitionKey|ExplicitHashKey)\. .*"
    r"|Record \d+ of stream \S+ .*\b\d+ bytes, more than the maximum record size of \d+ bytes\.?",
    re.DOTALL,
)
"""The sentences of Kinesis about a record.  A message that only mentions one, or a stream so named, judges nothing."""
_NUMBER: Final = re.compile(r"\brecord(?:s[.\[]| number | #| )(\d{1,4})\b", re.IGNORECASE)
_SIZE: Final = re.compile(
    r"\.data' failed to satisfy constraint: Member must have length less|^Record \d+ of stream ", re.IGNORECASE
)


def meaning_of(code: str) -> Meaning:
    """Return the meaning of a code of Kinesis, of the transport or of producerd itself."""
    return _MEANINGS.get(code, _UNKNOWN)


def meaning_of_answer(code: str, message: str, status: int, request_id: str) -> Meaning:
    """Return the meaning of a failed request, with the HTTP status and the request id of its answer, or 0 and "".

    Only Kinesis's own answer judges a record.  An error type without a request id may come from a proxy.
    """
    known = _OF_KINESIS.get(code)
    is_refused = known is not None and known.kind in (Kind.REFUSED, Kind.PERMANENT)
    if not status:
        return meaning_of(code)
    if not 400 <= status < 500 or status in _PASSING_STATUSES:
        return _UNKNOWN if is_refused else meaning_of_error(code, message)
    if code.isdecimal() or (not request_id and (known is None or is_refused)):
        return _BARE
    return meaning_of_error(code, message)


def meaning_of_error(code: str, message: str) -> Meaning:
    """Return the meaning of Kinesis's own error for a request or an entry.  It judges a record if it names one.

    A service may have a code that is producerd's own, such as INTERNAL, and mean something else.
    """
    meaning = _OF_KINESIS.get(code, _UNKNOWN)
    if meaning.kind is not Kind.REFUSED or not names_record(message):
        return meaning
    too_large = _SIZE.search(message)
    return Meaning(Kind.INVALID, Code.RECORD_TOO_LARGE if too_large else Code.RECORD_INVALID, judges=True)


def names_record(message: str) -> bool:
    """Return whether a message of Kinesis is about a record and nothing else: its member, its hash key or its size.

    A list of violations has one path for each.  If some are missing, because the message was cut, it judges nothing.
    """
    if violations := _VIOLATIONS.search(message):
        paths = _PATHS.findall(message)
        return len(paths) == int(violations[1]) and all(map(_PATH_OF_RECORD.fullmatch, paths))
    return _JUDGING.fullmatch(message) is not None


def number_of_record(message: str) -> int:
    """Return the number of the first record that a message of Kinesis names, counted from 1, or 0."""
    named = _NUMBER.search(message)
    return int(named[1]) if named else 0


def refuses(status: int, code: str) -> bool:
    """Return whether an answer with this HTTP status and error type proves that Kinesis stored nothing of the request.

    Any other answer may come from a proxy, after Kinesis has stored the request.
    """
    return 400 <= status < 500 and code in _OF_KINESIS
