"""In which format a stream's requests are written: by its setting, its endpoint, and what the endpoint refuses."""

from __future__ import annotations

from typing import Final

from producerd.core.encoding.formats import CBOR, JSON, Format
from producerd.core.sending.answers import RequestFailed

REFUSING_STATUSES: Final = frozenset({400, 404, 415})
"""Statuses of an answer by which a service may refuse a format."""
REFUSING_CODES: Final = frozenset({"SerializationException", "UnknownOperationException"})
"""Codes of an answer by which a service may refuse a format."""


class FormatChoice:
    """The choice for one stream.

    A service that does not know CBOR cannot read a request at all.  The rows of a refused request therefore go once
    more, in JSON.  If they are stored, the stream uses JSON from then on, and `refusal` says why.  Otherwise the
    refusal was not about the format.
    """

    def __init__(self, wire_format: str) -> None:
        self.refusal: RequestFailed | None = None
        self.last: Format | None = None  # the format of the last request
        self._wire_format = wire_format

    def __repr__(self) -> str:
        return f"<FormatChoice {self._wire_format}: {self.last.name if self.last else 'nothing sent'}>"

    def choose(self, refused: RequestFailed | None, *, is_aws: bool) -> Format:
        """Choose the format of the next request, and keep it as `last`.

        ``refused``: how its rows were refused in CBOR, or None.  ``is_aws``: the endpoint is AWS's own.
        """
        takes_cbor = self._wire_format == "cbor" or (self._wire_format == "auto" and is_aws)
        self.last = CBOR if takes_cbor and refused is None and self.refusal is None else JSON
        return self.last

    def is_refused(self, content_type: str, failed: RequestFailed) -> bool:
        """Return whether a request in this format failed as one does whose format the service cannot read."""
        return (
            content_type == CBOR.content_type and failed.status in REFUSING_STATUSES and failed.code in REFUSING_CODES
        )

    def use_json(self, refusal: RequestFailed) -> None:
        """Use JSON from now on: rows that were refused in CBOR are stored."""
        self.refusal = refusal
