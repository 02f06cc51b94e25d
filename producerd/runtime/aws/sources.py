"""What a message may say of an error that came from a source of credentials, such as STS, a profile or a process.

The error's own text may quote a secret.  botocore's parser quotes the body of an answer that it cannot read, and a
process may print anything.  The daemon therefore copies no text of a source: `words_of` writes a sentence of its own,
from the error's type, numbers, botocore's templates, and names that it recognises.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any, Final

import botocore.exceptions as boto_errors
from botocore.parsers import ResponseParserError

from producerd.errors import ProducerdError

TYPES: Final = re.compile(
    "AccessDenied(Exception)?|AuthFailure|AuthorizationPendingException|ExpiredToken(Exception)?|IDPCommunicationError"
    "|IDPRejectedClaim|IncompleteSignature|InternalFailure|InternalServerException|InvalidClientException"
    "|InvalidClientTokenId|InvalidGrantException|InvalidIdentityToken|InvalidParameterValue|InvalidRequestException"
    "|InvalidSignatureException|MalformedPolicyDocument|MissingAuthenticationToken(Exception)?|NotAuthorized"
    "|OptInRequired|PackedPolicyTooLarge|RegionDisabledException|RequestExpired|RequestInTheFuture"
    "|RequestTimeTooSkewed|ResourceNotFoundException|ServiceUnavailable|SignatureDoesNotMatch|SlowDownException"
    "|Throttling(Exception)?|TooManyRequestsException|UnauthorizedClientException|UnauthorizedException"
    "|UnrecognizedClientException|Validation(Error|Exception)"
)
"""Error types of STS, SSO and SSO's OIDC service.  An answer may have anything in their place."""
_ARN: Final = r"arn:aws[a-z-]{0,8}:(?:iam|sts)::[0-9]{12}:[a-z-]{4,16}/[\w+=,.@/-]{1,256}(?![^\s.])"
_DENIED: Final = re.compile(
    rf"(?:User: (?P<user>{_ARN}) )?is not authorized to perform: (?P<action>sts:AssumeRole(?:WithWebIdentity)?"
    rf"|sts:TagSession|sts:SetSourceIdentity|sso:GetRoleCredentials)\b(?: on (?:resource: )?(?P<role>{_ARN}))?"
)
_WHY_DENIED: Final = re.compile(
    "(?:because no|with an explicit deny in an?) (?:identity-based|resource-based|service control|resource control"
    "|session|VPC endpoint|permissions boundary)(?: policy)?"
)
_KEYS: Final = re.compile(
    r"\b(?:credential_source|role_arn|source_profile|sso_account_id|sso_region|sso_role_name|sso_session|sso_start_url"
    r"|web_identity_token_file|AWS_ROLE_ARN|AWS_WEB_IDENTITY_TOKEN_FILE)\b"
)
_HOST: Final = re.compile(
    r"https?://(?:(?:sts|oidc|portal\.sso)(?:-fips)?(?:\.[a-z]{2}(?:-[a-z]{2,10}){1,3}-[0-9])?\.amazonaws\.com(?:\.cn)?"
    r"|(?:[0-9]{1,3}\.){3}[0-9]{1,3}|localhost)(?::[0-9]{1,5})?(?=[/?]|$)"
)
_NON_200: Final = re.compile(r"Received non 200 response ([0-9]{3}) from container metadata")
_HARMLESS: Final = ("path", "profile", "provider", "cred_var", "valid_modes", "valid_options")
"""Values in botocore's errors that name files and profiles, or that botocore's own code has."""


def words_of(error: Exception) -> str:
    """Return a sentence about an error that may quote AWS's files, variables or a source of credentials."""
    if isinstance(error, ProducerdError):
        return str(error)
    if isinstance(error, boto_errors.ClientError):
        return _refusal(error)
    if isinstance(error, RuntimeError) and "still expired" in str(error):
        return "its credentials have expired"
    if isinstance(error, ResponseParserError):
        return "an answer that cannot be read"
    words = _template(error) if isinstance(error, boto_errors.BotoCoreError) else type(error).__name__
    reason = next(filter(None, map(_reason, causes_of(error))), "")
    return f"{words} ({reason})" if reason else words


def _refusal(error: Any) -> str:
    described, about = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    code, status, text = described.get("Code"), about.get("HTTPStatusCode"), str(described.get("Message") or "")
    named = code if TYPES.fullmatch(str(code)) else "an error of an unknown type"
    words = f"{error.operation_name} was answered with {named}" + (f", status {status}" if status else "")
    if denied := _DENIED.search(text):
        who = f"{denied['user']} is " if denied["user"] else ""
        words += f": {who}not authorized to perform {denied['action']}"
        words += f" on {denied['role']}" if denied["role"] else ""
        words += f" {why[0]}" if (why := _WHY_DENIED.search(text)) else ""
    return words


def _template(error: Any) -> str:
    """Return botocore's sentence, with "..." for each value that is not known to be harmless."""
    values = {name: _harmless(name, value) for name, value in error.kwargs.items()}
    try:
        words = str(error.fmt.format(**values)).removesuffix(": ...")
    except (KeyError, ValueError, IndexError):
        words = type(error).__name__
    text = str(error)
    if status := _NON_200.search(text):
        words += f", status {status[1]}"
    if isinstance(error, boto_errors.InvalidConfigError):
        words = f"a profile is not valid: see {', '.join(dict.fromkeys(_KEYS.findall(text))) or 'its keys'}"
    if "AccountIdEndpointMode is required" in text:
        words = "AWS_ACCOUNT_ID_ENDPOINT_MODE is required, but the credentials name no account"
    return words


def _harmless(name: str, value: object) -> str:
    if name in _HARMLESS:
        return str(value)
    host = _HOST.match(str(value)) if name == "endpoint_url" else None
    return host[0] if host else "..."


def _reason(error: BaseException) -> str:
    """Return why a connection or a file failed, by the error's number."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is refused"
    if isinstance(error, socket.gaierror):
        return "no such host" if error.errno == socket.EAI_NONAME else "its host's name cannot be looked up"
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else ""


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Return an error and the errors that botocore and aiohttp made it of, each once."""
    seen: list[BaseException] = []
    line: list[object] = [error]
    while line:
        cause = line.pop(0)
        if isinstance(cause, BaseException) and all(cause is not other for other in seen):
            seen.append(cause)
            yield cause
            wrapped = cause.kwargs.get("error") if isinstance(cause, boto_errors.BotoCoreError) else None
            others = (
                getattr(cause, name, None) for name in ("os_error", "certificate_error", "__cause__", "__context__")
            )
            line += [wrapped, *others]
