"""A client asks why it waits ever more rarely, and keeps the reason that held it longest."""

from __future__ import annotations

import pytest

from spark_client.reasons import FIRST_SECONDS, MOST_KINDS, MOST_SECONDS, Reasons


@pytest.mark.promise("client-asks-waits-why")
def test_the_reason_that_held_longest_is_kept_in_its_latest_words() -> None:
    reasons = Reasons()
    for seconds, reason in (2.0, "shard 1 holds 53%"), (5.0, "answers are late"), (4.0, "shard 2 holds 7,100%"):
        reasons.count_wait(seconds)
        reasons.told(reason)
    assert reasons.longest == ("shard 2 holds 7,100%", 6.0)
    reasons.told("answers are late")
    reasons.count_wait(2.0)  # after the last answer
    assert reasons.longest == ("answers are late", 7.0)


def test_a_client_that_waited_shortly_has_no_reason() -> None:
    reasons = Reasons()
    reasons.count_wait(FIRST_SECONDS / 2)
    assert reasons.due_seconds == FIRST_SECONDS / 2
    assert reasons.longest == ("", 0.0)


def test_it_asks_ever_more_rarely_and_once_at_a_time() -> None:
    reasons, dues = Reasons(), []
    for _ in range(8):
        dues.append(reasons.due_seconds)
        reasons.count_wait(reasons.due_seconds)
        assert reasons.due_seconds == 0
        reasons.asked()
        assert reasons.due_seconds == float("inf")
        reasons.told("r")
    assert dues == [1, 2, 4, 8, 16, MOST_SECONDS, MOST_SECONDS, MOST_SECONDS]
    reasons.asked()
    reasons.forget_question()
    assert reasons.due_seconds == MOST_SECONDS


def test_reasons_beyond_a_number_of_kinds_count_for_the_last_known() -> None:
    reasons = Reasons()
    for number in range(MOST_KINDS + 10):
        reasons.count_wait(1.0)
        reasons.told("x" * number)
    assert reasons.longest == ("x" * (MOST_KINDS - 1), 11.0)
