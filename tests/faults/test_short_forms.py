"""Every scenario's short form holds every law that it judges.

Scenarios mostly wait, so some of them run at once.  Each is a test of its own, which is skipped with its reason if this
machine lacks something.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pytest

from tests.faults.scenarios import all_scenarios
from tests.faults.stage import Row, run

pytestmark = pytest.mark.slow

SEEDS: Final = 4
"""Of these, each has another pair of format and aggregation for the stream with ordering."""
AT_ONCE: Final = 4
SCENARIOS: Final = all_scenarios()
Runs = dict[str, "Future[Row]"]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """The runs of the tests that were chosen, in their order."""
    chosen = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(run, SCENARIOS[name], seed_of(name), short=True) for name in chosen if not lacks(name)}
        pool.shutdown(cancel_futures=True)


def seed_of(name: str) -> int:
    return 1 + list(SCENARIOS).index(name) % SEEDS


def lacks(name: str) -> str:
    return SCENARIOS[name].lacks()


@pytest.mark.promise("law-broken")
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_law_is_broken(runs: Runs, name: str) -> None:
    if reason := lacks(name):
        pytest.skip(reason)
    row = runs[name].result()
    assert not row.broken
    assert row.figures.acknowledged > 0
    assert row.figures.readable == row.figures.acknowledged
