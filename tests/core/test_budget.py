"""Nothing is admitted past a limit; what is taken is given back, once; a lowered limit only lets use fall."""

from __future__ import annotations

from random import Random

import pytest

from producerd.core.budget import QueueBudget


@pytest.mark.law("QueueBudget")
def test_a_limit_may_be_reached_and_not_passed_in_records_or_bytes() -> None:
    budget = QueueBudget(10, 1_000)
    assert budget.fits(10, 1_000)
    assert not budget.fits(11, 1)
    assert not budget.fits(1, 1_001)
    budget.take(10, 400)
    assert not budget.fits(1, 1)
    budget.release(1, 0)
    assert budget.fits(1, 600)
    assert not budget.fits(1, 601)


@pytest.mark.law("QueueBudget")
def test_taking_past_a_limit_and_releasing_what_was_not_taken_are_refused_loudly() -> None:
    budget = QueueBudget(10, 1_000)
    for records, charge in ((11, 1), (1, 1_001)):
        with pytest.raises(AssertionError, match="past the limit"):
            budget.take(records, charge)
    assert (budget.used_records, budget.used_bytes) == (0, 0)
    for records, charge in ((1, 0), (0, 1)):
        budget = QueueBudget(10, 1_000)
        with pytest.raises(AssertionError, match="more than was taken"):
            budget.release(records, charge)


@pytest.mark.law("QueueBudget")
def test_a_share_can_be_kept_free_of_each_limit() -> None:
    budget = QueueBudget(80, 8_000)
    assert budget.fits(70, 7_000, keep_free_share=1 / 8)
    assert not budget.fits(71, 1, keep_free_share=1 / 8)
    assert not budget.fits(1, 7_001, keep_free_share=1 / 8)


@pytest.mark.law("QueueBudget")
def test_after_a_limit_was_lowered_use_only_falls() -> None:
    budget = QueueBudget(10, 1_000)
    budget.take(8, 800)
    budget.set_limits(4, 400)
    assert not budget.fits(0, 1)
    assert not budget.fits(1, 0)
    budget.release(4, 500)
    assert not budget.fits(1, 1)
    budget.release(1, 0)
    assert budget.fits(1, 100)


@pytest.mark.law("QueueBudget")
def test_random_use_never_passes_a_limit_and_ends_at_nothing() -> None:
    for seed in range(300):
        random = Random(seed)
        budget = QueueBudget(random.choice([1, 10, 1_000]), random.choice([100, 20_000]))
        taken: list[tuple[int, int]] = []
        shrunk = False
        for _ in range(60):
            if random.random() < 0.05:
                shrunk = True
                budget.set_limits(random.randint(1, budget.limit_records), random.randint(1, budget.limit_bytes))
            ask = (random.randint(1, 12), random.randint(1, 400))
            before = (budget.used_records, budget.used_bytes)
            if budget.fits(*ask):
                budget.take(*ask)
                taken.append(ask)
                assert budget.used_records <= budget.limit_records
                assert budget.used_bytes <= budget.limit_bytes
            elif taken:
                budget.release(*taken.pop(random.randrange(len(taken))))
                assert (budget.used_records, budget.used_bytes) < before
            assert budget.used_records == sum(records for records, _ in taken)
            assert budget.used_bytes == sum(charge for _, charge in taken)
            assert shrunk or budget.peak_records <= budget.limit_records
        for ask in taken:
            budget.release(*ask)
        assert (budget.used_records, budget.used_bytes) == (0, 0)
