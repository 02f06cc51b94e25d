"""Stories of one stream, drawn from seeds and told in virtual time.

A story has callers, sizes, keys, settings, faults, shards that change, and an end.  The laws say what must hold
meanwhile.  ``./dev simulate --seeds 1 --from SEED`` runs the story of a seed that broke one again, alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from random import Random
from typing import Any, Final, TypeVar

from producerd.core.failures import _OF_KINESIS, Kind, meaning_of, meaning_of_answer
from producerd.core.gate import Refusal
from producerd.core.rules import PipelineRules
from producerd.core.sending.health import HealthState
from producerd.errors import Code
from producerd.testing import Fault, ServiceError
from tests.simulation.at_the_end import hold_at_the_end
from tests.simulation.callers import Session
from tests.simulation.laws import LawBroken, laws_named
from tests.simulation.operator import AT_WORK_SECONDS, Operator
from tests.simulation.rows import HASH_END, MIB, MOST_INSIDE, DrawnRows
from tests.simulation.setting import STREAM, make_rules
from tests.simulation.world import Simulation

ROUNDS: Final = 8
OPERATED: Final = 0.3
"""Share of the stories in which an operator acts."""

T = TypeVar("T")


def _codes(kind: Kind) -> tuple[str, ...]:
    """The service's codes of a kind."""
    return tuple(code for code, meaning in _OF_KINESIS.items() if meaning.kind is kind)


TRANSIENT_CODES: Final = (*_codes(Kind.TRANSIENT), "InternalFailure", "NewFailure")
PERMANENT_CODES: Final = _codes(Kind.PERMANENT)


