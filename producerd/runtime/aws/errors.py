"""Failures as values, from the exceptions of botocore and aiohttp.

A value says what went wrong, and whether the service may have stored the records nevertheless.  It cannot have stored
them if none of the body was written.  It has not stored them if Kinesis itself says so: with a 4xx, one of its error
types and a request id.  A proxy, a firewall or a load balancer may answer after Kinesis has stored the request.
"""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import replace
from os import environ
from typing import Final

import botocore.exceptions as boto_errors
import orjson
from aiohttp import ClientError as AiohttpError
from aiohttp import RedirectClientError
from botocore.parsers import create_parser

from producerd.core.failures import CREDENTIALS_LATE, meaning_of, refuses
from producerd.core.sending.answers import RequestFailed, is_cbor, loads
from producerd.errors import Code, ConfigurationError
from producerd.runtime.aws.connection import HttpAnswer
from producerd.runtime.aws.sources import TYPES, causes_of, words_of
from producerd.runtime.log_lines import without_secrets


class CredentialsFailed(Exception):
    """A source of credentials has failed.  ``failed`` says how, without any text of the source.

    ``shows_wrong_endpoint``: as the function of that name says it of the error itself.
    """

    def __init__(self, failed: RequestFailed, *, shows_wrong_endpoint: bool = False) -> None:
        super().__init__(failed.message)
        self.failed = failed
        self.shows_wrong_endpoint = shows_wrong_endpoint


NoCredentials = boto_errors.NoCredentialsError
"""The standard chain found no credentials."""
EXPECTED: Final = (
    CredentialsFailed,
    ConfigurationError,
    boto_errors.ClientError,
    boto_errors.BotoCoreError,
    AiohttpError,
    OSError,
)
"""Exceptions of a failure between the daemon and a service that speaks as AWS does."""
MAX_CODE: Final = 128
"""Most characters of a code, and of a request's id, that are logged and sent to callers."""
MAX_MESSAGE: Final = 1_000
"""Most characters of a message that are logged and sent to callers."""
_OF_A_SERVICE: Final = (boto_errors.ClientError, boto_errors.ConnectionError, boto_errors.HTTPClientError)
"""botocore's errors of a service that refused or was not reached; its others are about AWS's files and variables."""
_ABOUT_CREDENTIALS: Final = {
    Code.ACCESS_DENIED,
    Code.CONFIGURATION,
    Code.CREDENTIALS,
    Code.SERVICE_FAULT,
    Code.THROTTLED,
    Code.UNREACHABLE,
}
"""Codes that a failure of a source of credentials may have: SSO's ResourceNotFoundException is not about a stream."""
_REQUEST_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DO: Final = {
    "iam-role": "look at the instance's metadata service (IMDS), and at the way to it",
    "custom-process": "run its credential_process to see what it prints",
    "sso": "log in with `aws sso login`",
}
"""What to do about a source that says nothing useful."""
_CREDENTIALS: Final = (
    boto_errors.NoCredentialsError,
    boto_errors.PartialCredentialsError,
    boto_errors.CredentialRetrievalError,
    boto_errors.TokenRetrievalError,
    boto_errors.UnknownTokenProviderError,
    boto_errors.UnknownCredentialError,
    boto_errors.NoAuthTokenError,
    boto_errors.RefreshWithMFAUnsupportedError,
    boto_errors.SSOError,
    boto_errors.LoginError,
)
"""There are no credentials."""
_CONFIGURATION: Final = (
    boto_errors.ApiVersionNotFoundError,
    boto_errors.BaseEndpointResolverError,
    boto_errors.ConfigNotFound,
    boto_errors.ConfigParseError,
    boto_errors.DataNotFoundError,
    boto_errors.EndpointProviderError,
    boto_errors.InvalidChecksumConfigError,
    boto_errors.InvalidConfigError,
    boto_errors.InvalidDefaultsMode,
    boto_errors.InvalidEndpointConfigurationError,
    boto_errors.InvalidEndpointDiscoveryConfigurationError,
    boto_errors.InvalidHostLabelError,
    boto_errors.InvalidIMDSEndpointModeError,
    boto_errors.InvalidProxiesConfigError,
    boto_errors.InvalidRetryConfigurationError,
    boto_errors.InvalidSTSRegionalEndpointsConfigError,
    boto_errors.MD5UnavailableError,
    boto_errors.MissingDependencyException,
    boto_errors.MissingParametersError,
    boto_errors.ParamValidationError,
    boto_errors.ProfileNotFound,
    boto_errors.ServiceNotInRegionError,
    boto_errors.UnknownRegionError,
    boto_errors.UnknownSignatureVersionError,
    boto_errors.UnsupportedServiceProtocolsError,
    boto_errors.UnsupportedSignatureVersionError,
    boto_errors.ValidationError,
)
"""botocore refuses AWS's variables or files.  None of these comes from DNS, a socket, a helper or a metadata service.
"""


