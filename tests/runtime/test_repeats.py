"""The same message passes a few times within a window.  The rest is counted, and logged once as a number."""

from __future__ import annotations

import pytest

from producerd.runtime.repeats import MessageKind, Repeats

BLOCKED = MessageKind("producerd.session", 30, "caller blocked", "flights")


def test_the_first_ones_pass_and_the_rest_is_counted_until_the_window_ends() -> None:
    repeats = Repeats(most=2, within_seconds=60.0)
    assert [repeats.passes(BLOCKED, now) for now in (0.0, 1.0, 2.0, 59.9)] == [0, 0, None, None]
    assert repeats.ended(59.9) == []
    assert repeats.ended(60.0) == [(BLOCKED, 2)]
    assert repeats.ended(200.0) == []
    assert [repeats.passes(BLOCKED, now) for now in (200.0, 201.0, 202.0)] == [0, 0, None]


@pytest.mark.parametrize(
    "other",
    [
        BLOCKED._replace(logger="producerd"),
        BLOCKED._replace(level=40),
        BLOCKED._replace(event="client is late"),
        BLOCKED._replace(stream="clicks"),
        BLOCKED._replace(stream=None),
    ],
)
def test_a_message_of_another_kind_is_none_of_its_repeats(other: MessageKind) -> None:
    repeats = Repeats(most=1)
    assert repeats.passes(BLOCKED, 0.0) == 0
    assert repeats.passes(other, 0.0) == 0
    assert repeats.passes(BLOCKED, 0.0) is None


def test_when_to_ask_is_when_the_first_window_ends() -> None:
    repeats = Repeats(most=1, within_seconds=60.0)
    ends = [repeats.next_end]
    repeats.passes(BLOCKED, 5.0)
    repeats.passes(BLOCKED._replace(stream="clicks"), 6.0)
    ends.append(repeats.next_end)
    repeats.passes(BLOCKED, 65.0)
    ends.append(repeats.next_end)
    repeats.ended(125.0)
    ends.append(repeats.next_end)
    assert ends == [None, 65.0, 66.0, None]


def test_it_remembers_no_more_kinds_than_it_may_and_forgets_no_count() -> None:
    repeats = Repeats(most=1, within_seconds=60.0, max_kinds=10)
    kinds = [BLOCKED._replace(event=f"text {number}") for number in range(1_000)]
    told = []
    for kind in kinds:
        assert repeats.passes(kind, 0.0) == 0, "a first one is never held back"
        assert repeats.passes(kind, 0.0) is None
        told += repeats.ended(0.0)
    assert len(told) == 990
    assert told + repeats.ended() == [(kind, 1) for kind in kinds]


def test_by_default_five_pass_in_a_minute_and_a_thousand_kinds_are_remembered() -> None:
    repeats = Repeats()
    assert [repeats.passes(BLOCKED, 0.0) for _ in range(7)] == [0, 0, 0, 0, 0, None, None]
    assert repeats.next_end == 60.0
    for number in range(999):
        assert repeats.passes(BLOCKED._replace(event=f"text {number}"), 0.0) == 0
    assert repeats.ended(0.0) == []
    assert repeats.passes(BLOCKED._replace(event="one more"), 0.0) == 0
    assert repeats.ended(0.0) == [(BLOCKED, 2)]


def test_of_a_long_text_the_beginning_is_kept() -> None:
    repeats = Repeats(most=1)
    assert repeats.passes(BLOCKED._replace(event="x" * 1_000_000), 0.0) == 0
    assert repeats.passes(BLOCKED._replace(event="x" * 1_000_000), 0.0) is None
    ((kind, _),) = repeats.ended()
    assert kind.event == "x" * 200
