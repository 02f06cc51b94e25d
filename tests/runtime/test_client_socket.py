"""A client's deadline has one timer, which is set again only if it would ring too late, and none after the end."""

from __future__ import annotations

from producerd.runtime.client_socket import ClientDeadline
from tests.runtime.timers import Timers

Late = tuple[str, str, float]


def test_a_deadline_has_one_timer_and_none_after_its_end(timers: Timers) -> None:
    late: list[Late] = []
    deadline = ClientDeadline(lambda *of: late.append(of), lambda: False, 10.0)
    deadline.expect("a body", "had not begun", 2.0)
    deadline.expect("a body", "was not whole", 30.0)
    assert timers.left == [2.0]
    timers.go_on()
    assert (late, timers.left) == ([], [28.0]), "it rang too early"
    deadline.expect("a body", "had not begun", 2.0)
    assert timers.left == [2.0]
    deadline.stop()
    timers.go_on()
    assert (late, timers.left) == ([], [])
    deadline.expect("HELLO", "was not whole", 5.0)
    timers.go_on()
    assert (late, timers.left) == ([("HELLO", "was not whole", 5.0)], [])
    deadline.expect("a body", "was not whole", 5.0)
    deadline.end()
    assert timers.left == []