def error_of(answer: HttpAnswer) -> boto_errors.ClientError:
    """Return the exception that botocore's client would raise for an answer to PutRecords with status 300 or above.

    An answer that is not AWS's has its status as its code.  botocore reads a type that stands only in the header
    x-amzn-ErrorType for services of another protocol, but a service may send it for any.
    """
    response = {"status_code": answer.status, "headers": answer.headers, "body": in_json(answer.body), "context": {}}
    try:
        parsed = create_parser("json").parse(response, None)
        if not isinstance(parsed["Error"]["Code"], str):
            raise TypeError("a code that is not text")
    except Exception:  # botocore's parser raises anything
        parsed = create_parser("json").parse({**response, "body": b""}, None)
    if parsed["Error"]["Code"] == str(answer.status) and (type_ := answer.headers.get("x-amzn-errortype")):
        parsed["Error"]["Code"] = type_.partition(":")[0].rpartition("#")[2]
    return boto_errors.ClientError(parsed, "PutRecords")


def in_json(body: bytes) -> bytes:
    """Return the body of an error in JSON, if it is in CBOR.  Return b"" if it holds what JSON cannot."""
    if not is_cbor(body):
        return body
    try:
        return orjson.dumps(loads(body))
    except (TypeError, ValueError):
        return b""


def failure_of(error: Exception, *, body_written: bool) -> RequestFailed:
    """Return the failure of a request; ``body_written`` says whether any of its body was handed to a connection."""
    if isinstance(error, CredentialsFailed):
        return replace(error.failed, maybe_stored=body_written)
    if _lacks_thread(error):
        text = "the daemon can start no thread: raise pids.max, which is TasksMax in a systemd unit"
        return RequestFailed(Code.UNREACHABLE, text, body_written)
    if not isinstance(error, EXPECTED):
        return not_kinesis(error, maybe_stored=body_written)
    of_service = isinstance(error, _OF_A_SERVICE) or not isinstance(error, boto_errors.BotoCoreError)
    message = _line(error if of_service else words_of(error)) or type(error).__name__
    if isinstance(error, boto_errors.ClientError):
        described, about = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
        # If the body names no code, botocore puts the bare status in its place.
        code = _line(described.get("Code") or "")[:MAX_CODE] or "InternalFailure"
        status = int(about.get("HTTPStatusCode", 0))
        request_id = _line(about.get("RequestId") or "")[:MAX_CODE]
        is_refusal = bool(request_id) and refuses(status, code)
        words = str(described.get("Message") or "")
        if meaning_of(code).code == Code.CREDENTIALS:  # the lines below quote the request, with the session's token
            words = words.lstrip().partition("\n")[0]
        if code == str(status):
            words = f"an answer that is not Kinesis's: {words or 'it is empty'}"
        message = _line(words) or message
        return RequestFailed(code, message, body_written and not is_refusal, status=status, request_id=request_id)
    if isinstance(error, _CREDENTIALS):
        return RequestFailed(Code.CREDENTIALS, message, body_written)
    if isinstance(error, ConfigurationError):
        return RequestFailed(Code.CONFIGURATION, message, body_written)
    if why := _fault_of_settings(error):
        files = environ.get("AWS_CONFIG_FILE", "~/.aws/config")
        return RequestFailed(Code.CONFIGURATION, f"{_line(why)}: look at AWS's variables and {files}", body_written)
    if isinstance(error, boto_errors.EndpointConnectionError | boto_errors.ProxyConnectionError):
        message = f"{message} ({error.kwargs.get('error')})"
    return RequestFailed(Code.UNREACHABLE, message, body_written)


