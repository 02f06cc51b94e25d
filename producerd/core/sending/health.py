"""The health of a stream: whether it can be written to."""

from __future__ import annotations

from enum import Enum
from math import inf
from random import Random
from typing import Final

from producerd.core.rows.frame import RowEnd
from producerd.core.sending.answers import RequestFailed
from producerd.errors import Code, Outcome


class HealthState(Enum):
    """The states of a stream's health."""

    UNPROVEN = "unproven"  # nothing has been stored yet
    WORKING = "working"
    SUSPECT = "suspect"  # answers look permanent, and its grace runs
    BROKEN = "broken"  # rows fail at once, except a probe every few seconds


WHERE_TO_LOOK: Final = "look at region and endpoint_url, and on this host at DNS, proxies and AWS_CA_BUNDLE"
"""Advice for operators if Kinesis cannot be reached."""


class StreamHealth:
    """The health of a stream.

    After failures that look permanent, a stream that has worked is BROKEN only after ``grace_seconds``, any other at
    once, unless the failure may pass (`looks_permanent`).  Transient failures never change the state: if Kinesis cannot
    be reached, rows wait.

    The only exception is an endpoint that is certainly wrong (`RequestFailed.wrong_endpoint`).  After every attempt has
    found it so for ``first_contact_seconds``, the stream is BROKEN with UNREACHABLE until an attempt finds otherwise.
    """

    PROBE_SECONDS: Final = 5.0
    """Mean time between two probes of a broken stream."""

    def __init__(self, grace_seconds: float, random: Random, first_contact_seconds: float = inf) -> None:
        self.grace_seconds = grace_seconds
        self.first_contact_seconds = first_contact_seconds
        self._random = random
        self.state = HealthState.UNPROVEN
        self.code = ""
        self.message = ""
        self.request_id = ""  # apart from the message, which is one for all rows that fail
        self._has_worked = False
        self._suspect_since = 0.0
        self._next_probe = 0.0
        self._wrong_since: float | None = None  # when the first of the attempts in a row found the endpoint wrong
        self._wrong_as = ""

    @property
    def row_end(self) -> RowEnd:
        """The end of the rows of a BROKEN stream."""
        return RowEnd(Outcome.NOT_STORED, self.code, self.message)

    @property
    def gives_up_at(self) -> float:
        """When the daemon gives up an endpoint that is wrong.

        It is ``inf`` unless the stream never worked and its last attempt found the endpoint wrong.
        """
        if self._wrong_since is None or not self._is_unproven:
            return inf
        return self._wrong_since + self.first_contact_seconds

    @property
    def _is_unproven(self) -> bool:
        """Whether nothing has been stored yet, also while its grace runs."""
        return self.state is HealthState.UNPROVEN or (self.state is HealthState.SUSPECT and not self._has_worked)

    def found_working(self) -> None:
        """Note that an entry was stored."""
        self.state, self.code, self.message, self.request_id = HealthState.WORKING, "", "", ""
        self._has_worked, self._wrong_since = True, None

    def tried(self, failed: RequestFailed | None, now: float) -> None:
        """Note the end of an attempt to reach Kinesis.  None: it had an answer.

        Only attempts that find the endpoint wrong let the wait for the first contact go on towards its end.
        """
        if failed is not None and failed.wrong_endpoint:
            self._wrong_as = failed.message
            if self._wrong_since is None:
                self._wrong_since = now
            return
        self._wrong_since = None
        self._wait_again()

    def _wait_again(self) -> None:
        """Take back that the stream was given up for its endpoint."""
        if self.state is HealthState.BROKEN and self.code == Code.UNREACHABLE:
            self.state, self.code, self.message = HealthState.UNPROVEN, "", ""

    def gives_up(self, now: float) -> bool:
        """Break the stream if the wait for the first contact has ended.  Returns whether it has just ended."""
        if now < self.gives_up_at:
            return False
        self.state, self.code, self.request_id = HealthState.BROKEN, Code.UNREACHABLE, ""
        self.message = (
            f"{self._wrong_as}; every attempt in {self.first_contact_seconds:g} s found "
            f"it so, and the daemon has never had an answer from there: {WHERE_TO_LOOK}"
        )
        self._schedule_probe(now)
        return True

    def forget_refusal(self) -> None:
        """Take back what refused the stream.  The next row finds out whether Kinesis still does."""
        if self.state in (HealthState.SUSPECT, HealthState.BROKEN):
            worked = self.state is HealthState.SUSPECT and self._has_worked
            self.state = HealthState.WORKING if worked else HealthState.UNPROVEN
            self.code = self.message = self.request_id = ""

    def looks_permanent(
        self, code: str, message: str, now: float, request_id: str = "", *, at_once: bool = True
    ) -> None:
        """Note that an answer, or an entry's result, says that no row can be stored until an operator acts.

        Without ``at_once`` a stream that has never worked has the grace, too.
        """
        self.code, self.message, self.request_id = code, message, request_id
        if self.state is HealthState.WORKING or (self.state is HealthState.UNPROVEN and not at_once):
            self.state, self._suspect_since = HealthState.SUSPECT, now
        elif (self._is_unproven and at_once) or (
            self.state is HealthState.SUSPECT and now >= self._suspect_since + self.grace_seconds
        ):
            self.state = HealthState.BROKEN
            self._schedule_probe(now)

    def admits(self, now: float, *, patient: bool = False, probes: bool = True) -> bool:
        """Return whether to accept a frame.  A BROKEN stream accepts one every few seconds as a probe.

        ``patient``: the frame outlasts UNREACHABLE (`Frame.outlasts`).  ``probes``: the frame may be the probe.
        """
        if self.state is not HealthState.BROKEN or (patient and self.code == Code.UNREACHABLE):
            return True
        if not probes or now < self._next_probe:
            return False
        self._schedule_probe(now)
        return True

    def _schedule_probe(self, now: float) -> None:
        self._next_probe = now + self.PROBE_SECONDS * self._random.uniform(0.8, 1.2)
