"""Flushing: the rows that had not ended when somebody asked for them, and how each ends, until the last one has."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from producerd.core.rows.frame import Frame
from producerd.errors import Outcome


class Flushing:
    """See the module's text.  ``done`` is called once, when no row is open; at once where none is."""

    def __init__(self, frames: Iterable[Frame], done: Callable[[], object]) -> None:
        self._frames = dict.fromkeys(frames)  # that are not finished
        self._done = done
        self.records = sum([frame.unsettled for frame in self._frames])
        self._ended = {outcome: -self._ended_as(outcome) for outcome in Outcome}  # what has ended before does not count
        if not self._frames:
            done()

    def finished(self, frame: Frame) -> None:
        """The last row of a frame has ended, whether or not it is one of these."""
        if frame in self._frames:
            del self._frames[frame]
            for outcome, records in frame.tallies.items():
                self._ended[outcome] += records
            if not self._frames:
                self._done()

    def counts(self) -> dict[str, int]:
        """How many records it is about, and how they ended until now.  discarded: their caller is gone."""
        ended = {outcome.name.lower(): self._ended[outcome] + self._ended_as(outcome) for outcome in Outcome}
        left = sum([frame.unsettled for frame in self._frames])
        return {
            "records": self.records,
            **ended,
            "discarded": self.records - left - sum(ended.values()),
            "open": left,
        }

    def _ended_as(self, outcome: Outcome) -> int:
        return sum([frame.tallies[outcome] for frame in self._frames])
