"""The rules by which the fake Kinesis answers, and fails.

The promise: `FakeKinesis.handle` decides everything from the request, the faults it was given, its seed and ``now``; no
clock, no socket, no task.  So one set of rules serves simulations in virtual time and the server of
`producerd.testing.fake_kinesis`.  A request is checked whole before anything of it is stored.

A request walks through: latency is drawn; the first ``reset``, ``hang`` or ``error`` ends it with nothing stored; the
JSON is read; denied operations end; the action runs, where each entry fails by a fault, is throttled by its shard, or
is stored; at last the answer is falsified, or lost.
"""

from __future__ import annotations

import base64
import binascii
import random
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

import orjson

from producerd.testing.aggregates import hash_of
from producerd.testing.streams import ACCOUNT, HASH_END, REGION, ServiceError, Shard, Stream

# https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html
MAX_ENTRIES: Final = 500
MAX_REQUEST_BYTES: Final = 10 * 1024 * 1024
MAX_KEY_CHARACTERS: Final = 256
LIST_SHARDS_PAGE: Final = 1_000
GET_RECORDS_PAGE: Final = 10_000

_HASH_KEY: Final = re.compile(r"0|[1-9][0-9]{0,38}")
_STREAM_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")

Kind = Literal["answer", "error", "reset", "hang", "lost", "miscount", "failed_count", "throttle", "fail"]
How = Literal["answer", "reset", "hang", "lost"]

