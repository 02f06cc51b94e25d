"""What a dry run found: what a write of the same rows would put into Kinesis, and what that is billed as.

Each task's daemon counts its rows as they are and as it packs them into aggregates.  Nothing is stored.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from producerd.errors import RowFailure
from producerd.wire.messages import Figures

LEAST_LIMIT_BYTES: Final = 1 << 20
"""The limit on a record that each stream has at least."""
MOST_SAID: Final = 4
"""How many streams, and reasons of bad rows, the printed line has."""


class Packed(NamedTuple):
    """Records of Kinesis: their number, their keys and data in bytes, and the PUT payload units of their bill.

    A provisioned stream is billed by these units: each record counts once for every 25 KiB that it has or begins.
    """

    records: int
    bytes: int
    units: int

    def __str__(self) -> str:
        return f"{self.units:,} PUT payload units of {self.records:,} records"


class StreamDryRun(NamedTuple):
    """What a write would put into one stream.

    Attributes:
        stream: The stream's name.
        plain: The good rows as records of their own.
        aggregated: The same as aggregates, each of one task's rows.  In a write rows of several tasks may share one, so
            that there are fewer, or the write may be too slow to fill them.
        aggregates: Whether the stream's setting is to aggregate.
        open_shards: The number of its open shards, or 0 if its daemons may not list them.
        shards: How many rows each shard gets that gets any.
        sizes: How many rows have a size (key and data) up to each bound in bytes, and above the bound before it.
        max_record_bytes: The stream's limit on a record, or 0 if it is not known.
    """

    stream: str
    plain: Packed
    aggregated: Packed
    aggregates: bool
    open_shards: int
    shards: Mapping[str, int]
    sizes: Mapping[int, int]
    max_record_bytes: int

    @property
    def fullest_share(self) -> float:
        """The part of the rows that goes to the shard with the most of them, from 0 to 1."""
        return max(self.shards.values()) / sum(self.shards.values()) if self.shards else 0.0

    def __str__(self) -> str:
        return f"{self.stream}: " + "; ".join(f"{name}: {value}" for name, value in self.lines())

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield what is shown of it, each with its name."""
        if not self.plain.records:
            yield "good records", "none"
            return
        plain, aggregated = ("", " (as set)") if self.aggregates else (" (as set)", "")
        yield "plain", f"{self.plain}{plain}"
        yield "aggregated", f"{self.aggregated}{aggregated}"
        if self.open_shards:
            yield "shards", f"{len(self.shards)} of {self.open_shards}, the fullest gets {self.fullest_share:.0%}"
        else:
            yield "shards", "the daemon may not list them"
        yield "sizes", ", ".join(f"{count:,} up to {_size(bound)}" for bound, count in self.sizes.items())
        large = sum(count for bound, count in self.sizes.items() if bound > LEAST_LIMIT_BYTES)
        if large and not self.max_record_bytes:
            yield "over 1 MiB", f"{large:,}, which a stream takes only if its limit was raised; its limit is not known"


class DryRunResult(NamedTuple):
    """What a dry run found: ``streams`` by name, and ``bad`` with the number of bad rows by code and reason."""

    streams: tuple[StreamDryRun, ...]
    bad: Mapping[str, int]

    def __str__(self) -> str:
        streams = sorted(self.streams, key=lambda one: -one.plain.bytes)
        said = [f"{count:,} bad: {reason}" for reason, count in self.bad.items()], [str(one) for one in streams]
        return "; ".join(itertools.chain.from_iterable(map(_first, said, ("reasons", "streams"))))


def of_figures(stream: str, figures: Figures) -> StreamDryRun:
    """Return what one task's daemon counted of a stream."""
    return StreamDryRun(
        stream,
        Packed(figures.records, figures.bytes, figures.units),
        Packed(figures.aggregated_records, figures.aggregated_bytes, figures.aggregated_units),
        bool(figures.aggregates),
        figures.open_shards,
        dict(figures.shards),
        {int(bound): count for bound, count in figures.sizes},
        figures.max_record_bytes,
    )


def of_fields(fields: Sequence[Any]) -> StreamDryRun:
    """Return one that travelled as JSON."""
    one = StreamDryRun._make(fields)
    sizes = {int(bound): count for bound, count in one.sizes.items()}
    return one._replace(plain=Packed._make(one.plain), aggregated=Packed._make(one.aggregated), sizes=sizes)


def merged(tasks: Iterable[StreamDryRun], failures: Iterable[RowFailure]) -> DryRunResult:
    """Return what all tasks found together, and their bad rows by reason."""
    by_name: dict[str, list[StreamDryRun]] = {}
    for one in tasks:
        by_name.setdefault(one.stream, []).append(one)
    bad: Counter[str] = Counter()
    for failure in failures:
        bad[f"{failure.code}: {failure.message}"] += failure.records
    return DryRunResult(tuple(_sum(by_name[name]) for name in sorted(by_name)), dict(bad.most_common()))


def _sum(some: Sequence[StreamDryRun]) -> StreamDryRun:
    shards: Counter[str] = Counter()
    sizes: Counter[int] = Counter()
    for one in some:
        shards.update(one.shards)
        sizes.update(one.sizes)
    return some[0]._replace(
        plain=Packed(*map(sum, zip(*(one.plain for one in some)))),
        aggregated=Packed(*map(sum, zip(*(one.aggregated for one in some)))),
        open_shards=max(one.open_shards for one in some),
        shards=dict(sorted(shards.items())),
        sizes=dict(sorted(sizes.items())),
        max_record_bytes=max(one.max_record_bytes for one in some),
    )


def _first(said: Sequence[str], name: str) -> list[str]:
    """Return what fits in a line of some."""
    more = len(said) - MOST_SAID
    return [*said[:MOST_SAID], *([f"{more:,} more {name}"] if more > 0 else [])]


def _size(size_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"
