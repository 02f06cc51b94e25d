"""An interrupted batch cancels its job and raises the interruption, whatever PySpark makes of it.

tests/spark/test_interrupts.py shows the same with a real Spark.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_client.interrupts import cancelled_on_interrupt


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


class ConnectSession:
    """Stands in for a session of Spark Connect, which has no SparkContext."""

    def __init__(self, context: Context) -> None:
        self.addTag, self.removeTag, self.interruptTag = context.add, context.remove, context.cancel


ConnectSession.__module__ = "pyspark.sql.connect.session"


def run(context: Context, block: Any) -> None:
    calls = {"addJobTag": context.add, "removeJobTag": context.remove, "cancelJobsWithTag": context.cancel}
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(**calls))
    with cancelled_on_interrupt(spark):
        block()


@pytest.mark.parametrize(
    ("failures", "times"),
    [(0, 1), (2, 3), (3, 3)],
    ids=["at once", "where their connection is lost twice", "without effect where Spark has ended"],
)
def test_an_error_that_hides_an_interruption_cancels_the_job_and_the_interruption_is_raised(
    failures: int, times: int
) -> None:
    context = Context(failures)
    with pytest.raises(KeyboardInterrupt):
        run(context, collect_as_pyspark_does)
    assert context.calls == ["cancel"] * times + ["remove"] * times
    assert bool(context.tags) is (failures == 3)


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


def test_an_interruption_is_raised_as_it_is_unless_an_error_hides_it() -> None:
    """Its traceback shows what the block was doing, and not PySpark's lost connection."""

    def interrupted_while_it_handles_another_error() -> None:
        try:
            raise ValueError("the block's own")
        except ValueError:
            raise KeyboardInterrupt  # noqa: B904 - as it comes

    for block, hides in ((interrupted_while_it_handles_another_error, False), (collect_as_pyspark_does, True)):
        with pytest.raises(KeyboardInterrupt) as caught:
            run(Context(), block)
        assert caught.value.__suppress_context__ is hides


def test_an_error_that_was_handled_before_hides_no_interruption_of_the_block() -> None:
    context = Context()

    def fails() -> None:
        raise ValueError("a task's error")

    try:
        collect_as_pyspark_does()
    except LostConnectionError:
        with pytest.raises(ValueError, match="a task's error"):
            run(context, fails)
    assert context.calls == ["remove"]


def test_under_spark_connect_the_session_has_the_tags() -> None:
    context = Context()

    def is_interrupted() -> None:
        with cancelled_on_interrupt(ConnectSession(context)) as tag:
            assert context.tags == {tag}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        is_interrupted()
    assert context.calls == ["cancel", "remove"]
    assert not context.tags
