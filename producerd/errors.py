"""Every error that producerd raises on purpose, the codes of these errors, and the ways in which a row may end.

::

    ProducerdError                 .code, and a message that says what to do
    |-- ConfigurationError         invalid settings; .problems has one line for each (exit code 78)
    |   `-- PlaceTaken             another process has the socket or the port, and may end (exit code 75)
    |-- ProtocolError              bytes or messages that docs/build/protocol.md does not allow
    |-- ConnectionFailed           DAEMON_ABSENT, DAEMON_LOST, VERSION_MISMATCH, NOT_AUTHORIZED
    |-- Refused                    the daemon refused a stream or a frame; .code says why
    |-- BackpressureTimeout        no room in the queue within the caller's time-out; nothing was taken
    |-- FlushTimeout               rows were still unacknowledged when the caller's time-out ended
    |-- BadColumn                  a column that is missing or of a type that cannot be sent
    `-- RecordsFailed              rows that did not end as STORED; .failures counts them by code

Programs decide by ``.code``, never by the text.  This module belongs to the client's side and runs on Python 3.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple


class Code:
    """The error codes.  They are text and not an enumeration, so that an AWS service's own code passes unchanged."""

    # Of errors that a caller receives.
    DAEMON_ABSENT: Final = "DAEMON_ABSENT"
    DAEMON_LOST: Final = "DAEMON_LOST"
    VERSION_MISMATCH: Final = "VERSION_MISMATCH"
    NOT_AUTHORIZED: Final = "NOT_AUTHORIZED"
    STREAM_NOT_FOUND: Final = "STREAM_NOT_FOUND"
    STREAM_LIMIT: Final = "STREAM_LIMIT"
    CONNECTION_LIMIT: Final = "CONNECTION_LIMIT"
    TABLE_FULL: Final = "TABLE_FULL"  # an idle client makes place for another one, and comes back when it has rows
    ACCESS_DENIED: Final = "ACCESS_DENIED"
    CREDENTIALS: Final = "CREDENTIALS"
    KMS: Final = "KMS"
    UNREACHABLE: Final = "UNREACHABLE"
    SHARD_MAP_MISSING: Final = "SHARD_MAP_MISSING"
    BACKPRESSURE_TIMEOUT: Final = "BACKPRESSURE_TIMEOUT"
    FLUSH_TIMEOUT: Final = "FLUSH_TIMEOUT"
    DRAINING: Final = "DRAINING"
    TOO_LARGE: Final = "TOO_LARGE"
    BAD_COLUMN: Final = "BAD_COLUMN"
    ARROW_MISSING: Final = "ARROW_MISSING"
    SPECULATION_ENABLED: Final = "SPECULATION_ENABLED"
    DIVERT_FAILED: Final = "DIVERT_FAILED"
    INTERNAL: Final = "INTERNAL"
    CANCELLED: Final = "CANCELLED"  # the answer to CANCEL: the daemon withdrew the RESERVE and took nothing
    PROTOCOL: Final = "PROTOCOL"
    CONFIGURATION: Final = "CONFIGURATION"
    # Of rows.
    RECORD_TOO_LARGE: Final = "RECORD_TOO_LARGE"
    RECORD_INVALID: Final = "RECORD_INVALID"
    FRAME_REFUSED: Final = "FRAME_REFUSED"  # a good row in a frame that the daemon refused because of other rows
    EXPIRED: Final = "EXPIRED"
    THROTTLED: Final = "THROTTLED"
    RESULT_COUNT: Final = "RESULT_COUNT"
    PREDECESSOR_FAILED: Final = "PREDECESSOR_FAILED"
    SERVICE_FAULT: Final = "SERVICE_FAULT"  # InternalFailure and every other transient code of Kinesis
    # Of rows, and of streams.  They judge no row: a refused request does not say which of its rows is bad.
    REQUEST_REFUSED: Final = "REQUEST_REFUSED"  # Kinesis refuses requests, and its message names no record
    PROXY_REFUSED: Final = "PROXY_REFUSED"  # a 4xx that is not from Kinesis, as a proxy or a firewall sends it


class Outcome(IntEnum):
    """The way in which a row ends.  Each one except STORED comes with a code that says why."""

    STORED = 0
    NOT_STORED = 1
    UNKNOWN = 2
    RETURNED = 3


class ProducerdError(Exception):
    """The base of every error that producerd raises on purpose.

    ``code`` is one of `Code` or a code of an AWS service.  ``taken`` counts the records that the daemon had accepted
    when the call raised the error; they are the first ones of the call.
    """

    code: str = Code.INTERNAL
    taken: int = 0

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error with all its attributes: Spark and multiprocessing carry errors between processes."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[ProducerdError], arguments: tuple[Any, ...], state: dict[str, Any]) -> ProducerdError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(state)
    return error


class ConfigurationError(ProducerdError):
    """Invalid settings.  ``problems`` has one line for each problem, and all of them at once."""

    code = Code.CONFIGURATION

    def __init__(self, problems: Sequence[str], message: str | None = None) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems) if message is None else message)


class PlaceTaken(ConfigurationError):
    """Another process has the socket or the port of the settings.  Starting again helps once that process has ended."""


class ProtocolError(ProducerdError):
    """Bytes or messages that docs/build/protocol.md does not allow.  It ends only the session that sent them."""

    code = Code.PROTOCOL


class ConnectionFailed(ProducerdError):
    """The client could not open a session with the daemon, or it lost the session."""

    code = Code.DAEMON_ABSENT


class Refused(ProducerdError):
    """The daemon refused a stream or a frame, and took nothing of it.

    With TOO_LARGE the error has the limits: ``max_frame_bytes`` (as the daemon charges them) and ``max_frame_records``.
    A caller can cut the frame to these limits and try again.
    """

    def __init__(self, message: str, *, code: str, max_frame_bytes: int = 0, max_frame_records: int = 0) -> None:
        super().__init__(message, code=code)
        self.max_frame_bytes = max_frame_bytes
        self.max_frame_records = max_frame_records


class BackpressureTimeout(ProducerdError):
    """The queue had no room for a frame within the caller's time-out.  The daemon took nothing of the frame."""

    code = Code.BACKPRESSURE_TIMEOUT


class FlushTimeout(ProducerdError):
    """Rows were still unacknowledged when the caller's time-out ended.  Kinesis may still store them."""

    code = Code.FLUSH_TIMEOUT


class BadColumn(ProducerdError):
    """A column is missing, or has a type that the client cannot send."""

    code = Code.BAD_COLUMN


class RowFailure(NamedTuple):
    """A count of rows of one stream that ended with the same code and message.

    ``records`` is the count, ``rows`` has the indices of the first few, and ``maybe_stored`` says whether Kinesis may
    have stored them.  ``judged``: each row itself was found to be one that can never be stored.
    """

    code: str
    message: str
    records: int
    maybe_stored: bool
    rows: tuple[int, ...]
    stream: str = ""
    judged: bool = False


class RecordsFailed(ProducerdError):
    """Rows did not end as STORED.

    ``failures`` has one `RowFailure` for each code and message.  The error's own ``code`` is the code of the first.
    """

    def __init__(self, message: str, failures: Sequence[RowFailure]) -> None:
        self.failures = tuple(failures)
        super().__init__(message, code=self.failures[0].code if self.failures else Code.INTERNAL)
