"""Every failure has a decision, no row is sent again at once, and a stream's health follows its answers."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from botocore.loaders import Loader

from producerd.core.failures import CREDENTIALS_AWAITED, CREDENTIALS_LATE, Kind, meaning_of, refuses
from producerd.core.sending.answers import RequestFailed
from producerd.core.sending.backoff import InFlightWindow, RetryPolicy
from producerd.core.sending.health import HealthState, StreamHealth
from producerd.errors import Code
from producerd.testing.rules import ENTRY_FAILURES, REQUEST_FAILURES

pytestmark = pytest.mark.law("RetryPolicy")

H = HealthState

PUT_RECORDS = {
    "AccessDeniedException": (Kind.PERMANENT, Code.ACCESS_DENIED),
    "DryRunOperationException": (Kind.TRANSIENT, Code.SERVICE_FAULT),  # only a request that asks for a dry run has it
    "InternalFailureException": (Kind.TRANSIENT, Code.SERVICE_FAULT),
    "InvalidArgumentException": (Kind.REFUSED, Code.REQUEST_REFUSED),
    "KMSAccessDeniedException": (Kind.PERMANENT, Code.KMS),
    "KMSDisabledException": (Kind.PERMANENT, Code.KMS),
    "KMSInvalidStateException": (Kind.PERMANENT, Code.KMS),
    "KMSNotFoundException": (Kind.PERMANENT, Code.KMS),
    "KMSOptInRequired": (Kind.PERMANENT, Code.KMS),
    "KMSThrottlingException": (Kind.TRANSIENT, Code.THROTTLED),
    "ProvisionedThroughputExceededException": (Kind.THROTTLED, Code.THROTTLED),
    "ResourceNotFoundException": (Kind.PERMANENT, Code.STREAM_NOT_FOUND),
}
"""What botocore's model of the service lists for PutRecords."""
COMMON = {
    # https://docs.aws.amazon.com/kinesis/latest/APIReference/CommonErrors.html, and what the service really sends
    "ExpiredTokenException": (Kind.PERMANENT, Code.CREDENTIALS),
    "IncompleteSignature": (Kind.PERMANENT, Code.CREDENTIALS),
    "InternalFailure": (Kind.TRANSIENT, Code.SERVICE_FAULT),
    "InvalidClientTokenId": (Kind.PERMANENT, Code.CREDENTIALS),
    "InvalidSignatureException": (Kind.PERMANENT, Code.CREDENTIALS),
    "LimitExceededException": (Kind.TRANSIENT, Code.THROTTLED),
    "MissingAuthenticationTokenException": (Kind.PERMANENT, Code.CREDENTIALS),
    "NotAuthorized": (Kind.PERMANENT, Code.ACCESS_DENIED),
    "OptInRequired": (Kind.PERMANENT, Code.ACCESS_DENIED),
    "AuthFailure": (Kind.PERMANENT, Code.CREDENTIALS),
    "RequestExpired": (Kind.TRANSIENT, Code.CREDENTIALS),
    "RequestInTheFuture": (Kind.TRANSIENT, Code.CREDENTIALS),
    "SignatureDoesNotMatch": (Kind.PERMANENT, Code.CREDENTIALS),
    "SerializationException": (Kind.REFUSED, Code.REQUEST_REFUSED),
    "ServiceUnavailable": (Kind.TRANSIENT, Code.SERVICE_FAULT),
    "ThrottlingException": (Kind.TRANSIENT, Code.THROTTLED),
    "UnrecognizedClientException": (Kind.PERMANENT, Code.CREDENTIALS),
    "ValidationException": (Kind.REFUSED, Code.REQUEST_REFUSED),
    "SomethingNobodyHasSeenYet": (Kind.TRANSIENT, Code.SERVICE_FAULT),
    "": (Kind.TRANSIENT, Code.SERVICE_FAULT),
    Code.CREDENTIALS: (Kind.PERMANENT, Code.CREDENTIALS),
    CREDENTIALS_LATE: (Kind.PERMANENT, Code.CREDENTIALS),
    CREDENTIALS_AWAITED: (Kind.TRANSIENT, Code.CREDENTIALS),
    Code.CONFIGURATION: (Kind.PERMANENT, Code.CONFIGURATION),
    Code.INTERNAL: (Kind.INVALID, Code.INTERNAL),
    Code.RESULT_COUNT: (Kind.TRANSIENT, Code.RESULT_COUNT),
    Code.UNREACHABLE: (Kind.TRANSIENT, Code.UNREACHABLE),
}


def test_every_code_of_the_service_s_model_for_put_records_has_its_decision_here() -> None:
    model = Loader().load_service_model("kinesis", "service-2")
    assert {error["shape"] for error in model["operations"]["PutRecords"]["errors"]} == set(PUT_RECORDS)


@pytest.mark.parametrize(("code", "decision"), [*PUT_RECORDS.items(), *COMMON.items()])
def test_a_code_s_decision(code: str, decision: tuple[Kind, str]) -> None:
    assert meaning_of(code)[:2] == decision


