"""Ctrl-C, or a notebook's stop button, cancels the Spark job that writes a batch.

Otherwise the job would go on and hold the daemon's queue.  Only PySpark's handler of the signal cancels jobs: all of
them, and only in a script.  A call of py4j that waits for its answer makes that handler fail.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from spark_client.configuration import is_connect

ATTEMPTS: Final = 3
"""How often `insist` makes a call, as py4j's next connection may be closed, too."""
PY4J_LOGS: Final = "KeyboardInterrupt while sending command."
"""What py4j logs, with a traceback, for a call that is interrupted."""


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
        with _plainly_interrupted():
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


@contextmanager
def _plainly_interrupted() -> Iterator[None]:
    """In the block let Ctrl-C raise KeyboardInterrupt and do nothing else, and py4j not log it.

    PySpark's own handler would cancel all jobs, by a call on the connection that already waits for an answer.  That
    fails, and prints 70 lines of tracebacks.
    """
    if threading.current_thread() is not threading.main_thread():  # no other thread handles signals
        yield
        return
    handler: Any = signal.getsignal(signal.SIGINT)
    is_of_pyspark = str(getattr(handler, "__module__", "")).startswith("pyspark.")
    root = logging.getLogger()
    root.addFilter(_is_not_py4js)
    if is_of_pyspark:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if is_of_pyspark:
            signal.signal(signal.SIGINT, handler)
        root.removeFilter(_is_not_py4js)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return record.msg != PY4J_LOGS


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
