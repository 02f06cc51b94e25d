"""The rules by which the fake Kinesis answers requests and fails.

The decision of `FakeKinesis.handle` depends only on the request, the faults, the seed and ``now``.  The rules use no
clock, socket or task, so that the same rules serve simulations in virtual time and the server of
`producerd.testing.fake_kinesis`.

A request passes these steps:

1. The latency is drawn. 2. The first ``reset``, ``hang`` or ``error`` ends the request, and nothing is stored. 3. The
server's refusal because of the headers ends it. 4. The body is read as JSON. 5. A denied action, or a call beyond its
rate, ends it. 6. The action checks the whole request, then runs.  Each entry fails by a fault, is throttled by its
shard, or is stored. 7. A fault changes the answer, or loses it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, get_args

from producerd.testing import formats, reading
from producerd.testing.faults import (
    ENTRY_FAILURES,
    REQUEST_FAILURES,
    THROTTLED,
    Fault,
    Kind,
    Lasting,
    Script,
    checked_actions,
    stopped_by,
)
from producerd.testing.streams import (
    ACCOUNT,
    FIRST_CREATION,
    FIRST_SEQUENCE,
    HASH_END,
    FakeShard,
    FakeStream,
    ServiceError,
    Strategy,
    TokenBucket,
    equal_edges,
)
from producerd.testing.validation import (
    STREAM_NAME,
    Row,
    access_denied,
    checked_hash_key,
    checked_rows,
    refuse_dry_run,
    stream_name,
    stream_not_found,
    violation,
)

__all__ = ["ENTRY_FAILURES", "REQUEST_FAILURES", "THROTTLED", "FakeKinesis", "Fault", "Kind", "Reply"]

DEFAULT_SHARDS: Final = 4
LIST_SHARDS_PAGE: Final = 1_000
DESCRIBE_STREAM_PAGE: Final = 100
REMEMBERED_CALLS: Final = 100_000
"""Calls of each action whose times are kept: enough for any test that counts them, and bounded for runs of days."""
ACCOUNT_WIDE: Final = frozenset({"DescribeStream", "DescribeStreamSummary", "DeleteStream"})
"""Actions with one limit for all streams of the account."""

How = Literal["answer", "reset", "hang", "lost", "replaced"]
PAGE_OF_PROXY: Final = b"<html>Request refused</html>"


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request, which the server sends after ``delay_seconds``.

    ``status`` and ``body`` count only for "answer" and for "replaced", the answer of a proxy in place of Kinesis.
    """

    status: int
    body: bytes
    delay_seconds: float
    how: How


@dataclass(slots=True)
class _Call:
    """A request that is being answered."""

    action: str
    now: float
    faults: list[Lasting]
    request: dict[str, Any]
    in_cbor: bool = False
    slowest_shard_seconds: float = 0.0


class Denied(set[str]):
    """A set of actions of the fake.  It refuses any other name, which would deny nothing without notice."""

    def add(self, action: str, /) -> None:
        self.update([action])

    def update(self, *actions: Iterable[str]) -> None:
        super().update(*map(checked_actions, actions))


def checked_latency(seconds: float | tuple[float, float]) -> float | tuple[float, float]:
    """Return the latency or its range.  Raise ValueError if it is not valid."""
    low, high = seconds if isinstance(seconds, tuple) else (seconds, seconds)
    if not 0 <= low <= high:
        raise ValueError(f"latency_seconds={seconds!r}: 0 or more, or a pair of such with the lower first")
    return seconds


def checked_calls(per_second: dict[str, float]) -> dict[str, float]:
    """Return the rates by action.  Raise ValueError if one is not valid."""
    checked_actions(per_second)
    for action, rate in per_second.items():
        if not rate > 0:
            raise ValueError(f"calls_per_second of {action} is {rate!r}: above 0; what is to fail goes into `denied`")
    return per_second


