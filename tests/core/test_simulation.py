"""Whatever fails, every accepted row ends once, and a consumer can read every record that was acknowledged.

The starred laws of docs/build/laws.md are checked after every step (`tests.simulation.laws`), in the stories that
`tests.simulation.story` draws from seeds.
"""

from __future__ import annotations

from functools import cache

import pytest

from producerd.errors import Outcome
from tests.simulation.laws import LawBroken
from tests.simulation.story import first_broken

pytestmark = [pytest.mark.law(owner) for owner in ("QueueBudget", "Frame", "Row", "Lane", "Pipeline", "NodeInFlight")]

IS_MET = {
    *("filling", "sorting", "queued", "in flight", "awaiting a map", "handed back", "dropped", "refused", "broken"),
    *(f"outcome {outcome.name}" for outcome in Outcome),
    *(f"reply {how}" for how in ("ok", "lost", "replaced", "reset", "hang", "ServiceUnavailable")),
    "reply ValidationException",
    *(f"entry {code}" for code in ("stored", "InternalFailure", "ProvisionedThroughputExceededException")),
    *(f"duplicate {cause}" for cause in ("reshard", "timeout", "connection", "service", "result_count")),
    *(f"failed {code}" for code in ("EXPIRED", "PREDECESSOR_FAILED", "SHARD_MAP_MISSING")),
    *(f"discarded {reason}" for reason in ("disconnected", "returned")),
    *(
        f"held by {cause}"
        for cause in ("hot_shard", "shard_rate", "service", "shard_map", "in_flight", "paused", "daemon")
    ),
    "plain for lack of a map",
    *(f"operator: {what}" for what in ("reload", "pause", "flush", "others")),
}
"""See `Story.met`.  Each in several of 400 stories."""


@pytest.mark.promise("accepted-row-ends-once")
@pytest.mark.parametrize("first", range(0, 160, 20))
def test_every_accepted_row_ends_once_and_every_row_that_is_acknowledged_can_be_read(first: int) -> None:
    broken = first_broken(range(first, first + 20))
    assert broken is None, broken


SIX_HUNDRED = range(1_000, 1_600, 200)
"""The first seeds of each 200 stories.  ``./dev simulate`` tells as many as one likes."""


@cache
def tell_200(first: int) -> tuple[LawBroken | None, frozenset[str]]:
    """Tell 200 stories once for all tests.  Returns the first broken law, and what the stories met."""
    met: set[str] = set()
    broken = first_broken(range(first, first + 200), met)
    return broken, frozenset(met)


@pytest.mark.slow
@pytest.mark.parametrize("first", SIX_HUNDRED)
def test_every_law_is_kept_in_six_hundred_stories(first: int) -> None:
    broken, _ = tell_200(first)
    assert broken is None, broken


@pytest.mark.slow
def test_the_stories_meet_whatever_a_row_can_meet() -> None:
    met: set[str] = set()
    for first in SIX_HUNDRED:
        met |= tell_200(first)[1]
        if met >= IS_MET:
            break
    assert met >= IS_MET, IS_MET - met
