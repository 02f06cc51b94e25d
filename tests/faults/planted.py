"""A daemon with a fault planted in it, which some scenario must find.

::

    python -m tests.faults.planted NAME PYTHON -m producerd serve ...

plants the fault and runs the daemon in the same process.  Each plant does wrongly what one method does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from producerd import cli
from producerd.core.budget import QueueBudget
from producerd.core.failures import Meaning
from producerd.core.lanes.lanes import Lanes
from producerd.core.ledger import Ledger
from producerd.core.rows.frame import RowEnd
from producerd.core.sending import judging, refusals, verdicts
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.judging import STORED, Judgement, judge
from producerd.core.sending.requests import Request
from producerd.errors import Code, Outcome

PLANTS: Final[dict[str, Callable[[], None]]] = {}


def plant(fault: Callable[[], None]) -> Callable[[], None]:
    PLANTS[fault.__name__] = fault
    return fault


def put(owner: Any, name: str, wrong: Any) -> None:
    """Set the wrong method.  A name that is not there would plant nothing."""
    assert hasattr(owner, name), f"{owner} has no {name}"
    setattr(owner, name, wrong)


@plant
def an_entry_that_failed_is_taken_for_stored() -> None:
    def wrong(*of: Any) -> Judgement:
        found = judge(*of)
        return found._replace(classes=np.zeros_like(found.classes))

    put(verdicts, "judge", wrong)


@plant
def a_lost_answer_is_no_possible_duplicate() -> None:
    put(Ledger, "mark_maybe_stored", lambda *_: None)


@plant
def a_queue_takes_on_twice_its_limit() -> None:
    fits = QueueBudget.fits

    def wrong(budget: QueueBudget, records: int, charge_bytes: int, **share: float) -> bool:
        return fits(
            budget, records // 2 - budget.used_records // 2, charge_bytes // 2 - budget.used_bytes // 2, **share
        )

    put(QueueBudget, "fits", wrong)


@plant
def a_key_has_two_requests_on_their_way() -> None:
    put(Lanes, "_must_wait", lambda *_: False)


@plant
def an_aggregate_is_believed_wherever_it_was_stored() -> None:
    put(judging, "_verdict", lambda *_: STORED)


@plant
def a_refused_request_judges_its_rows() -> None:
    def wrong(self: refusals.Refusals, request: Request, _: Meaning, failed: RequestFailed, *__: float) -> None:
        for span in request.spans:
            self._ledger.end_rows(span, RowEnd(Outcome.NOT_STORED, Code.RECORD_INVALID, failed.message, judged=True))

    put(refusals.Refusals, "of_request", wrong)


if __name__ == "__main__":
    name, _python, _m, _producerd, *arguments = sys.argv[1:]
    PLANTS[name]()
    sys.exit(cli.main(arguments))
