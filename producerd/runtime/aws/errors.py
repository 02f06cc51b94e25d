"""What the exceptions of botocore and aiohttp mean, as values.

Only two things are read from them: what went wrong, and whether the service may have stored something all the same.
It cannot, before any of the body was written; and it has not, where Kinesis says so itself: by a 4xx with one of its
error types and a request id.  A proxy, a firewall or a load balancer may answer after Kinesis has stored the request.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Final

import botocore.exceptions as boto_errors
from aiohttp import ClientError as AiohttpError

from producerd.core.failures import refuses
from producerd.core.sending.answers import RequestFailed
from producerd.errors import Code
from producerd.runtime.log_lines import without_secrets

NoCredentials = boto_errors.NoCredentialsError
"""The standard chain came to its end."""
EXPECTED: Final = (boto_errors.ClientError, boto_errors.BotoCoreError, AiohttpError, OSError)
"""What goes wrong between here and a service that speaks as AWS does."""
MAX_CODE: Final = 128
MAX_MESSAGE: Final = 1_000
"""Characters: both are logged, and told to callers."""
_CREDENTIALS: Final = (
    boto_errors.NoCredentialsError,
    boto_errors.PartialCredentialsError,
    boto_errors.CredentialRetrievalError,
    boto_errors.TokenRetrievalError,
    boto_errors.NoAuthTokenError,
    boto_errors.UnauthorizedSSOTokenError,
    boto_errors.SSOTokenLoadError,
)


def failure_of(error: Exception, *, body_written: bool) -> RequestFailed:
    """The failure of a request of whose body something, or nothing, was handed to a connection."""
    if not isinstance(error, EXPECTED):
        return not_kinesis(error, maybe_stored=body_written)
    message = _line(error) or type(error).__name__
    if isinstance(error, boto_errors.ClientError):
        told, about = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
        # botocore puts a bare status where the body names no code.
        code = _line(told.get("Code") or "")[:MAX_CODE] or "InternalFailure"
        is_refusal = bool(about.get("RequestId")) and refuses(int(about.get("HTTPStatusCode", 0)), code)
        return RequestFailed(code, _line(told.get("Message") or "") or message, body_written and not is_refusal)
    if isinstance(error, _CREDENTIALS):
        return RequestFailed(Code.CREDENTIALS, message, body_written)
    if isinstance(error, boto_errors.EndpointConnectionError):
        message = f"{message} ({error.kwargs.get('error')})"
    return RequestFailed(Code.UNREACHABLE, message, body_written)


def is_answer(error: Exception) -> bool:
    """Whether somebody answered, be it with an error or with what cannot be read."""
    return isinstance(error, boto_errors.ClientError) or not isinstance(error, EXPECTED)


def shows_wrong_endpoint(error: BaseException) -> bool:
    """Whether a name does not exist, or a certificate is refused.

    Both come from a wrong setting far more often than from a fault that passes.  EAI_AGAIN and EAI_NODATA pass.
    """
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            return cause.errno == socket.EAI_NONAME
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that botocore and aiohttp made it of, each once."""
    seen: list[BaseException] = []
    line: list[object] = [error]
    while line:
        cause = line.pop(0)
        if isinstance(cause, BaseException) and all(cause is not other for other in seen):
            seen.append(cause)
            yield cause
            told = cause.kwargs.get("error") if isinstance(cause, boto_errors.BotoCoreError) else None
            parts = (
                getattr(cause, name, None) for name in ("os_error", "certificate_error", "__cause__", "__context__")
            )
            line += [told, *parts]


def _line(words: object) -> str:
    """One plain line, without the keys and logins that it quotes: whoever asks how the stream is sees it, in a terminal
    too."""
    plain = "".join([character if character.isprintable() else " " for character in str(words)])
    return without_secrets(" ".join(plain.split()))[:MAX_MESSAGE]


def not_kinesis(error: Exception, *, maybe_stored: bool) -> RequestFailed:
    """Whoever answered is not Kinesis.  The words of the error are left out: they may quote the answer."""
    return RequestFailed("InternalFailure", f"an answer that is not Kinesis's ({type(error).__name__})", maybe_stored)
