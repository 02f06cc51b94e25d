"""ServiceClock: the time of the service, learned from its answers when this machine's clock is wrong.

AWS refuses a signature whose time is off by more than five minutes, and botocore signs with the machine's time.  The
daemon therefore learns the difference from the Date header of the first refusal, and signs later requests with the
service's time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

from botocore import UNSIGNED
from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, SigV4Auth
from botocore.exceptions import ClientError

from producerd.runtime.logs import get_logger

log = get_logger("producerd.aws")

TOLERATED: Final = timedelta(minutes=1)
"""Largest difference that cannot be the reason for a refusal, because AWS accepts five minutes."""
BELIEVED: Final = timedelta(days=36_525)
"""Largest difference that the daemon believes.

Near the year 9999 nothing could be signed, and no answer would correct the offset.
"""
_MAYBE_THE_CLOCK: Final = frozenset(
    {
        "AuthFailure",
        "InvalidSignatureException",
        "RequestExpired",
        "RequestInTheFuture",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
)


class ServiceClock:
    """The clock of one client.  ``offset`` is the service's time minus this machine's, or 0 if they agree."""

    def __init__(self) -> None:
        self.offset = timedelta(0)

    def now(self) -> datetime:
        """Return the service's time."""
        return datetime.now(UTC) + self.offset

    def learn(self, error: Exception, signed_with: timedelta) -> bool:
        """Return whether the clock is why the service refused a request, and if so, learn the offset from its answer.

        ``signed_with`` is the offset that the request was signed with.
        """
        if not isinstance(error, ClientError) or error.response.get("Error", {}).get("Code") not in _MAYBE_THE_CLOCK:
            return False
        try:
            date = parsedate_to_datetime(error.response["ResponseMetadata"]["HTTPHeaders"]["date"])
            offset = date - datetime.now(UTC)
        except (KeyError, TypeError, ValueError, OverflowError):  # there is no date, or it has no time zone
            return False
        if abs(offset - signed_with) < TOLERATED or abs(offset) > BELIEVED:
            return False
        if abs(offset - self.offset) >= TOLERATED:
            self.offset = offset if abs(offset) >= TOLERATED else timedelta(0)
            log.warning("this machine's clock is off; signing by the service's", seconds=round(offset.total_seconds()))
        return True

    def choose_signer(self, signature_version: Any, context: dict[str, Any], **_: Any) -> str | None:
        """Choose the signer of a request: botocore's, or this clock's if the machine's time is wrong.

        It is a handler of botocore's event choose-signer.
        """
        if not self.offset or signature_version is UNSIGNED:
            return None
        context[_CLOCK] = self
        return _BY_SERVICE_CLOCK


class _SigV4ByServiceClock(SigV4Auth):  # type: ignore[misc]
    """A SigV4 signer that uses a `ServiceClock`'s time.  It signs with the timestamp in the request's context."""

    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = request.context[_CLOCK].now().strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)


_CLOCK: Final = "producerd_clock"
_BY_SERVICE_CLOCK: Final = "producerd-v4"
AUTH_TYPE_MAPS[_BY_SERVICE_CLOCK] = _SigV4ByServiceClock
