"""An interrupted batch cancels its job and raises the interruption, whatever PySpark makes of it.

tests/spark/test_interrupts.py shows the same with a real Spark.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_client.interrupts import ATTEMPTS, cancelled_on_interrupt


class LostConnectionError(Exception):
    """Stands in for py4j's error."""


class Context:
    """Notes what a SparkContext is asked.  The first ``failures`` of each kind fail."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[str] = []
        self.tags: set[str] = set()
        self._failures = dict.fromkeys(("cancel", "remove"), failures)

    def add(self, tag: str) -> None:
        self.tags.add(tag)

    def remove(self, tag: str) -> None:
        self._call("remove")
        self.tags.remove(tag)

    def cancel(self, tag: str) -> None:
        assert tag in self.tags
        self._call("cancel")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self._failures[name] -= 1
        if self._failures[name] >= 0:
            raise LostConnectionError(name)


def collect_as_pyspark_does() -> None:
    """It tidies up after an interruption by a call that fails."""
    try:
        raise KeyboardInterrupt
    finally:
        raise LostConnectionError("Answer from Java side is empty")


def run(context: Context, block: Any) -> None:
    calls = {"addJobTag": context.add, "removeJobTag": context.remove, "cancelJobsWithTag": context.cancel}
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(**calls))
    with cancelled_on_interrupt(spark):
        block()


def test_an_error_that_hides_an_interruption_cancels_the_job_and_the_interruption_is_raised() -> None:
    context = Context()
    with pytest.raises(KeyboardInterrupt):
        run(context, collect_as_pyspark_does)
    assert context.calls == ["cancel", "remove"]
    assert not context.tags


def test_the_calls_are_made_again_where_their_connection_is_lost() -> None:
    context = Context(failures=ATTEMPTS - 1)
    with pytest.raises(KeyboardInterrupt):
        run(context, collect_as_pyspark_does)
    assert context.calls == ["cancel"] * ATTEMPTS + ["remove"] * ATTEMPTS
    assert not context.tags


def test_a_spark_that_has_ended_hides_no_interruption() -> None:
    context = Context(failures=ATTEMPTS)
    with pytest.raises(KeyboardInterrupt):
        run(context, collect_as_pyspark_does)
    assert context.calls == ["cancel"] * ATTEMPTS + ["remove"] * ATTEMPTS


def test_a_job_that_fails_is_not_cancelled_also_while_an_earlier_interruption_is_handled() -> None:
    context = Context()

    def fails() -> None:
        raise ValueError("a task's error")

    with pytest.raises(ValueError, match="a task's error"):
        run(context, fails)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(ValueError, match="a task's error"):
            run(context, fails)
    assert context.calls == ["remove", "remove"]
    assert not context.tags
