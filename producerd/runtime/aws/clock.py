"""ServiceClock: the service's time, told from its answers where this machine's clock is wrong.

AWS refuses a signature that is off by more than five minutes, and botocore signs by the machine's clock and nothing
else.  So the first refusal teaches the difference, by the answer's Date header, and what follows is signed by it.
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
"""A smaller difference is not why a signature was refused: AWS takes five minutes."""
BELIEVED: Final = timedelta(days=36_525)
"""A larger difference is no clock's; by the year 9999 nothing could be signed, and no answer would mend that."""
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
    """One for each client and what it signs with."""

    def __init__(self) -> None:
        self.offset = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset

    def learn(self, error: Exception, signed_with: timedelta) -> bool:
        """Whether the clock is why the service refused a request that was signed with this offset."""
        if not isinstance(error, ClientError) or error.response.get("Error", {}).get("Code") not in _MAYBE_THE_CLOCK:
            return False
        try:
            date = parsedate_to_datetime(error.response["ResponseMetadata"]["HTTPHeaders"]["date"])
            offset = date - datetime.now(UTC)
        except (KeyError, TypeError, ValueError, OverflowError):  # none, or one that is no date or has no zone
            return False
        if abs(offset - signed_with) < TOLERATED or abs(offset) > BELIEVED:
            return False
        if abs(offset - self.offset) >= TOLERATED:
            self.offset = offset if abs(offset) >= TOLERATED else timedelta(0)
            log.warning("this machine's clock is off; signing by the service's", seconds=round(offset.total_seconds()))
        return True

    def choose_signer(self, signature_version: Any, context: dict[str, Any], **_: Any) -> str | None:
        """choose-signer: botocore's own as long as the machine's clock is right."""
        if not self.offset or signature_version is UNSIGNED:
            return None
        context[_CLOCK] = self
        return _BY_SERVICE_CLOCK


class _SigV4ByServiceClock(SigV4Auth):  # type: ignore[misc]
    """SigV4, which writes its time into the request's context first and reads it from there ever after."""

    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = request.context[_CLOCK].now().strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)


_CLOCK: Final = "producerd_clock"
_BY_SERVICE_CLOCK: Final = "producerd-v4"
AUTH_TYPE_MAPS[_BY_SERVICE_CLOCK] = _SigV4ByServiceClock
