"""Judges read a whole stream and say which records a consumer receives.  All judges must agree.

``fake`` uses the rule of `producerd.testing`, and ``kcl`` uses Amazon's own library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from producerd.testing import Entry, FakeStream, UserRecord


class Handed(NamedTuple):
    """The records that a consumer receives from one stored entry, and its error if it failed on the entry."""

    entry: Entry
    records: list[UserRecord]
    failure: str = ""


Judge = Callable[[FakeStream], list[Handed]]
"""A judge: a function that returns one `Handed` for each entry, in the order of storing."""
