"""Each call of a batch has a number of its own, which is the same when another run repeats the batch."""

from __future__ import annotations

import time

import pytest

from spark_client.calls import FORGET_SECONDS, Calls
from spark_client.replay.records import MOST_AGE_SECONDS, MOST_SKEW_SECONDS


def numbers_of(made: Calls, name: str, run: str | None, batch: int) -> list[int]:
    """Make calls of a batch, one after the other, and return their numbers."""
    numbers = []
    for _ in range(3):
        number, _ = made.take(name, run, batch)
        made.end(name, run, batch, number, failed=False, sent=True)
        numbers.append(number)
    return numbers


def test_each_guarded_call_of_a_batch_has_a_number_of_its_own_in_its_run() -> None:
    made = Calls()
    assert numbers_of(made, "q", "r1", 7) == [0, 1, 2]
    assert numbers_of(made, "q", "r2", 7) == [0, 1, 2], "the batch is repeated"
    assert numbers_of(made, "q", "r1", 7) == [3, 4, 5], "a callback of the run before still writes"
    assert numbers_of(made, "q", "r2", 7) == [3, 4, 5]
    assert numbers_of(made, "q", "r2", 8) == [0, 1, 2]
    assert numbers_of(made, "q", "r1", 7) == [0, 1, 2], "whose batch the query has passed"
    assert numbers_of(made, "q", "r2", 8) == [3, 4, 5]
    assert numbers_of(made, "k", None, 7) == [0, 1, 2]
    assert numbers_of(made, "k", None, 8) == [0, 1, 2]
    assert numbers_of(made, "k", None, 7) == [3, 4, 5], "a key's batches may come in any order"


def test_a_call_that_failed_gives_its_number_back_if_none_came_after_it() -> None:
    made = Calls()
    for _ in range(2):
        assert made.take("k", None, 1)[0] == 0
        made.end("k", None, 1, 0, failed=True, sent=True)
    assert [made.take("k", None, 1)[0] for _ in range(2)] == [0, 1]
    made.end("k", None, 1, 0, failed=True, sent=True)
    assert made.take("k", None, 1)[0] == 2


def test_a_call_knows_whether_one_before_it_has_sent_rows_or_may_still() -> None:
    made = Calls()
    assert made.take("q", "r", 7) == (0, False)
    assert made.take("q", "r", 7) == (1, True), "the first one runs"
    for number in (0, 1):
        made.end("q", "r", 7, number, failed=False, sent=False)
    assert made.take("q", "r", 7) == (2, False), "all was left out"
    made.end("q", "r", 7, 2, failed=False, sent=True)
    assert made.take("q", "r", 7) == (3, True)


def test_what_is_remembered_of_calls_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10 * FORGET_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: now)
    made = Calls()
    for batch in range(1_000):
        numbers_of(made, "q", "r", batch)
    assert len(made) == 1
    made.take("long", None, 0)
    for number in range(100):
        numbers_of(made, f"k{number}", None, 0)
        now += FORGET_SECONDS / 50
    assert 50 <= len(made) <= 53
    assert made.take("long", None, 0)[0] == 1, "it runs"


def test_a_number_is_remembered_for_as_long_as_a_record_of_it_may_count() -> None:
    """Clocks of two nodes may differ by twice the skew."""
    assert FORGET_SECONDS >= MOST_AGE_SECONDS + 2 * MOST_SKEW_SECONDS


def test_a_keys_batch_is_remembered_for_a_day_after_its_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10 * FORGET_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: now)
    made = Calls()
    for number in range(3):
        assert made.take("k", None, 0)[0] == number
        now += 2 * FORGET_SECONDS
        made.end("k", None, 0, number, failed=False, sent=True)
        now += FORGET_SECONDS - 1
