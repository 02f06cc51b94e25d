"""What to do about a failure, as tables; how long to wait; and the stream's health.

Codes of the service and of the transport are read here and nowhere else.  The tables follow the Kinesis API reference
(PutRecords, common errors) and botocore's service model.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from random import Random
from typing import Final, NamedTuple

from producerd.core.entries import RequestFailed
from producerd.core.frame import RowEnd
from producerd.errors import Code, Outcome


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


class RetryPolicy:
    """Full-jitter exponential back-off: uniform in (0, min(cap, base * 2^attempt)), at least `MIN_DELAY_SECONDS`."""

    BASE_SECONDS: Final = 0.1
    CAP_SECONDS: Final = 5.0
    MIN_DELAY_SECONDS: Final = 0.01
    UPLINK_BYTES_PER_SECOND: Final = 256 * 1024
    """A request's time-out grows with its size: a slow uplink is not an outage."""
    MAX_TIMEOUT_SECONDS: Final = 60.0

    def __init__(self, random: Random, request_timeout_seconds: float = 6.0) -> None:
        self._random = random
        self.request_timeout_seconds = request_timeout_seconds

    def timeout(self, bytes_: int, timeouts: int) -> float:
        """Seconds to wait for the answer to a body of that size, whose rows had ``timeouts`` time-outs before."""
        base = self.request_timeout_seconds + bytes_ / self.UPLINK_BYTES_PER_SECOND
        return max(base, min(self.MAX_TIMEOUT_SECONDS, base * 2.0 ** min(timeouts, 10)))

    def delay(self, attempts: int) -> float:
        """Seconds to wait before attempt number ``attempts`` + 1."""
        ceiling = min(self.CAP_SECONDS, self.BASE_SECONDS * 2.0 ** min(attempts, 16))
        return max(self.MIN_DELAY_SECONDS, self._random.uniform(0, ceiling))

    def hold(self) -> float:
        """Seconds that a whole stream waits when nothing gets through."""
        return max(self.MIN_DELAY_SECONDS, self._random.uniform(0, self.CAP_SECONDS))


class InFlightWindow:
    """How many requests and bytes of a stream may be in flight: halved by a time-out, one by one up again.

    It starts at `FIRST`, and after `hold` at one, and doubles with each window that is answered, up to where it was.
    While answers take a good part of their time-out it does not grow: what is added to a slow uplink only waits there
    (24 requests of 1 MiB over 20 Mbit/s would all time out).
    """

    FIRST: Final = 4
    TARDY: Final = 1 / 3
    """Of the time-out."""

    def __init__(self, most: int, most_bytes: int, request_max_bytes: int) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self._request_max_bytes = request_max_bytes
        self._size = float(min(most, self.FIRST))
        self._slow_start_until = float(most)

    def set_limits(self, most: int, most_bytes: int, request_max_bytes: int) -> None:
        """New limits.  What a time-out has taught stays: from there it grows one by one."""
        never_cut = self._slow_start_until >= self.most
        self._slow_start_until = float(most) if never_cut else min(self._slow_start_until, most)
        self._size = min(self._size, float(most))
        self.most = most
        self.most_bytes = most_bytes
        self._request_max_bytes = request_max_bytes

    @property
    def size(self) -> int:
        return int(self._size)

    @property
    def bytes(self) -> int:
        """Room for so many full requests; where single records are larger than a request, their share of the limit."""
        share = int(self.most_bytes * self._size / self.most)
        return min(self.most_bytes, max(share, self.size * self._request_max_bytes))

    def answered(self, seconds: float, timeout_seconds: float) -> None:
        if seconds > self.TARDY * timeout_seconds:
            self._slow_start_until = min(self._slow_start_until, self._size)
            return
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


WHERE_TO_LOOK: Final = "look at region and endpoint_url, and on this host at DNS, proxies and AWS_CA_BUNDLE"
"""What to do where the service cannot be reached."""


