"""Timers of an event loop that fire when a test lets time pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Timer(NamedTuple):
    """A call at its time, which `cancel` takes back."""

    of: Timers
    at: float
    call: Callable[..., None]
    arguments: tuple[Any, ...]

    def cancel(self) -> None:
        self.of.waiting = [timer for timer in self.of.waiting if timer is not self]


class Timers:
    """As much of a loop as its timers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> Timer:
        return self.call_at(self.now + seconds, call, *arguments)

    def call_at(self, when: float, call: Callable[..., None], *arguments: Any) -> Timer:
        timer = Timer(self, when, call, arguments)
        self.waiting.append(timer)
        return timer

    @property
    def left(self) -> list[float]:
        """The seconds that each timer still waits."""
        return [timer.at - self.now for timer in self.waiting]

    def go_on(self, seconds: float | None = None) -> None:
        """Let this time pass, or the time until the first timer."""
        self.now += min(self.left) if seconds is None else seconds
        for timer in [timer for timer in self.waiting if timer.at <= self.now]:
            timer.cancel()
            timer.call(*timer.arguments)
