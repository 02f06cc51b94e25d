"""A job that nobody waits for any more ends: Ctrl-C, or a notebook's stop button, while a batch is written.

Spark itself cancels jobs then only in a script, and all of them: a notebook's kernel has its own handler of the signal,
and a client of Spark Connect has none.  The job would go on and hold the daemon's queue.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
    add(tag)
    try:
        yield tag
    except Exception:  # of the job: it has ended
        raise
    except BaseException:
        with contextlib.suppress(Exception):  # the interruption is what the caller must see
            cancel(tag)
        raise
    finally:
        with contextlib.suppress(Exception):  # a session that has ended has no tags, and its own error counts
            remove(tag)
