"""The progress of an operator's flush."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from producerd.core.rows.frame import Frame
from producerd.errors import Outcome


class Flushing:
    """A count of how the rows of some frames end, for the rows that had not ended when the flush began.

    It calls ``done`` once, as soon as no row is open: in the constructor if none is.
    """

    def __init__(self, frames: Iterable[Frame], done: Callable[[], object]) -> None:
        self._frames = dict.fromkeys(frames)  # the ones that are not finished
        self._done = done
        self.records = sum([frame.unsettled for frame in self._frames])
        self._ended = {outcome: -self._ended_as(outcome) for outcome in Outcome}  # rows that ended before do not count
        if not self._frames:
            done()

    def frame_finished(self, frame: Frame) -> None:
        """Note that a frame is finished.  Frames that are not of this flush are ignored."""
        if frame in self._frames:
            del self._frames[frame]
            for outcome, records in frame.tallies.items():
                self._ended[outcome] += records
            if not self._frames:
                self._done()

    def counts(self) -> dict[str, int]:
        """Return the number of rows of the flush, and how many have ended in each way until now.

        ``discarded`` counts rows whose session is gone, ``open`` those that have not ended.
        """
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
