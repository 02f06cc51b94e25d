"""A sender counts as obligations only acknowledged records, and hides no call that failed or never ended."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

import tests.faults.senders as module
from producerd.errors import BackpressureTimeout, Code, ProducerdError, RecordsFailed, RowFailure
from spark_client import Record
from tests.faults.records import Book, Id, Shape
from tests.faults.senders import RECORDS_PER_CALL, Sender

BOOK = Book(7, {3: Shape()})


class StandInClient:
    """Takes whatever it is given; its calls end when the test ends them."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.taken: list[Record] = []
        self.futures: list[Future[None]] = []
        self.raises: Exception | None = None

    def put_many(self, records: list[Record], *, timeout_seconds: float | None) -> Future[None]:
        assert timeout_seconds is None
        if self.raises is not None:
            raise self.raises
        self.taken += records
        self.futures.append(Future())
        return self.futures[-1]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> StandInClient:
    made = StandInClient()
    monkeypatch.setattr(module, "KinesisClient", lambda *_, **__: made)
    return made


@pytest.fixture
def sender(client: StandInClient) -> Sender:
    assert not client.taken
    return Sender(3, "plain", BOOK, Path("daemon.sock"), 1e6)


def test_a_call_that_has_not_ended_is_sent_and_no_obligation(sender: Sender, client: StandInClient) -> None:
    sender.put()
    assert (sender.sent, sender.acknowledged, sender.open_calls, sender.calls) == (RECORDS_PER_CALL, set(), 1, [])
    assert [BOOK.identify(str(record.partition_key), cast("bytes", record.data)) for record in client.taken] == [
        Id(3, number) for number in range(RECORDS_PER_CALL)
    ]


def test_a_call_that_is_acknowledged_makes_an_obligation_of_each_of_its_records(
    sender: Sender, client: StandInClient
) -> None:
    sender.put()
    sender.put()
    client.futures[1].set_result(None)
    assert sender.acknowledged == set(range(RECORDS_PER_CALL, 2 * RECORDS_PER_CALL))
    assert (sender.open_calls, len(sender.calls), sender.errors_told.total()) == (1, 1, 0)


@pytest.mark.parametrize(
    "error",
    [ProducerdError("gone", code=Code.DAEMON_LOST), RuntimeError("a fault of the client")],
    ids=["the daemon's", "another"],
)
def test_a_call_that_fails_makes_no_obligation_and_is_counted(
    sender: Sender, client: StandInClient, error: Exception
) -> None:
    sender.put()
    client.futures[0].set_exception(error)
    code = error.code if isinstance(error, ProducerdError) else "RuntimeError"
    assert (sender.acknowledged, sender.open_calls, sender.calls) == (set(), 0, [])
    assert sender.errors_told == {code: RECORDS_PER_CALL}


def test_records_that_failed_by_their_places_make_no_obligation_and_the_others_do(
    sender: Sender, client: StandInClient
) -> None:
    failures = [
        RowFailure(Code.THROTTLED, "slow", 2, maybe_stored=False, rows=(0, 19)),
        RowFailure(Code.EXPIRED, "old", 1, maybe_stored=True, rows=(5,)),
    ]
    sender.put()
    client.futures[0].set_exception(RecordsFailed("three are not stored", failures))
    assert sender.acknowledged == set(range(RECORDS_PER_CALL)) - {0, 5, 19}
    assert sender.errors_told == {Code.THROTTLED: 3}
    assert not sender.calls


def test_a_put_that_raises_may_have_sent_its_records_and_makes_no_obligation(
    sender: Sender, client: StandInClient
) -> None:
    client.raises = BackpressureTimeout("no room")
    with pytest.raises(BackpressureTimeout):
        sender.put()
    assert (sender.sent, sender.acknowledged, sender.open_calls) == (RECORDS_PER_CALL, set(), 0)


def test_a_sender_that_an_unknown_error_ends_says_so(sender: Sender, client: StandInClient) -> None:
    client.raises = RuntimeError("nobody has thought of this")
    sender.start()
    sender.join(10)
    assert not sender.is_alive()
    assert "nobody has thought of this" in sender.failure


def test_what_is_forgiven_is_no_obligation_and_what_comes_after_it_is(sender: Sender, client: StandInClient) -> None:
    sender.put()
    client.futures[0].set_result(None)
    sender.forgive()
    sender.put()
    client.futures[1].set_result(None)
    assert sender.acknowledged == set(range(RECORDS_PER_CALL, 2 * RECORDS_PER_CALL))
