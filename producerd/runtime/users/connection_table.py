"""ConnectionTable: the table of connected clients, in which no user takes the place of all others.

A table that is full lets an idle client go for a new one: first a client that has no stream open, then the longest idle
one of the user with the most clients.  If a reload lowers the limits, the same clients go until the limits are met.  A
client is idle if it waits for no answer, so nothing is lost with its connection.  It comes back when it has rows.
Clients of 0.1.0 do not, so they go last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final

from producerd.config import NodeSettings
from producerd.config.tuning import TUNING, Tuning
from producerd.errors import Code
from producerd.runtime.session import Session
from producerd.runtime.stream import Stream

IDLE_SECONDS: Final = 1.0
"""Time without a message after which a client goes before those that have just come or spoken."""
MADE_PLACE: Final = "a table of the daemon is full, and this client was idle; it may come back"


class ConnectionTable:
    """All connections, and by user those that have a place in the table.  Iterating yields all.

    A connection that was turned away or let go has no place any more, and stays until its socket has ended.
    """

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self._tuning = tuning
        self._all: dict[Session, None] = {}
        self._of_user: dict[int | None, dict[Session, None]] = {}
        self._last_ended = asyncio.Event()

    def __iter__(self) -> Iterator[Session]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def users(self) -> int:
        """How many users have clients in the table."""
        return len(self._of_user)

    def add_connection(self, session: Session) -> None:
        """Add a connection of which the user is not known yet."""
        self._all[session] = None

    def admit(self, session: Session, node: NodeSettings, *, looks: bool = True) -> str | None:
        """Give a new connection its place, and let idle ones go if there is none.  Return why not, or None.

        It takes a millisecond to look for idle ones.  ``looks`` is whether the connection's user has that time.
        """
        uid, most = session.client.uid, node.max_connections
        most_of_user = self._tuning.most_of_a_user(most)
        if looks:
            self._let_go(self._of_user.get(uid, ()), self._places_of(uid) + 1 - most_of_user)
            self._let_go(self._placed(), self._places() + 1 - most)
        what = ""
        if self._places() >= most:
            what = f"max_connections = {most} clients"
        elif self._places_of(uid) >= most_of_user:
            what = f"a user's part of max_connections = {most}: {most_of_user} clients of user id {uid}"
        if what:
            return f"{what} are connected, and none of them makes place now"
        self._of_user.setdefault(uid, {})[session] = None
        return None

    def fit(self, node: NodeSettings) -> None:
        """Let idle clients go until the limits are met, which a reload may have lowered.

        Clients that wait for an answer may stay beyond the limits.  They go for the next connection, once idle.
        """
        most_of_user = self._tuning.most_of_a_user(node.max_connections)
        for own in list(self._of_user.values()):
            self._let_go(own, len(own) - most_of_user)
        self._let_go(self._placed(), self._places() - node.max_connections)

    def idle_streams(self) -> dict[Stream, tuple[bool, bool, float]]:
        """Return the streams that only idle clients have open, each with a rank: the least may go first."""
        now = asyncio.get_running_loop().time()
        ranks: dict[Stream, tuple[bool, bool, float]] = {}
        busy: set[Stream] = set()
        for session in self._all:
            if (since := session.idle_since) is None:
                busy.update(session.streams)
                continue
            rank = now - since < IDLE_SECONDS, session.client.stays_away, since
            ranks |= {stream: max(rank, ranks.get(stream, rank)) for stream in session.streams}
        return {stream: rank for stream, rank in ranks.items() if stream not in busy}

    def let_go_of(self, stream: Stream) -> None:
        """Let the clients go that have a stream open, all of which are idle."""
        for session in [one for one in self._all if stream in one.streams]:
            self._let_one_go(session)

    def _places(self) -> int:
        return sum(map(len, self._of_user.values()))

    def _places_of(self, uid: int | None) -> int:
        return len(self._of_user.get(uid, ()))

    def _placed(self) -> Iterator[Session]:
        return (session for sessions in self._of_user.values() for session in sessions)

    def forget(self, session: Session) -> None:
        """Forget a connection whose socket has ended."""
        self._all.pop(session, None)
        self._free_place_of(session)
        if not self._all:
            self._last_ended.set()

    async def all_end(self) -> None:
        """Return when there is no connection any more."""
        while self._all:
            self._last_ended.clear()
            await self._last_ended.wait()

    def _let_go(self, sessions: Iterable[Session], beyond: int) -> None:
        """Let this many of the sessions go, or as many as are idle."""
        if beyond > 0:
            for session in self._by_dispensability(sessions)[:beyond]:
                self._let_one_go(session)

    def _let_one_go(self, session: Session) -> None:
        self._free_place_of(session)
        session.end_session(Code.TABLE_FULL, MADE_PLACE)

    def _by_dispensability(self, sessions: Iterable[Session]) -> list[Session]:
        """Return the idle ones of the sessions, in the order in which they may go.

        The clients that go first leave their user with fewer, which counts for the user's next one.
        """
        now = asyncio.get_running_loop().time()

        def rank(each: tuple[float, Session]) -> tuple[tuple[bool, bool, bool], float]:
            since, one = each
            return (now - since < IDLE_SECONDS, one.client.stays_away, bool(one.streams)), since

        idle = [(since, one) for one in sessions if (since := one.idle_since) is not None]
        left = {uid: len(own) for uid, own in self._of_user.items()}
        order = []
        for each in sorted(idle, key=rank):
            (kind, since), one = rank(each), each[1]
            order.append(((kind, -left[one.client.uid], since), one))
            left[one.client.uid] -= 1
        return [one for _, one in sorted(order, key=itemgetter(0))]

    def _free_place_of(self, session: Session) -> None:
        own = self._of_user.get(session.client.uid, {})
        own.pop(session, None)
        if not own:
            self._of_user.pop(session.client.uid, None)
