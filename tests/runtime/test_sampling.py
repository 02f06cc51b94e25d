"""`producerctl profile` shows where the loop's thread spends its time, not where it lets go of the interpreter."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time

from producerd.runtime.sampling import StackSampler

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