class StreamHealth:
    """Whether a stream can be written to: a stream that has worked gets patience, one that never has gets none.

    Transient failures never change the state: a stream that cannot be reached stays what it was, and callers wait.
    The one exception is an endpoint that is wrong by evidence (`RequestFailed.wrong_endpoint`).  Where every attempt
    says so for ``first_contact_seconds``, the stream is BROKEN with UNREACHABLE until an attempt says anything else.
    """

    PROBE_SECONDS: Final = 5.0

    def __init__(self, grace_seconds: float, random: Random, first_contact_seconds: float = inf) -> None:
        self.grace_seconds = grace_seconds
        self.first_contact_seconds = first_contact_seconds
        self._random = random
        self.state = HealthState.UNPROVEN
        self.code = ""
        self.message = ""
        self._suspect_since = 0.0
        self._next_probe = 0.0
        self._wrong_since: float | None = None  # when the first of the attempts in a row found the endpoint wrong
        self._wrong_as = ""

    @property
    def end(self) -> RowEnd:
        """How rows of a BROKEN stream end."""
        return RowEnd(Outcome.NOT_STORED, self.code, self.message)

    def set_times(self, grace_seconds: float, first_contact_seconds: float) -> None:
        """Other times.  A stream that was given up waits again, for as long as the new time has it."""
        self.grace_seconds, self.first_contact_seconds = grace_seconds, first_contact_seconds
        self._wait_again()

    @property
    def gives_up_at(self) -> float:
        """When the wait for the first contact ends; ``inf`` where nothing says that the endpoint is wrong."""
        if self._wrong_since is None or self.state is not HealthState.UNPROVEN:
            return inf
        return self._wrong_since + self.first_contact_seconds

    def stored(self) -> None:
        """Something was stored."""
        self.state, self.code, self.message = HealthState.WORKING, "", ""
        self._wrong_since = None

    def tried(self, failed: RequestFailed | None, now: float) -> None:
        """An attempt to reach the service ended; None: with an answer.

        Only one that found the endpoint wrong brings the end of the wait for the first contact nearer.
        """
        if failed is not None and failed.wrong_endpoint:
            self._wrong_as = failed.message
            if self._wrong_since is None:
                self._wrong_since = now
            return
        self._wrong_since = None
        self._wait_again()

    def _wait_again(self) -> None:
        if self.state is HealthState.BROKEN and self.code == Code.UNREACHABLE:
            self.state, self.code, self.message = HealthState.UNPROVEN, "", ""

    def gives_up(self, now: float) -> bool:
        """Whether the wait for the first contact ends now."""
        if now < self.gives_up_at:
            return False
        self.state, self.code = HealthState.BROKEN, Code.UNREACHABLE
        self.message = (
            f"{self._wrong_as}; every attempt in first_contact_timeout_seconds = {self.first_contact_seconds:g} found "
            f"it so, and nobody there has ever answered: {WHERE_TO_LOOK}"
        )
        self._schedule_probe(now)
        return True

    def looks_permanent(self, code: str, message: str, now: float) -> None:
        """A whole answer, or entries of one, said that nothing will pass."""
        self.code, self.message = code, message
        if self.state is HealthState.WORKING:
            self.state, self._suspect_since = HealthState.SUSPECT, now
        elif self.state is HealthState.UNPROVEN or (
            self.state is HealthState.SUSPECT and now >= self._suspect_since + self.grace_seconds
        ):
            self.state = HealthState.BROKEN
            self._schedule_probe(now)

    def admits(self, now: float, *, patient: bool = False, probes: bool = True) -> bool:
        """Whether a caller's frame may be taken on; a BROKEN stream lets one in every few seconds, as the probe.

        ``patient``: the frame is not ended by UNREACHABLE (`Frame.outlasts`).  ``probes``: whether it may be the probe.
        """
        if self.state is not HealthState.BROKEN or (patient and self.code == Code.UNREACHABLE):
            return True
        if not probes or now < self._next_probe:
            return False
        self._schedule_probe(now)
        return True

    def _schedule_probe(self, now: float) -> None:
        self._next_probe = now + self.PROBE_SECONDS * self._random.uniform(0.8, 1.2)
