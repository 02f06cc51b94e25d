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


async def test_work_in_python_is_seen_as_much_as_calls_that_let_go_of_the_interpreter() -> None:
    """With Python's own time of 5 ms, nearly all samples fall in the hash."""
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
    assert counting / (counting + hashing) > 0.5 * expected, (counting, hashing, expected)
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
    """The times of some looks, and the waits between them."""

    def __init__(self, *times: float) -> None:
        self._times = iter(times)
        self.waits: list[float] = []
        self.stops_after = len(times)

    def monotonic(self) -> float:
        return next(self._times)

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.waits) > self.stops_after


def test_it_looks_at_every_hundredth_of_a_second_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that was late does not delay the next ones."""
    clock: Any = Clock(100.0, 100.0, 100.25, 100.375, 101.0)
    monkeypatch.setattr(sampling, "time", clock)
    assert sampling.SAMPLE_SECONDS == 0.01
    monkeypatch.setattr(sampling, "SAMPLE_SECONDS", 0.25)  # which has no rounding
    stacks = _sample(threading.get_ident(), 1.0, clock)
    assert clock.waits == [0.25, 0.25, 0.125]
    ((stack, times),) = stacks.items()
    assert times == 3
    assert ":_sample:" in stack.rpartition(";")[2]


def test_it_looks_no_more_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = Clock(100.0, 100.0, 100.0, 100.0)
    clock.stops_after = 2
    monkeypatch.setattr(sampling, "time", clock)
    assert _sample(threading.get_ident(), 1.0, clock).total() == 2


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
    assert _sample(2, 1.0, clock) == {
        "runner.py:run:7;pack,age/work.py:work:8": 2,
        "runner.py:run:7;/elsewhere/other.py:other:9": 2,
        "runner.py:run:10": 1,
        OTHER_STACKS: 2,
    }


def test_where_all_stacks_have_room_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = Clock(0.0, 0.0, 1.0)
    monkeypatch.setattr(sampling, "time", clock)
    assert OTHER_STACKS not in _sample(threading.get_ident(), 1.0, clock)
