"""StreamHealth: whether a stream can be written to."""

from __future__ import annotations

from enum import Enum
from math import inf
from random import Random
from typing import Final

from producerd.core.rows.frame import RowEnd
from producerd.core.sending.answers import RequestFailed
from producerd.errors import Code, Outcome


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