def _fault_of_settings(error: Exception) -> str:
    """Return in words what is wrong with AWS's variables and files, or "" if they are not at fault."""
    if isinstance(error, _CONFIGURATION):
        return words_of(error)
    cause = getattr(error, "kwargs", {}).get("error") if type(error) is boto_errors.HTTPClientError else None
    if isinstance(cause, OSError):  # a socket's is of another class
        return f"{cause.filename}: {cause.strerror}" if cause.filename else ""
    if isinstance(cause, ValueError) and not isinstance(cause, UnicodeDecodeError | RedirectClientError):
        return f"a key, a token or an address cannot be sent ({type(cause).__name__})"
    return ""


def credentials_failed(error: Exception, source: str) -> Exception:
    """Return an exception in place of one that a source of credentials raised, without its text.

    ``source`` is botocore's name of the source, or "".  If no source has any, return a NoCredentialsError.
    """
    if isinstance(error, CredentialsFailed):
        return error
    if isinstance(error, boto_errors.NoCredentialsError):
        none: Exception = NoCredentials()
        return none
    of_service = isinstance(error, _OF_A_SERVICE)
    is_hung = not of_service and is_late(error)  # if STS or SSO is not reached, rows wait as for Kinesis
    failed = failure_of(error, body_written=False)
    words = f"no answer in time ({type(error).__name__})" if is_hung else words_of(error)
    if of_service and failed.code == Code.CONFIGURATION:
        words = failed.message
    do = f"; {_DO[source]}" if source in _DO else ""
    message = _line(f"{source or 'credentials'}: {words}{do}")
    if not of_service:
        code = CREDENTIALS_LATE if is_hung else Code.CREDENTIALS
        return CredentialsFailed(RequestFailed(code, message, maybe_stored=False))
    known = TYPES.fullmatch(failed.code) or not isinstance(error, boto_errors.ClientError)
    code = failed.code if known else Code.SERVICE_FAULT
    if meaning_of(code).code not in _ABOUT_CREDENTIALS:
        code = Code.CREDENTIALS
    request_id = failed.request_id if _REQUEST_ID.fullmatch(failed.request_id) else ""
    # Without the status of the source's answer, which would judge the request as if a proxy had refused it.
    told = RequestFailed(code, message, maybe_stored=False, request_id=request_id)
    return CredentialsFailed(told, shows_wrong_endpoint=shows_wrong_endpoint(error))


def is_late(error: BaseException) -> bool:
    """Return whether an error came from a time-out."""
    late = (TimeoutError, boto_errors.ReadTimeoutError, boto_errors.ConnectTimeoutError)
    return any(isinstance(cause, late) for cause in causes_of(error))


def is_answer(error: Exception) -> bool:
    """Return whether the endpoint answered, even with an error or with an answer that cannot be read."""
    return isinstance(error, boto_errors.ClientError) or not (isinstance(error, EXPECTED) or _lacks_thread(error))


def _lacks_thread(error: Exception) -> bool:
    """Return whether Python could start no thread, as for a look-up of a name: it has no exception for that alone."""
    return type(error) is RuntimeError and str(error).startswith("can't start new thread")


def shows_wrong_endpoint(error: BaseException) -> bool:
    """Return whether the host's name does not exist, or its certificate is refused.

    A wrong setting causes these far more often than a passing fault.  EAI_AGAIN and EAI_NODATA are passing faults.
    """
    if isinstance(error, CredentialsFailed):
        return error.shows_wrong_endpoint
    for cause in causes_of(error):
        if isinstance(cause, socket.gaierror):
            return cause.errno == socket.EAI_NONAME
    return refuses_certificate(error)


def refuses_certificate(error: BaseException) -> bool:
    """Return whether the peer's certificate is refused."""
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes_of(error))


def _line(words: object) -> str:
    """Return a text as one printable line, without the record keys and logins that it quotes.

    Any client that asks for the stream's status sees the line, also in a terminal.
    """
    plain = "".join([character if character.isprintable() else " " for character in str(words)])
    return without_secrets(" ".join(plain.split()))[:MAX_MESSAGE]


def not_kinesis(error: Exception, *, maybe_stored: bool) -> RequestFailed:
    """Return the failure for an answer that is not from Kinesis.

    It leaves out the error's text, which may quote the answer.
    """
    return RequestFailed("InternalFailure", f"an answer that is not Kinesis's ({type(error).__name__})", maybe_stored)
