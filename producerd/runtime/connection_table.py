"""ConnectionTable: the table of connected clients, in which no user takes the place of all others.

A table that is full lets an idle client go for a new one: first a client that has no stream open, then the longest idle
one of the user with the most clients.  A client is idle if it is owed nothing, so nothing is lost with its connection.
It comes back when it has rows.  Clients of 0.1.0 do not, so they go last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from producerd.config import NodeSettings
from producerd.errors import Code
from producerd.runtime.session import Session

IDLE_SECONDS: Final = 1.0
"""Time without a message after which a client goes before those that have just come or spoken."""
MADE_PLACE: Final = "the daemon's table of connections is full, and this client was idle; it may come back"


class ConnectionTable:
    """All connections, and by user those that have a place in the table.  Iterating yields all.

    A connection that was turned away or let go has no place any more, and stays until its socket has ended.
    """

    def __init__(self) -> None:
        self._all: dict[Session, None] = {}
        self._of_user: dict[int | None, dict[Session, None]] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def users(self) -> int:
        """How many users have clients in the table."""
        return len(self._of_user)

    def add(self, session: Session) -> None:
        """Add a connection of which the user is not known yet."""
        self._all[session] = None

    def admit(self, session: Session, node: NodeSettings, *, looks: bool = True) -> str | None:
        """Give a new connection its place, and let an idle one go if there is none.  Return why not, or None.

        It takes half a millisecond to look for an idle one.  ``looks`` is whether the connection's user has that time.
        """
        own = self._of_user.get(session.uid, {})
        is_full = sum(map(len, self._of_user.values())) >= node.max_connections
        user_has_all = len(own) >= node.most_connections_of_a_user
        if is_full or user_has_all:
            let_go = self._most_dispensable(own if user_has_all else self._in_table()) if looks else None
            if let_go is None:
                what = f"max_connections = {node.max_connections} clients"
                if not is_full:
                    what = f"max_connections_per_user = {len(own)} clients of user id {session.uid}"
                return f"{what} are connected, and none of them makes place now"
            self._free_place_of(let_go)
            let_go.close(Code.TABLE_FULL, MADE_PLACE)
        self._of_user.setdefault(session.uid, {})[session] = None
        return None

    def _in_table(self) -> Iterator[Session]:
        return (session for sessions in self._of_user.values() for session in sessions)

    def forget(self, session: Session) -> None:
        """Forget a connection whose socket has ended."""
        self._all.pop(session, None)
        self._free_place_of(session)

    def _most_dispensable(self, sessions: Iterable[Session]) -> Session | None:
        idle = [(since, one) for one in sessions if (since := one.idle_since) is not None]

        now = asyncio.get_running_loop().time()

        def rank(each: tuple[float, Session]) -> tuple[bool, bool, bool, int, float]:
            since, one = each
            may_go_on = now - since < IDLE_SECONDS
            return may_go_on, one.stays_away, one.has_streams, -len(self._of_user[one.uid]), since

        return min(idle, key=rank)[1] if idle else None

    def _free_place_of(self, session: Session) -> None:
        own = self._of_user.get(session.uid, {})
        own.pop(session, None)
        if not own:
            self._of_user.pop(session.uid, None)