@pytest.mark.parametrize(
    ("status", "code", "is_certain"),
    [
        (400, "AccessDeniedException", True),
        (499, "ProvisionedThroughputExceededException", True),
        (399, "AccessDeniedException", False),
        (500, "AccessDeniedException", False),
        (400, "400", False),
        (400, "ProxyException", False),
    ],
)
def test_only_kinesis_s_own_refusal_proves_that_nothing_was_stored(status: int, code: str, is_certain: bool) -> None:
    assert refuses(status, code) is is_certain


def test_the_fake_s_own_failures_are_decided_too() -> None:
    for code, _ in (*ENTRY_FAILURES.values(), *REQUEST_FAILURES.values()):
        assert meaning_of(code)[:2] == {**PUT_RECORDS, **COMMON}[code]


def test_no_delay_is_so_short_that_it_makes_a_hot_loop_or_so_long_that_rows_are_forgotten() -> None:
    policy = RetryPolicy(Random(1))
    for attempts in (0, 1, 5, 16, 17, 1_000, 10**9):
        delays = [policy.delay(attempts) for _ in range(2_000)]
        ceiling = min(5.0, 0.1 * 2.0 ** min(attempts, 16))
        assert min(delays) >= 0.01
        assert max(delays) <= ceiling
        assert max(delays) > ceiling * 0.9
        assert min(delays) < max(ceiling * 0.1, 0.011), "full jitter"
    holds = [policy.hold() for _ in range(2_000)]
    assert 0.01 <= min(holds) < 0.5
    assert 4.5 < max(holds) <= 5.0


def grown_window() -> InFlightWindow:
    window = InFlightWindow(24, 24 << 20, 1 << 20)
    for _ in range(100):
        window.measure(0.02, 6.0)
    assert (window.size, window.bytes) == (24, 24 << 20)
    return window


@pytest.mark.promise("window-starts-small")
def test_the_window_starts_small_and_does_not_grow_while_answers_are_late() -> None:
    """24 requests of 1 MiB over a slow uplink would all time out."""
    window = InFlightWindow(24, 24 << 20, 1 << 20)
    assert (window.size, window.bytes) == (4, 4 << 20)
    for _ in range(100):
        window.measure(2.1, 6.0)
    assert window.size == 4
    window.measure(1.9, 6.0)
    for _ in range(4):
        window.measure(1.9, 6.0)
    assert window.size == 5, "and from then on it grows by one a window"


@pytest.mark.promise("request-given-up-resets")
def test_a_request_s_time_out_grows_with_its_size_and_with_each_time_out_before_it() -> None:
    policy = RetryPolicy(Random(1), 6.0)
    assert policy.timeout(0, 0) == 6.0
    assert policy.timeout(1 << 20, 0) == 10.0
    assert policy.timeout(1 << 20, 1) == 20.0
    assert policy.timeout(1 << 20, 9) == 60.0, "at most a minute"
    assert policy.timeout(32 << 20, 3) == 134.0, "unless its size alone needs more"
    policy.set_timeout(2.0)
    assert policy.timeout(1 << 20, 0) == 6.0


def test_the_window_is_halved_by_a_time_out_and_grows_by_one_per_window_of_successes() -> None:
    window = grown_window()
    window.timed_out()
    assert (window.size, window.bytes) == (12, 12 << 20)
    for expected in (13, 14):
        for _ in range(expected):
            window.measure(0.02, 6.0)
        assert window.size in (expected - 1, expected)
    for _ in range(10_000):
        window.measure(0.02, 6.0)
    assert window.size == 24, "never over the most"


def test_other_limits_of_the_window_hold_at_once_and_leave_what_time_outs_have_taught() -> None:
    window = grown_window()
    window.set_limits(10, 5 << 20, 1 << 20)
    assert (window.size, window.bytes) == (10, 5 << 20)
    window.set_limits(40, 40 << 20, 1 << 20)
    for _ in range(30):
        window.measure(0.02, 6.0)
    assert window.size == 40, "it doubles: no time-out has taught it otherwise"
    window.timed_out()
    window.set_limits(80, 80 << 20, 1 << 20)
    assert window.size == 20
    for _ in range(21):
        window.measure(0.02, 6.0)
    assert window.size in (20, 21), "one a window"


def test_the_window_never_falls_below_one_request() -> None:
    window = InFlightWindow(24, 24 << 20, 1 << 20)
    for _ in range(50):
        window.timed_out()
        assert window.size >= 1
        window.hold()
        assert window.size == 1
        window.timed_out()
        assert window.size == 1
    window.hold()
    for _ in range(3):
        window.measure(2.0, 6.0)
    assert window.size == 2, "from one it grows by one with each window of answers, also after a third of the time-out"


def test_the_window_allows_full_requests_or_its_share_of_the_bytes_if_that_is_more() -> None:
    window = InFlightWindow(10, 10_000, 500)
    assert (window.size, window.bytes) == (4, 4_000)
    window.set_limits(10, 10_000, 2_000)
    assert window.bytes == 8_000
    window.set_limits(10, 10_000, 3_000)
    assert window.bytes == 10_000


