"""A whole stream in virtual time: whatever fails, every accepted row ends once, and what is acknowledged can be read.

The starred laws of docs/architecture.md are checked after every step (`tests.simulation.laws`), in the stories that
`tests.simulation.story` draws from seeds.
"""

from __future__ import annotations

import pytest

from tests.simulation.story import first_broken

pytestmark = [pytest.mark.law(owner) for owner in ("QueueBudget", "Frame", "Row", "Lane", "Pipeline")]

REGRESSIONS: tuple[int, ...] = ()
"""Seeds that broke a law once."""


@pytest.mark.parametrize("first", range(0, 160, 20))
def test_every_accepted_row_ends_once_and_every_row_that_is_acknowledged_can_be_read(first: int) -> None:
    broken = first_broken(range(first, first + 20))
    assert broken is None, broken


def test_what_broke_a_law_once_does_not_again() -> None:
    broken = first_broken(REGRESSIONS)
    assert broken is None, broken


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 3_000, 200))
def test_every_law_holds_in_thousands_of_stories(first: int) -> None:
    broken = first_broken(range(first, first + 200))
    assert broken is None, broken
