"""Pacer: how fast one lane sends, so that a shard's quota is used and its producers share it without talking.

Over T seconds a lane sends at most T x rate + max(one second's rate, its largest entry), in records and in bytes, where
rate is the shard's quota x ``shard_rate_fraction``.  It slows when the shard throttles, and recovers after.

All that a producer learns of the others is which of its entries were throttled.  So each lane keeps a *share* of the
shard, and both its token buckets fill at that share of the quota:

- a new lane doubles its share with each answer, until the first throttle;
- a throttle halves the share and empties the buckets, once for all answers to what was sent before it;
- `STORM_CUTS` such cuts with nothing stored between them are a *storm*, which says nothing about the lane's own rate.
  After the first entry that is stored again the share doubles with each answer up to where it was before the storm.
  A throttle stops the doubling, so that the producers of a shard do not start the next storm together;
- within `RETURN_SECONDS` the share is back at `RETURN_TO` of where it was: the room made is short, the step down lasts;
- from there it creeps, by `CREEP` / sqrt(share) a second: a small share faster, which is what makes shares equal;
- entries stored since the last throttle speed that up, by their fourth power: with 50 producers one entry in 30 is
  throttled at all times, so a lane that sends 5 a second cannot tell sooner than after some dozens that it is alone.

Entries shrink with the share, so that a slow lane learns as often as a fast one.  The numbers come from a model of up
to 300 producers on one shard; tests/core/test_pacing.py keeps a small one.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

# https://docs.aws.amazon.com/streams/latest/dev/service-sizes-and-limits.html
SHARD_RECORDS_PER_SECOND: Final = 1_000
SHARD_BYTES_PER_SECOND: Final = 1024 * 1024

# The figures below: 50 producers have three times the quota to send, and 3.6 % of their aggregates are throttled; where
# 49 of them stop, the last one has 90 % of the quota after 12 s (mean of 8 runs).  Another value of one constant gives:
ENTRIES_PER_SECOND: Final = 5
"""An aggregate holds at most this part of a second's rate: 4 KiB each at 50 producers.  With 3: 4.6 % and 22 s; with 8:
2.9 % and 11 s, but smaller entries cost more to send and to pay."""
LEAST_ENTRY_BYTES: Final = 1024
"""Smaller ones would reach the quota in records before the one in bytes."""
QUANTUM_SECONDS: Final = 0.1
"""What a bucket gathers before the lane may send: a lane that is held back makes at most ten requests a second.  With
0.2, 4.9 % of 1 KB raw records are throttled instead of 2.9 %: they come in larger lumps."""
FIRST_SHARE: Final = 1 / 4
"""With a second's worth in the bucket: a small batch after a pause goes at once, and alone a lane has the full rate
after two answers: 96 % of the quota in its first two seconds, 63 % with 1/32.  50 at once begin at 12 times the quota,
and share it within seconds (tests/core/test_fleet.py): for ten seconds 9 % of aggregates are throttled, not 6 %."""
DOUBLING_SECONDS: Final = 0.1
"""Answers that come faster than this double the share no faster."""
CUT_TO: Final = 0.5
RETURN_TO: Final = 0.75
"""Alone on a shard that gives 97 % of its quota, it uses 98 % of that; with 0.5 (no way back) 91 %.  With 0.9, 4.7 %
of the entries of 50 are throttled."""
STORM_CUTS: Final = 4
"""Cuts in a row, with nothing stored between them, that make a storm.  With 6, 50 producers have 90 % of the quota 5 s
after a storm of 2 s, and not after 1 s.  With 3, the least of ten producers of 200 KB records has 0.32 of its share
instead of 0.34 (mean of 40 runs)."""
STORM_DOUBLING_SECONDS: Final = 0.2
"""Answers after a storm that come faster double the share no faster.  Alone a lane has 90 % of the quota 2.5 s after a
storm of 25 s.  50 lanes that had used half of the quota, and have a backlog now, find 12 % of their plain records
throttled for ten seconds.  With 0.1: 2.0 s for plain records and 17 %; with 0.4: 4.0 s and 7 %."""
CUTS_IN_A_ROW: Final = 3
ROW_SECONDS: Final = 5.0
"""So often, with no more between two of them: then there is no rate at which it does not throttle."""
RETURN_SECONDS: Final = 5.0
CREEP: Final = 0.006
"""A second, for a lane that has the whole quota.  With 0.004: 3.2 % and 16 s, but of 50 lanes with 1 KB raw records the
least has 0.32 of its share instead of 0.55; with 0.008: 3.9 % and 11 s, and no fairer."""
EVIDENCE_ENTRIES: Final = 35
"""With 25: 4.4 % and 11 s; with 45: 3.1 % and 18 s."""
FASTEST_GROWTH: Final = 0.5
"""A second: from a fiftieth to the whole in 8 s.  Half of it costs 7 s more, twice as much gains nothing."""
LONGEST_STEP_SECONDS: Final = 0.35
"""Of growth by one answer: a lane that sends an entry every few seconds has learned little in between.  50 KB raw
records of 50 producers: 7.9 % throttled, the least producer has 0.46 of its share; with 1 s: 10.9 % and 0.56."""
LEAST_ENTRIES_PER_SECOND: Final = 2
"""However much is throttled.  The rate is 90 % of the quota 2.5 s after 15 s in which all was.  Of 200 lanes with three
times the quota 4.7 % of entries are throttled and the least has 0.64 of its share; with 1: 4 s, 4.6 % and 0.44; with 4:
2 s, 6 % and 0.85, but of 300 lanes 23 % are throttled."""
SLOWEST_ENTRY_SECONDS: Final = 10.0
"""A large entry's debt lasts no longer, unless the quota itself says so."""
RETRY_SHARE: Final = 1 / 3
"""A throttled entry's debt is paid at no less than this share, as nothing was stored: if it were paid in full, 20
producers of 1 MB records would starve one another; if at the full rate, 94 % of them would be throttled, not 80 %."""
USE_SECONDS: Final = 10.0
"""Over which `use` looks back: what was sent before weighs the less, the older it is."""
IDLE_SECONDS: Final = 60.0
"""What a lane knew of the others is forgotten then.  Spark's triggers are mostly shorter."""
_SOON: Final = 1e-6
"""Seconds: less is rounding."""


