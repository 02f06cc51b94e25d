"""Whose key signed a request, and when: refused in the service's own words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from producerd.testing.access import refusal

NOW = datetime(2018, 9, 20, 17, 50, 5, tzinfo=UTC).timestamp()


def signed(access_key: str = "KEY", date: str = "20180920T175005Z") -> dict[str, str]:
    scope = f"Credential={access_key}/20180920/us-east-1/kinesis/aws4_request"
    return {
        "Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host;x-amz-date, Signature=00",
        "X-Amz-Date": date,
    }


def verdict(headers: dict[str, str], **rules: Any) -> tuple[str, str] | None:
    given = {"checks_clock": False, "accepted_access_keys": None, "expired_access_keys": set(), **rules}
    refused = refusal(headers, NOW, **given)
    return None if refused is None else (refused.code, refused.message)


def test_any_key_and_any_time_will_do_unless_it_is_said() -> None:
    assert verdict({}) is None
    assert verdict(signed("anyone", "19990101T000000Z")) is None


def test_an_unknown_key_an_expired_one_and_none_are_told_apart() -> None:
    rules = {"accepted_access_keys": {"KEY", "OLD"}, "expired_access_keys": {"OLD"}}
    assert verdict(signed("KEY", "19990101T000000Z"), **rules) is None
    assert verdict(signed("KE"), **rules) == (
        "UnrecognizedClientException",
        "The security token included in the request is invalid.",
    )
    assert verdict(signed("OLD"), **rules) == (
        "ExpiredTokenException",
        "The security token included in the request is expired",
    )
    assert verdict({}, **rules) == ("MissingAuthenticationTokenException", "Missing Authentication Token")
    assert verdict(signed("KEY"), accepted_access_keys=set()) is not None


@pytest.mark.parametrize(
    ("date", "message"),
    [
        ("20180920T174504Z", "expired: {} is now earlier than 20180920T174505Z (20180920T175005Z - 5 min.)"),
        ("20180920T174505Z", None),
        ("20180920T175505Z", None),
        ("20180920T175506Z", "not yet current: {} is still later than 20180920T175505Z (20180920T175005Z + 5 min.)"),
    ],
)
def test_a_signature_is_good_for_five_minutes_to_either_side_where_the_clock_is_checked(
    date: str, message: str | None
) -> None:
    assert verdict(signed(date=date)) is None
    expected = message and ("InvalidSignatureException", f"Signature {message.format(date)}")
    assert verdict(signed(date=date), checks_clock=True) == expected


def test_a_date_that_is_none_is_refused_and_its_absence_is_not() -> None:
    refused = verdict(signed(date="yesterday"), checks_clock=True)
    assert refused is not None
    assert refused[0] == "IncompleteSignatureException"
    assert verdict({}, checks_clock=True) is None
