"""The table of error codes, and what the daemon does about each.

No other module interprets codes of Kinesis or of the transport.  The tables follow the Kinesis API reference
(PutRecords, common errors) and botocore's service model.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from producerd.errors import Code


class Kind(Enum):
    """What the daemon does about a failure."""

    THROTTLED = "throttled"  # slow down the lane
    TRANSIENT = "transient"  # send again after a delay
    INVALID = "invalid"  # find the bad entry by halving the request
    PERMANENT = "permanent"  # nothing passes until an operator fixes the cause


class Meaning(NamedTuple):
    """A failure's kind, and the code under which callers see it (docs/spark.md)."""

    kind: Kind
    code: str


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
    "ValidationException": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    "InvalidArgumentException": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    "SerializationException": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    "MissingParameter": Meaning(Kind.INVALID, Code.RECORD_INVALID),
}
"""The error types of Kinesis itself, which an answer with a status 4xx may have."""
_MEANINGS: Final = _OF_KINESIS | {
    Code.CREDENTIALS: Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    # Bare statuses come from a proxy or a firewall that rejects the body or its size.
    "400": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    "413": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    Code.INTERNAL: Meaning(Kind.INVALID, Code.INTERNAL),
    Code.UNREACHABLE: Meaning(Kind.TRANSIENT, Code.UNREACHABLE),
    Code.RESULT_COUNT: Meaning(Kind.TRANSIENT, Code.RESULT_COUNT),
}
_UNKNOWN: Final = Meaning(Kind.TRANSIENT, Code.SERVICE_FAULT)
"""The meaning of InternalFailure, ServiceUnavailable and any code that is not in the table: send again, with back-off.
"""


def meaning_of(code: str) -> Meaning:
    """Return the meaning of a code of Kinesis, of the transport or of producerd itself."""
    return _MEANINGS.get(code, _UNKNOWN)


def refuses(status: int, code: str) -> bool:
    """Return whether an answer with this HTTP status and error type proves that Kinesis stored nothing of the request.

    Any other answer may come from a proxy, after Kinesis has stored the request.
    """
    return 400 <= status < 500 and code in _OF_KINESIS