class Story:
    """What one seed draws, except what is ``fixed`` by its name here or in `make_rules`.

    ``kind``: "calm" (nothing fails), "reshard" (nothing but shards changes) or "mixed".
    """

    def __init__(self, seed: int, **fixed: Any) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self._of_proxy = Random(f"a proxy {seed}")
        self._fixed = fixed
        self.kind = self._drawn("kind", random.choices(("calm", "reshard", "mixed"), (1, 2, 7))[0])
        mixed = self.kind == "mixed"
        self.aggregate = self._drawn("aggregate", self._chance(0.5))
        self.per_key = self._drawn("per_key", self._chance(0.3))
        self.rules = make_rules(aggregate=self.aggregate, per_key=self.per_key, **self._draw_rules())
        self.sim = sim = Simulation(
            seed,
            rules=self.rules,
            limit_records=self._drawn("limit_records", random.choice([1, 10, 1_000, 100_000])),
            limit_bytes=self._drawn("limit_bytes", random.choice([20_000, MIB, 64 * MIB])),
            shards=self._drawn("shards", random.choice([1, 2, 4, 16])),
            workers=random.choice([1, 2, 3]),
            max_record_kib=10_240 if self._chance(0.02) else 1_024,
        )
        latencies: list[float | tuple[float, float]] = [0.002, (0.001, 0.2)]
        sim.kinesis.latency_seconds = random.choice(latencies)
        of_format = Random(f"a format {seed}")
        sim.is_aws = self._drawn("is_aws", of_format.random() < 0.5)
        if sim.is_aws and of_format.random() < 0.2:
            sim.after(of_format.choice([0.0, AT_WORK_SECONDS / 2]), self._refuse_cbor)
        sim.body_seconds = self._drawn("body_seconds", random.choice([0.01, 0.01, 1.0]))
        sim.arrival_seconds = random.choice([(0.0, 0.0), (0.0, 0.05)])
        sim.stream.list_shards_lag_seconds = random.choice([0.0, 1.0, 5.0])
        sizes: list[tuple[int, ...]] = [(0, 8), (0, 10, 100), (0, 10, 100, 2_000), (100, 2_000, 20_000)]
        keys = ["one", "few", "many", "null", "explicit", "special", *["any"] * 4]
        self.rows = DrawnRows(
            sim,
            random,
            sizes=self._drawn("sizes", random.choice(sizes)),
            huge=self._drawn("huge", self._chance(0.02)),
            keys=self._drawn("keys", random.choice(keys)),
            aggregates=self._drawn("aggregates", self.aggregate and not self.per_key and self._chance(0.2)),
            bad_rows=self._drawn("bad_rows", self._chance(0.15)),
        )
        self.pauses = self._drawn("pauses", self._chance(0.1))  # long ones, in which nothing is sent
        self.reshards = self._drawn("reshards", self.kind == "reshard" or (mixed and self._chance(0.3)))
        self.made_again = self._drawn("made_again", mixed and self._chance(0.08))
        self.vanishing = self._drawn("vanishing", random.choice([0.0, 0.02, 0.1]))  # callers, after a frame
        self.ending = self._drawn("ending", random.choices(("idle", "drain", "abandon"), (8, 1, 1))[0])
        self.any_shard = self._drawn("any_shard", mixed and self._chance(0.03))  # the service chooses it
        self.sessions = [self._session() for _ in range(random.randint(1, 4))]
        self.codes = self._codes_of(self.rules)
        if mixed:
            self._draw_faults()
        sim.laws.allowed_codes = self.codes
        self.operator = (
            Operator(sim, seed, fixed=frozenset(fixed), reloaded=lambda rules: self.codes.update(self._codes_of(rules)))
            if self._drawn("operated", Random(f"is operated {seed}").random() < OPERATED)
            else None
        )

    def _refuse_cbor(self) -> None:
        self.sim.kinesis.cbor_refusal = ServiceError("SerializationException", "")

    def _drawn(self, name: str, value: T) -> T:
        drawn: T = self._fixed.get(name, value)
        return drawn

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _draw_rules(self) -> dict[str, Any]:
        random = self.random
        drawn = {
            "record_ttl_seconds": random.choice([random.uniform(2.5, 5), random.uniform(5, 60)])
            if self._chance(0.2)
            else inf,
            "fail_if_throttled": self._chance(0.1),
            "aggregate_max_bytes": random.choice([300, 5_000, 51_200]),
            "aggregate_max_records": random.choice([2, 2**32 - 1, 2**32 - 1]),
            "request_max_bytes": random.choice([4_096, MIB, MIB]),
            "request_max_records": random.choice([5, 500, 500]),
            "max_in_flight_requests": random.choice([1, 24, 24]),
            "max_in_flight_bytes": random.choice([5_000, 32 * MIB, 32 * MIB]),
            "linger_seconds": random.choice([0.01, 0.1, 2.0]),
            "shard_rate_fraction": random.choice([1.0, 1.0, 0.3]),
        }
        return {name: self._drawn(name, value) for name, value in drawn.items()}

    def _session(self) -> Session:
        window_bytes = self.random.choice([3_000, 8 * MIB, 8 * MIB])
        return self.sim.session(deliver=self._chance(0.5), take_good=self._chance(0.5), window_bytes=window_bytes)

    def _codes_of(self, rules: PipelineRules) -> set[str]:
        """For what reasons rows may end otherwise than STORED, though nothing fails."""
        codes = {Code.EXPIRED} if rules.record_ttl_seconds < inf else set()
        if self.per_key:
            codes.add(Code.PREDECESSOR_FAILED)
        if rules.fail_if_throttled:
            codes.add(Code.THROTTLED)
        if self.rows.aggregates and rules.entries.request_max_records < MOST_INSIDE:
            codes |= {Code.INTERNAL, Code.SHARD_MAP_MISSING}  # of more shards, or records, than a request may have
        return codes

    # ---- what fails

    def _draw_faults(self) -> None:
        random, sim = self.random, self.sim
        for fault in self._drawn("faults", list(self._faults())):
            begins = random.choice([0.0, random.uniform(0, 3)])
            lasts = random.expovariate(1 / 4) if fault.fraction == 1.0 else random.choice([2.0, 60.0, 600.0])
            self._while(begins, lasts, fault)
        if self._chance(0.1):
            self._set_while("refused_connections", random.choice([0.3, 1.0]))
        if self._chance(0.1):  # a request arrives late, maybe after its caller gave up
            self._set_while("arrival_seconds", (0.0, random.choice([1.0, 20.0])))
        if self._chance(0.15):
            shard, seconds = random.choice(sim.stream.shards), random.choice([0.5, 2.0, 30.0])
            sim.after(random.uniform(0, 2), lambda: setattr(shard, "delay_seconds", seconds))
            sim.after(random.uniform(2, 20), lambda: setattr(shard, "delay_seconds", 0.0))
        sim.kinesis.enforce_limits = self._drawn("enforce_limits", self._chance(0.2))
        if self._chance(0.04):
            sim.unsortable, sim.unencodable = b"<unsortable>", b"<unencodable>"
            self.codes.add(Code.INTERNAL)
        if self._chance(0.1):
            limits = max(1, sim.budget.limit_records // 3), max(20_000, sim.budget.limit_bytes // 3)
            sim.after(random.uniform(0, 3), lambda: sim.gate.set_limits(*limits, sim.now))
        if self.rows.huge and self._chance(0.5):
            sim.max_record_bytes = 10 * MIB  # only Kinesis itself can judge these rows
            self.codes.add(Code.RECORD_TOO_LARGE)
        if self.any_shard:
            self._let_the_service_choose_shards()
        if self.made_again:
            self._make_again()
        elif self._chance(0.15):
            self._draw_listing_faults()

    def _faults(self) -> Iterator[Fault]:
        """The fake's own.  Each lasts for a while; one that hits everything is over soon."""
        chance, choice = self._chance, self.random.choice
        some = choice([0.05, 0.3, 1.0])
        if chance(0.2):
            yield Fault("throttle", fraction=some)
        if chance(0.1):
            yield Fault("throttle", shard_id="shardId-000000000000")
        if chance(0.2):
            yield Fault("fail", fraction=choice([0.05, 0.3, 1.0]), code=choice(TRANSIENT_CODES))
        if chance(0.05):
            yield self._allowed(Fault("fail", fraction=some, code=choice(PERMANENT_CODES)))
        if chance(0.15):
            yield Fault("error", fraction=some, status=choice([500, 503]))
        if chance(0.1):
            yield Fault("error", fraction=some, status=400, code=choice(TRANSIENT_CODES))
        if chance(0.05):
            yield self._allowed(Fault("error", fraction=some, status=400, code=choice(PERMANENT_CODES)))
        if chance(0.1):
            told = "1 validation error detected"
            fraction = choice([0.05, 1.0])
            yield self._allowed(Fault("error", fraction=fraction, status=400, code="ValidationException", message=told))
        if chance(0.15):
            yield Fault("reset", fraction=some)
        if chance(0.2):
            yield Fault("lost", fraction=some)
        if self._of_proxy.random() < 0.1:
            yield self._replaced(self._of_proxy.choice([400, 403, 413]), self._of_proxy.choice([0.05, 0.3]))
        if chance(0.15):
            yield Fault("hang", fraction=choice([0.05, 1.0]))
        if chance(0.2):
            yield Fault("failed_count", fraction=0.5, count=choice([0, 7]))
        if chance(0.1):
            self.codes.add(Code.RESULT_COUNT)
            # One result too few and one too many in the same answer is a lie that nobody could see: so one a story.
            yield Fault("miscount", fraction=0.2, count=choice([-1, 1, 3]))
        if chance(0.1):
            yield Fault("answer", fraction=0.2, delay_seconds=choice([1.5, 5.0, 30.0]))

    def _replaced(self, status: int, fraction: float) -> Fault:
        """A proxy answers for Kinesis, which has stored."""
        self.codes.add(meaning_of_answer(str(status), "", status, "").code)
        return Fault("replaced", fraction=fraction, status=status)

    def _allowed(self, fault: Fault) -> Fault:
        """A fault for which rows may be given up."""
        self.codes.add(meaning_of(fault.code).code)
        return fault

    def _make_again(self) -> None:
        """The stream is deleted, and made again with the same shard ids and other ranges."""
        self.codes |= {Code.STREAM_NOT_FOUND, Code.SHARD_MAP_MISSING}
        random, sim = self.random, self.sim
        edges = [0, *sorted(random.sample(range(1, 64), random.choice([0, 1, 2, 7])))]
        again = [edge * HASH_END // 64 for edge in edges]
        seconds = random.uniform(21, 50)  # the service takes longer than KnownShards.CONTINUITY_SECONDS
        restart = self._chance(0.3)
        sim.after(random.uniform(0.5, 3), lambda: sim.make_stream_again(again, seconds, restart_sequences=restart))

    def _let_the_service_choose_shards(self) -> None:
        """Let it ignore the keys.  A stream that aggregates learns it after a while, by DescribeStreamSummary."""
        sim = self.sim
        sim.stream.record_distribution_strategy = "AUTO"
        if self.aggregate:
            self.codes.add(Code.SHARD_MAP_MISSING)
            said = "the stream has the RecordDistributionStrategy AUTO"
            sim.after(self.random.uniform(0, 2), lambda: setattr(sim.pipeline, "cannot_aggregate", said))

    def _draw_listing_faults(self) -> None:
        random = self.random
        kind = random.choice(["denied", "seldom", "error", "hang", "permanent", "late", "late"])
        if kind == "denied":
            self.codes.add(Code.SHARD_MAP_MISSING)
            self.sim.kinesis.denied.add("ListShards")
        elif kind == "late":
            fault = Fault("error", status=400, code="LimitExceededException", action="ListShards")
            lasts = random.choice([5.0, 20.0, inf])
            self._while(0.0, min(lasts, 600.0) if self.rows.aggregates else lasts, fault)  # they wait for the list
        elif kind == "seldom":
            self.sim.kinesis.calls_per_second["ListShards"] = 0.05
        elif kind == "permanent":
            code = random.choice(("ExpiredTokenException", "ResourceNotFoundException"))
            self._while(0.0, 10.0, self._allowed(Fault("error", status=400, code=code, action="ListShards")))
        else:
            fault = Fault("error" if kind == "error" else "hang", fraction=0.7, action="ListShards")
            self._while(0.0, random.choice([10.0, inf]), fault)

    def _while(self, begins: float, lasts: float, fault: Fault) -> None:
        standing = self.sim.kinesis.standing
        if begins:
            self.sim.after(begins, lambda: standing.append(fault))
        else:
            standing.append(fault)  # before the first reading
        if lasts < inf:
            self.sim.after(begins + lasts, lambda: standing.remove(fault) if fault in standing else None)

    def _set_while(self, name: str, value: Any) -> None:
        before = getattr(self.sim, name)
        self.sim.after(self.random.uniform(0, 2), lambda: setattr(self.sim, name, value))
        self.sim.after(self.random.uniform(3, 12), lambda: setattr(self.sim, name, before))

    def _reshard(self) -> None:
        """Split a shard somewhere, or merge two neighbours."""
        stream, random = self.sim.kinesis.streams.get(STREAM), self.random
        if stream is None:
            return  # it is deleted at the moment
        open_shards = stream.open_shards
        if len(open_shards) > 1 and self._chance(0.4):
            place = random.randrange(len(open_shards) - 1)
            stream.merge_shards(open_shards[place].shard_id, open_shards[place + 1].shard_id, now=self.sim.now)
        elif len(open_shards) < 20:
            shard = random.choice(open_shards)
            stream.split_shard(shard.shard_id, at=random.randint(shard.start + 1, shard.end), now=self.sim.now)

    # ---- what is sent

    def _send(self, session: Session) -> None:
        random, sim = self.random, self.sim
        frame_id = session.send(self.rows.draw())
        if self._chance(0.1):
            sim.after(random.uniform(0, 1), lambda: None if session.gone else session.cancel(frame_id))
        if self._chance(self.vanishing):
            sim.after(random.uniform(0, 1), lambda: None if session.gone else session.vanish())
        if self._chance(0.3):
            session.flush()

    # ---- the story

    def tell(self) -> None:
        """Everything that happens, with every law meanwhile and at the end.  Raises LawBroken."""
        sim = self.sim
        with laws_named():
            self._go_on()
            {"idle": self._wait, "drain": self._drain, "abandon": self._abandon}[self.ending]()
            if self.ending == "idle" and (self.reshards or self.made_again):
                self._probe_shards()
            for session in self.sessions:
                if not session.gone:
                    session.vanish()
            sim.run_until_idle()
            if self.operator is not None:
                sim.run(AT_WORK_SECONDS)  # until the other streams have ended, too
            moves = self.reshards or self.made_again or self.any_shard or self.rows.aggregates
            hold_at_the_end(
                sim,
                only_resharded=self.kind != "mixed",
                # A map in doubt that could not be read makes copies, too.
                nothing_doubtful=not moves
                and not sim.maybe_stored_requests
                and not sim.pipeline.stats.shard_map_refreshes["failed"],
            )

    def _go_on(self) -> None:
        random, sim = self.random, self.sim
        for _ in range(ROUNDS):
            for session in self.sessions:
                if not session.gone and len(session.waiting) < 3:
                    self._send(session)
            if self.reshards and self._chance(0.3):
                sim.after(random.uniform(0, 0.5), self._reshard)
            if self.pauses and self._chance(0.3):
                sim.run(random.choice([random.uniform(5, 40), 700.0]))  # at last shards and lanes are forgotten
            sim.run(random.uniform(0, 0.3))

    def _wait(self) -> None:
        self.sim.run_until_idle(7_200)

    def _drain(self) -> None:
        self._close()
        self.sim.run_until_idle(7_200)

    def _abandon(self) -> None:
        self._close()
        self.sim.run(self.random.uniform(0, 3))
        self.sim.give_up()

    def _close(self) -> None:
        sim = self.sim
        sim.gate.refuse_all(Refusal(Code.DRAINING, "the daemon stops"), sim.now)
        sim.pipeline.return_rows()

    def _probe_shards(self) -> None:
        """Send one record to each open shard.  If another shard than expected answers, the daemon reads the shards."""
        sim = self.sim
        sim.kinesis.standing.clear()
        sim.kinesis.denied.clear()
        sim.kinesis.calls_per_second.clear()
        sim.run(60.0)  # a stream that was deleted is made again by now
        sim.stream.list_shards_lag_seconds = 0.0
        self._reshard()
        healed_by = sim.now + 300.0
        while sim.pipeline.health.state is HealthState.BROKEN and sim.now < healed_by:
            sim.session().send([self.rows.draw_probe(0)])
            sim.run(7.0)  # the gate admits one frame every five seconds
        caller = sim.session()
        for _ in range(2):  # the first answer may be forgotten over a reading that had begun before
            probes = [caller.send([self.rows.draw_probe(shard.start)]) for shard in sim.stream.open_shards]
            sim.run_until_idle()
            sim.run(30.0)
        if any(probe not in caller.acked or not caller.acked[probe].stored for probe in probes):
            return  # refused, or expired: not every shard has answered
        known = sim.pipeline.shard_map
        told = [(shard.shard_id, shard.start, shard.end) for shard in known.shards] if known is not None else []
        if told != [(shard.shard_id, shard.start, shard.end) for shard in sim.stream.open_shards]:
            raise LawBroken("ShardMap", "other shards answered than expected, and they are not known yet")

    # ---- what it met

    def met(self) -> set[str]:
        """Return what happened in the story, so that the command notices stories that meet too little."""
        sim, stats = self.sim, self.sim.pipeline.stats
        met = {self.ending, *sim.laws.seen}
        met |= {f"operator: {what}" for what in self.operator.met} if self.operator is not None else set()
        met |= {f"reply {kind}" for kind, count in sim.kinesis.replies.items() if count}
        met |= {f"entry {code}" for code, count in sim.kinesis.results.items() if count}
        met |= {f"failed {code}" for code, count in stats.failed_records.items() if count}
        met |= {f"discarded {reason}" for reason, count in stats.discarded_records.items() if count}
        met |= {f"duplicate {cause}" for cause, count in stats.possible_duplicate_records.items() if count}
        met |= {f"outcome {outcome.name}" for outcome, count in sim.outcomes().items() if count}
        met |= {"dropped"} if sim.consumer.dropped_aggregates else set()
        met |= {"handed back"} if sim.handed_back else set()
        met |= {"broken"} if sim.pipeline.health.state is HealthState.BROKEN else set()
        met |= {"refused"} if any(session.refusals for session in self.sessions) else set()
        return met


def first_broken(seeds: Iterable[int], met: set[str] | None = None, **fixed: Any) -> LawBroken | None:
    """Tell the stories of some seeds until one breaks a law, and add what they meet to ``met``.

    The notes of the returned exception name the seed.
    """
    for seed in seeds:
        story = Story(seed, **fixed)
        try:
            story.tell()
        except LawBroken as broken:
            broken.add_note(how_to_see(seed))
            return broken
        if met is not None:
            met |= story.met()
    return None


def how_to_see(seed: int) -> str:
    return f"seed {seed}; to see it alone: ./dev simulate --seeds 1 --from {seed}"
