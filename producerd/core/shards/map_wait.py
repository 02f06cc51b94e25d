"""MapWait: how long rows wait for the list of their stream's shards, and what becomes of them when it does not come.

Rows that are not aggregated wait a moment, then go.  For aggregates what fails for now is waited for, from when the
service first answered any call; then they go as plain records until the list comes.  Only a denial refuses them.
"""

from __future__ import annotations

from math import inf
from typing import Final

from producerd.core.failures import Kind, meaning_of
from producerd.errors import Code

PLAIN_WAIT_SECONDS: Final = 1.0
"""How long plain records wait for the stream's first map: without one nothing paces them, and what they get through in
their first second the shards throttle in the next five."""
UNANSWERED: Final = frozenset([Code.UNREACHABLE, Code.CREDENTIALS])
"""Codes of our own: the call never had an answer of the service."""


class MapWait:
    """One stream's wait, from when the list is missed until it comes or is forgotten.

    ``aggregates``: whether the rows become aggregates.
    """

    def __init__(self, *, aggregates: bool) -> None:
        self.error = ""
        """Why the last reading failed."""
        self.denied = False
        """Whether the last reading was refused, for as long as nobody allows it."""
        self.plain = False
        """Whether rows to be aggregated go as plain records, because no list came in time."""
        self._aggregates = aggregates
        self._stream_fails = False  # it does not exist, or the credentials fail: its health decides
        self._answered_at = inf  # the first answer of the service to any call
        self._denied_at = inf  # the first of the denials in a row
        self._since = inf
        self._seconds = 0.0

    @property
    def ends_at(self) -> float:
        """When rows wait no longer; ``inf`` while the service has not answered yet, or the stream's health decides.

        A denial must last as long itself: one among failures that pass ends nothing.
        """
        if not self._aggregates:
            return self._since if self.error else self._since + self._seconds
        if self._stream_fails:
            return inf
        return max(self._since, self._denied_at if self.denied else self._answered_at) + self._seconds

    def begin(self, now: float, seconds: float) -> None:
        """Rows wait, or would: the first call counts.  ``seconds``: the longest wait."""
        if self._since == inf:
            self._since, self._seconds = now, seconds if self._aggregates else min(seconds, PLAIN_WAIT_SECONDS)

    def answered(self, now: float) -> None:
        """The service answered a call, whatever it said."""
        self._answered_at = min(self._answered_at, now)

    def failed(self, code: str, message: str, now: float) -> None:
        """A reading of the list failed."""
        if code not in UNANSWERED:
            self.answered(now)
        meaning = meaning_of(code)
        permanent = meaning.kind is Kind.PERMANENT
        self._stream_fails = permanent and meaning.code in (Code.STREAM_NOT_FOUND, Code.CREDENTIALS)
        self.denied = permanent and not self._stream_fails
        self._denied_at = min(self._denied_at, now) if self.denied else inf
        self.error = f"{code}: {message}"

    def go_plain(self) -> None:
        """No list came in time: rows to be aggregated go as plain records until it does."""
        self.plain = True

    def over(self) -> None:
        """The list has come, or nobody wants it any more."""
        self.error, self.denied, self.plain, self._stream_fails = "", False, False, False
        self._since = self._denied_at = inf
