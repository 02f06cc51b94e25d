"""Each exception of botocore or aiohttp gets a code and a message, and shows whether records may have been stored."""

from __future__ import annotations

from socket import EAI_AGAIN, EAI_NODATA, EAI_NONAME, gaierror
from ssl import SSLCertVerificationError, SSLError
from string import Formatter
from typing import Any
from unittest.mock import MagicMock

import botocore.exceptions as boto_errors
import pytest
from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientOSError,
    ClientPayloadError,
    InvalidURL,
    InvalidUrlClientError,
    InvalidUrlRedirectClientError,
    NonHttpUrlRedirectClientError,
)

from producerd.errors import Code
from producerd.runtime.aws.errors import failure_of, is_answer, shows_wrong_endpoint


def client_error(
    code: str, status: int, message: str = "words", request_id: str | None = "d3f1"
) -> boto_errors.ClientError:
    metadata = {"HTTPStatusCode": status} | ({} if request_id is None else {"RequestId": request_id})
    return boto_errors.ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata}, "PutRecords"
    )


REFUSED = ClientConnectorError(MagicMock(), ConnectionRefusedError(111, "Connection refused"))
RESET = ClientOSError(104, "Connection reset by peer")
FAILURES: list[tuple[Exception, str, bool]] = [
    # Only Kinesis's own 4xx says that nothing was stored, of a body that was sent.
    (client_error("ResourceNotFoundException", 400), "ResourceNotFoundException", False),
    (client_error("AccessDeniedException", 400), "AccessDeniedException", False),
    (client_error("ValidationException", 400), "ValidationException", False),
    (client_error("ProvisionedThroughputExceededException", 400), "ProvisionedThroughputExceededException", False),
    (client_error("ValidationException", 400, request_id=None), "ValidationException", True),
    (client_error("ValidationException", 400, request_id=""), "ValidationException", True),
    (client_error("ValidationException", 500), "ValidationException", True),
    (client_error("WAFBlockedException", 403), "WAFBlockedException", True),
    (client_error("400", 400), "400", True),
    (client_error("407", 407, "Proxy Authentication Required"), "407", True),
    (client_error("413", 413, "Request Entity Too Large"), "413", True),
    (client_error(Code.UNREACHABLE, 400), Code.UNREACHABLE, True),
    (client_error("", 400), "InternalFailure", True),
    (client_error("InternalFailure", 500), "InternalFailure", True),
    (client_error("ServiceUnavailable", 503), "ServiceUnavailable", True),
    (client_error("", 502), "InternalFailure", True),
    (ClientPayloadError("not completed"), Code.UNREACHABLE, True),
    (ConnectionResetError(104, "Connection reset by peer"), Code.UNREACHABLE, True),
    (ValueError("words of a proxy"), "InternalFailure", True),
    (RuntimeError("can't start new thread"), Code.UNREACHABLE, True),  # as for a look-up of a name, under pids.max
]


NO_CREDENTIALS = """CredentialRetrievalError LoginAuthorizationCodeError LoginError LoginInsufficientPermissions
LoginRefreshRequired LoginTokenLoadError NoAuthTokenError NoCredentialsError PartialCredentialsError
RefreshWithMFAUnsupportedError SSOError SSOTokenLoadError TokenRetrievalError UnauthorizedSSOTokenError
UnknownCredentialError UnknownTokenProviderError"""
WRONG_SETTINGS = """AliasConflictParameterError ApiVersionNotFoundError BaseEndpointResolverError ConfigNotFound
ConfigParseError DataNotFoundError EndpointProviderError EndpointResolutionError EndpointVariantError
InfiniteLoopConfigError InvalidChecksumConfigError InvalidConfigError InvalidDefaultsMode
InvalidEndpointConfigurationError InvalidEndpointDiscoveryConfigurationError InvalidHostLabelError
InvalidIMDSEndpointModeError InvalidMaxRetryAttemptsError InvalidProxiesConfigError InvalidRegionError
InvalidRetryConfigurationError InvalidRetryModeError InvalidSTSRegionalEndpointsConfigError MD5UnavailableError
MissingDependencyException MissingParametersError NoRegionError ParamValidationError ProfileNotFound RangeError
ServiceNotInRegionError UnknownEndpointError UnknownEndpointResolutionBuiltInName UnknownFIPSEndpointError
UnknownKeyError UnknownParameterError UnknownRegionError UnknownServiceError UnknownSignatureVersionError
UnsupportedServiceProtocolsError UnsupportedSignatureVersionError ValidationError"""
WAITED_FOR = """BotoCoreError CapacityNotAvailableError ConnectTimeoutError ConnectionClosedError ConnectionError
EndpointConnectionError HTTPClientError IncompleteReadError InvalidIMDSEndpointError MetadataRetrievalError
ProxyConnectionError ReadTimeoutError ResponseStreamingError SSLError"""
NEVER_RAISED = """AwsChunkedWrapperError ChecksumError FlexibleChecksumError InvalidDNSNameError InvalidExpressionError
InvalidS3AddressingStyleError InvalidS3UsEast1RegionalEndpointConfigError OperationNotPageableError PaginationError
StubAssertionError StubResponseError UnStubbedResponseError UnknownClientMethodError UnknownServiceStyle
UnseekableStreamError UnsupportedOutpostResourceError UnsupportedS3AccesspointConfigurationError UnsupportedS3ArnError
UnsupportedS3ConfigurationError UnsupportedS3ControlArnError UnsupportedS3ControlConfigurationError WaiterConfigError
WaiterError"""
"""Of S3, waiters, pages, streams and stubs."""
DECIDED = {
    name: code
    for names, code in (
        (NO_CREDENTIALS, Code.CREDENTIALS),
        (WRONG_SETTINGS, Code.CONFIGURATION),
        (f"{WAITED_FOR} {NEVER_RAISED}", Code.UNREACHABLE),
    )
    for name in names.split()
}
"""The code of each of botocore's exceptions, except the answers of services."""


