"""Each part of the sender alone, made of nothing but the parts that it stands on."""

from __future__ import annotations

from random import Random

import pytest

from producerd.core.budget import QueueBudget
from producerd.core.failures import Kind, Meaning
from producerd.core.lanes.lane import Piece
from producerd.core.lanes.lanes import Lanes
from producerd.core.lanes.pacing import Pacer
from producerd.core.lanes.taken import Taken
from producerd.core.ledger import Ledger
from producerd.core.rows.frame import Frame
from producerd.core.rows.sorting import sort_rows
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.aside import Aside
from producerd.core.sending.backoff import RetryPolicy
from producerd.core.sending.body_limit import BodyLimit
from producerd.core.sending.format_choice import FormatChoice
from producerd.core.sending.health import HealthState, StreamHealth
from producerd.core.sending.in_flight import InFlight
from producerd.core.sending.refusals import REFUSALS_TO_DOUBT_STREAM, Refusals
from producerd.core.sending.requests import Request, begin
from producerd.core.sending.strays import STRAYS_TO_GIVE_UP, Strays
from producerd.core.sending.verdicts import Verdicts
from producerd.core.shards.knowledge import KnownShards
from producerd.core.stats import StreamStats
from producerd.errors import Code, Outcome
from tests.core.rows import even_map, rows_of
from tests.simulation.setting import make_rules

NOW = 100.0
THROTTLED = RequestFailed(
    "ProvisionedThroughputExceededException", "slow", maybe_stored=False, status=400, request_id="d3f1"
)


class Stand:
    """What the parts stand on."""

    def __init__(self) -> None:
        self.rules = make_rules()
        self.budget = QueueBudget(1_000, 1 << 30)
        self.ledger = Ledger(self.budget, StreamStats())
        self.known = KnownShards(Random(1), aggregates=False)
        self.health = StreamHealth(60.0, Random(1))
        self.policy = RetryPolicy(Random(1), 10.0)
        self.lanes = Lanes(self.rules.entries, lambda: Pacer(1.0))
        self.lanes.follow_map(even_map(1))
        self.in_flight = InFlight(self.rules, self.policy)
        self.body_limit = BodyLimit()

    def aside(self) -> Aside:
        return Aside(self.lanes, self.ledger, self.health, self.policy, per_key=False)

    def strays(self) -> Strays:
        return Strays(self.rules, self.ledger, self.known, self.lanes, self.aside())

    def refusals(self) -> Refusals:
        parts = self.health, self.in_flight, self.body_limit, self.aside()
        return Refusals(self.ledger, self.known, *parts, per_key=False)

    def take(self, number: int = 1, rows: int = 1) -> Taken:
        """Rows of a frame, in a request."""
        self.budget.charge(rows, 10_000)
        frame = Frame("owner", number, rows_of([(b"k%d" % i, b"data", None) for i in range(rows)]), 10_000)
        self.ledger.accept_frame(frame, NOW, 1_000.0)
        self.ledger.sort([frame])
        result = sort_rows([frame], self.lanes.map, 1)
        self.ledger.sorted(result.job)
        self.lanes.append(self.lanes.map, result.spans)
        taken = self.lanes.take_for_request(NOW, 1 << 20)
        assert taken is not None
        begin(taken.pieces)
        return taken

    def ended_as(self) -> list[Outcome]:
        """How the row of each finished frame has ended."""
        return [end for frame in self.ledger.take_finished() for end, rows in frame.tallies.items() if rows]


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_aside_delays_rows_and_lets_the_newest_request_of_its_own_go_first(stand: Stand) -> None:
    aside = stand.aside()
    aside.retry_later(stand.take(rows=3).pieces, NOW)
    assert aside.due > NOW
    assert not stand.lanes.waiting
    aside.bring_back(aside.due)
    (lane,) = stand.lanes
    assert (lane.queued, lane.spans[0].attempts) == (3, 1)
    lane.take_all()
    older, newer = stand.take(2).pieces, stand.take(3).pieces
    aside.send_alone(older)
    aside.send_alone(newer)
    alone = aside.next_alone()
    assert alone is not None
    assert alone.pieces == newer
    aside.remove(alone)
    assert [*aside.alone] == older


def test_strays_end_a_row_that_was_stored_in_the_wrong_shard_too_often(stand: Stand) -> None:
    strays = stand.strays()
    pieces = stand.take().pieces
    for times in range(STRAYS_TO_GIVE_UP):
        assert pieces[0].span.strays == times
        pieces = strays.strayed(pieces)
    assert strays.strayed(pieces) == []
    assert stand.ended_as() == [Outcome.UNKNOWN]


def test_refusals_doubt_the_stream_once_enough_rows_were_refused_by_themselves(stand: Stand) -> None:
    refusals, meaning = stand.refusals(), Meaning(Kind.REFUSED, Code.REQUEST_REFUSED)
    for number in range(1, REFUSALS_TO_DOUBT_STREAM + 1):
        assert not refusals.refuse_all
        refusals.of_row(stand.take(number).pieces[0], meaning, "no", NOW, is_new=True)
    assert refusals.refuse_all
    assert stand.health.state is HealthState.SUSPECT
    refusals.entry_was_stored(NOW)
    assert not refusals.refuse_all


@pytest.mark.parametrize(("fails", "ends"), [(False, []), (True, [Outcome.NOT_STORED])])
def test_verdicts_let_a_throttled_request_wait_or_end_its_rows_as_the_rules_say(
    stand: Stand, fails: bool, ends: list[Outcome]
) -> None:
    aside = stand.aside()
    verdicts = Verdicts(
        stand.rules,
        stand.ledger,
        stand.known,
        stand.health,
        stand.lanes,
        stand.in_flight,
        stand.policy,
        FormatChoice("auto"),
        stand.body_limit,
        aside,
        stand.strays(),
        stand.refusals(),
    )
    verdicts.set_rules(make_rules(fail_if_throttled=fails))
    request = Request(stand.take(), stand.lanes.map)
    verdicts.on_failure(request, THROTTLED, NOW)
    assert stand.ended_as() == ends
    assert [*aside.delayed] == ([] if fails else [Piece(lane, s._replace(attempts=1)) for lane, s in request.pieces])
