"""Read requests and write answers in JSON 1.1 and in Amazon's CBOR.

In both, an answer's bytes are a Blob and a `Timestamp` is a time.  Amazon has published nothing about its CBOR.  This
follows AWS's SDK for Java 2: maps without a length, Blobs as byte strings, and times as tag 1 with milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import cbor2
import orjson
import pybase64

JSON: Final = "application/x-amz-json-1.1"
CBOR: Final = "application/x-amz-cbor-1.1"
"""Values of the header Content-Type."""
_EPOCH: Final = 1
"""The tag of a time that is a number (RFC 8949, section 3.4.2)."""


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A time in an answer, in seconds since 1970."""

    seconds: float


def format_of(content_type: str) -> str:
    """Return the format of a request by its header: CBOR, and JSON for anything else."""
    return CBOR if content_type == CBOR else JSON


def read(body: bytes | memoryview, content_type: str) -> Any:
    """Return what the body of a request holds.  Raise ValueError if it does not have its format."""
    if content_type != CBOR:
        return orjson.loads(body)
    try:
        return cbor2.loads(bytes(body), semantic_decoders={_EPOCH: _seconds})
    except Exception as error:  # CBORError, and what the types raise that its tags name
        raise ValueError(str(error)) from None


def _seconds(milliseconds: float, _immutable: bool) -> float:
    return milliseconds / 1000


def write(answer: dict[str, Any], content_type: str) -> bytes:
    """Return an answer as the body for this format."""
    if content_type != CBOR:
        return orjson.dumps(answer, default=_in_json, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    return cbor2.dumps(answer, default=_in_cbor, indefinite_containers=True)


def _in_json(value: bytes | Timestamp) -> str | float:
    return value.seconds if isinstance(value, Timestamp) else pybase64.b64encode(value).decode()


def _in_cbor(encoder: cbor2.CBOREncoder, value: Timestamp) -> None:
    encoder.encode(cbor2.CBORTag(_EPOCH, round(value.seconds * 1000)))
