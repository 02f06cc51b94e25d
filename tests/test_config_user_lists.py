"""A list of users holds for the stream that its table leads to, whatever name a client uses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from producerd.config import load
from producerd.runtime.users.user_lists import UserLists

NOBODY: Mapping[str, str] = {}
ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/flights"
OF_ANOTHER_ACCOUNT = "arn:aws:kinesis:eu-west-1:999999999999:stream/flights"
ROLE = "arn:aws:iam::111122223333:role/writer"
ROLE_OF_ANOTHER = "arn:aws:iam::999999999999:role/writer"
ETL, ADS, ROOT = 7, 8, 0


def allowed(name: str, uid: int | None, *sets: str) -> bool:
    return UserLists(load(sets=sets, environ=NOBODY)).why_not(name, uid) is None


@pytest.mark.promise("write-stream-names")
@pytest.mark.parametrize(
    "etl",
    [
        ["stream_name=flights"],
        [f"stream_arn={ARN}"],
        ["stream_name=flights", "endpoint_url=https://vpce-1.kinesis.eu-west-1.vpce.amazonaws.com"],
        ["stream_name=flights", f"role_arn={ROLE}"],
    ],
)
@pytest.mark.parametrize("node", [[], ["region=eu-west-1"], [f"role_arn={ROLE}"]])
@pytest.mark.parametrize("other", [["streams.orders.queue_limit=5"], ["streams.flights.queue_limit=5"]])
def test_who_may_not_write_to_a_stream_may_not_by_its_other_names(
    etl: list[str], node: list[str], other: list[str]
) -> None:
    sets = [f"streams.etl.{each}" for each in [*etl, f"allowed_uids={ETL}"]] + node + other
    for name in ("etl", "flights"):
        assert allowed(name, ETL, *sets)
        assert not allowed(name, ROOT, *sets)
        assert not allowed(name, None, *sets)
    assert allowed("orders", ROOT, *sets)
    why = UserLists(load(sets=sets, environ=NOBODY)).why_not("flights", ROOT)
    assert why == (
        'user id 0 may not write to flights: it is not in allowed_uids of [streams."etl"], which may be the same stream'
    )


@pytest.mark.promise("write-stream-names")
@pytest.mark.parametrize(
    ("etl", "node"),
    [
        (["stream_name=flights", "region=us-east-1"], ["region=eu-west-1"]),
        ([f"stream_arn={ARN}"], ["region=us-east-1"]),
        ([f"stream_arn={OF_ANOTHER_ACCOUNT}"], ["region=eu-west-1", f"role_arn={ROLE}"]),
        ([f"stream_arn={OF_ANOTHER_ACCOUNT}"], [f"streams.flights.stream_arn={ARN}"]),
        (["stream_name=flights", f"role_arn={ROLE_OF_ANOTHER}"], [f"role_arn={ROLE}"]),
        (["stream_name=other"], []),
    ],
)
def test_a_stream_of_another_region_or_account_has_lists_of_its_own(etl: list[str], node: list[str]) -> None:
    sets = [f"streams.etl.{each}" for each in [*etl, f"allowed_uids={ETL}"]] + node
    assert not allowed("etl", ROOT, *sets)
    assert allowed("flights", ROOT, *sets)


def test_where_only_listed_streams_are_allowed_any_other_name_of_a_stream_is_refused() -> None:
    lists = UserLists(load(sets=["streams_allowed=listed", "streams.etl.queue_limit=5"], environ=NOBODY))
    assert lists.why_not("etl", ROOT) is None
    assert lists.why_not("ads", ROOT) == ('the daemon takes listed streams only, and ads is not: add [streams."ads"]')
    assert lists.why_not("a/b", ROOT) is None, "no table could have this name: it is refused for that"


@pytest.mark.promise("write-stream-names")
def test_where_several_tables_lead_to_one_stream_each_goes_by_its_own_list() -> None:
    """A name without a list is for those who are on all of them, and so is one that has only the defaults' list."""
    sets = [
        "streams.etl.stream_name=flights",
        f"streams.etl.allowed_uids=1,{ETL}",
        "streams.ads.stream_name=flights",
        f"streams.ads.allowed_uids=1,{ADS}",
        "streams.third.stream_name=flights",
    ]
    for more in ([], [f"defaults.allowed_uids=1,2,{ETL},{ADS}"]):
        for name, users in {"etl": {1, ETL}, "ads": {1, ADS}, "third": {1}, "flights": {1}}.items():
            assert {uid for uid in (1, 2, ETL, ADS) if allowed(name, uid, *sets, *more)} == users
