"""The pace of a lane: it uses its shard's quota, and shares it with other producers that it does not know.

Over T seconds a lane sends at most T x rate + max(one second's rate, its largest entry), in entries and in bytes.  The
rate is the shard's quota x ``shard_rate_fraction``.  A lane slows down when the shard throttles, and recovers after.

A producer learns of the others only from the throttling of its own entries.  Each lane therefore keeps a *share* of the
shard, and both its token buckets fill at that share of the quota:

- a new lane doubles its share with each answer, until the first throttle;
- a throttle halves the share and empties the buckets.  Further throttled answers to requests that were sent before
  this cut do not cut again;
- `STORM_CUTS` such cuts with nothing stored between them are a *storm*, which shows nothing about the lane's own rate.
  After the next stored entry the share doubles with each answer, up to where it was before the storm.
  A throttle stops the doubling, so that the producers of a shard do not start the next storm together;
- within `RETURN_SECONDS` the share returns to `RETURN_TO` of where it was.  The shard recovers in that time, and the
  step down lasts;
- from there it creeps up by `CREEP` / sqrt(share) per second.  A small share grows faster, which makes shares equal;
- the creep speeds up with the fourth power of the entries stored since the last throttle.  With 50 producers one entry
  in 30 is always throttled, so a lane that sends 5 per second needs some dozens to learn that it is alone.

Entries shrink with the share, so that a slow lane learns as often as a fast one.  The constants come from a model of up
to 300 producers on one shard; tests/core/test_pacing.py has a small version of it.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

# https://docs.aws.amazon.com/streams/latest/dev/service-sizes-and-limits.html
SHARD_RECORDS_PER_SECOND: Final = 1_000
SHARD_BYTES_PER_SECOND: Final = 1024 * 1024

# All figures below come from one case of the model, unless they name another.  50 producers have three times the quota
# to send; 3.6 % of their aggregates are throttled; after 49 of them stop, the last one has 90 % of the quota within
# 12 s (mean of 8 runs).  "With X: P % and T s" gives these two figures for another value of that constant.
ENTRIES_PER_SECOND: Final = 5
"""Aggregates that make up one second's rate, which limits their size: to 4 KiB at 50 producers.  With 3: 4.6 % and
22 s.  With 8: 2.9 % and 11 s, but smaller entries need more CPU and more payment to AWS for each row."""
LEAST_ENTRY_BYTES: Final = 1024
"""Size down to which aggregates shrink.  With smaller ones the quota in records would be used up before the bytes'."""
QUANTUM_SECONDS: Final = 0.1
"""Seconds of rate that a bucket gathers before its lane may send: a lane that is held back begins at most ten requests
per second.  With 0.2, 4.9 % of 1 KB plain records are throttled instead of 2.9 %, because more of them come at once."""
JOINING_SECONDS: Final = QUANTUM_SECONDS / 2
"""How much sooner a lane may send in a request that another lane begins.  Lanes that are held back so come to send
together.  If each began its own requests, a record in an aggregate would cost 39 % more with 4 shards."""
FIRST_SHARE: Final = 1 / 4
"""Share of a new lane, which begins with one second's tokens, so that a small batch after a pause goes at once.  A lane
that is alone has the full rate after two answers: 96 % of the quota in its first two seconds (with 1/32: 63 %).  50
lanes that begin together send 12 times the quota and share it within seconds (tests/core/test_fleet.py).  For their
first ten seconds 9 % of their aggregates are throttled instead of 6 %."""
DOUBLING_SECONDS: Final = 0.1
"""Shortest time in which a new lane's share doubles, however fast answers come."""
CUT_TO: Final = 0.5
"""Factor of the share at a throttle."""
RETURN_TO: Final = 0.75
"""Factor of the share before a throttle to which it soon returns.  A lane that is alone on a shard that gives 97 % of
its quota uses 98 % of that; with 0.5 (no return) 91 %.  With 0.9, 4.7 % of the entries of 50 lanes are throttled."""
STORM_CUTS: Final = 4
"""Cuts in a row, with nothing stored between them, that make a storm.  With 6, 50 producers need 5 s instead of 1 s
after a storm of 2 s until they have 90 % of the quota.  With 3, the slowest of ten producers of 200 KB records has 0.32
of its share instead of 0.34 (mean of 40 runs)."""
STORM_DOUBLING_SECONDS: Final = 0.2
"""Shortest time in which the share doubles after a storm.  A lane that is alone has 90 % of the quota 2.5 s after a
storm of 25 s.  If 50 lanes used half of the quota before and have a backlog now, 12 % of their plain records are
throttled for ten seconds.  With 0.1: 2.0 s for plain records and 17 %.  With 0.4: 4.0 s and 7 %."""
CUTS_IN_A_ROW: Final = 3
"""Cuts in a row, each within `ROW_SECONDS` of the one before, that show that the shard throttles at any rate."""
ROW_SECONDS: Final = 5.0
"""Longest time between two cuts in a row."""
RETURN_SECONDS: Final = 5.0
"""Time in which the share returns to `RETURN_TO`."""
CREEP: Final = 0.006
"""Growth of the share in a second, for a lane that has the whole quota.  With 0.004: 3.2 % and 16 s, but the slowest of
50 lanes with 1 KB plain records has 0.32 of its share instead of 0.55.  With 0.008: 3.9 % and 11 s, and not fairer."""
EVIDENCE_ENTRIES: Final = 35
"""Entries stored since the last throttle that double the creep.  With 25: 4.4 % and 11 s.  With 45: 3.1 % and 18 s."""
FASTEST_GROWTH: Final = 0.5
"""Fastest growth of the share in a second: from a fiftieth to the whole in 8 s.  Half of it needs 7 s more; twice as
much gains nothing."""
LONGEST_STEP_SECONDS: Final = 0.35
"""Longest time of growth that one answer adds, because a lane with one entry every few seconds has learned little.
For 50 KB plain records of 50 producers, 7.9 % are throttled and the slowest producer has 0.46 of its share.  With 1 s:
10.9 % and 0.56."""
LEAST_ENTRIES_PER_SECOND: Final = 2
"""Lowest rate of a lane, however much is throttled.  2.5 s after 15 s in which all was throttled, the rate is 90 % of
the quota.  Of 200 lanes with three times the quota, 4.7 % of entries are throttled and the slowest lane has 0.64 of its
share.  With 1: 4 s, 4.6 % and 0.44.  With 4: 2 s, 6 % and 0.85, but of 300 lanes 23 % of entries are throttled."""
SLOWEST_ENTRY_SECONDS: Final = 10.0
"""Longest time that a large entry's debt lasts, unless the quota itself needs longer."""
RETRY_SHARE: Final = 1 / 3
"""Lowest share at which a throttled entry's debt is paid, because nothing was stored.  If a lane paid at its own share,
20 producers of 1 MB records would starve one another.  At the full rate 94 % of them would be throttled, not 80 %."""
USE_SECONDS: Final = 10.0
"""Time constant of `Pacer.use`, in which what was sent fades by the factor e."""
IDLE_SECONDS: Final = 60.0
"""Pause after which a lane forgets what it knew of the others.  The triggers of most Spark jobs are shorter."""
_SOON: Final = 1e-6
"""Seconds below which a wait is a rounding error."""


