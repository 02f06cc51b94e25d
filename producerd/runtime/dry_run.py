"""DryRun: one session's rows of a stream, which are checked, sorted and packed as usual, and stored nowhere.

It has the pipeline of a stream, with the stream's own check, shards and limits, and stands where Kinesis would: it
counts each request as stored.  Nothing holds its rows back, so that aggregates are as full as one session's rows make
them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from typing import Final

import numpy as np

from producerd.config.tuning import Tuning
from producerd.core import turn
from producerd.core.budget import NodeBudget, NodeInFlight
from producerd.core.encoding.entries import EncodedRequest
from producerd.core.gate import Member, Ticket
from producerd.core.rows.frame import Frame
from producerd.core.rows.intake import CheckedRows
from producerd.core.rows.spans import NULL_KEY
from producerd.core.sending.answers import Answer, RequestFailed
from producerd.core.sending.requests import Request
from producerd.core.shards.hash_keys import I32, MAX_HASH_KEY
from producerd.core.shards.shard_map import Shard, ShardMap
from producerd.core.stats import Histogram
from producerd.runtime.stream import SUMMARY_PATIENCE_SECONDS, Stream, within
from producerd.wire import messages
from producerd.wire.columns import Body

UNIT_BYTES: Final = 25 * 1024
"""A record is billed as one PUT payload unit for each 25 KiB that it has or begins.

https://aws.amazon.com/kinesis/data-streams/pricing/
"""
SIZE_BOUNDS: Final = (256, 1024, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 10 << 20)
"""Upper bounds of the sizes by which rows are counted, in bytes.  No row is larger than the last one."""
UNKNOWN_SHARDS: Final = ShardMap([Shard("unknown", 0, MAX_HASH_KEY)])
"""Stands for a list that the daemon may not read."""
LEAST_LIMIT_BYTES: Final = 1 << 20
"""The limit on a record that each stream has at least."""
UNPACED: Final = 1e9
"""Part of a shard's quota that never holds rows back."""


