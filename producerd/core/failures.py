"""What each failure calls for: one table of codes.

Codes of the service and of the transport are read here and nowhere else.  The tables follow the Kinesis API reference
(PutRecords, common errors) and botocore's service model.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from producerd.errors import Code


class Kind(Enum):
    """What a failure calls for."""

    THROTTLED = "throttled"  # its lane holds off
    TRANSIENT = "transient"  # again, after a delay
    INVALID = "invalid"  # the bad entry is to be found by halving
    PERMANENT = "permanent"  # nothing will pass until somebody mends it


class Meaning(NamedTuple):
    """A failure's kind, and the code of docs/names.md for it."""

    kind: Kind
    code: str


_OF_KINESIS: Final = {
    "ProvisionedThroughputExceededException": Meaning(Kind.THROTTLED, Code.THROTTLED),
    # A whole request of these: the account's or the API's rate, not a shard's.
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
    "ValidationException": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    "InvalidArgumentException": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    "SerializationException": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    "MissingParameter": Meaning(Kind.INVALID, Code.RECORD_INVALID),
}
"""Kinesis's own error types, those that an answer of the status 4xx may have."""
_MEANINGS: Final = _OF_KINESIS | {
    Code.CREDENTIALS: Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    # Bare statuses: a proxy's, or a firewall's, that dislikes the body or its size.
    "400": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    "413": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    Code.INTERNAL: Meaning(Kind.INVALID, Code.INTERNAL),
    Code.UNREACHABLE: Meaning(Kind.TRANSIENT, Code.UNREACHABLE),
    Code.RESULT_COUNT: Meaning(Kind.TRANSIENT, Code.RESULT_COUNT),
}
_UNKNOWN: Final = Meaning(Kind.TRANSIENT, Code.SERVICE_FAULT)
"""InternalFailure, ServiceUnavailable and whatever the service invents next: again, with back-off."""


def meaning_of(code: str) -> Meaning:
    """The decision for a code of the service, of the transport, or of our own."""
    return _MEANINGS.get(code, _UNKNOWN)


def refuses(status: int, code: str) -> bool:
    """Whether an answer of Kinesis with this status and error type says that it stored nothing of the request.

    Any other answer may come from a proxy, after Kinesis has stored the request.
    """
    return 400 <= status < 500 and code in _OF_KINESIS
