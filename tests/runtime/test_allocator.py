"""glibc takes every setting of the allocator, and the daemon leaves alone what the environment sets."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from producerd.runtime import allocator

ROOT = Path(__file__).resolve().parents[2]


class Library:
    """Stands in for the C library: the settings of a process cannot be taken back."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []

        self.trimmed = 0

    def malloc_trim(self, pad: int) -> int:
        assert pad == 0
        self.trimmed += 1
        return 1

    def mallopt(self, number: int, value: int) -> int:
        self.taken.append((number, value))
        return 1


class EnoughError(Exception):
    """Ends what would go on forever."""


class Slept:
    """Stands in for asyncio: sleeps this many times without waiting."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) > self.times:
            raise EnoughError


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    for name in list(os.environ):
        if name.startswith("MALLOC_"):
            monkeypatch.delenv(name)
    return library


def test_one_arena_and_high_thresholds(library: Library) -> None:
    assert allocator.configure()
    assert library.taken == [(-8, 1), (-1, 256 << 20), (-3, 32 << 20)]


def test_what_the_environment_sets_is_left_alone(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert allocator.configure()
    assert [number for number, _ in library.taken] == [-1, -3]


def test_another_c_library_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    assert not allocator.configure()


def test_this_glibc_takes_the_numbers() -> None:
    """In a child, as they hold for the whole process."""
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("the C library here is not glibc")
    code = "import sys; from producerd.runtime import allocator; sys.exit(not allocator.configure())"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.promise("kept-given-back-once")
@pytest.mark.parametrize(
    ("looks", "times"),
    [
        ([0, 0, 0, 0], 0),  # nothing ever came
        ([0, 5, 5, 5, 5], 1),
        ([0, None, 5, 5], 1),
        ([0, 5, None, 5], 0),
        ([0, None, None], 0),
        ([0, 5, 6, 7], 0),
        ([0, 5, 5, 9, 9], 2),
        ([5, 5, 3, 3, 3], 1),  # streams that are forgotten take their counts along
    ],
)
async def test_what_was_kept_is_given_back_once_after_each_time_of_work(
    library: Library, monkeypatch: pytest.MonkeyPatch, looks: list[int | None], times: int
) -> None:
    slept = Slept(len(looks) - 1)
    monkeypatch.setattr(allocator, "asyncio", slept)
    left = iter(looks)
    with pytest.raises(EnoughError):
        await allocator.give_back_when_quiet(lambda: next(left))
    assert library.trimmed == times
    assert slept.seconds == [10.0] * len(looks)


async def test_nothing_is_given_back_where_the_c_library_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    monkeypatch.setattr(allocator, "asyncio", Slept(3))
    left = iter([0, 5, 5, 5])
    with pytest.raises(EnoughError):
        await allocator.give_back_when_quiet(lambda: next(left))
