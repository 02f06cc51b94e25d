"""`producerctl profile` shows where the loop's thread spends its time, not where it lets go of the interpreter."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from producerd.runtime import sampling
from producerd.runtime.sampling import OTHER_STACKS, StackSampler, _sample

HASHED = b"x" * 400_000  # a hash of this much lets go of the interpreter


@pytest.mark.promise("profile-time-ends-client")
async def test_work_in_python_is_seen_as_much_as_calls_that_let_go_of_the_interpreter() -> None:
    """With Python's own time of 5 ms, nearly all samples fall in the hash.  On a busy machine more than half do."""
    usual = sys.getswitchinterval()
    sampling = asyncio.create_task(StackSampler().sample(1.5))
    counts_seconds = hashes_seconds = 0.0
    while not sampling.done():
        began = time.thread_time()
        counts()
        counted = time.thread_time()
        hashes()
        counts_seconds += counted - began
        hashes_seconds += time.thread_time() - counted
        await asyncio.sleep(0)
    stacks = sampling.result()["stacks"]
    counting = sum(times for stack, times in stacks.items() if ":counts:" in stack)
    hashing = sum(times for stack, times in stacks.items() if ":hashes:" in stack)
    expected = counts_seconds / (counts_seconds + hashes_seconds)
    assert counting / (counting + hashing) > 0.2 * expected, (counting, hashing, expected)
    assert sys.getswitchinterval() == usual


def counts() -> None:
    for _ in range(40_000):
        pass


def hashes() -> None:
    hashlib.sha256(HASHED).digest()


# ---- one profile at a time


class Sampling:
    """Stands for the thread that samples, until the test ends it with these counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.works: list[Any] = []
        self.switch_seconds: list[float] = []
        self.ends = asyncio.Event()
        monkeypatch.setattr(sampling, "aside", self._aside)

    async def _aside(self, work: Callable[[], Counter[str]]) -> Counter[str]:
        self.works.append(work)
        self.switch_seconds.append(sys.getswitchinterval())
        await self.ends.wait()
        return Counter({"a;b": 2, "a;c": 3})


async def test_a_profile_begins_when_the_last_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, sampler, usual = Sampling(monkeypatch), StackSampler(), sys.getswitchinterval()
    for _ in range(2):
        first = asyncio.create_task(sampler.sample(0.25))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match=r"^a profile is under way already$"):
            await sampler.sample(0.25)
        thread.ends.set()
        assert await first == {"seconds": 0.25, "samples": 5, "stacks": {"a;c": 3, "a;b": 2}}
        assert list(first.result()["stacks"]) == ["a;c", "a;b"], "the most seen comes first"
        assert sys.getswitchinterval() == usual
        thread.ends.clear()
    assert thread.switch_seconds == pytest.approx([0.000_1, 0.000_1], rel=1e-3)


async def test_a_profile_whose_caller_has_gone_stops_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, usual = Sampling(monkeypatch), sys.getswitchinterval()
    sampled = asyncio.create_task(StackSampler().sample(0.25))
    await asyncio.sleep(0)
    thread_id, seconds, stop = thread.works[0].args
    assert (thread_id, seconds, stop.is_set()) == (threading.get_ident(), 0.25, False)
    sampled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sampled
    assert stop.is_set()
    assert sys.getswitchinterval() == usual


# ---- what is counted


def code_of(path: str, name: str) -> CodeType:
    """The code of a function without a line."""
    function: CodeType = compile(f"def {name}(): pass", path, "exec").co_consts[0]
    return function


def frame(code: CodeType, line: int, caller: Any = None) -> Any:
    return SimpleNamespace(f_code=code, f_lineno=line, f_back=caller)


class Clock:
    """The times of some looks, and the sleeps between them."""

    def __init__(self, *times: float) -> None:
        self._times = iter(times)
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return next(self._times)

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)


class Slept:
    """A clock that goes on by what is slept alone."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_it_looks_once_in_every_hundredth_of_a_second_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The random time within it is another for each look.  A late look delays no later one."""
    clock: Any = Clock(100.0, 100.25, 100.8125, 100.8125, 101.8125, 102.0)
    monkeypatch.setattr(sampling, "time", clock)
    monkeypatch.setattr(sampling, "random", iter([0.0, 0.5, 0.0, 0.75, 0.5]).__next__)
    assert sampling.SAMPLE_SECONDS == 0.01
    monkeypatch.setattr(sampling, "SAMPLE_SECONDS", 0.25)  # which has no rounding
    stacks = _sample(threading.get_ident(), 2.0, threading.Event())
    assert clock.sleeps == [0.25, 0.375, 0.0, 0.375, 0.0625]
    ((stack, times),) = stacks.items()
    assert times == 4
    assert ":_sample:" in stack.rpartition(";")[2]


def test_it_looks_no_more_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, clock = threading.Event(), Slept()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now > 0.03:
            stop.set()

    monkeypatch.setattr(sampling, "time", SimpleNamespace(monotonic=clock.monotonic, sleep=sleep))
    monkeypatch.setattr(sampling, "random", lambda: 0.5)
    assert _sample(threading.get_ident(), 1.0, stop).total() == 2


def test_stacks_beyond_the_most_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place is without the folder it is installed in, the outermost place comes first, and ";" stands between."""
    monkeypatch.setattr(sys, "path", ["", "/opt/lib", "/opt/lib/site-packages"])
    run = frame(code_of("/opt/lib/runner.py", "run"), 7)
    work = frame(code_of("/opt/lib/site-packages/pack;age/work.py", "work"), 8, run)
    other = frame(code_of("/elsewhere/other.py", "other"), 9, run)
    looks = iter([work, other, work, frame(run.f_code, 10), other, run, run])
    monkeypatch.setattr(sys, "_current_frames", lambda: {1: None, 2: next(looks)})
    clock: Any = Clock(*[0.0] * 8, 1.0)
    monkeypatch.setattr(sampling, "time", clock)
    assert sampling.MOST_STACKS == 2_000
    monkeypatch.setattr(sampling, "MOST_STACKS", 3)
    assert _sample(2, 1.0, threading.Event()) == {
        "runner.py:run:7;pack,age/work.py:work:8": 2,
        "runner.py:run:7;/elsewhere/other.py:other:9": 2,
        "runner.py:run:10": 1,
        OTHER_STACKS: 2,
    }


def test_where_all_stacks_have_room_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = Clock(0.0, 0.0, 1.0)
    monkeypatch.setattr(sampling, "time", clock)
    assert OTHER_STACKS not in _sample(threading.get_ident(), 1.0, threading.Event())
