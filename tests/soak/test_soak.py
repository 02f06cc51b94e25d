"""A soak finds what grows, and nothing that only comes and goes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.soak.ground import STREAMS, ground, keys_from
from tests.soak.growth import growth
from tests.soak.run import Sample, judge

SAMPLES = 80
BATCHES = 20  # of which the daemon may not have seen the last clients leave
MEMORY = {"daemon rss_bytes": 1e8, "daemon bytes_in_use": 5e7}
chance = random.Random(1)


def samples(value: Callable[[int], float], *, hours: float = 0.1) -> list[Sample]:
    """Return samples in which one count has these values, and the memory is level."""
    return [
        Sample(hours * number / (SAMPLES - 1), number, MEMORY | {"daemon threads": value(number)})
        for number in range(SAMPLES)
    ]


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        pytest.param(lambda _: 7, "", id="constant"),
        pytest.param(lambda number: 7 + 50 * (number % 3 == 0), "", id="comes and goes"),
        pytest.param(lambda number: min(number, 15), "", id="levels off in the warm-up"),
        pytest.param(lambda _: chance.gauss(1_000, 3), "", id="noise"),
        pytest.param(lambda number: number / 2, "GROWS: daemon threads", id="one in two samples"),
        pytest.param(lambda number: 1_000 + number / 2 + 5 * chance.random(), "GROWS: daemon threads", id="with noise"),
        pytest.param(lambda number: chance.gauss(1_000, 80), "unclear: daemon threads", id="much noise"),
    ],
)
def test_a_count_that_grows_is_told_from_one_that_comes_and_goes(value: Callable[[int], float], verdict: str) -> None:
    run = judge("soak", "things", samples(value))
    assert [told.rpartition(": ")[0] for told in run.told] == [verdict] * bool(verdict)
    assert (run.figures.grows, run.figures.unclear) == ("GROWS" in verdict, "unclear" in verdict)


def test_the_bounds_of_a_growth_are_about_its_slope() -> None:
    found = growth(range(100), [3 * at + chance.gauss(0, 5) for at in range(100)])
    assert 270 < found.lower < 297 < found.upper < 325


@pytest.mark.parametrize(("bytes_an_hour", "grows"), [(1_000, 0), (50_000, 1)])
def test_memory_may_grow_by_ten_mebibytes_a_month(bytes_an_hour: float, grows: int) -> None:
    for hours, judged in ((0.5, 0), (2.0, 1)):
        rising = [
            sample._replace(values=MEMORY | {"daemon bytes_in_use": 5e7 + bytes_an_hour * sample.hours})
            for sample in samples(lambda _: 0, hours=hours)
        ]
        assert judge("soak", "things", rising).figures.grows == grows * judged


@pytest.mark.slow
@pytest.mark.promise("soak-finds-leaks")
def test_planted_leaks_are_found_and_without_them_nothing_grows_with_batches() -> None:
    keys = dict.fromkeys(STREAMS, keys_from(0, 50))
    grown = {}
    for leaks in ([], ["hundred_bytes", "thread", "descriptor"]):
        with ground(2, leaks) as held:
            held.start_daemon()
            held.write_at_once(keys)
            held.sample()
            before = held.sample()
            for _ in range(BATCHES):
                held.write_at_once(keys)
            after = held.sample()
        grown[len(leaks)] = {
            name for name, value in after.items() if value >= before.get(name, 0) + len(STREAMS) * (BATCHES - 1)
        }
    clean, leaking = grown.values()
    assert {"daemon threads", "daemon descriptors", "daemon elements __main__.KEPT"} <= leaking
    assert not [name for name in clean if name.endswith(("threads", "descriptors")) or " objects " in name]
