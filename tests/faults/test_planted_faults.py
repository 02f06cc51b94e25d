"""For each fault planted in a daemon, a scenario finds it and names the law that it breaks."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests.faults.oracle import Law
from tests.faults.planted import PLANTS
from tests.faults.scenarios import all_scenarios
from tests.faults.stage import run

pytestmark = pytest.mark.slow

FOUND_BY = {
    "an_entry_that_failed_is_taken_for_stored": ("throttled", Law.READABLE),
    "a_lost_answer_is_no_possible_duplicate": ("lost_answers", Law.COPIES),
    "a_queue_takes_on_twice_its_limit": ("throttled", Law.QUEUE),
    "a_key_has_two_requests_on_their_way": ("mixed_codes", Law.ORDER),
    "an_aggregate_is_believed_wherever_it_was_stored": ("lagging_shards", Law.READABLE),
    "a_refused_request_judges_its_rows": ("everything_refused", Law.REFUSED),
}


def test_each_plant_has_its_scenario() -> None:
    assert FOUND_BY.keys() == PLANTS.keys()


@pytest.mark.promise("planted-fault-breaks")
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_breaks_its_law(plant: str) -> None:
    scenario, law = FOUND_BY[plant]
    launcher = (sys.executable, "-m", "tests.faults.planted", plant)
    planted = replace(all_scenarios()[scenario], prefix=launcher, records_per_second=900, resends=False)
    row = run(planted, seed=1, short=True)
    assert any(broken.startswith(law) for broken in row.broken), row