class Allowance(NamedTuple):
    """The entries and bytes that a lane may take now.  ``one_larger``: it may take one larger entry instead."""

    records: int
    bytes: int
    one_larger: bool


class _Bucket:
    """A bucket of tokens for entries or for bytes.  It holds up to one second's rate; below zero is a debt."""

    __slots__ = ("ceiling", "quantum", "rate", "tokens")

    def __init__(self, ceiling: float) -> None:
        self.ceiling = self.tokens = ceiling
        self.set_rate(ceiling)

    def add(self, tokens: float) -> None:
        """Add tokens up to one second's rate."""
        self.tokens = min(self.rate, self.tokens + tokens)

    def set_rate(self, rate: float) -> None:
        """Fill at another rate, in tokens a second.  ``quantum``: the tokens from which a lane may send."""
        self.rate = rate
        self.quantum = max(1.0, rate * QUANTUM_SECONDS)
        self.add(0.0)

    def lacks_seconds(self, tokens: float) -> float:
        """Return the seconds until it holds this many tokens or is full, without rounding errors."""
        if self.tokens >= tokens:  # as nearly always
            return 0.0
        lacks = (min(self.rate, tokens) - self.tokens) / self.rate
        return lacks if lacks > _SOON else 0.0

    @property
    def whole(self) -> int:
        """The number of whole tokens in it, at least 0."""
        return max(0, int(self.tokens + self.rate * _SOON))

    @property
    def debt_seconds(self) -> float:
        """The seconds in which to pay its debt if nothing of it was stored."""
        return max(0.0, -self.tokens) / max(self.rate, self.ceiling * RETRY_SHARE)


