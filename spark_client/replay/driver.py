"""The driver's part of the replay guard: which call of which batch this is, and what is known of it.

A call's records are found by its query, its batch, and how many guarded calls the batch has made before.  Where no
query has an id, the caller's ``replay_key`` takes its place.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from spark_client.calls import Calls
from spark_client.diverting import Place
from spark_client.replay.guard import CHANGED, GuardPlan, batches_of
from spark_client.replay.records import MOST_AGE_SECONDS
from spark_client.replay.store import THREAD, Store, within

LOG: Final = logging.getLogger("producerd.client")
TOKEN: Final = uuid.uuid4().hex[:12]
"""What the names of this process's files begin with, and no other's."""
WITHOUT: Final = "replay guard: %s: %s; this write goes without it"


class Call:
    """One guarded call: what its tasks must know, or None if it goes without the guard."""

    def __init__(self, plan: GuardPlan | None, problem: str = "") -> None:
        self.plan = plan
        self.problem = problem  # why there is none
        self.failed = self.sent = True

    def succeeded(self, *, sent: bool) -> None:
        """Note that it stored its rows; ``sent``: it has not left all of them out."""
        self.failed, self.sent = False, sent


_CALLS: Final = Calls()
_REMOVING: Final[list[threading.Thread]] = []
"""What removes older records.  While it does, or hangs, no other begins: the next batch sees what is left."""


@contextmanager
def guarded(uri: str, interval_seconds: float, name: str, batch: int | None, run: str | None = None) -> Iterator[Call]:
    """In the block a call is guarded, or goes without that after a warning.

    ``name`` is of a query, of which ``run`` is the id of its run, or of a key if that is None.
    """
    ordinal, follows_sent = _CALLS.take(name, run, batch)
    if run is None and ordinal:
        LOG.warning("replay guard: this process has written with %s before; this is another write, sent whole", name)
    call = Call(None)
    try:
        plan, seen, problem = _plan(uri, name, batch, ordinal, interval_seconds)
        call = Call(plan and plan._replace(follows_sent=follows_sent), problem)
        yield call
        if plan is not None and run is None:
            _warn_of_others(plan, seen)
    finally:
        _CALLS.end(name, run, batch, ordinal, failed=call.failed, sent=call.sent)


def plan_without_look(uri: str, interval_seconds: float) -> GuardPlan | None:
    """Return a plan for tasks that look themselves and know the folder, or None after a warning."""
    try:
        mark = "" if Place.of(uri).bucket else within(lambda: Store(uri).mark())
        return GuardPlan(uri, "", mark, TOKEN, interval_seconds)
    except Exception as error:
        LOG.warning(WITHOUT, type(error).__name__, error)
        return None


def remove_batches(uri: str, name: str, batch: int, numbers: list[int] | None = None) -> None:
    """Remove these batches of a query or key, or all that there are, except ``batch``.  A warning is all that fails."""
    try:
        store = Store(uri)
        for number in batches_of(store, name) if numbers is None else numbers:
            if number != batch:
                store.remove(f"{name}/batch={number}")
    except Exception as error:
        LOG.warning("replay guard: older records cannot be removed: %s: %s", type(error).__name__, error)


def _plan(
    uri: str, name: str, batch: int | None, ordinal: int, interval_seconds: float
) -> tuple[GuardPlan | None, frozenset[str], str]:
    """Return the plan of a call, and the files that there are of it, or why there is none."""
    looked_at = time.time()

    def look() -> tuple[str, list[int], list[str]]:
        store = Store(uri)
        mark, numbers = store.mark(), batches_of(store, name)
        if batch is not None and max(numbers, default=0) > batch:
            store.remove(name)
            LOG.warning("replay guard: %s", CHANGED.format(batch))
            return mark, [], []
        return mark, numbers, store.files(folder) if batch is None or batch in numbers else []

    folder = f"{name}/batch={'none' if batch is None else batch}/{ordinal}"
    try:
        mark, numbers, files = within(look)
    except Exception as error:  # ImportError, too, where a PyArrow was built without S3
        LOG.warning(WITHOUT, type(error).__name__, error)
        return None, frozenset(), f"{type(error).__name__}: {error}"
    if batch is not None and {*numbers} - {batch} and not any(thread.is_alive() for thread in _REMOVING):
        arguments = uri, name, batch, numbers
        _REMOVING[:] = [threading.Thread(target=remove_batches, args=arguments, name=THREAD, daemon=True)]
        with contextlib.suppress(RuntimeError):  # no thread may be left
            _REMOVING[0].start()
    partitions = {path[len(folder) + 1 :].split("/")[0] for path in files}
    found = tuple(sorted(int(one) for one in partitions if one.isdecimal()))
    return GuardPlan(uri, folder, mark, TOKEN, interval_seconds, found, looked_at), frozenset(files), ""


def _warn_of_others(plan: GuardPlan, seen: frozenset[str]) -> None:
    """Warn if another process has written records of this call while it ran."""
    try:
        files = within(lambda: Store(plan.uri).files(plan.folder))
    except Exception:
        return  # the tasks have told of it
    others = [path for path in files if path not in seen and not path.split("/")[-1].startswith(plan.token)]
    if others:
        key = plan.folder.split("/")[0]
        LOG.warning("replay guard: another process has written with this %s meanwhile: give each its own", key)


def prune(uri: str, older_than_seconds: float = MOST_AGE_SECONDS) -> int:
    """Remove the records of batches that have none newer than this, and return of how many.

    A query's records are removed by its next batch.  Records under a ``replay_key`` stay until then.  Raises OSError.
    """
    store, removed = Store(uri), 0
    for name in store.folders(""):
        folders = [f"{name}/{one}" for one in store.folders(name) if name.startswith(("query=", "key="))]
        batches = [folder for folder in folders if "/batch=" in folder]
        old = [folder for folder in batches if store.age_seconds(folder) > older_than_seconds]
        for folder in [name] if old and old == folders else old:
            store.remove(folder)
        removed += len(old)
    return removed
