"""What a month of a stream's traffic is in the units by which Kinesis bills it."""

from __future__ import annotations

import pytest

from spark_client.costs import MONTH_SECONDS, Traffic, monthly
from tests.snapshots import Snapshot

DAY = 86_400.0


TRAFFIC = {
    "in whole units, 29.7 million x 116 B / 25 KiB": Traffic("PROVISIONED", False, 10**6, 10**8, 10**6, DAY),
    "two units each, of 30 KiB": Traffic("", False, 86_400, 86_400 * 30 * 1024, 86_400, DAY),
    "one unit for 200, 23,200 bytes with what the format adds": Traffic(
        "PROVISIONED", True, 8_640_000, 864_000_000, 43_200, DAY
    ),
    "each rounded up to 1 KiB": Traffic("ON_DEMAND", False, 8_640_000, 864_000_000, 8_640_000, DAY),
    "no decimals from 100 on": Traffic("PROVISIONED", False, 385_686_728, 385_686_728, 385_686_728, 1e6),
    "3 KiB for 20, 2,320 bytes with what the format adds": Traffic(
        "ON_DEMAND", True, 8_640_000, 864_000_000, 432_000, DAY
    ),
}


def test_a_month_is_told_with_and_without_aggregation(snapshot: Snapshot) -> None:
    snapshot("costs", "".join(f"{what}: {monthly([traffic])}\n" for what, traffic in TRAFFIC.items()))


def test_daemons_that_began_at_other_times_add_up_by_their_pace() -> None:
    one = Traffic("", False, 10_000, 1_000_000, 10_000, 100.0)
    other = Traffic("ON_DEMAND", False, 10_000, 3_000_000, 10_000, 10_000.0)
    silent = Traffic()
    said = monthly([one, silent, other])
    assert said.startswith("101 records/s of 200 bytes until now are about ")
    assert f"{101 * MONTH_SECONDS * 1024 / (1 << 30):,.0f} GiB a month" in said


@pytest.mark.parametrize(
    ("records", "seconds", "says"),
    [(999, DAY, False), (1_000, 59.9, False), (1_000, 60.0, True)],
)
def test_too_few_records_or_seconds_say_nothing(records: int, seconds: float, says: bool) -> None:
    assert bool(monthly([Traffic("", False, records, 100_000, records, seconds)])) is says
    assert monthly([]) == ""


def test_a_daemon_that_says_nothing_of_records_of_kinesis_is_left_out() -> None:
    """As one does that knows nothing yet."""
    assert Traffic() == ("", False, 0, 0, 0, 0.0)
    assert monthly([Traffic("", True, 2_000, 200_000, 0, DAY)]) == ""


def test_where_nothing_could_be_aggregated_yet_it_is_not_advised_again() -> None:
    said = monthly([Traffic("", True, 2_000, 200_000, 2_000, DAY)])
    assert "without aggregation" in said
    assert "kpl" not in said