class DryRun(Stream):
    """The dry run of a stream by one session.  It is also the `Kinesis` to which its requests go."""

    is_aws = True  # whose format is the cheaper one

    def __init__(
        self,
        stream: Stream,
        node: NodeBudget,
        in_flight: NodeInFlight,
        touched: Callable[[Stream], None],
        tuning: Tuning,
    ) -> None:
        unheld = {"shard_rate_fraction": UNPACED, "linger_seconds": inf, "record_ttl_seconds": 0}
        settings = stream.settings.model_copy(update={"aggregation": "kpl", **unheld})
        super().__init__(stream.name, settings, node, in_flight, touched=touched, tuning=tuning)
        self._of = stream
        self._over, self._summary_known = asyncio.Event(), asyncio.Event()
        self._sizes = Histogram(SIZE_BOUNDS)
        self._rows = self._units = 0
        self._entries = self._entry_bytes = self._entry_units = 0
        self._shards: Counter[str] = Counter()
        self.pipeline.set_record_limit(stream.pipeline.record_limit_bytes)
        if stream.pipeline.record_limit_bytes <= SIZE_BOUNDS[-1]:
            self._summary_known.set()
        self.pipeline.set_cannot_aggregate(stream.pipeline.cannot_aggregate)

    def begin(self, now: float) -> None:
        """Learn what the stream knows of its shards, and follow it."""
        self.of.followers.add(self)
        self.of.summary_wanted.set()
        self.service_answered(now)  # so that the wait for the list has an end
        if (shard_map := self.of.pipeline.shard_map) is not None:
            self.learn_shards(shard_map, now, now)
            return
        if self.of.pipeline.known.was_denied:
            self._do_without_shards(now)
        self.of.want_shards()

    # ---- as a stream

    @property
    def of(self) -> Stream:
        """The stream that it is a dry run of."""
        return self._of

    def check(self, body: Body) -> CheckedRows:
        """Check a frame's body as the stream itself does."""
        return self.of.check(body)

    def settle(self, now: float) -> bool:
        """Settle as in `turn.settle`.  Logs are about the stream itself."""
        return turn.settle(self.pipeline, self.gate, now)

    def accept(self, frame: Frame, ticket: Ticket, now: float) -> bool:
        """Accept a whole frame, and count its good rows."""
        rows = frame.rows
        accepted = super().accept(frame, ticket, now)
        if accepted and rows is not None:
            self._count(rows)
        return accepted

    def leave(self, member: Member, now: float, *, deliver: bool) -> None:  # noqa: ARG002 - a stream's signature
        """End the dry run."""
        super().leave(member, now, deliver=False)
        self._over.set()

    def learn_shards(self, shard_map: ShardMap, now: float, asked_at: float) -> None:
        """Use a newer list of the shards, unless rows were counted without one."""
        if self.pipeline.shard_map is not UNKNOWN_SHARDS:
            super().learn_shards(shard_map, now, asked_at)

    def learn_summary(self, max_record_bytes: int, capacity_mode: str, cannot_aggregate: str) -> None:
        """Use the stream's summary."""
        super().learn_summary(max_record_bytes, capacity_mode, cannot_aggregate)
        self._summary_known.set()

    def shards_not_read(
        self, code: str, message: str, now: float, *, wrong_endpoint: bool = False, request_id: str = ""
    ) -> None:
        """Note that the shards cannot be read.  Count rows as in one shard if that is denied, unless they need it."""
        super().shards_not_read(code, message, now, wrong_endpoint=wrong_endpoint, request_id=request_id)
        if self.pipeline.known.was_denied:
            self._do_without_shards(now)

    async def ended(self) -> None:
        """Return when its session has left and none of its rows is at work."""
        await within(self.pipeline.rules.shard_map_wait_seconds, self._over)
        self._do_without_shards(asyncio.get_running_loop().time())
        await self._over.wait()
        self.of.followers.discard(self)
        await self.flush_all().done.wait()

    # ---- as Kinesis

    async def ready(self) -> None:
        """Return at once."""

    async def put_records(
        self,
        address: Mapping[str, str],  # noqa: ARG002 - Kinesis's signature
        request: EncodedRequest,
        timeout_seconds: float,  # noqa: ARG002
    ) -> Answer | RequestFailed:
        """Return what Kinesis would, if each shard took all that is sent to it."""
        place = int(request.sizes.argmax())
        largest = int(request.sizes[place])
        if largest > LEAST_LIMIT_BYTES:  # rarely
            await within(SUMMARY_PATIENCE_SECONDS, self._summary_known)
        if largest > (limit_bytes := self.pipeline.record_limit_bytes):
            of = f"Record {place + 1} of stream {self.of.name}"  # Kinesis's own sentence, which judges the record
            message = f"{of} has {largest} bytes, more than the maximum record size of {limit_bytes} bytes."
            # The status and the id of an answer: without them it would count as a proxy's.
            return RequestFailed("InvalidArgumentException", message, False, status=400, request_id="dry-run")
        sent = next(one for one in self.pipeline.sender.in_flight if one.encoded is request)
        self._add(request.sizes[request.sizes > LEAST_LIMIT_BYTES])
        self._entries += request.entries
        self._entry_bytes += request.payload_bytes
        self._entry_units += _units(request.sizes)
        names = [lane.shard.shard_id for lane in sent.lanes]
        rows = np.bincount(request.lanes, np.diff(request.ends, prepend=0), minlength=len(names)).tolist()
        # While rows go plain for lack of a list, their shard has no name.
        self._shards.update({name: int(count) for name, count in zip(names, rows, strict=True) if name})
        return _answer(sent, request, names)

    def await_until(self, request: EncodedRequest, at: float) -> None:
        """Do nothing: no answer comes late."""

    # ---- what it found

    def figures(self, stream_id: int) -> messages.Figures:
        """Return what its rows would be in Kinesis."""
        limit_bytes, shard_map = self.pipeline.record_limit_bytes, self.pipeline.shard_map
        known = None if shard_map is UNKNOWN_SHARDS else shard_map
        return messages.Figures(
            stream_id,
            self._rows,
            int(self._sizes.sum),
            self._units,
            self._entries,
            self._entry_bytes,
            self._entry_units,
            aggregates=int(self._needs_shards),
            open_shards=len(known or ()),
            max_record_bytes=limit_bytes if limit_bytes <= SIZE_BOUNDS[-1] else 0,
            shards=tuple(sorted(self._shards.items())) if known else (),
            sizes=tuple(
                (str(bound), count) for bound, count in zip(SIZE_BOUNDS, self._sizes.counts, strict=False) if count
            ),
        )

    @property
    def _needs_shards(self) -> bool:
        return self.of.pipeline.rules.entries.aggregate

    def _do_without_shards(self, now: float) -> None:
        """Count rows as in one shard if no list has come, unless the stream itself needs one."""
        if self.pipeline.shard_map is None and not self._needs_shards:
            self.learn_shards(UNKNOWN_SHARDS, now, now)

    def _count(self, rows: CheckedRows) -> None:
        """Count the good rows of a frame, except larger ones, whose requests show whether the stream takes them."""
        keys, data = np.diff(rows.key_offsets), np.diff(rows.data_offsets)
        sizes = np.maximum(keys, len(NULL_KEY)) + data
        good = sizes <= LEAST_LIMIT_BYTES
        for bad in rows.bad:
            good[bad.rows] = False
        self._add(sizes[good])

    def _add(self, sizes: I32) -> None:
        self._rows += len(sizes)
        self._units += _units(sizes)
        self._sizes.observe_each(sizes)


def _units(sizes: I32) -> int:
    """Return the PUT payload units of records of these sizes."""
    return int(np.maximum(1, -(-sizes // UNIT_BYTES)).sum())


def _answer(sent: Request, request: EncodedRequest, names: list[str]) -> Answer:
    """Return the answer to a request of which every entry was stored in the shard that the map names."""
    shards, places = request.lanes.copy(), {name: place for place, name in enumerate(names)}
    for entry, hash_keys in request.fragments.items():  # parts of a given aggregate, which go to other shards
        if hash_keys is not None:
            name = sent.shard_map.shards[sent.shard_map.locate_one(hash_keys[0])].shard_id
            shards[entry] = places.setdefault(name, len(places))
    return Answer(shards, tuple(places), np.full(len(shards), -1, np.int32), (), (0,) * len(places))
