"""MapWait: how long rows wait for the list of their stream's shards, and what happens if it does not come.

Rows that are not aggregated wait for a moment and then go.  Rows to be aggregated wait while readings fail for reasons
that pass, counted from the first answer of the service to any call.  Then they go as plain records until the list
comes.  The daemon refuses them only if it may not read the list.
"""

from __future__ import annotations

from math import inf
from typing import Final

from producerd.core.failures import CREDENTIALS_AWAITED, CREDENTIALS_LATE, OF_THE_DAEMON, Kind, meaning_of
from producerd.errors import Code

PLAIN_WAIT_SECONDS: Final = 1.0
"""Longest time for which plain records wait for the stream's first map.  Without a map nothing paces them: what they
gain in the first second, throttling takes back in the next five."""
UNANSWERED: Final = OF_THE_DAEMON | {Code.UNREACHABLE, CREDENTIALS_LATE, CREDENTIALS_AWAITED}
"""Error codes of the daemon's own for calls that the service never answered."""


class MapWait:
    """One stream's wait for the list, from the first row that misses it until it comes or is forgotten.

    ``aggregates``: whether the rows become aggregates.
    """

    def __init__(self, *, aggregates: bool) -> None:
        self.error = ""
        """The reason why the last reading failed, or ""."""
        self.denied = False
        """Whether the last reading was denied, which lasts until an operator grants the permission."""
        self.plain = False
        """Whether rows to be aggregated go as plain records, because no list came in time."""
        self._aggregates = aggregates
        self._stream_fails = False  # the stream does not exist, or the credentials fail, so its health decides
        self._answered_at = inf  # when the service first answered any call
        self._denied_at = inf  # when the present row of denials began
        self._since = inf
        self._seconds = 0.0

    @property
    def ends_at(self) -> float:
        """When rows stop waiting, or ``inf`` while the service has not answered yet or the stream's health decides.

        Denials must last for the whole wait.  A single one among failures that pass ends nothing.
        """
        if not self._aggregates:
            return self._since if self.error else self._since + self._seconds
        if self._stream_fails:
            return inf
        return max(self._since, self._denied_at if self.denied else self._answered_at) + self._seconds

    def refuses(self, now: float) -> bool:
        """Return whether rows to be aggregated are refused, because the list was denied for long enough."""
        return self._aggregates and self.denied and now >= self.ends_at

    def begin(self, now: float, seconds: float) -> None:
        """Note that rows wait, or would.  Only the first call counts.  ``seconds``: the longest wait."""
        if self._since == inf:
            self._since, self._seconds = now, seconds if self._aggregates else min(seconds, PLAIN_WAIT_SECONDS)

    def heard_from_service(self, now: float) -> None:
        """Note that the service answered a call, with success or failure."""
        self._answered_at = min(self._answered_at, now)

    def reading_failed(self, code: str, message: str, now: float) -> None:
        """Note that a reading of the list failed."""
        if code not in UNANSWERED:
            self.heard_from_service(now)
        meaning = meaning_of(code)
        permanent = meaning.kind is Kind.PERMANENT
        self._stream_fails = permanent and meaning.code in {Code.STREAM_NOT_FOUND, *OF_THE_DAEMON}
        self.denied = permanent and not self._stream_fails
        self._denied_at = min(self._denied_at, now) if self.denied else inf
        self.error = f"{code}: {message}"

    def go_plain(self) -> None:
        """Let rows to be aggregated go as plain records until the list comes, because it did not come in time."""
        self.plain = True

    def over(self) -> None:
        """End the wait, because the list has come or no row needs it any more."""
        self.error, self.denied, self.plain, self._stream_fails = "", False, False, False
        self._since = self._denied_at = inf
