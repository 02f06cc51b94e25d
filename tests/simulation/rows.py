"""The rows that a story draws and sends, each with the records that a consumer must receive for it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from producerd.core.kpl.aggregation import MAGIC, MAX_KEY_CHARACTERS, Aggregate
from producerd.testing import hash_of

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

MIB: Final = 1 << 20
HASH_END: Final = 2**128
MOST_INSIDE: Final = 10
"""Records of a row that is an aggregate itself."""
SPECIAL_KEYS: Final = (b'"', b"\\", b"a\nb", b"\x00\x1f", "é".encode(), "\U0001f6eb".encode(), b"-", b"a", b"k" * 256)


class User(NamedTuple):
    """A record as a consumer is handed it.  No two rows of a simulation are alike."""

    partition_key: str
    data: bytes


class Row(NamedTuple):
    """A row as its caller sends it.  ``users``: what a consumer is to be handed for it, several for an aggregate."""

    key: bytes
    data: bytes | None
    hash_key: bytes | None
    users: tuple[User, ...]

    @staticmethod
    def plain(key: bytes, data: bytes | None, hash_key: bytes | None = None) -> Row:
        """One record; a null key is spread, and stored as "-".  Without data it is a bad row."""
        users = (User(key.decode(errors="replace") or "-", data),) if data is not None else ()
        return Row(key, data, hash_key, users)

    def can_be_stored(self, limit_bytes: int, *, takes_aggregates: bool) -> bool:
        """Whether a stream with this limit on a record takes it."""
        if self.data is None or (self.data.startswith(MAGIC) and not takes_aggregates):
            return False
        try:
            fits = len(self.key.decode()) <= MAX_KEY_CHARACTERS and len(self.key) + len(self.data) <= limit_bytes
        except UnicodeDecodeError:
            return False
        return fits and (not self.hash_key or self.hash_key.isdigit())

    @property
    def hash(self) -> int | None:
        """Its place among the shards; None where chance decides."""
        if self.hash_key:
            return int(self.hash_key)
        return hash_of(self.key.decode(), None) if self.key else None


def ordered_by(edges: Sequence[int], key: bytes, hash_key: int) -> tuple[bytes, int]:
    """What rows share whose order ``per_key`` keeps: a partition key, and at all times a shard.

    Rows without a partition key share a hash key.  ``edges``: where shards begin, or have begun at any time.
    """
    return key, bisect_right(edges, hash_key) if key else hash_key


class DrawnRows:
    """Draws rows of one kind, no two of them alike."""

    def __init__(
        self,
        sim: Simulation,
        random: Random,
        *,
        sizes: tuple[int, ...],
        huge: bool,
        keys: str,
        aggregates: bool,
        bad_rows: bool,
    ) -> None:
        self.sim = sim
        self.random = random
        self.sizes = sizes
        self.huge = huge  # a row as large as may be, now and then
        self.keys = keys
        self.aggregates = aggregates  # a row whose data is itself one, now and then
        self.bad_rows = bad_rows
        self._made = 0

    def draw(self) -> list[Row]:
        """As many as a frame of this stream may have now, at most; some frames have one row or two."""
        max_bytes, max_records = self.sim.gate.largest_frame
        rows: list[Row] = []
        charge = 1_024
        for _ in range(min(max_records, self.random.choice([1, 2, self.random.randint(1, 100)]))):
            row = self._row()
            charge += len(row.key) + len(row.data or b"") + len(row.hash_key or b"") + 32
            if rows and charge > max_bytes:
                break
            rows.append(row)
        return rows

    def draw_probe(self, hash_key: int) -> Row:
        """A small one for that place among the shards."""
        return Row.plain(b"k", self._number(), b"%d" % hash_key)

    def _number(self) -> bytes:
        self._made += 1
        return b"%d:" % self._made

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _row(self) -> Row:
        random, sim = self.random, self.sim
        number = self._number()
        if self.bad_rows and self._chance(0.02):
            key, data, hash_key = random.choice(
                [(b"k", None, None), (b"k" * 257, number, None), (b"\xff", number, None), (b"k", number, b"no number")]
            )
            return Row.plain(key, data, hash_key)
        if self.aggregates and self._chance(0.05):
            return self._aggregate(number)
        if self._chance(0.02):
            return Row.plain(b"empty %d" % self._made, b"")
        if self.huge and self._chance(0.02):
            return Row.plain(b"k", number.ljust(sim.max_record_bytes - random.choice([1, 2, 100]), b"x"))
        if sim.unsortable and self._chance(0.005):
            number += random.choice([sim.unsortable, sim.unencodable])
        key, hash_key = self._key()
        return Row.plain(key, number + b"x" * random.choice(self.sizes), hash_key)

    def _key(self) -> tuple[bytes, bytes | None]:
        random = self.random
        match self.keys if self.keys != "any" else random.choice(["few", "many", "null", "explicit", "special"]):
            case "one":
                return b"k", None
            case "few":
                return b"k%d" % random.randrange(5), None
            case "null":
                return b"", None
            case "special":
                return random.choice(SPECIAL_KEYS), None
            case "explicit":
                hash_key = random.choice([0, 1, HASH_END // 2, HASH_END - 1, random.randrange(HASH_END)])
                return (b"", b"k", b"k1")[self._made % 3], b"%d" % hash_key  # and keys share them
            case _:
                return b"key %d" % random.randrange(10**6), None

    def _aggregate(self, number: bytes) -> Row:
        """A row whose data is itself an aggregate."""
        aggregate, users = Aggregate(), []
        for inner in range(self.random.choice([1, 2, MOST_INSIDE])):
            key, data = b"k%d" % self.random.randrange(20), number + b"/%d" % inner
            aggregate.try_add(key, None, data, MIB)
            users.append(User(key.decode(), data))
        return Row(b"outer", aggregate.to_bytes(), None, tuple(users))
