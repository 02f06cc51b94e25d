"""What to do about a failure, as tables; how long to wait; and the stream's health.

Codes of the service and of the transport are read here and nowhere else.  The tables follow the Kinesis API reference
(PutRecords, common errors) and botocore's service model.
"""

from __future__ import annotations

from enum import Enum
from random import Random
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


_MEANINGS: Final = {
    "ProvisionedThroughputExceededException": Meaning(Kind.THROTTLED, Code.THROTTLED),
    # A whole request of these: the account's or the API's rate, not a shard's.
    "ThrottlingException": Meaning(Kind.TRANSIENT, Code.THROTTLED),
    "LimitExceededException": Meaning(Kind.TRANSIENT, Code.THROTTLED),
    "KMSThrottlingException": Meaning(Kind.TRANSIENT, Code.THROTTLED),
    "ResourceInUseException": Meaning(Kind.TRANSIENT, Code.SERVICE_FAULT),
    "RequestTimeTooSkewed": Meaning(Kind.TRANSIENT, Code.CREDENTIALS),
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
    "IncompleteSignature": Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    "MissingAuthenticationTokenException": Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    Code.CREDENTIALS: Meaning(Kind.PERMANENT, Code.CREDENTIALS),
    "ValidationException": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    "InvalidArgumentException": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    "SerializationException": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    "MissingParameter": Meaning(Kind.INVALID, Code.RECORD_INVALID),
    Code.INTERNAL: Meaning(Kind.INVALID, Code.INTERNAL),
    Code.UNREACHABLE: Meaning(Kind.TRANSIENT, Code.UNREACHABLE),
    Code.RESULT_COUNT: Meaning(Kind.TRANSIENT, Code.RESULT_COUNT),
}
_UNKNOWN: Final = Meaning(Kind.TRANSIENT, Code.SERVICE_FAULT)
"""InternalFailure, ServiceUnavailable and whatever the service invents next: again, with back-off."""


def meaning_of(code: str) -> Meaning:
    """The decision for a code of the service, of the transport, or of our own."""
    return _MEANINGS.get(code, _UNKNOWN)


class RetryPolicy:
    """Full-jitter exponential back-off: uniform in (0, min(cap, base * 2^attempt)), at least `MIN_DELAY_SECONDS`."""

    BASE_SECONDS: Final = 0.1
    CAP_SECONDS: Final = 5.0
    MIN_DELAY_SECONDS: Final = 0.01

    def __init__(self, random: Random) -> None:
        self._random = random

    def delay(self, attempts: int) -> float:
        """Seconds to wait before attempt number ``attempts`` + 1."""
        ceiling = min(self.CAP_SECONDS, self.BASE_SECONDS * 2.0 ** min(attempts, 16))
        return max(self.MIN_DELAY_SECONDS, self._random.uniform(0, ceiling))

    def hold(self) -> float:
        """Seconds that a whole stream waits when nothing gets through."""
        return max(self.MIN_DELAY_SECONDS, self._random.uniform(0, self.CAP_SECONDS))


class InFlightWindow:
    """How many requests of a stream may be in flight: halved by a time-out, one by one up again.

    After `hold` it starts at one and doubles with each window that is answered, up to where it was.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._size = float(most)
        self._slow_start_until = float(most)

    @property
    def size(self) -> int:
        return int(self._size)

    def succeeded(self) -> None:
        step = 1.0 if self._size < self._slow_start_until else 1.0 / self._size
        self._size = min(float(self.most), self._size + step)

    def timed_out(self) -> None:
        self._size = max(1.0, self._size / 2)
        self._slow_start_until = self._size

    def hold(self) -> None:
        self._slow_start_until = max(self._slow_start_until / 2, 1.0)
        self._size = 1.0


class HealthState(Enum):
    UNPROVEN = "unproven"  # nothing was ever stored
    WORKING = "working"
    SUSPECT = "suspect"  # it worked, and now answers look permanent
    BROKEN = "broken"  # callers are told at once; a probe every few seconds


class StreamHealth:
    """Whether a stream can be written to: a stream that has worked gets patience, one that never has gets none.

    Transient failures never change the state: a stream that cannot be reached stays what it was, and callers wait.
    """

    PROBE_SECONDS: Final = 5.0

    def __init__(self, grace_seconds: float, random: Random) -> None:
        self._grace_seconds = grace_seconds
        self._random = random
        self.state = HealthState.UNPROVEN
        self.code = ""
        self.message = ""
        self._suspect_since = 0.0
        self._next_probe = 0.0

    def stored(self) -> None:
        """Something was stored."""
        self.state, self.code, self.message = HealthState.WORKING, "", ""

    def looks_permanent(self, code: str, message: str, now: float) -> None:
        """A whole answer, or entries of one, said that nothing will pass."""
        self.code, self.message = code, message
        if self.state is HealthState.WORKING:
            self.state, self._suspect_since = HealthState.SUSPECT, now
        elif self.state is HealthState.UNPROVEN or (
            self.state is HealthState.SUSPECT and now >= self._suspect_since + self._grace_seconds
        ):
            self.state = HealthState.BROKEN
            self._schedule_probe(now)

    def admits(self, now: float) -> bool:
        """Whether a caller's frame may be taken on; a BROKEN stream lets one in every few seconds, as the probe."""
        if self.state is not HealthState.BROKEN:
            return True
        if now < self._next_probe:
            return False
        self._schedule_probe(now)
        return True

    def _schedule_probe(self, now: float) -> None:
        self._next_probe = now + self.PROBE_SECONDS * self._random.uniform(0.8, 1.2)