def test_each_of_botocores_exceptions_is_decided_and_a_new_one_is_noticed() -> None:
    found: dict[str, Any] = {
        name: kind
        for name, kind in vars(boto_errors).items()
        if isinstance(kind, type) and issubclass(kind, boto_errors.BotoCoreError)
    }
    assert found.keys() == DECIDED.keys()
    for name, kind in found.items():
        fields = [field for _, field, _, _ in Formatter().parse(kind.fmt) if field]
        error = kind(**dict.fromkeys([*fields, *["last_response"] * (name == "WaiterError")], "x"))
        for body_written in (False, True):
            failed = failure_of(error, body_written=body_written)
            assert (name, failed.code, failed.maybe_stored) == (name, DECIDED[name], body_written)


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (ValueError("a line break in a header"), Code.CONFIGURATION),
        (UnicodeError("label empty or too long"), Code.CONFIGURATION),
        (InvalidURL("http://:x"), Code.CONFIGURATION),
        (InvalidUrlClientError("http://:x"), Code.CONFIGURATION),
        (FileNotFoundError(2, "No such file or directory", "ca.pem"), Code.CONFIGURATION),
        (InvalidUrlRedirectClientError("http://:x"), Code.UNREACHABLE),
        (NonHttpUrlRedirectClientError("ftp://x"), Code.UNREACHABLE),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a header of the peer"), Code.UNREACHABLE),
        (SSLCertVerificationError("self-signed"), Code.UNREACHABLE),
        (ConnectionResetError(104, "Connection reset by peer"), Code.UNREACHABLE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_aiohttp_refuses_to_send_is_a_wrong_setting_and_not_the_network(cause: Exception, code: str) -> None:
    failed = failure_of(boto_errors.HTTPClientError(error=cause), body_written=False)
    assert failed.code == code
    assert ("~/.aws/config" in failed.message) == (code == Code.CONFIGURATION)
    if isinstance(cause, FileNotFoundError):
        assert "ca.pem" in failed.message


@pytest.mark.parametrize(("error", "code", "maybe_stored"), FAILURES, ids=lambda value: type(value).__name__)
def test_what_an_exception_means(error: Exception, code: str, maybe_stored: bool) -> None:
    failed = failure_of(error, body_written=True)
    assert (failed.code, failed.maybe_stored, failed.timed_out) == (code, maybe_stored, False)
    assert failed.message
    assert "\n" not in failed.message
    assert "words of a proxy" not in failed.message
    before = failure_of(error, body_written=False)
    assert (before.code, before.maybe_stored) == (code, False), "nothing is stored before the body is written"


def test_the_words_of_a_service_are_one_line_and_not_endless() -> None:
    failed = failure_of(client_error("x" * 10_000, 400, "two\nlines " * 10_000, "id\n" * 10_000), body_written=True)
    assert (len(failed.code), len(failed.message), len(failed.request_id)) == (128, 1_000, 128)
    assert failed.request_id.startswith("id id ")
    assert failed.message.startswith("two lines two lines")


@pytest.mark.parametrize(
    ("words", "message"),
    [("", "an answer that is not Kinesis's: it is empty"), ("<p>no</p>", "an answer that is not Kinesis's: <p>no</p>")],
)
def test_an_error_without_a_type_is_said_to_be_none_of_kinesiss(words: str, message: str) -> None:
    assert failure_of(client_error("405", 405, words), body_written=True).message == message


NO_NAME = gaierror(EAI_NONAME, "Name or service not known")
WRONG: list[tuple[Exception, bool]] = [
    (boto_errors.EndpointConnectionError(endpoint_url="https://x", error=NO_NAME), True),
    (
        boto_errors.EndpointConnectionError(
            endpoint_url="https://x", error=ClientConnectorDNSError(MagicMock(), NO_NAME)
        ),
        True,
    ),
    (boto_errors.ProxyConnectionError(proxy_url="http://p", error=NO_NAME), True),
    (boto_errors.SSLError(endpoint_url="https://x", error=SSLCertVerificationError("self-signed")), True),
    (
        boto_errors.SSLError(
            endpoint_url="https://x",
            error=ClientConnectorCertificateError(MagicMock(), SSLCertVerificationError("expired")),
        ),
        True,
    ),
    (boto_errors.EndpointConnectionError(endpoint_url="https://x", error=gaierror(EAI_AGAIN, "again")), False),
    (boto_errors.EndpointConnectionError(endpoint_url="https://x", error=gaierror(EAI_NODATA, "no data")), False),
    (boto_errors.SSLError(endpoint_url="https://x", error=SSLError("handshake failure")), False),
    (boto_errors.EndpointConnectionError(endpoint_url="http://x", error=REFUSED), False),
    (boto_errors.EndpointConnectionError(endpoint_url="http://x", error=RESET), False),
    (boto_errors.ConnectTimeoutError(endpoint_url="http://x"), False),
    (ConnectionResetError(104, "Connection reset by peer"), False),
    (TimeoutError(), False),
]


@pytest.mark.parametrize(("error", "wrong"), WRONG, ids=lambda value: str(value)[:60])
def test_only_a_name_that_does_not_exist_and_a_refused_certificate_show_a_wrong_endpoint(
    error: Exception, wrong: bool
) -> None:
    assert shows_wrong_endpoint(error) is wrong


@pytest.mark.promise("exception-quote-row", "key-service-quotes-left")
def test_a_key_that_the_service_quotes_is_left_out() -> None:
    """Any client that asks for a stream's state gets this message, and over TCP every user of the machine may ask."""
    said = "1 validation error detected: Value 's3cret' at 'records.1.member.partitionKey' failed to satisfy constraint"
    message = failure_of(client_error("ValidationException", 400, said), body_written=True).message
    assert message == said.replace("s3cret", "...")


@pytest.mark.promise("nothing-service-answers")
def test_a_request_that_the_service_quotes_is_left_out() -> None:
    """A refused signature is answered with the canonical request, which has the session's token as a header."""
    said = "The signature does not match.\n\nThe Canonical String is\n'POST\nx-amz-security-token:s3cret\n'"
    message = failure_of(client_error("InvalidSignatureException", 400, said), body_written=True).message
    assert message == "The signature does not match."


@pytest.mark.parametrize("login", ["user:s3cret", "s3cret", "user:s3@cret", "user:s3/cret", "us%2Fer:s3cret"])
def test_a_login_in_a_url_is_left_out(login: str) -> None:
    """As of a proxy that answers with nonsense."""
    error = boto_errors.HTTPClientError(error=f"400, message='Bad status line', url='http://{login}@proxy:3128'")
    message = failure_of(error, body_written=False).message
    assert message.endswith("message='Bad status line', url='http://***@proxy:3128'")


def test_words_are_one_line_of_what_can_be_shown() -> None:
    message = failure_of(client_error("X", 400, "a\x1b[31m\nb\x9b\u202ec\ud800"), body_written=True).message
    assert message == "a [31m b c"


def test_a_failure_has_the_status_of_the_answer_and_the_reason_of_a_failed_connection() -> None:
    assert failure_of(client_error("X", 400), body_written=True).status == 400
    assert failure_of(boto_errors.ClientError({"Error": {"Code": "X"}}, "PutRecords"), body_written=True).status == 0
    away = boto_errors.EndpointConnectionError(endpoint_url="http://x", error=NO_NAME)
    assert failure_of(away, body_written=False).message == (
        'Could not connect to the endpoint URL: "http://x" ([Errno -2] Name or service not known)'
    )
    assert failure_of(boto_errors.ConnectTimeoutError(endpoint_url="http://x"), body_written=False).message == (
        'Connect timeout on endpoint URL: "http://x"'
    )


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (client_error("X", 400), True),
        (ValueError("an answer that nobody can read"), True),
        (boto_errors.ConnectTimeoutError(endpoint_url="http://x"), False),
        (ConnectionResetError(104, "Connection reset by peer"), False),
        (RuntimeError("can't start new thread"), False),
    ],
)
def test_an_error_shows_that_somebody_answered(error: Exception, is_one: bool) -> None:
    assert is_answer(error) is is_one
