"""Every error that producerd raises on purpose, the codes that travel with it, and how a row may end.

::

    ProducerdError                 .code, and a message that says what to do
    |-- ConfigurationError         settings that do not hold; .problems, one line each (exit 78)
    |-- ProtocolError              bytes or messages that docs/protocol.md does not allow
    |-- ConnectionFailed           DAEMON_ABSENT, DAEMON_LOST, VERSION_MISMATCH, NOT_AUTHORIZED
    |-- Refused                    the daemon said no: the stream's or the frame's code
    |-- BackpressureTimeout        no room in the queue within the caller's time-out; nothing was taken
    |-- FlushTimeout               rows were still unacknowledged when the caller's time-out ended
    |-- BadColumn                  a column that is missing or of a type that cannot be sent
    `-- RecordsFailed              rows that ended otherwise than STORED; .failures, counted by code

Policy hangs on ``.code``, never on the text.  This module runs on Python 3.9 (the client's side).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple


class Code:
    """The codes of docs/names.md.  Text, not an enumeration: a service's own code passes through unchanged."""

    # To a caller.
    DAEMON_ABSENT: Final = "DAEMON_ABSENT"
    DAEMON_LOST: Final = "DAEMON_LOST"
    VERSION_MISMATCH: Final = "VERSION_MISMATCH"
    NOT_AUTHORIZED: Final = "NOT_AUTHORIZED"
    STREAM_NOT_FOUND: Final = "STREAM_NOT_FOUND"
    STREAM_LIMIT: Final = "STREAM_LIMIT"
    CONNECTION_LIMIT: Final = "CONNECTION_LIMIT"
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
    INTERNAL: Final = "INTERNAL"
    CANCELLED: Final = "CANCELLED"  # the answer to CANCEL: the RESERVE was withdrawn, nothing was taken
    PROTOCOL: Final = "PROTOCOL"
    CONFIGURATION: Final = "CONFIGURATION"
    # To a row.
    RECORD_TOO_LARGE: Final = "RECORD_TOO_LARGE"
    RECORD_INVALID: Final = "RECORD_INVALID"
    FRAME_REFUSED: Final = "FRAME_REFUSED"  # a good row of a frame that was refused for its bad ones
    EXPIRED: Final = "EXPIRED"
    THROTTLED: Final = "THROTTLED"
    RESULT_COUNT: Final = "RESULT_COUNT"
    PREDECESSOR_FAILED: Final = "PREDECESSOR_FAILED"
    SERVICE_FAULT: Final = "SERVICE_FAULT"  # InternalFailure and every other transient code of the service


class Outcome(IntEnum):
    """How a row ends.  STORED needs no code; the others name one."""

    STORED = 0
    NOT_STORED = 1
    UNKNOWN = 2
    RETURNED = 3


class ProducerdError(Exception):
    """The base of every error raised on purpose.  ``code`` is one of `Code` or a code of the service.

    ``taken``: how many records of the call that raised it were taken before, the first ones.
    """

    code: str = Code.INTERNAL
    taken: int = 0

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as what it is made of: Spark and multiprocessing carry errors between processes."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[ProducerdError], arguments: tuple[Any, ...], state: dict[str, Any]) -> ProducerdError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(state)
    return error


class ConfigurationError(ProducerdError):
    """Settings that do not hold.  ``problems`` has one line for each, all found at once."""

    code = Code.CONFIGURATION

    def __init__(self, problems: Sequence[str], message: str | None = None) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems) if message is None else message)


class ProtocolError(ProducerdError):
    """Bytes, or an order of messages, that docs/protocol.md does not allow.  Ends one session, never another."""

    code = Code.PROTOCOL


class ConnectionFailed(ProducerdError):
    """No session with the daemon, or no longer."""

    code = Code.DAEMON_ABSENT


class Refused(ProducerdError):
    """The daemon refused a stream or a frame, and nothing of it was taken.

    ``max_frame_bytes`` (charge) and ``max_frame_records`` are given with TOO_LARGE: cut the frame and try again.
    """

    def __init__(self, message: str, *, code: str, max_frame_bytes: int = 0, max_frame_records: int = 0) -> None:
        super().__init__(message, code=code)
        self.max_frame_bytes = max_frame_bytes
        self.max_frame_records = max_frame_records


class BackpressureTimeout(ProducerdError):
    """No room within the caller's time-out.  Nothing of the frame was taken."""

    code = Code.BACKPRESSURE_TIMEOUT


class FlushTimeout(ProducerdError):
    """Rows were still unacknowledged when the caller's time-out ended.  They may yet be stored."""

    code = Code.FLUSH_TIMEOUT


class BadColumn(ProducerdError):
    """A column that is missing, or of a type that cannot be sent."""

    code = Code.BAD_COLUMN


class RowFailure(NamedTuple):
    """What became of some rows of a stream: ``records`` of them ended with ``code``; ``rows`` names the first few."""

    code: str
    message: str
    records: int
    maybe_stored: bool
    rows: tuple[int, ...]
    stream: str = ""


class RecordsFailed(ProducerdError):
    """Rows that ended otherwise than STORED.

    ``failures`` has one `RowFailure` for each code and message; the first gives ``code``.
    """

    def __init__(self, message: str, failures: Sequence[RowFailure]) -> None:
        self.failures = tuple(failures)
        super().__init__(message, code=self.failures[0].code if self.failures else Code.INTERNAL)
