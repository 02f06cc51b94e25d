"""KinesisClients of a fake daemon, and what a program sees of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from producerd.errors import ProducerdError
from producerd.wire import messages
from producerd.wire.columns import Body
from spark_client import KinesisClient
from spark_client.gathering import PutFuture
from tests.spark_client.fake_daemon import FakeDaemon, Script, Session, acks, ends, expects, serves_after, stores, until


def client_of(daemon: FakeDaemon, stream: str | None = "s", **options: Any) -> KinesisClient:
    return KinesisClient(stream, socket=daemon.path, **{"connect_timeout_seconds": 1, **options})


def abandon(client: KinesisClient) -> None:
    """End a client without a flush, as an error does that leaves its block."""
    with suppress(KeyError), client:
        raise KeyError


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "producerd client"]


def data_of(daemon: FakeDaemon, session: int = 0) -> list[bytes | None]:
    return [data for _, (_, data, _) in daemon.sessions[session].rows]


def holds_back(go_on: threading.Event, then: Callable[[Session], object] = Session.serve) -> Script:
    """Return a script: the daemon acknowledges the first frame when it may."""
    return ends(Session.take_frame, lambda _: go_on.wait(10), acks(0), then)


def grants_when(go_on: threading.Event, **limits: Any) -> Script:
    """Return a script: the daemon stores the first frame, and grants the second one when it may.  Then it serves."""

    def grants_second(session: Session) -> None:
        reserve = session.expect(messages.Reserve)
        assert go_on.wait(10)
        session.send(messages.Grant(reserve.frame_id))

    return serves_after(stores(), grants_second, expects(Body), acks(1), **limits)


def put_behind_a_reserve(client: KinesisClient, daemon: FakeDaemon) -> PutFuture:
    """Put two records, and return the second one's future when the daemon has its RESERVE."""
    client.put("first").result(10)
    future = client.put("second")
    until(lambda: daemon.outstanding == 1)
    return future


@contextmanager
def calling(call: Callable[[], object]) -> Iterator[list[ProducerdError]]:
    """Make a call in another thread, and wait for its end.  The list has the error that it raised."""
    errors: list[ProducerdError] = []

    def calls() -> None:
        try:
            call()
        except ProducerdError as error:
            errors.append(error)

    thread = threading.Thread(target=calls)
    thread.start()
    try:
        yield errors
    finally:
        thread.join(20)
        assert not thread.is_alive()
