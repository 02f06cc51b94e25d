"""Check the headers of a request: the access key and the time of its signature.

The decision depends only on the headers and the clock.  The signature itself is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from datetime import UTC, datetime, timedelta
from typing import Final

from producerd.testing.streams import ServiceError

TOLERANCE: Final = timedelta(minutes=5)
"""Largest difference between the clocks.  https://github.com/awslabs/amazon-kinesis-producer/issues/222 quotes it."""

LARGEST_CLOCK_OFFSET_SECONDS: Final = 100 * 365 * 86_400
"""Largest offset of the server's clock: enough for a machine that begins in 1970, and small enough for any date."""

_DATE: Final = "%Y%m%dT%H%M%SZ"
_ACCESS_KEY: Final = re.compile(r"Credential=([^/,\s]+)/")


def checked_clock_offset(seconds: float) -> float:
    """Return the offset.  Raise ValueError if it is too large."""
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
    """Return the error that refuses a request, or None.  ``headers`` must find a name in any case of letters."""
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
