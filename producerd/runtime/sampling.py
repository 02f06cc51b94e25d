"""StackSampler: samples what the event loop's thread works on, for `producerctl profile`.

A thread of its own looks at the stack once in each hundredth of a second, at a random time of it: looks at equal
distances would meet the same moment of all work that a timer repeats.  It notes files, functions and lines, and never a
value.

It gets the interpreter only where the loop's thread lets go of it.  A call into C that keeps the interpreter therefore
counts for the line behind it.  Meanwhile the interpreter changes threads after 0.1 ms: with Python's 5 ms, most samples
would fall where the loop's thread lets go of itself, in calls that hash or send.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from random import random
from types import CodeType, FrameType
from typing import Any, Final

from producerd.runtime.aside import aside

SAMPLE_SECONDS: Final = 0.01
"""Time in which one sample is taken."""
SWITCH_SECONDS: Final = 0.000_1
"""Time after which the loop's thread lets go of the interpreter for the sampler."""
MOST_SECONDS: Final = 300
"""Longest time of one profile."""
MOST_STACKS: Final = 2_000
"""Most different stacks that are kept apart, so that memory is bounded; others count together."""
OTHER_STACKS: Final = "(other stacks)"

Stack = tuple[tuple[int, int], ...]
"""The functions of a stack, by the ids of their code, and the lines in them, the innermost first."""


class StackSampler:
    """The samplings of the thread that makes it, one at a time."""

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        self._samples = False

    async def sample(self, seconds: float) -> dict[str, Any]:
        """Sample for this long, or until the call is cancelled.  Return the number of samples by stack.

        A stack is text, as flame graphs take it: places with semicolons between them.  Raise ValueError if another call
        is under way.
        """
        if self._samples:
            raise ValueError("a profile is under way already")
        self._samples, stop, usual_seconds = True, threading.Event(), sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            stacks = await aside(partial(_sample, self._thread_id, seconds, stop))
        finally:
            self._samples = False
            sys.setswitchinterval(usual_seconds)
            stop.set()
        return {"seconds": seconds, "samples": stacks.total(), "stacks": dict(stacks.most_common())}


def _sample(thread_id: int, seconds: float, stop: threading.Event) -> Counter[str]:
    stacks: Counter[Stack] = Counter()
    codes: dict[int, CodeType] = {}  # by its id, because Python computes the hash of a code from all that is in it
    others = 0
    for _ in _times(seconds, stop):
        stack = _stack_of(sys._current_frames().get(thread_id), codes)
        if stack in stacks or len(stacks) < MOST_STACKS:
            stacks[stack] += 1
        else:
            others += 1
    counted: Counter[str] = Counter()
    for stack, times in stacks.items():
        counted[";".join([_place(codes[code], line) for code, line in reversed(stack)])] += times
    return counted + Counter({OTHER_STACKS: others})


def _times(seconds: float, stop: threading.Event) -> Iterator[None]:
    """Sleep until each time of a sample.  Skip those that passed while the loop's thread kept the interpreter."""
    began, passed, hundredth = time.monotonic(), 0.0, 0.0
    while True:
        hundredth = max(hundredth + 1, passed // SAMPLE_SECONDS)
        time.sleep(max(0.0, (hundredth + random()) * SAMPLE_SECONDS - passed))
        passed = time.monotonic() - began
        if passed >= seconds or stop.is_set():
            return
        yield


def _stack_of(frame: FrameType | None, codes: dict[int, CodeType]) -> Stack:
    """Return a frame's stack, and note its codes."""
    stack = []
    while frame is not None:
        code = frame.f_code
        codes.setdefault(id(code), code)
        stack.append((id(code), frame.f_lineno))
        frame = frame.f_back
    return tuple(stack)


def _place(code: CodeType, line: int) -> str:
    """Return a place without the folder that everything is installed in."""
    folders = [folder for folder in sys.path if folder and code.co_filename.startswith(f"{folder}/")]
    file = code.co_filename[len(max(folders, key=len)) + 1 :] if folders else code.co_filename
    return f"{file}:{code.co_qualname}:{line}".replace(";", ",")
