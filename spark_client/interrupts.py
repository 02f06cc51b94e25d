"""Ctrl-C, or a notebook's stop button, cancels the Spark job that writes a batch.

Spark itself cancels jobs only in a script, and then all of them.  A notebook's kernel has its own handler of the
signal, and a client of Spark Connect has none.  There the job would go on and hold the daemon's queue.
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from spark_client.configuration import is_connect

ATTEMPTS: Final = 3
"""How often `insist` makes a call, as py4j's next connection may be closed, too."""


@contextmanager
def cancelled_on_interrupt(spark: Any) -> Iterator[str]:
    """If this thread is interrupted in the block, cancel the jobs that it started there, and no others.

    These jobs have a tag of their own, which the block gets.  Their group does not change, as a streaming query cancels
    its jobs by group when it stops.
    """
    tag = f"producerd-{uuid.uuid4()}"
    if is_connect(spark):
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
    """Make a call that tidies up, at most `ATTEMPTS` times, and raise nothing, so that the batch's own error shows.

    When a thread is interrupted while it waits for py4j's answer, py4j may find its next connections closed.  A session
    that has ended answers none of the calls.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(Exception):
            call(*arguments)
            return


def _interruption_behind(error: BaseException | None, handled_before: BaseException | None) -> BaseException | None:
    """Return what interrupted the thread, or None.

    PySpark calls its JVM once more when ``collect`` is interrupted.  If that call fails, PySpark raises its error
    instead.
    """
    while isinstance(error, Exception) and error is not handled_before:
        error = error.__context__
    return None if error is handled_before else error
