"""What a stream's traffic is in the units by which Kinesis bills it, and what aggregation would save.

A provisioned stream is billed by PUT payload units: each record counts once for every 25 KiB that it has or begins.  An
on-demand stream is billed by the bytes that are written, each record rounded up to 1 KiB.  Prices differ by region
and change, so none is here.

All is estimated from the mean size of a record.  If sizes differ much, the bill differs, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

MONTH_SECONDS: Final = 30 * 86_400
UNIT_BYTES: Final = 25 * 1024
ROUNDED_BYTES: Final = 1024
AGGREGATED_BYTES: Final = 16
"""What the KPL's format adds to a record: its tags and lengths, and its share of the table of keys."""
LEAST_RECORDS: Final = 1_000
LEAST_SECONDS: Final = 60.0
"""Fewer records, or a shorter time, say nothing about a month."""
ON_DEMAND: Final = "ON_DEMAND"


class Traffic(NamedTuple):
    """What a daemon has stored of a stream.  ``mode`` is the stream's capacity mode, or "" if it does not know it.

    ``kinesis_records`` is about how many records of Kinesis that were: fewer than ``records`` if it ``aggregates``.
    ``seconds`` is how long ago the first of them was stored.
    """

    mode: str = ""
    aggregates: bool = False
    records: int = 0
    bytes: int = 0
    kinesis_records: int = 0
    seconds: float = 0.0


def monthly(daemons: Iterable[Traffic]) -> str:
    """Return the traffic of all daemons together for a month, as it is and with or without aggregation; "" for none."""
    seen = [one for one in daemons if one.records and one.kinesis_records and one.seconds >= LEAST_SECONDS]
    records = sum(one.records for one in seen)
    if records < LEAST_RECORDS:
        return ""
    mode = next((one.mode for one in seen if one.mode), "")
    record_bytes = sum(one.bytes for one in seen) / records
    a_second = sum(one.records / one.seconds for one in seen)
    month = a_second * MONTH_SECONDS
    plain = f"about {_billed(mode, month, record_bytes)}"
    if any(one.aggregates for one in seen):
        together = records / sum(one.kinesis_records for one in seen)
        now = f"about {_billed(mode, month / together, together * (record_bytes + AGGREGATED_BYTES))}"
        other = f"without aggregation {plain}"
    else:
        # As many in each record of Kinesis as fill units whole, which takes traffic that fills them in time.
        full = month * (record_bytes + AGGREGATED_BYTES) / UNIT_BYTES
        now, other = plain, f'with aggregation = "kpl" at best {_billed(mode, full, UNIT_BYTES)}'
    return f"{a_second:,.0f} records/s of {record_bytes:,.0f} bytes until now are {now} a month; {other}"


def _billed(mode: str, records: float, record_bytes: float) -> str:
    """Return what this many records of Kinesis of this size are billed as."""
    if mode == ON_DEMAND:
        rounded_bytes = max(1, math.ceil(record_bytes / ROUNDED_BYTES)) * ROUNDED_BYTES
        return f"{_short(records * rounded_bytes / (1 << 30))} GiB"
    return f"{_short(records * max(1, math.ceil(record_bytes / UNIT_BYTES)) / 1e6)} million PUT payload units"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