THROTTLED: Final = "ProvisionedThroughputExceededException"
ENTRY_FAILURES: Final[dict[str, tuple[str, str]]] = {
    "throttle": (THROTTLED, "Rate exceeded for shard {shard} in stream {stream} under account {account}."),
    "fail": ("InternalFailure", "Internal service failure."),
}
REQUEST_FAILURES: Final[dict[int, tuple[str, str]]] = {
    400: ("LimitExceededException", f"Rate exceeded under account {ACCOUNT}."),
    500: ("InternalFailure", "Internal service failure."),
    503: ("ServiceUnavailable", "Service is unable to handle request."),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to fail.

    ``answer``        nothing goes wrong, at most the answer is late: spares a request in a script
    ``error``         the whole request fails with ``status``, ``code`` and ``message``; nothing is stored
    ``reset``         the connection is reset without an answer; nothing is stored
    ``hang``          there is no answer, ever; nothing is stored
    ``lost``          everything is stored, then the connection is reset without an answer
    ``miscount``      ``count`` results too many (negative: too few) for what was stored
    ``failed_count``  FailedRecordCount says ``count``, whatever is true
    ``throttle``      entries fail with ProvisionedThroughputExceededException
    ``fail``          entries fail with InternalFailure, or with ``code`` and ``message``

    In a script, a fault lasts for ``requests`` requests or until ``entries`` entries have failed, for one request if
    neither is given.  A standing fault lasts until it is taken away, and ``entries`` is the most of one request.
    ``shard_id`` spares the entries of other shards.  ``fraction`` is drawn by the seed: of entries for throttle and
    fail, of requests otherwise.  ``delay_seconds`` comes before the answer or the reset; what is stored is stored at
    once.  ``action`` may be "*".
    """

    kind: Kind
    requests: int | None = None
    entries: int | None = None
    fraction: float = 1.0
    shard_id: str | None = None
    action: str = "PutRecords"
    status: int = 500
    code: str = ""
    message: str = ""
    count: int = 0
    delay_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"unknown kind {self.kind!r}; known are {', '.join(get_args(Kind))}")
        if self.kind not in ENTRY_FAILURES and (self.entries is not None or self.shard_id is not None):
            raise ValueError(f"{self.kind}: entries and shard_id are for {' and '.join(ENTRY_FAILURES)} only")


@dataclass(frozen=True, slots=True)
class Reply:
    """What becomes of a request, after ``delay_seconds``.  ``status`` and ``body`` count for "answer" only."""

    status: int
    body: bytes
    delay_seconds: float
    how: How


class _Row(NamedTuple):
    """An entry of a request that was checked."""

    partition_key: str
    explicit_hash_key: str | None
    data: bytes
    size: int


@dataclass(slots=True)
class _Lasting:
    """A fault and for how long it lasts; None: no end."""

    fault: Fault
    requests: int | None
    entries: int | None

    @property
    def is_over(self) -> bool:
        return self.requests == 0 or self.entries == 0


@dataclass(slots=True)
class _Call:
    """One request on its way."""

    now: float
    faults: list[_Lasting]
    request: dict[str, Any]
    slowest_shard_seconds: float = 0.0


class FakeKinesis:
    """The service: its streams, its faults and its counters.  The settings may be changed at any time.

    ``standing`` is a plain list: a fault in it holds for every request that it meets.  The counters: ``requests`` by
    action; ``replies`` by "ok", "reset", "hang", "lost" or the error's code; ``results``, of entries, by "stored" or
    code.
    """

    def __init__(self, seed: int = 0) -> None:
        self.latency_seconds: float | tuple[float, float] = 0.0  # constant, or (low, high): uniform, by the seed
        self.enforce_limits = False  # 1,000 records/s and 1 MiB/s a shard
        self.denied: set[str] = set()  # actions that end in AccessDeniedException
        self.standing: list[Fault] = []
        self.streams: dict[str, Stream] = {}
        self.requests: Counter[str] = Counter()
        self.replies: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self._script: list[_Lasting] = []
        self._random = random.Random(seed)
        self._actions: Final[dict[str, Callable[[_Call], dict[str, Any]]]] = {
            "PutRecords": self._put_records,
            "ListShards": self._list_shards,
            "DescribeStreamSummary": self._describe_stream_summary,
            "GetShardIterator": self._get_shard_iterator,
            "GetRecords": self._get_records,
            "SplitShard": self._split_shard,
            "MergeShards": self._merge_shards,
        }

    def create_stream(self, name: str, shards: int = 4, max_record_kib: int = 1024, *, now: float = 0.0) -> Stream:
        """A stream with equal shards.  One of that name must be deleted first; the new one has the same shard ids."""
        if name in self.streams or shards < 1 or not _STREAM_NAME.fullmatch(name):
            raise ValueError(f"{name!r} with {shards} shards: exists already, or no legal name or number")
        self.streams[name] = Stream(name, shards, max_record_kib, now)
        return self.streams[name]

    def delete_stream(self, name: str) -> None:
        del self.streams[name]

    def script(self, *faults: Fault) -> None:
        """Append to the script.  A request meets the first fault left that is for its action, and no other of these."""
        for fault in faults:
            once = fault.requests is None and fault.entries is None
            self._script.append(_Lasting(fault, 1 if once else fault.requests, fault.entries))

    @property
    def scripted(self) -> list[Fault]:
        """What is left of the script."""
        return [lasting.fault for lasting in self._script if not lasting.is_over]

    def clear_script(self) -> None:
        self._script.clear()

    def handle(self, action: str, body: bytes, now: float) -> Reply:
        """Answer one request of the JSON 1.1 protocol; ``action`` is e.g. "PutRecords"."""
        self.requests[action] += 1
        faults = self._faults_for(action)
        delay_seconds = self._draw_latency() + sum(lasting.fault.delay_seconds for lasting in faults)
        call = _Call(now, faults, {})
        outcome = "ok"
        try:
            if how := _stopped_by(faults):
                self.replies[how] += 1
                return Reply(0, b"", delay_seconds, how)
            status, answer = 200, orjson.dumps(self._run(action, body, call))
        except ServiceError as error:
            status, outcome = error.status, error.code
            answer = orjson.dumps({"__type": error.code, "message": error.message}) if error.code else b""
        delay_seconds += call.slowest_shard_seconds
        if any(lasting.fault.kind == "lost" for lasting in faults):
            self.replies["lost"] += 1
            return Reply(0, b"", delay_seconds, "lost")
        self.replies[outcome] += 1
        return Reply(status, answer, delay_seconds, "answer")

    def _draw_latency(self) -> float:
        if isinstance(self.latency_seconds, tuple):
            return self._random.uniform(*self.latency_seconds)
        return self.latency_seconds

    def _draw(self, fraction: float) -> bool:
        return fraction >= 1.0 or self._random.random() < fraction

    def _faults_for(self, action: str) -> list[_Lasting]:
        """The scripted fault that this request meets, then the standing ones."""
        met = [_Lasting(fault, None, fault.entries) for fault in self.standing if fault.action in (action, "*")]
        if self._script:
            self._script = [lasting for lasting in self._script if not lasting.is_over]
            scripted = next((lasting for lasting in self._script if lasting.fault.action in (action, "*")), None)
            if scripted is not None:
                scripted.requests = None if scripted.requests is None else scripted.requests - 1
                met.insert(0, scripted)
        return [
            lasting for lasting in met if lasting.fault.kind in ENTRY_FAILURES or self._draw(lasting.fault.fraction)
        ]

    def _run(self, action: str, body: bytes, call: _Call) -> dict[str, Any]:
        run = self._actions.get(action)
        if run is None:
            raise ServiceError("UnknownOperationException", "")
        try:
            request = orjson.loads(body)
        except orjson.JSONDecodeError:
            request = None
        if not isinstance(request, dict):
            raise ServiceError("SerializationException", "")
        if action in self.denied:
            raise _access_denied(action, request)
        call.request = request
        return run(call)

    def _stream_of(self, request: dict[str, Any]) -> Stream:
        name = _stream_name(request)
        if name not in self.streams:
            raise ServiceError("ResourceNotFoundException", f"Stream {name} under account {ACCOUNT} not found.")
        return self.streams[name]

    def _put_records(self, call: _Call) -> dict[str, Any]:
        stream = self._stream_of(call.request)
        results = [self._put(stream, row, call) for row in _checked_rows(call.request.get("Records"), stream)]
        failed = sum("ErrorCode" in result for result in results)
        for lasting in call.faults:
            if lasting.fault.kind == "miscount":
                results = (results + results[-1:] * lasting.fault.count)[: max(0, len(results) + lasting.fault.count)]
            elif lasting.fault.kind == "failed_count":
                failed = lasting.fault.count
        return {"FailedRecordCount": failed, "Records": results}

    def _put(self, stream: Stream, row: _Row, call: _Call) -> dict[str, str]:
        shard = stream.shard_of(hash_of(row.partition_key, row.explicit_hash_key))
        if shard.delay_seconds > call.slowest_shard_seconds:
            call.slowest_shard_seconds = shard.delay_seconds
        failure = self._entry_failure(call.faults, shard) if call.faults else None
        if failure is None and self.enforce_limits and not shard.admit(row.size, call.now):
            failure = ENTRY_FAILURES["throttle"]
        if failure is not None:
            code, message = failure
            self.results[code] += 1
            message = message.format(shard=shard.shard_id, stream=stream.name, account=ACCOUNT)
            return {"ErrorCode": code, "ErrorMessage": message}
        self.results["stored"] += 1
        sequence_number = stream.store(shard, row.partition_key, row.explicit_hash_key, row.data, call.now)
        return {"SequenceNumber": sequence_number, "ShardId": shard.shard_id}

    def _entry_failure(self, faults: list[_Lasting], shard: Shard) -> tuple[str, str] | None:
        for lasting in faults:
            fault = lasting.fault
            if fault.kind not in ENTRY_FAILURES or lasting.entries == 0 or fault.shard_id not in (None, shard.shard_id):
                continue
            if self._draw(fault.fraction):
                lasting.entries = None if lasting.entries is None else lasting.entries - 1
                code, message = ENTRY_FAILURES[fault.kind]
                return fault.code or code, fault.message or message
        return None

    def _list_shards(self, call: _Call) -> dict[str, Any]:
        """A page of shards by id.  Pages are no snapshot: each shows what is true, or lagging, at its own time."""
        request = call.request
        token, limit = request.get("NextToken"), request.get("MaxResults", LIST_SHARDS_PAGE)
        if token is not None and _stream_name(request):
            raise ServiceError("InvalidArgumentException", "NextToken and StreamName cannot be provided together.")
        if not isinstance(limit, int) or not 1 <= limit <= 10_000:
            raise _violation(f"Value '{limit}' at 'maxResults'", "Member must have value between 1 and 10000")
        after, kind = request.get("ExclusiveStartShardId", ""), _shard_filter(request)
        if token is not None:
            request["StreamName"], after, kind = _unpack("NextToken", token, 3)
        shards = self._stream_of(request).describe_shards(call.now)
        shown = [shard for is_open, shard in shards if shard["ShardId"] > after and (is_open or kind != "AT_LATEST")]
        page = shown[: min(limit, LIST_SHARDS_PAGE)]
        answer: dict[str, Any] = {"Shards": page}
        if len(page) < len(shown):
            answer["NextToken"] = _pack(_stream_name(request), page[-1]["ShardId"], kind)
        return answer

    def _describe_stream_summary(self, call: _Call) -> dict[str, Any]:
        return {"StreamDescriptionSummary": self._stream_of(call.request).describe()}

    def _get_shard_iterator(self, call: _Call) -> dict[str, Any]:
        stream = self._stream_of(call.request)
        shard = stream.shard(str(call.request.get("ShardId")))
        sequence_number = str(call.request.get("StartingSequenceNumber", ""))
        match call.request.get("ShardIteratorType"):
            case "TRIM_HORIZON":
                position = 0
            case "LATEST":
                position = len(shard.entries)
            case "AT_SEQUENCE_NUMBER":
                position = bisect_left(shard.entries, sequence_number, key=lambda entry: entry.sequence_number)
            case "AFTER_SEQUENCE_NUMBER":
                position = bisect_right(shard.entries, sequence_number, key=lambda entry: entry.sequence_number)
            case "AT_TIMESTAMP":
                at = float(call.request.get("Timestamp", 0.0))
                position = bisect_left(shard.entries, at, key=lambda entry: entry.stored_at)
            case other:
                raise _violation(f"Value '{other}' at 'shardIteratorType'", "Member must satisfy enum value set")
        return {"ShardIterator": _pack(stream.name, shard.shard_id, position)}

    def _get_records(self, call: _Call) -> dict[str, Any]:
        name, shard_id, position = _unpack("ShardIterator", call.request.get("ShardIterator"), 3)
        stream = self._stream_of({"StreamName": name})
        shard = stream.shard(shard_id)
        records: list[dict[str, Any]] = []
        size = 0
        for entry in shard.entries[position : position + call.request.get("Limit", GET_RECORDS_PAGE)]:
            size += len(entry.data)
            if records and size > MAX_REQUEST_BYTES:
                break
            records.append(
                {
                    "SequenceNumber": entry.sequence_number,
                    "PartitionKey": entry.partition_key,
                    "Data": base64.b64encode(entry.data).decode(),
                    "ApproximateArrivalTimestamp": entry.stored_at,
                }
            )
        position += len(records)
        answer: dict[str, Any] = {"Records": records, "MillisBehindLatest": 0}
        if shard.last_sequence and position == len(shard.entries):
            answer["ChildShards"] = stream.describe_children(shard_id)
        else:
            answer["NextShardIterator"] = _pack(name, shard_id, position)
        return answer

    def _split_shard(self, call: _Call) -> dict[str, Any]:
        at = _hash_key("newStartingHashKey", call.request.get("NewStartingHashKey"))
        self._stream_of(call.request).split_shard(str(call.request.get("ShardToSplit")), at=int(at), now=call.now)
        return {}

    def _merge_shards(self, call: _Call) -> dict[str, Any]:
        first, second = (str(call.request.get(name)) for name in ("ShardToMerge", "AdjacentShardToMerge"))
        self._stream_of(call.request).merge_shards(first, second, now=call.now)
        return {}


def _stopped_by(faults: list[_Lasting]) -> Literal["reset", "hang"] | None:
    """The first fault that keeps a request from being served; an error is raised."""
    for lasting in faults:
        fault = lasting.fault
        if fault.kind == "reset" or fault.kind == "hang":
            return fault.kind
        if fault.kind == "error":
            code, message = REQUEST_FAILURES.get(fault.status, ("", ""))
            raise ServiceError(fault.code or code, fault.message or ("" if fault.code else message), fault.status)
    return None


def _checked_rows(records: Any, stream: Stream) -> list[_Row]:
    """The entries of a request, or the ServiceError that refuses all of them."""
    if records is None:
        raise _violation("Value null at 'records'", "Member must not be null")
    if not isinstance(records, list):
        raise ServiceError("SerializationException", "Expected list or null")
    if not records:
        raise _violation("Value '[]' at 'records'", "Member must have length greater than or equal to 1")
    if len(records) > MAX_ENTRIES:
        raise _violation(
            f"Value '[{len(records)} records]' at 'records'",
            f"Member must have length less than or equal to {MAX_ENTRIES}",
        )
    rows = [_checked_row(record, number) for number, record in enumerate(records, 1)]
    limit = stream.max_record_kib * 1024
    for number, row in enumerate(rows, 1):
        if row.size > limit:
            raise ServiceError(
                "InvalidArgumentException",
                f"Record {number} of stream {stream.name} under account {ACCOUNT} has {row.size} bytes,"
                f" more than the maximum record size of {limit} bytes.",
            )
    if sum(row.size for row in rows) > MAX_REQUEST_BYTES:
        raise ServiceError("InvalidArgumentException", "Records size exceeds 10 MB limit")
    return rows


def _checked_row(record: Any, number: int) -> _Row:
    if not isinstance(record, dict):
        raise ServiceError("SerializationException", "Start of structure or map expected.")
    key, hash_key, text = record.get("PartitionKey"), record.get("ExplicitHashKey"), record.get("Data")
    where = f"records.{number}.member"
    if key is None or text is None:
        name = "partitionKey" if key is None else "data"
        raise _violation(f"Value null at '{where}.{name}'", "Member must not be null")
    if not isinstance(key, str) or not isinstance(text, str):
        raise ServiceError("SerializationException", "class java.math.BigDecimal can not be converted to an String")
    if not key:
        raise _violation(f"Value '' at '{where}.partitionKey'", "Member must have length greater than or equal to 1")
    if len(key) > MAX_KEY_CHARACTERS:
        raise _violation(
            f"Value '{key}' at '{where}.partitionKey'",
            f"Member must have length less than or equal to {MAX_KEY_CHARACTERS}",
        )
    if hash_key is not None:
        hash_key = _hash_key(f"{where}.explicitHashKey", hash_key)
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # also for characters beyond ASCII
        raise ServiceError("SerializationException", f"'{text[:32]}' can not be converted to a Blob") from None
    return _Row(key, hash_key, data, len(data) + (len(key) if key.isascii() else len(key.encode())))


def _hash_key(where: str, value: Any) -> str:
    if not isinstance(value, str) or not _HASH_KEY.fullmatch(value):
        pattern = "0|([1-9]\\d{0,38})"
        raise _violation(f"Value '{value}' at '{where}'", f"Member must satisfy regular expression pattern: {pattern}")
    if int(value) >= HASH_END:
        raise ServiceError(
            "InvalidArgumentException",
            f"Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was {value}",
        )
    return value


def _violation(value: str, constraint: str) -> ServiceError:
    message = f"1 validation error detected: {value} failed to satisfy constraint: {constraint}"
    return ServiceError("ValidationException", message)


def _access_denied(action: str, request: dict[str, Any]) -> ServiceError:
    return ServiceError(
        "AccessDeniedException",
        f"User: arn:aws:iam::{ACCOUNT}:user/producer is not authorized to perform: kinesis:{action} on resource:"
        f" arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{_stream_name(request)} because no identity-based policy allows"
        f" the kinesis:{action} action",
    )


def _stream_name(request: dict[str, Any]) -> str:
    """From the name, or from the ARN; "" without either."""
    return str(request.get("StreamName") or str(request.get("StreamARN") or "").rpartition(":stream/")[2])


def _shard_filter(request: dict[str, Any]) -> str:
    given = request.get("ShardFilter")
    return str(given.get("Type")) if isinstance(given, dict) else ""


def _pack(*values: Any) -> str:
    """Tokens and iterators: opaque to clients, and valid for ever."""
    return base64.b64encode(orjson.dumps(values)).decode()


def _unpack(name: str, token: Any, length: int) -> list[Any]:
    try:
        values = orjson.loads(base64.b64decode(str(token)))
    except ValueError:
        values = None
    if not isinstance(values, list) or len(values) != length:
        raise ServiceError("InvalidArgumentException", f"The provided {name} is invalid.")
    return values