class Allowance(NamedTuple):
    """What may be taken now.  ``one_larger``: or one entry of any size, which leaves a debt."""

    records: int
    bytes: int
    one_larger: bool


class _Bucket:
    """Tokens of one kind, at most one second's worth; below zero is a debt."""

    __slots__ = ("ceiling", "rate", "tokens")

    def __init__(self, ceiling: float) -> None:
        self.ceiling = self.rate = self.tokens = ceiling

    def add(self, tokens: float) -> None:
        self.tokens = min(self.rate, self.tokens + tokens)

    def set_rate(self, rate: float) -> None:
        self.rate = rate
        self.add(0.0)

    def lacks_seconds(self, tokens: float) -> float:
        """Until it holds so much, or is full; rounding apart."""
        lacks = (min(self.rate, tokens) - self.tokens) / self.rate
        return lacks if lacks > _SOON else 0.0

    @property
    def whole(self) -> int:
        return max(0, int(self.tokens + self.rate * _SOON))

    @property
    def debt_seconds(self) -> float:
        """What is to be paid for a debt of which nothing was stored."""
        return max(0.0, -self.tokens) / max(self.rate, self.ceiling * RETRY_SHARE)


class Pacer:
    """One lane's pace.  Ask `ready_at`, then `allowance`; tell `take`, `give_back` and `answered`.

    ``fraction`` scales the quota that is ours to use.
    """

    __slots__ = (
        "_active_at",
        "_before",
        "_bytes",
        "_cut_at",
        "_cuts",
        "_doubles",
        "_empty_cuts",
        "_entry_bytes",
        "_filled_at",
        "_heard_at",
        "_limited",
        "_records",
        "_return_to",
        "_share",
        "_stored",
        "_used_at",
        "_used_bytes",
        "_used_records",
        "_using_since",
    )

    _active_at: float  # when it last sent
    _before: float  # the share before the first of the empty cuts
    _cut_at: float  # when the share was last cut
    _cuts: int  # in a row; 0 while nothing was throttled
    _doubles: bool  # whether the share doubles on its way to `_return_to`
    _empty_cuts: int  # with nothing stored between them
    _heard_at: float  # when the last answer came
    _limited: bool  # whether the pace held the lane back since then
    _return_to: float  # the share to be back at soon; the whole quota while nothing was throttled
    _share: float  # of the ceilings
    _stored: int  # entries since the last throttle

    def __init__(self, fraction: float = 1.0) -> None:
        self._records = _Bucket(SHARD_RECORDS_PER_SECOND * fraction)
        self._bytes = _Bucket(SHARD_BYTES_PER_SECOND * fraction)
        self._entry_bytes = 0.0  # of the entries taken last, on average
        self._used_records = self._used_bytes = 0.0
        self._used_at = self._using_since = -math.inf
        self._filled_at = -math.inf  # the buckets fill from then on; ahead of now where a debt is paid first
        self._forget(-math.inf)

    # ---- questions

    @property
    def rate_records(self) -> float:
        """Entries a second, now."""
        return self._records.rate

    @property
    def rate_bytes(self) -> float:
        """Bytes a second (data and keys), now."""
        return self._bytes.rate

    @property
    def backs_off(self) -> bool:
        """Whether its shard throttled it, and it is not back at the rate that it returns to; or does so on and on."""
        goes_on = self._cuts >= CUTS_IN_A_ROW and self._heard_at - self._cut_at <= ROW_SECONDS
        return (not self._doubles and self._share < self._return_to) or goes_on

    @property
    def by_records(self) -> bool:
        """Whether of the two it is the number of records that holds it."""
        return self._records.tokens / self._records.rate < self._bytes.tokens / self._bytes.rate

    def use(self, now: float) -> float:
        """What it had stored of late, as a share of what a shard takes, in records or in bytes, whichever is more."""
        self._age_use(now)
        seconds = USE_SECONDS * -math.expm1(min(-1.0, self._using_since - now) / USE_SECONDS)  # fewer when it is young
        records, bytes_ = self._used_records / SHARD_RECORDS_PER_SECOND, self._used_bytes / SHARD_BYTES_PER_SECOND
        return max(0.0, records, bytes_) / seconds

    def entry_bytes(self, most: int) -> int:
        """The largest aggregate to make now, where ``most`` is the setting."""
        return min(most, max(LEAST_ENTRY_BYTES, int(self._bytes.rate / ENTRIES_PER_SECOND)))

    def ready_at(self, now: float, entry_bytes: int = 0) -> float:
        """When a request may be made whose first entry has ``entry_bytes``: ``now``, or the time to ask again."""
        self._fill(now)
        records, bytes_ = self._records, self._bytes
        seconds = max(
            records.lacks_seconds(max(1.0, records.rate * QUANTUM_SECONDS)),
            bytes_.lacks_seconds(max(entry_bytes, bytes_.rate * QUANTUM_SECONDS)),
        )
        return max(now, self._filled_at) + seconds if seconds else now

    def allowance(self, now: float) -> Allowance:
        """What may be taken now: these entries and bytes, or one larger entry."""
        self._fill(now)
        if self._records.lacks_seconds(1.0):
            return Allowance(0, 0, one_larger=False)
        one_larger = not self._bytes.lacks_seconds(math.inf)
        return Allowance(max(1, self._records.whole), self._bytes.whole, one_larger)

    # ---- stimuli

    def take(self, records: int, bytes_: int, now: float) -> None:
        """So much is sent; within `allowance`, asked in the same step."""
        self._fill(now)
        self._active_at = now
        self._entry_bytes = bytes_ / records
        self._set_share(self._share)  # no less than such entries need
        self._age_use(now)
        self._used_records += records
        self._used_bytes += bytes_
        for bucket, tokens in ((self._records, records), (self._bytes, bytes_)):
            bucket.tokens -= tokens
            self._limited |= bucket.tokens < bucket.rate * QUANTUM_SECONDS

    def give_back(self, records: int, bytes_: int) -> None:
        """So much less was sent than taken.  Negative: more, which leaves a debt."""
        self._records.add(records)
        self._bytes.add(bytes_)
        self._used_records -= records
        self._used_bytes -= bytes_

    def held(self) -> None:
        """Rows wait for more than it has: for a full bucket, where the first of them is larger than what is in it."""
        self._limited = True

    def answered(self, stored: int, throttled: int, sent_at: float, now: float) -> None:
        """How many entries of one request to this shard were stored and throttled; ``sent_at``: when it took them."""
        self._fill(now)
        if stored and sent_at >= self._cut_at:
            self._storm_ends()
        if throttled:
            self._used_records -= throttled
            self._used_bytes -= throttled * self._entry_bytes
            self._throttled(sent_at, now)
        elif stored:
            self._stored += stored
            if self._limited:  # a rate that was not used shows nothing
                self._grow(now - self._heard_at)
        self._limited, self._heard_at = False, now

    def set_fraction(self, fraction: float, now: float) -> None:
        """Another part of the quota is ours.  Of that, the share which the shard's throttles have left us stays."""
        self._fill(now)
        self._records.ceiling = SHARD_RECORDS_PER_SECOND * fraction
        self._bytes.ceiling = SHARD_BYTES_PER_SECOND * fraction
        self._set_share(self._share)

    # ---- inside

    def _fill(self, now: float) -> None:
        if now > self._filled_at:
            for bucket in (self._records, self._bytes):
                bucket.add((now - self._filled_at) * bucket.rate)
            self._filled_at = now
        if now - self._active_at > IDLE_SECONDS:
            self._forget(now)

    def _age_use(self, now: float) -> None:
        if self._used_at == -math.inf:
            self._used_at = self._using_since = now
        elif now > self._used_at:
            faded = math.exp((self._used_at - now) / USE_SECONDS)
            self._used_records = max(0.0, self._used_records) * faded
            self._used_bytes = max(0.0, self._used_bytes) * faded
            self._used_at = now

    def _forget(self, now: float) -> None:
        """Begin anew, still owing what is owed."""
        self._return_to, self._doubles = 1.0, True
        self._before, self._empty_cuts = 1.0, 0
        self._stored = 0
        self._limited = False
        self._cut_at, self._cuts = -math.inf, 0
        self._active_at = self._heard_at = now
        self._set_share(FIRST_SHARE)

    def _set_share(self, share: float) -> None:
        least = max(
            LEAST_ENTRIES_PER_SECOND / self._records.ceiling,
            self._entry_bytes / SLOWEST_ENTRY_SECONDS / self._bytes.ceiling,
        )
        self._share = min(1.0, max(share, least))
        for bucket in (self._records, self._bytes):
            bucket.set_rate(bucket.ceiling * self._share)

    def _throttled(self, sent_at: float, now: float) -> None:
        # The buckets begin to fill when the debt would be paid: never sooner than at the full rate, as the law wants.
        self._filled_at += max(self._records.debt_seconds, self._bytes.debt_seconds)
        self._records.tokens = self._bytes.tokens = 0.0
        self._stored = 0
        if sent_at >= self._cut_at:
            self._cuts = self._cuts + 1 if now - self._cut_at <= ROW_SECONDS else 1
            self._cut_at = now
            whole = self._share if self._doubles else max(self._share, self._return_to)
            if not self._empty_cuts:
                self._before = whole
            self._empty_cuts += 1
            self._return_to, self._doubles = RETURN_TO * whole, False
            self._set_share(self._share * CUT_TO)

    def _storm_ends(self) -> None:
        """An entry was stored that was sent after the last cut: if there was a storm, it is over."""
        if self._empty_cuts >= STORM_CUTS:
            self._return_to, self._doubles = self._before, True
        self._empty_cuts = 0

    def _grow(self, seconds: float) -> None:
        seconds = min(seconds, LONGEST_STEP_SECONDS)
        if self._doubles and self._share < self._return_to:
            doubling_seconds = STORM_DOUBLING_SECONDS if self._cuts else DOUBLING_SECONDS
            share = min(self._return_to, self._share * 2.0 ** min(1.0, seconds / doubling_seconds))
        elif self._share < self._return_to:
            share = min(self._return_to, self._share + self._return_to * seconds / RETURN_SECONDS)
        else:
            growth = CREEP / math.sqrt(self._share) * (1 + (self._stored / EVIDENCE_ENTRIES) ** 4)
            share = self._share * math.exp(min(growth, FASTEST_GROWTH) * seconds)
        self._set_share(share)
