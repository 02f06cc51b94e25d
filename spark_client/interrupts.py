"""A job that nobody waits for any more ends: Ctrl-C, or a notebook's stop button, while a batch is written.

Spark itself cancels jobs then only in a script, and all of them: a notebook's kernel has its own handler of the signal,
and a client of Spark Connect has none.  The job would go on and hold the daemon's queue.
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

ATTEMPTS: Final = 3
"""How often a call that tidies up is made: py4j's next connection may be closed, too."""


@contextmanager
def cancelled_on_interrupt(spark: Any) -> Iterator[str]:
    """Where this thread is interrupted, cancel the jobs that it started meanwhile, and no others.

    They have a tag of their own, which is given to the block.  Their group stays as it is: by that a streaming query
    cancels its jobs when it stops.
    """
    tag = f"producerd-{uuid.uuid4()}"
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        add, remove, cancel = spark.addTag, spark.removeTag, spark.interruptTag
    else:
        context = spark.sparkContext
        add, remove, cancel = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
    handled_before = sys.exc_info()[1]
    add(tag)
    try:
        yield tag
    except BaseException as error:
        interruption = _interruption_behind(error, handled_before)
        if interruption is None:  # the error is the job's, which has ended
            raise
        insist(cancel, tag)
        if interruption is error:
            raise
        raise interruption from None
    finally:
        insist(remove, tag)


def insist(call: Callable[..., object], *arguments: Any) -> None:
    """Make a call that tidies up, at most `ATTEMPTS` times, and raise nothing: the caller must see how the batch ended.

    When a thread is interrupted while it waits for py4j's answer, py4j may find its next connections closed.  A session
    that has ended answers none of the calls.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(Exception):
            call(*arguments)
            return


def _interruption_behind(error: BaseException | None, handled_before: BaseException | None) -> BaseException | None:
    """Return what interrupted the thread, or None.

    PySpark calls its JVM once more when ``collect`` is interrupted.  Where that call fails, PySpark raises its error
    instead.
    """
    while isinstance(error, Exception) and error is not handled_before:
        error = error.__context__
    return None if error is handled_before else error
