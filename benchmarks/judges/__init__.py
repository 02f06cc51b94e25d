"""Who says what a consumer is handed.  A judge reads a whole stream; all judges must agree.

``fake`` is the rule as `producerd.testing` has it, ``kcl`` Amazon's own library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from producerd.testing import Entry, Stream, UserRecord


class Handed(NamedTuple):
    """What a consumer is handed of one stored entry; ``failure``: what it said if it failed on it."""

    entry: Entry
    records: list[UserRecord]
    failure: str = ""


Judge = Callable[[Stream], list[Handed]]
"""One `Handed` for each entry, in the order of storing."""