class FakeKinesis:
    """A fake Kinesis: its streams, its faults and its counters.  A test may change the settings at any time.

    Args:
        seed: Chooses which entries a fault with a fraction hits.

    Attributes:
        enforce_limits: Whether each shard takes 1,000 records/s and 1 MiB/s, and throttles the rest.
        standing: A list of faults, each of which hits every request for its action.
        streams: The streams by name.
        requests: Counts requests by action.
        replies: Counts requests by "ok", "reset", "hang", "lost", "replaced" or the error's code.
        results: Counts entries by "stored" or code.
        call_times: By action, the ``now`` of the latest 100,000 requests.
    """

    def __init__(self, seed: int = 0) -> None:
        self.enforce_limits = False  # 1,000 records/s and 1 MiB/s per shard
        self.standing: list[Fault] = []
        self.streams: dict[str, FakeStream] = {}
        self.requests: Counter[str] = Counter()
        self.replies: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.call_times: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED_CALLS))
        self._latency_seconds: float | tuple[float, float] = 0.0
        self._denied = Denied()
        self.cbor_refusal: ServiceError | None = None  # how every request in CBOR fails
        self._calls_per_second: dict[str, float] = {}
        self._call_quotas: dict[tuple[str, str], TokenBucket] = {}
        self._highest_sequence = FIRST_SEQUENCE  # of all deleted streams
        self._created = 0  # how many streams were
        self._script = Script()
        self._random = random.Random(seed)
        self._actions: Final[dict[str, Callable[[_Call], dict[str, Any]]]] = {
            "PutRecords": self._put_records,
            "ListShards": self._list_shards,
            "DescribeStreamSummary": self._describe_stream_summary,
            "DescribeStream": self._describe_stream,
            "GetShardIterator": self._get_shard_iterator,
            "GetRecords": self._get_records,
            "CreateStream": self._create_stream,
            "DeleteStream": self._delete_stream,
            "SplitShard": self._split_shard,
            "MergeShards": self._merge_shards,
            "UpdateShardCount": self._update_shard_count,
        }

    @property
    def latency_seconds(self) -> float | tuple[float, float]:
        """Latency of every request: a constant, or the range (low, high) of a uniform distribution."""
        return self._latency_seconds

    @latency_seconds.setter
    def latency_seconds(self, seconds: float | tuple[float, float]) -> None:
        self._latency_seconds = checked_latency(seconds)

    @property
    def denied(self) -> set[str]:
        """Actions that fail with AccessDeniedException."""
        return self._denied

    @denied.setter
    def denied(self, actions: set[str]) -> None:
        denied = Denied()
        denied.update(actions)
        self._denied = denied

    @property
    def calls_per_second(self) -> dict[str, float]:
        """Highest rate of each action.  A call beyond it fails with LimitExceededException."""
        return self._calls_per_second

    @calls_per_second.setter
    def calls_per_second(self, rates: dict[str, float]) -> None:
        self._calls_per_second = checked_calls(rates)

    def create_stream(
        self,
        name: str,
        shards: int | None = None,
        max_record_kib: int = 1024,
        *,
        edges: Sequence[int] | None = None,
        record_distribution_strategy: Strategy | None = None,
        restart_sequences: bool = False,
        now: float = 0.0,
    ) -> FakeStream:
        """Create a stream with equal shards (default: 4), or with shards that begin at ``edges``.

        A stream that replaces a deleted one has the same shard ids.  Its sequence numbers begin above the numbers of
        all deleted streams, and above ``now``.

        Args:
            name: The stream's name.
            shards: The number of its equal shards.
            max_record_kib: Its limit on a record, in KiB.
            edges: Ascending hash keys at which its shards begin, of which the first is 0.
            record_distribution_strategy: As CreateStream has it.
            restart_sequences: Begin the sequence numbers as in a new account.
            now: The time, in seconds.

        Raises:
            ValueError: The stream exists, or an argument is not valid.
        """
        if edges is None:
            edges = equal_edges(DEFAULT_SHARDS if shards is None else shards)
        if name in self.streams or not STREAM_NAME.fullmatch(name):
            raise ValueError(f"{name!r} exists already, or is not a legal name")
        if not edges or shards not in (None, len(edges)):
            raise ValueError(f"{name!r} with {shards} shards and {len(edges)} edges")
        if edges[0] != 0 or any(low >= high for low, high in pairwise([*edges, HASH_END])):
            raise ValueError(f"the edges of {name!r} must ascend from 0 and end below 2^128")
        if record_distribution_strategy not in (None, *get_args(Strategy)):
            raise ValueError(f"unknown record distribution strategy {record_distribution_strategy!r}")
        sequence = FIRST_SEQUENCE if restart_sequences else max(self._highest_sequence, FIRST_SEQUENCE + int(now * 1e9))
        self._created += 1  # a stream that is made again was created at another time
        created_at = now or FIRST_CREATION + self._created
        stream = self.streams[name] = FakeStream(name, edges, max_record_kib, created_at, sequence)
        stream.record_distribution_strategy = record_distribution_strategy
        return stream

    def delete_stream(self, name: str) -> None:
        self._highest_sequence = max(self._highest_sequence, self.streams.pop(name).sequence)

    def script(self, *faults: Fault) -> None:
        """Append faults to the script.  A request meets only the first remaining fault that is for its action."""
        self._script.append(*faults)

    @property
    def scripted(self) -> list[Fault]:
        """Faults of the script that remain."""
        return self._script.left

    def clear_script(self) -> None:
        self._script.clear()

    def most_calls(self, action: str, seconds: float) -> int:
        """Return the highest number of requests for an action within any span of this many seconds."""
        most, span = 0, deque[float]()
        for at in list(self.call_times.get(action, ())):  # a copy, because a server in a thread may append
            span.append(at)
            while span[0] <= at - seconds:
                span.popleft()
            most = max(most, len(span))
        return most

    def handle(
        self,
        action: str,
        body: bytes | memoryview,
        now: float,
        refused: ServiceError | None = None,
        content_type: str = formats.JSON,
    ) -> Reply:
        """Answer one request for an action, such as "PutRecords", in the request's own format.

        ``refused`` is the server's error because of the request's headers, or None.
        """
        self.requests[action] += 1
        self.call_times[action].append(now)
        call = _Call(action, now, self._faults_for(action), {})
        delay_seconds = self._draw_latency() + sum(lasting.fault.delay_seconds for lasting in call.faults)
        outcome = "ok"
        try:
            if how := stopped_by(call.faults):
                self.replies[how] += 1
                return Reply(0, b"", delay_seconds, how)
            if refused is not None:
                raise refused
            if content_type == formats.CBOR and self.cbor_refusal is not None:
                raise self.cbor_refusal
            status, answer = 200, formats.write(self._run(call, body, content_type), content_type)
        except ServiceError as error:
            status, outcome = error.status, error.code
            described = {"__type": error.code, "message": error.message}
            answer = formats.write(described, content_type) if error.code else b""
        delay_seconds += call.slowest_shard_seconds
        if any(lasting.fault.kind == "lost" for lasting in call.faults):
            self.replies["lost"] += 1
            return Reply(0, b"", delay_seconds, "lost")
        for lasting in call.faults:
            if lasting.fault.kind == "replaced":
                self.replies["replaced"] += 1
                return Reply(lasting.fault.status, PAGE_OF_PROXY, delay_seconds, "replaced")
        self.replies[outcome] += 1
        return Reply(status, answer, delay_seconds, "answer")

    def _draw_latency(self) -> float:
        if isinstance(self.latency_seconds, tuple):
            return self._random.uniform(*self.latency_seconds)
        return self.latency_seconds

    def _draw(self, fraction: float) -> bool:
        return fraction >= 1.0 or self._random.random() < fraction

    def _faults_for(self, action: str) -> list[Lasting]:
        """Return the faults that a request meets: at most one of the script, then the standing ones."""
        met = [Lasting(fault, None, fault.entries) for fault in self.standing if fault.is_for(action)]
        if (scripted := self._script.take(action)) is not None:
            met.insert(0, scripted)
        return [
            lasting for lasting in met if lasting.fault.kind in ENTRY_FAILURES or self._draw(lasting.fault.fraction)
        ]

    def _run(self, call: _Call, body: bytes | memoryview, content_type: str) -> dict[str, Any]:
        run = self._actions.get(call.action)
        if run is None:
            raise ServiceError("UnknownOperationException", "")
        try:
            request = formats.read(body, content_type)
        except ValueError:
            request = None
        if not isinstance(request, dict):
            raise ServiceError("SerializationException", "")
        call.request, call.in_cbor = request, content_type == formats.CBOR
        if call.action in self.denied:
            raise access_denied(call.action, request)
        return run(call)

    def _stream_of(self, call: _Call) -> FakeStream:
        """Return the stream of a call.  Raise ServiceError if the call exceeds its rate or the stream is unknown."""
        name = stream_name(call.request)
        self._take_call(call, name)
        if name not in self.streams:
            raise stream_not_found(name)
        return self.streams[name]

    def _take_call(self, call: _Call, name: str) -> None:
        rate = self.calls_per_second.get(call.action)
        if rate is None:
            return
        scope = "" if call.action in ACCOUNT_WIDE else name
        quota = self._call_quotas.setdefault((call.action, scope), TokenBucket(rate))
        quota.rate = rate
        if not quota.could_take(1, call.now):
            # Kinesis uses the same words for the limits of a stream and of an account: https://github.com/boto/botocore/pull/821
            raise ServiceError("LimitExceededException", f"Rate exceeded for stream {name} under account {ACCOUNT}.")
        quota.take(1)

    def _put_records(self, call: _Call) -> dict[str, Any]:
        stream = self._stream_of(call)
        rows = checked_rows(call.request.get("Records"), stream, in_cbor=call.in_cbor)
        refuse_dry_run(call.request)
        results = [self._put(stream, row, call) for row in rows]
        failed = sum("ErrorCode" in result for result in results)
        self.results["stored"] += len(results) - failed
        for lasting in call.faults:
            if lasting.fault.kind == "miscount":
                results = (results + results[-1:] * lasting.fault.count)[: max(0, len(results) + lasting.fault.count)]
            elif lasting.fault.kind == "failed_count":
                failed = lasting.fault.count
        return {"FailedRecordCount": failed, "Records": results}

    def _put(self, stream: FakeStream, row: Row, call: _Call) -> dict[str, str]:
        if stream.record_distribution_strategy == "AUTO":
            shard = self._random.choice(stream.open_shards)
        else:
            shard = stream.shard_of(row.hash_key)
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
        sequence_number = stream.store(shard, row.partition_key, row.explicit_hash_key, row.data, call.now)
        return {"SequenceNumber": sequence_number, "ShardId": shard.shard_id}

    def _entry_failure(self, faults: list[Lasting], shard: FakeShard) -> tuple[str, str] | None:
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
        """Return a page of shards by id.  Each page shows the shards at its own time, less the lag."""
        request = call.request
        token, limit = request.get("NextToken"), request.get("MaxResults", LIST_SHARDS_PAGE)
        if token is not None:
            for name in ("StreamARN", "StreamName", "ExclusiveStartShardId"):
                if request.get(name) is not None:
                    message = f"NextToken and {name} cannot be provided together."
                    raise ServiceError("InvalidArgumentException", message)
        if not isinstance(limit, int) or not 1 <= limit <= 10_000:
            raise violation(f"Value '{limit}' at 'maxResults'", "Member must have value between 1 and 10000")
        after, kind = request.get("ExclusiveStartShardId") or "", _shard_filter(request)
        if token is not None:
            request["StreamName"], after, kind = reading.unpack("NextToken", token, 3)
        stream = self._stream_of(call)
        shards = stream.describe_shards(call.now)
        shown = [shard for is_open, shard in shards if shard["ShardId"] > after and (is_open or kind != "AT_LATEST")]
        page = shown[: min(limit, LIST_SHARDS_PAGE)]
        answer: dict[str, Any] = {"Shards": page}
        if len(page) < len(shown):
            answer["NextToken"] = reading.pack(stream.name, page[-1]["ShardId"], kind)
        return answer

    def _describe_stream_summary(self, call: _Call) -> dict[str, Any]:
        return {"StreamDescriptionSummary": self._stream_of(call).describe()}

    def _describe_stream(self, call: _Call) -> dict[str, Any]:
        stream, after = self._stream_of(call), call.request.get("ExclusiveStartShardId") or ""
        shown = [shard for _, shard in stream.describe_shards(call.now) if shard["ShardId"] > after]
        page = shown[: call.request.get("Limit", DESCRIBE_STREAM_PAGE)]
        return {"StreamDescription": {**stream.describe(), "Shards": page, "HasMoreShards": len(page) < len(shown)}}

    def _get_shard_iterator(self, call: _Call) -> dict[str, Any]:
        iterator = reading.shard_iterator(self._stream_of(call), call.request)
        refuse_dry_run(call.request)
        return {"ShardIterator": iterator}

    def _get_records(self, call: _Call) -> dict[str, Any]:
        iterator = call.request.get("ShardIterator")
        call.request["StreamName"], shard_id, position = reading.unpack("ShardIterator", iterator, 3)
        answer = reading.records(self._stream_of(call), shard_id, position, call.request)
        refuse_dry_run(call.request)
        return answer

    def _create_stream(self, call: _Call) -> dict[str, Any]:
        """Create a stream at once, without the state CREATING."""
        request = call.request
        name, shards = str(request.get("StreamName") or ""), request.get("ShardCount")
        kib = request.get("MaxRecordSizeInKiB") or 1024
        strategy: Any = request.get("RecordDistributionStrategy")
        details = request.get("StreamModeDetails")
        if isinstance(details, dict) and details.get("StreamMode") == "ON_DEMAND":
            strategy = strategy or "USER_PARTITION_KEY"
        elif strategy == "AUTO":
            raise ServiceError("InvalidArgumentException", "AUTO is for streams in the capacity mode ON_DEMAND.")
        else:
            strategy = None
        if name in self.streams:
            raise ServiceError("ResourceInUseException", f"Stream {name} under account {ACCOUNT} already exists.")
        try:
            self.create_stream(name, shards, kib, record_distribution_strategy=strategy, now=call.now)
        except (TypeError, ValueError) as error:
            raise ServiceError("ValidationException", str(error)) from None
        return {}

    def _delete_stream(self, call: _Call) -> dict[str, Any]:
        self.delete_stream(self._stream_of(call).name)
        return {}

    def _split_shard(self, call: _Call) -> dict[str, Any]:
        at = checked_hash_key("newStartingHashKey", call.request.get("NewStartingHashKey"))
        self._stream_of(call).split_shard(str(call.request.get("ShardToSplit")), at=at, now=call.now)
        return {}

    def _merge_shards(self, call: _Call) -> dict[str, Any]:
        first, second = (str(call.request.get(name)) for name in ("ShardToMerge", "AdjacentShardToMerge"))
        self._stream_of(call).merge_shards(first, second, now=call.now)
        return {}

    def _update_shard_count(self, call: _Call) -> dict[str, Any]:
        stream, target = self._stream_of(call), call.request.get("TargetShardCount")
        if not isinstance(target, int) or target < 1:
            raise violation(
                f"Value '{target}' at 'targetShardCount'", "Member must have value greater than or equal to 1"
            )
        current = len(stream.open_shards)
        if not current <= 2 * target <= 4 * current:
            beyond = "up over double" if target > current else "down below half"
            raise ServiceError(
                "LimitExceededException",
                f"UpdateShardCount cannot scale {beyond} your current open shard count."
                f" Current open shard count: {current}, Target shard count: {target}",
            )
        stream.scale(target, now=call.now)
        counts = {"CurrentShardCount": current, "TargetShardCount": target}
        return {"StreamName": stream.name, "StreamARN": stream.arn, **counts}


def _shard_filter(request: dict[str, Any]) -> str:
    given = request.get("ShardFilter")
    return str(given.get("Type")) if isinstance(given, dict) else ""