@pytest.mark.parametrize("failures", [1, 6])
def test_after_a_hold_the_window_doubles_until_half_of_where_it_was(failures: int) -> None:
    """However many of its single requests failed meanwhile."""
    window = grown_window()
    for _ in range(failures):
        window.hold()
    sizes = []
    for _ in range(4):
        for _ in range(window.size):
            window.measure(0.02, 6.0)
        sizes.append(window.size)
    assert sizes == [2, 4, 8, 12]


def health() -> StreamHealth:
    return StreamHealth(60.0, Random(1))


def test_a_stream_that_has_worked_gets_its_seconds_of_patience() -> None:
    stream = health()
    stream.found_working()
    stream.looks_permanent("KMS", "first", 100.0)
    assert stream.state is H.SUSPECT
    stream.looks_permanent("KMS", "again", 159.9)
    assert (stream.state, stream.admits(159.9)) == (H.SUSPECT, True)
    stream.looks_permanent("KMS", "last", 160.0)
    assert (stream.state, stream.message) == (H.BROKEN, "last")


def test_a_failure_that_may_pass_gives_its_grace_also_to_a_stream_that_never_worked() -> None:
    stream = StreamHealth(60.0, Random(1), first_contact_seconds=300.0)
    stream.looks_permanent("CREDENTIALS", "late", 100.0, at_once=False)
    assert (stream.state, stream.admits(100.0)) == (H.SUSPECT, True)
    stream.looks_permanent("CREDENTIALS", "late", 159.9, at_once=False)
    assert (stream.state, stream.gives_up_at) == (H.SUSPECT, inf)
    stream.tried(RequestFailed(Code.UNREACHABLE, "no such host", maybe_stored=False, wrong_endpoint=True), 159.9)
    assert stream.gives_up_at == 459.9, "it has still never worked"
    stream.forget_refusal()
    assert (stream.state, stream.code) == (H.UNPROVEN, "")
    stream.looks_permanent("CREDENTIALS", "late", 200.0, at_once=False)
    stream.looks_permanent("CREDENTIALS", "late", 260.0, at_once=False)
    assert (stream.state, stream.code) == (H.BROKEN, "CREDENTIALS")
    stream.forget_refusal()
    stream.looks_permanent("CREDENTIALS", "late", 300.0, at_once=False)
    stream.looks_permanent("ACCESS_DENIED", "no", 301.0)
    assert (stream.state, stream.code) == (H.BROKEN, "ACCESS_DENIED")


def test_the_first_stored_record_mends_everything() -> None:
    for broken in (False, True):
        stream = health()
        if not broken:
            stream.found_working()
        stream.looks_permanent("KMS", "no", 1.0)
        assert stream.state is (H.BROKEN if broken else H.SUSPECT)
        stream.found_working()
        assert (stream.state, stream.code, stream.message) == (H.WORKING, "", "")
        assert stream.admits(1.0)
        stream.looks_permanent("KMS", "no", 90.0)
        assert stream.state is H.SUSPECT, "patience starts again"


def test_what_refused_a_stream_is_taken_back_and_the_next_row_finds_out() -> None:
    stream = StreamHealth(60.0, Random(1), first_contact_seconds=300.0)
    stream.forget_refusal()
    assert (stream.state, stream.code) == (H.UNPROVEN, "")
    stream.tried(RequestFailed(Code.UNREACHABLE, "no such host", maybe_stored=False, wrong_endpoint=True), 0.0)
    assert stream.gives_up_at == 300.0
    stream.found_working()
    stream.looks_permanent("KMS", "no", 10.0)
    stream.forget_refusal()
    assert (stream.state, stream.code) == (H.WORKING, "")
    stream.looks_permanent("KMS", "no", 20.0)
    stream.looks_permanent("KMS", "no", 80.0)
    assert (stream.state, stream.code) == (H.BROKEN, "KMS")
    stream.forget_refusal()
    assert (stream.state, stream.code) == (H.UNPROVEN, "")
    assert stream.gives_up_at == inf, "it has worked since the endpoint looked wrong"


def test_rows_that_fail_in_a_broken_stream_do_not_put_its_next_probe_off() -> None:
    stream = health()
    stream.found_working()
    for at in (0.0, 60.0, 64.0):
        stream.looks_permanent("KMS", "no", at)
    assert not stream.admits(60.0)
    assert stream.admits(60.0 + 1.2 * StreamHealth.PROBE_SECONDS)


def test_a_broken_stream_lets_one_in_every_few_seconds() -> None:
    stream = health()
    stream.looks_permanent("KMS", "no", 0.0)
    admitted = [at / 100 for at in range(60_00) if stream.admits(at / 100)]
    gaps = [b - a for a, b in zip([0.0, *admitted[:-1]], admitted, strict=True)]
    assert len(admitted) >= 10
    assert min(gaps) >= 4.0
    assert max(gaps) <= 6.01
    assert len(set(gaps)) > 3, "jittered"
