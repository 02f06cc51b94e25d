"""A consumer that reads the stream as Amazon's own library does."""

from __future__ import annotations

from collections import Counter

from producerd.testing import FakeStream, deaggregate, hash_of
from tests.simulation.rows import Row, User


class Consumer:
    """Reads what is stored, by the rule of `Stream.read`: an aggregate with one hash outside its shard is dropped."""

    def __init__(self) -> None:
        self.first: dict[User, int] = {}  # where it was first handed over: rises with time, and within an aggregate
        self.copies: Counter[User] = Counter()  # all that were stored, dropped ones too
        self.dropped_aggregates = 0
        self._stream: FakeStream | None = None
        self._seen = 0

    def look(self, stream: FakeStream) -> None:
        """Read on, or begin with another stream of that name."""
        if stream is not self._stream:
            self._stream, self._seen = stream, 0
        entries = stream.entries(self._seen)
        for entry in entries:
            inside = deaggregate(entry.data)
            if inside is None:
                self._hand_over(User(entry.partition_key, entry.data))
                continue
            shard = stream.shards[int(entry.shard_id[-12:])]
            users = [User(user.partition_key, user.data) for user in inside]
            if all(shard.start <= hash_of(user.partition_key, user.explicit_hash_key) <= shard.end for user in inside):
                for user in users:
                    self._hand_over(user)
            else:
                self.dropped_aggregates += 1
                self.copies.update(users)
        self._seen += len(entries)

    def has(self, row: Row) -> bool:
        """Return whether the consumer received all of a row."""
        first = self.first
        return all(user in first for user in row.users)

    def copies_of(self, row: Row) -> int:
        """Return the most copies that were stored of any part of the row."""
        return max([self.copies[user] for user in row.users], default=0)

    def _hand_over(self, user: User) -> None:
        self.copies[user] += 1
        self.first.setdefault(user, len(self.first))
