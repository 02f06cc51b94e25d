"""What the service has against a request's headers: whose key signed it, and when.

The promise: a decision from the headers and the clock alone.  Signatures themselves are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from datetime import UTC, datetime, timedelta
from typing import Final

from producerd.testing.streams import ServiceError

TOLERANCE: Final = timedelta(minutes=5)
"""Seen in the words of https://github.com/awslabs/amazon-kinesis-producer/issues/222 and others."""

LARGEST_CLOCK_OFFSET_SECONDS: Final = 100 * 365 * 86_400
"""A machine without a clock begins in 1970; a date far beyond could not be written."""

_DATE: Final = "%Y%m%dT%H%M%SZ"
_ACCESS_KEY: Final = re.compile(r"Credential=([^/,\s]+)/")


def checked_clock_offset(seconds: float) -> float:
    if not abs(seconds) <= LARGEST_CLOCK_OFFSET_SECONDS:
        raise ValueError(
            f"clock_offset_seconds={seconds!r}: at most {LARGEST_CLOCK_OFFSET_SECONDS:,}, a century, either way"
        )
    return seconds


def refusal(
    headers: Mapping[str, str],
    server_time: float,
    *,
    checks_clock: bool,
    accepted_access_keys: Set[str] | None,
    expired_access_keys: Set[str],
) -> ServiceError | None:
    """None for a request that may be answered.  ``headers`` are looked up in any case of letters."""
    if not (checks_clock or expired_access_keys) and accepted_access_keys is None:
        return None
    found = _ACCESS_KEY.search(headers.get("Authorization", ""))
    access_key = found[1] if found else None
    if access_key in expired_access_keys:
        return ServiceError("ExpiredTokenException", "The security token included in the request is expired")
    if accepted_access_keys is not None and access_key is None:
        return ServiceError("MissingAuthenticationTokenException", "Missing Authentication Token")
    if accepted_access_keys is not None and access_key not in accepted_access_keys:
        return ServiceError("UnrecognizedClientException", "The security token included in the request is invalid.")
    if checks_clock and "X-Amz-Date" in headers:
        return _untimely(headers["X-Amz-Date"], datetime.fromtimestamp(server_time, UTC))
    return None


def _untimely(signed: str, now: datetime) -> ServiceError | None:
    try:
        at = datetime.strptime(signed, _DATE).replace(tzinfo=UTC)
    except ValueError:
        message = f"Date must be in ISO-8601 'basic format'. Got '{signed}'."
        return ServiceError("IncompleteSignatureException", message)
    early, late = now - TOLERANCE, now + TOLERANCE
    if at < early:
        message = f"Signature expired: {signed} is now earlier than {early:{_DATE}} ({now:{_DATE}} - 5 min.)"
    elif at > late:
        message = f"Signature not yet current: {signed} is still later than {late:{_DATE}} ({now:{_DATE}} + 5 min.)"
    else:
        return None
    return ServiceError("InvalidSignatureException", message)