class Pacer:
    """The pace of one lane.

    The lane asks `ready_at` and `allowance`, and reports with `take`, `give_back` and `answered`.  ``fraction`` is the
    part of the shard's quota that it may use.
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
        "_most_entry_bytes",
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
    _cuts: int  # cuts in a row; 0 before the first throttle
    _doubles: bool  # whether the share doubles on its way to `_return_to`
    _empty_cuts: int  # cuts since an entry was last stored
    _heard_at: float  # when the last answer came
    _limited: bool  # whether the pace has held the lane back since the last answer
    _most_entry_bytes: int  # the size of the largest aggregate at this rate
    _return_to: float  # the share to which the lane soon returns; 1 before the first throttle
    _share: float  # the part of the ceilings at which the buckets fill
    _stored: int  # entries stored since the last throttle

    def __init__(self, fraction: float = 1.0) -> None:
        self._records = _Bucket(SHARD_RECORDS_PER_SECOND * fraction)
        self._bytes = _Bucket(SHARD_BYTES_PER_SECOND * fraction)
        self._entry_bytes = 0.0  # the mean size of the entries taken last
        self._used_records = self._used_bytes = 0.0
        self._used_at = self._using_since = -math.inf
        self._filled_at = -math.inf  # the buckets fill from this time on, which may be ahead to pay a debt first
        self._forget(-math.inf)

    # ---- questions

    @property
    def rate_records(self) -> float:
        """The entries that it may send in a second now."""
        return self._records.rate

    @property
    def rate_bytes(self) -> float:
        """The bytes (data and keys) that it may send in a second now."""
        return self._bytes.rate

    @property
    def backs_off(self) -> bool:
        """Whether its shard throttled it and its rate has not returned yet, or the shard throttles at any rate."""
        goes_on = self._cuts >= CUTS_IN_A_ROW and self._heard_at - self._cut_at <= ROW_SECONDS
        return (not self._doubles and self._share < self._return_to) or goes_on

    @property
    def by_records(self) -> bool:
        """Whether the number of entries holds it back rather than their bytes."""
        return self._records.tokens / self._records.rate < self._bytes.tokens / self._bytes.rate

    def use(self, now: float) -> float:
        """Return the share of its shard's quota that it has used recently: of records or of bytes, the larger one."""
        self._age_use(now)
        seconds = USE_SECONDS * -math.expm1(min(-1.0, self._using_since - now) / USE_SECONDS)  # fewer when it is young
        records, bytes_ = self._used_records / SHARD_RECORDS_PER_SECOND, self._used_bytes / SHARD_BYTES_PER_SECOND
        return max(0.0, records, bytes_) / seconds

    def entry_bytes(self, most: int) -> int:
        """Return the size of the largest aggregate to make now, up to ``most``, which is the setting."""
        return min(most, self._most_entry_bytes)

    def ready_at(self, now: float, entry_bytes: int = 0) -> float:
        """Return when a request may go whose first entry has ``entry_bytes``: ``now``, or the time to ask again."""
        self._fill(now)
        records, bytes_ = self._records, self._bytes
        least_bytes = max(entry_bytes, bytes_.quantum)
        if records.tokens >= records.quantum and bytes_.tokens >= least_bytes:  # as nearly always
            return now
        seconds = max(records.lacks_seconds(records.quantum), bytes_.lacks_seconds(least_bytes))
        return max(now, self._filled_at) + seconds if seconds else now

    def allowance(self, now: float) -> Allowance:
        """Return how much the lane may take now."""
        self._fill(now)
        if self._records.lacks_seconds(1.0):
            return Allowance(0, 0, one_larger=False)
        one_larger = not self._bytes.lacks_seconds(math.inf)
        return Allowance(max(1, self._records.whole), self._bytes.whole, one_larger)

    # ---- reports

    def take(self, records: int, bytes_: int, now: float) -> None:
        """Charge entries and bytes that are sent.  The caller has asked `allowance` in the same step."""
        self._fill(now)
        self._active_at = now
        self._entry_bytes = bytes_ / records
        if self._entry_bytes > self._bytes.rate * SLOWEST_ENTRY_SECONDS:
            self._set_share(self._share)  # raises it to what entries of this size need
        self._age_use(now)
        self._used_records += records
        self._used_bytes += bytes_
        of_records, of_bytes = self._records, self._bytes
        of_records.tokens -= records
        of_bytes.tokens -= bytes_
        if of_records.tokens < of_records.rate * QUANTUM_SECONDS or of_bytes.tokens < of_bytes.rate * QUANTUM_SECONDS:
            self._limited = True

    def give_back(self, records: int, bytes_: int) -> None:
        """Return what was taken and not sent.  Negative numbers charge more, which may leave a debt."""
        if records:
            self._records.add(records)
        self._bytes.add(bytes_)
        self._used_records -= records
        self._used_bytes -= bytes_

    def held(self) -> None:
        """Note that its pace holds rows back: the first one is larger than the tokens and waits for a full bucket."""
        self._limited = True

    def answered(self, stored: int, throttled: int, sent_at: float, now: float) -> None:
        """Note how many entries of one request the shard stored and throttled.  ``sent_at``: when they were taken."""
        self._fill(now)
        if stored and sent_at >= self._cut_at:
            self._storm_ends()
        if throttled:
            self._used_records -= throttled
            self._used_bytes -= throttled * self._entry_bytes
            self._throttled(sent_at, now)
        elif stored:
            self._stored += stored
            if self._limited:  # a rate that the lane did not use shows nothing
                self._grow(now - self._heard_at)
        self._limited, self._heard_at = False, now

    def set_fraction(self, fraction: float, now: float) -> None:
        """Use another part of the quota.  The share, which throttles have cut, stays and now applies to that part."""
        self._fill(now)
        self._records.ceiling = SHARD_RECORDS_PER_SECOND * fraction
        self._bytes.ceiling = SHARD_BYTES_PER_SECOND * fraction
        self._set_share(self._share)

    # ---- inside

    def _fill(self, now: float) -> None:
        if now == self._filled_at:
            return
        if now > self._filled_at:
            seconds = now - self._filled_at
            self._records.add(seconds * self._records.rate)
            self._bytes.add(seconds * self._bytes.rate)
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
        """Begin again as a new lane, with the debt that the buckets have."""
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
        self._most_entry_bytes = max(LEAST_ENTRY_BYTES, int(self._bytes.rate / ENTRIES_PER_SECOND))

    def _throttled(self, sent_at: float, now: float) -> None:
        # The buckets begin to fill when the debt would be paid.  Paying at more than the full rate would break the law
        # of pace in the module's text.
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
        """End a storm, if there is one: an entry that was sent after the last cut was stored."""
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
