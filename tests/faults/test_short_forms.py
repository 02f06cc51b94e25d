"""Every scenario's short form holds every law that it judges, and a fault planted in the daemon breaks its law.

Scenarios mostly wait, so some of them run at once.  Each is a test of its own, which is skipped with its reason if this
machine lacks something.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import pytest

from tests.faults.oracle import Law
from tests.faults.planted import PLANTS
from tests.faults.scenarios import all_scenarios
from tests.faults.stage import Row, Scenario, run

pytestmark = pytest.mark.slow

SEEDS: Final = 4
"""Of these, each has another pair of format and aggregation for the stream with ordering."""
AT_ONCE: Final = 6
SCENARIOS: Final = all_scenarios()
FOUND_BY: Final = {
    "an_entry_that_failed_is_taken_for_stored": ("throttled", Law.READABLE),
    "a_lost_answer_is_no_possible_duplicate": ("lost_answers", Law.COPIES),
    "a_queue_takes_on_twice_its_limit": ("throttled", Law.QUEUE),
    "a_key_has_two_requests_on_their_way": ("mixed_codes", Law.ORDER),
    "an_aggregate_is_believed_wherever_it_was_stored": ("lagging_shards", Law.READABLE),
    "a_refused_request_judges_its_rows": ("everything_refused", Law.REFUSED),
}
"""The scenario that finds each planted fault, and the law that it breaks."""
Runs = dict[str, "Future[Row]"]


def planted(plant: str) -> Scenario:
    """The scenario that finds a plant, with a daemon that has it."""
    launcher = (sys.executable, "-m", "tests.faults.planted", plant)
    scenario, _ = FOUND_BY[plant]
    return replace(SCENARIOS[scenario], prefix=launcher, records_per_second=900, resends=False)


ALL: Final = {
    **{name: (scenario, 1 + place % SEEDS) for place, (name, scenario) in enumerate(SCENARIOS.items())},
    **{plant: (planted(plant), 1) for plant in PLANTS},
}
"""The scenario and the seed of each run."""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """The runs of the tests that were chosen, in their order."""
    chosen = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(run, *ALL[name], short=True) for name in chosen if not ALL[name][0].lacks()}
        pool.shutdown(cancel_futures=True)


@pytest.mark.promise("law-broken")
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_law_is_broken(runs: Runs, name: str) -> None:
    if reason := SCENARIOS[name].lacks():
        pytest.skip(reason)
    row = runs[name].result()
    assert not row.broken
    assert row.figures.acknowledged > 0
    assert row.figures.readable == row.figures.acknowledged


@pytest.mark.promise("planted-fault-breaks")
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_breaks_its_law(runs: Runs, name: str) -> None:
    row = runs[name].result()
    assert any(broken.startswith(FOUND_BY[name][1]) for broken in row.broken), row
