"""The faults of the fake Kinesis, and the script that orders them.

A request meets the first remaining fault of the script that is for its action, and no other fault of the script.  A
fault that could never hit, or that means nothing, raises ValueError when it is created.  A test with it would prove
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import ClassVar, Final, Literal, get_args

from producerd.testing.streams import ACCOUNT, ServiceError

Kind = Literal["answer", "error", "reset", "hang", "lost", "replaced", "miscount", "failed_count", "throttle", "fail"]

ACTIONS: Final = (
    *("PutRecords", "ListShards", "DescribeStreamSummary", "DescribeStream", "GetShardIterator", "GetRecords"),
    *("CreateStream", "DeleteStream", "SplitShard", "MergeShards", "UpdateShardCount"),
)
"""The actions that the fake answers.  `FakeKinesis` has a method for each."""

THROTTLED: Final = "ProvisionedThroughputExceededException"
ENTRY_FAILURES: Final[dict[str, tuple[str, str]]] = {
    "throttle": (THROTTLED, "Rate exceeded for shard {shard} in stream {stream} under account {account}."),
    "fail": ("InternalFailure", "Internal service failure."),
}
REQUEST_FAILURES: Final[dict[int, tuple[str, str]]] = {
    400: ("LimitExceededException", f"Rate exceeded under account {ACCOUNT}."),
    500: ("InternalFailure", "Internal service failure."),
    503: ("ServiceUnavailable", "Service is unable to handle request."),
}
OF_SOME_KINDS: Final[dict[str, tuple[Kind, ...]]] = {
    "entries": ("throttle", "fail"),
    "shard_id": ("throttle", "fail"),
    "status": ("error", "replaced"),
    "code": ("error", "fail"),
    "message": ("error", "fail"),
    "count": ("miscount", "failed_count"),
}
"""Fields that only some kinds of faults use, with these kinds."""
PUT_RECORDS_ALONE: Final = ("throttle", "fail", "miscount", "failed_count")


def checked_actions(names: Iterable[str]) -> set[str]:
    """Return the names of actions.  Raise ValueError if the fake does not have one of them."""
    names = set(names)
    if unknown := sorted(names.difference(ACTIONS)):
        raise ValueError(f"no action {', '.join(map(repr, unknown))}; there are {', '.join(ACTIONS)}")
    return names


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a request fails.

    ``answer``        the request succeeds, perhaps late; in a script it lets one request pass
    ``error``         the whole request fails with ``status``, ``code`` and ``message``; nothing is stored
    ``reset``         the connection is reset without an answer; nothing is stored
    ``hang``          no answer ever comes; nothing is stored
    ``lost``          everything is stored, then the connection is reset without an answer
    ``replaced``      everything is stored, then a proxy answers with ``status``, a page and no request id
    ``miscount``      the answer has ``count`` results more (negative: fewer) than the request has entries
    ``failed_count``  the answer's FailedRecordCount is ``count``
    ``throttle``      entries fail with ProvisionedThroughputExceededException
    ``fail``          entries fail with InternalFailure, or with ``code`` and ``message``

    In a script, a fault lasts for ``requests`` requests or until ``entries`` entries have failed; by default, for one
    request.  A standing fault lasts until it is removed, and fails at most ``entries`` entries of each request.

    ``shard_id`` limits the fault to the entries of one shard.  ``fraction`` is the share that fails, chosen with the
    seed: of entries for throttle and fail, of requests otherwise.  ``delay_seconds`` delays the answer or the reset,
    not the storing.  ``action`` may be "*".
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # for faults in JSON

    kind: Kind
    requests: int | None = None
    entries: int | None = None
    fraction: float = 1.0
    shard_id: str | None = None
    action: str = "PutRecords"
    status: int = 500
    code: str = ""
    message: str = ""
    count: int = 0
    delay_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"unknown kind {self.kind!r}; known are {', '.join(get_args(Kind))}")
        for field in fields(self):
            value, kinds = getattr(self, field.name), OF_SOME_KINDS.get(field.name, (self.kind,))
            if value != field.default and self.kind not in kinds:
                raise ValueError(f"{self.kind} with {field.name}={value!r}, which is for {' and '.join(kinds)} only")
        if self.action != "*":
            checked_actions([self.action])
        if self.kind in PUT_RECORDS_ALONE and self.action not in ("PutRecords", "*"):
            raise ValueError(f"{self.kind} with action={self.action!r}: it is for PutRecords only")
        for name, number in (("requests", self.requests), ("entries", self.entries)):
            if number is not None and (number < 1 or number % 1):
                raise ValueError(f"{name}={number!r}: a whole number from 1 on, or None")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction!r}: above 0, and at most 1")
        if not self.delay_seconds >= 0:
            raise ValueError(f"delay_seconds={self.delay_seconds!r}: 0 or more")
        if self.status not in range(400, 600):
            raise ValueError(f"status={self.status!r}: of an error, 400 to 599")
        if self.kind == "miscount" and (self.count == 0 or self.count % 1):
            raise ValueError(f"miscount with count={self.count!r}: how many results too many, or (negative) too few")

    def is_for(self, action: str) -> bool:
        """Return whether the fault hits requests for this action."""
        return self.action in (action, "*")


@dataclass(slots=True)
class Lasting:
    """A fault, with the requests and entries for which it still lasts, or None if they have no limit."""

    fault: Fault
    requests: int | None
    entries: int | None

    @property
    def is_over(self) -> bool:
        return self.requests == 0 or self.entries == 0


class Script:
    """A list of faults that hit requests one after the other, each for its own action."""

    def __init__(self) -> None:
        self._lines: list[Lasting] = []

    def append(self, *faults: Fault) -> None:
        for fault in faults:
            once = fault.requests is None and fault.entries is None
            self._lines.append(Lasting(fault, 1 if once else fault.requests, fault.entries))

    @property
    def left(self) -> list[Fault]:
        return [line.fault for line in self._lines if not line.is_over]

    def clear(self) -> None:
        self._lines.clear()

    def take(self, action: str) -> Lasting | None:
        """Return the fault that a request for this action meets, or None, and count the request."""
        if self._lines:
            self._lines = [line for line in self._lines if not line.is_over]
        for line in self._lines:
            if line.fault.is_for(action):
                line.requests = None if line.requests is None else line.requests - 1
                return line
        return None


def stopped_by(faults: list[Lasting]) -> Literal["reset", "hang"] | None:
    """Return the first fault that leaves a request without an answer, or None.  Raise the error of an ``error``."""
    for lasting in faults:
        fault = lasting.fault
        if fault.kind == "reset" or fault.kind == "hang":
            return fault.kind
        if fault.kind == "error":
            code, message = REQUEST_FAILURES.get(fault.status, ("", ""))
            raise ServiceError(fault.code or code, fault.message or ("" if fault.code else message), fault.status)
    return None
