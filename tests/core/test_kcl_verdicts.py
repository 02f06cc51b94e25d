"""producerd and the fake Kinesis treat a payload that is itself an aggregate as Amazon's consumer library does.

The KCL's verdicts are kept as data.  `tests/end_to_end/test_amazons_consumer.py` asks the KCL about 10,000 mutants.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from producerd.testing import UserRecord
from tests.core.given import Service
from tests.core.kcl_verdicts import (
    FAILS,
    PLAIN,
    as_written,
    by_shard,
    disagreements,
    frozen,
    split_up,
    stored,
    to_split,
)

MUTANTS, VERDICTS = frozen()
SPLIT = to_split(MUTANTS, VERDICTS)


@pytest.mark.promise("throws-aggregate-record")
def test_each_payload_is_taken_split_or_refused_as_the_kcl_takes_it() -> None:
    kinds = Counter(verdict if isinstance(verdict, str) else bool(verdict) for verdict in VERDICTS)
    assert min(kinds[kind] for kind in (PLAIN, FAILS, True, False)) > 40
    assert disagreements(MUTANTS, VERDICTS) == []


def test_the_fake_reads_each_payload_as_the_kcl_does() -> None:
    stream = stored(MUTANTS)
    for mutant, verdict, entry in zip(MUTANTS, VERDICTS, stream.entries(), strict=True):
        plain = [UserRecord("outer", None, mutant.payload)]
        handed_on = {PLAIN: plain, FAILS: []}[verdict] if isinstance(verdict, str) else verdict
        assert (stream.records_of(entry) or []) == handed_on, mutant.name


def test_the_parts_of_a_payload_are_read_as_the_payload_itself_in_one_shard() -> None:
    stream, numbers = split_up(mutant.payload for mutant, _ in SPLIT)
    read: dict[int, list[UserRecord]] = defaultdict(list)
    for number, entry in zip(numbers, stream.entries(), strict=True):
        read[number] += as_written(entry, stream.records_of(entry) or [])
    for number, (mutant, verdict) in enumerate(SPLIT):
        assert read[number] == by_shard(stream, verdict), mutant.name


def test_what_is_taken_is_delivered_once_and_plain_records_byte_for_byte() -> None:
    service = Service(4)
    frame = service.submit([mutant.payload for mutant in MUTANTS], take_good=True)
    service.deliver(frame)
    plain = {("outer", m.payload): 1 for m, verdict in zip(MUTANTS, VERDICTS, strict=True) if verdict == PLAIN}
    split = Counter((user.partition_key, user.data) for _, verdict in SPLIT for user in verdict)
    assert service.read() == Counter(plain) + split
    assert frame.result().stored == len(plain) + len(SPLIT)
    assert service.desk.is_empty()
