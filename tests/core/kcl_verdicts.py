"""Compare what Amazon's consumer library (KCL) makes of mutated aggregates with what producerd decides about them.

``kcl_verdicts.json`` keeps the KCL's verdicts on a few hundred mutants.  `python -m tests.core.kcl_verdicts` asks the
KCL again, for which it needs a JDK and Maven.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from producerd.core.kpl.aggregation import split
from producerd.core.rows import intake
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.testing import Entry, FakeKinesis, FakeStream, UserRecord, hash_of
from producerd.wire.columns import lay_out
from tests.core.mutants import Mutant, mutants, named
from tests.simulation.setting import make_body

FROZEN: Final = Path(__file__).with_suffix(".json")
PLAIN: Final = "plain"
FAILS: Final = "fails"
Verdict = str | list[UserRecord]
"""What a consumer makes of a payload: a plain record; it fails on it; or the records that it hands on, perhaps none."""


def stored(mutants: Iterable[Mutant]) -> FakeStream:
    """The payloads as they are, in a stream whose one shard has every hash key."""
    stream = FakeKinesis().create_stream("mutants", shards=1)
    for mutant in mutants:
        stream.store(stream.shards[0], "outer", None, mutant.payload, now=0.0)
    return stream


def verdict(entry: Entry, records: list[UserRecord], failure: str) -> Verdict:
    """Of what a consumer handed on for an entry, or how it failed."""
    if failure:
        return FAILS
    return PLAIN if records == [UserRecord("outer", None, entry.data)] else records


def disagreements(mutants: Sequence[Mutant], verdicts: Sequence[Verdict]) -> list[str]:
    """Names of those that producerd takes, splits or refuses otherwise than the verdict asks for."""
    payloads = [mutant.payload for mutant in mutants]
    body = make_body(lay_out([b"outer"] * len(payloads), payloads))
    kpl, none = (_decisions(intake.check(body, 1 << 20, takes_aggregates=takes)) for takes in (True, False))
    found = zip(kpl, none, strict=True)
    should = map(wanted, verdicts)
    return [f"{m.name}: {is_}, not {be}" for m, is_, be in zip(mutants, found, should, strict=True) if is_ != be]


def _decisions(rows: intake.CheckedRows) -> list[str]:
    decisions = ["taken"] * rows.records
    for row in rows.aggregates.tolist() if rows.aggregates is not None else ():
        decisions[row] = "split"
    for bad in rows.bad:
        for row in bad.rows.tolist():
            decisions[row] = "can't be delivered" if "consumers are not handed" in bad.message else "refused"
    return decisions


def wanted(verdict: Verdict) -> tuple[str, str]:
    """With `aggregation = "kpl"`, and without."""
    if verdict == PLAIN:
        return "taken", "taken"
    if verdict == FAILS or not verdict:
        return "can't be delivered", "can't be delivered"
    return "split", "refused"


def to_split(mutants: Iterable[Mutant], verdicts: Iterable[Verdict]) -> list[tuple[Mutant, list[UserRecord]]]:
    """Those that producerd takes apart, with their records."""
    each = zip(mutants, verdicts, strict=True)
    return [(m, v) for m, v in each if not isinstance(v, str) and wanted(v)[0] == "split"]


def split_up(payloads: Iterable[bytes]) -> tuple[FakeStream, list[int]]:
    """Aggregates split by shard and stored where their keys lead; and for each entry the number of its payload."""
    stream = FakeKinesis().create_stream("parts", edges=[0, 7, 8, 2**127, 2**128 // 3 * 2])
    shard_map = ShardMap(Shard(shard.shard_id, shard.start, shard.end) for shard in stream.open_shards)
    numbers = []
    for number, payload in enumerate(payloads):
        for key, hash_key, data, _ in split(payload, shard_map.locate_one):
            place = key.decode(), hash_key.decode() if hash_key is not None else None
            stream.store(stream.shard_of(hash_of(*place)), *place, data, now=0.0)
            numbers.append(number)
    return stream, numbers


def as_written(entry: Entry, records: Sequence[UserRecord]) -> list[UserRecord]:
    """What was handed on of an entry: of a plain record too with its explicit hash key, which no consumer is handed."""
    plain = UserRecord(entry.partition_key, None, entry.data)
    return [plain._replace(explicit_hash_key=entry.explicit_hash_key)] if records == [plain] else list(records)


def by_shard(stream: FakeStream, records: Iterable[UserRecord]) -> list[UserRecord]:
    """Records shard by shard, in the order of the shards' first ones."""
    shards: dict[str, list[UserRecord]] = {}
    for record in records:
        shards.setdefault(stream.shard_of(hash_of(*record[:2])).shard_id, []).append(record)
    return [record for records in shards.values() for record in records]


def frozen() -> tuple[list[Mutant], list[Verdict]]:
    """Some mutants, and what Amazon's consumer makes of them."""
    rows = json.loads(FROZEN.read_text())
    mutants = [Mutant(name, base64.b64decode(payload)) for name, payload, _ in rows]
    return mutants, [found if isinstance(found, str) else [_thawed(*each) for each in found] for *_, found in rows]


def _thawed(key: str, hash_key: str | None, data: str) -> UserRecord:
    return UserRecord(key, hash_key, base64.b64decode(data))


def freeze(mutants: Sequence[Mutant], verdicts: Sequence[Verdict]) -> None:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    def row(mutant: Mutant, verdict: Verdict) -> list[Any]:
        found = verdict if isinstance(verdict, str) else [[*each[:2], text(each.data)] for each in verdict]
        return [mutant.name, text(mutant.payload), found]

    lines = [json.dumps(row(*each)) for each in zip(mutants, verdicts, strict=True)]
    FROZEN.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main() -> None:
    from benchmarks.judges import kcl

    asked = [*named(), *(mutant for mutant in mutants(seed=0, count=240) if len(mutant.payload) < 300)]
    handed = kcl.hand_over(stored(asked))
    freeze(asked, [verdict(*each) for each in handed])


if __name__ == "__main__":
    main()
