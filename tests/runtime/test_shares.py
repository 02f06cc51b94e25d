"""No user's clients take more of the loop's time than their share while others are connected."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from producerd.runtime.users import shares as module
from producerd.runtime.users.peers import Peer
from producerd.runtime.users.shares import ALONE, WITH_OTHERS, LoopShares
from producerd.wire import messages
from producerd.wire.columns import Layout
from tests.daemon import one, until_on_loop
from tests.runtime.stand_ins import StandInHost, opened, put, tell

PEER, OTHER, THIRD = Peer(os.getpid(), 1, 1), Peer(2, 2, 2), Peer(3, 3, 3)
MS = 0.001


class Loop:
    """A clock, and the loop that calls back by it.  With two ``users``, a third one speaks now and then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, users: int = 2) -> None:
        self.now, self.users = 50.0, users
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.shares = LoopShares(lambda: self.now)
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(get_running_loop=lambda: self))

    def call_soon(self, callback: Callable[[], None]) -> Any:
        return self.call_later(0.0, callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        entry = self.now + seconds, callback
        self.due.append(entry)
        return SimpleNamespace(cancel=lambda: self.due.remove(entry))

    def serve(self, peer: Peer | None, seconds: float) -> float:
        """Serve a client that always has more to say for this long, or until its time is up.  Return how long."""
        if self.users > 1:
            self.shares.spend(THIRD, self.now)
        began = self.now
        while self.now < began + seconds - 1e-9 and self.shares.has_time(peer, began):
            self.now += 0.05 * MS
        self.shares.spend(peer, began)
        return self.now - began

    def run(self, seconds: float) -> None:
        """Let time pass, and call back what is due."""
        end, calls = self.now + seconds, 0
        while self.due and min(at for at, _ in self.due) <= end:
            first = min(self.due, key=lambda each: each[0])
            self.due.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
            calls += 1
            assert calls < 20_000, "it is called back without end"
        self.now = max(self.now, end)

    def floods(self, peer: Peer | None, clients: int, went: list[int], of_each: float = 10.0) -> None:
        """Have clients that never stop talking, of which each speaks for ``of_each`` seconds at most at once."""

        def client(number: int) -> Callable[[], None]:
            def go_on() -> None:
                if self.serve(peer, of_each):
                    went.append(number)
                self.shares.put_off(peer, go_on)

            return go_on

        for number in range(clients):
            client(number)()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


@pytest.mark.promise("user-next-short-time")
@pytest.mark.parametrize("peer", [PEER, None])
def test_a_user_next_to_others_has_a_short_time_at_once(loop: Loop, peer: Peer | None) -> None:
    assert loop.serve(peer, 1.0) == pytest.approx(1 * MS)
    assert loop.serve(peer, 1.0) == 0.0
    assert loop.serve(OTHER, 1.0) == pytest.approx(1 * MS), "another user has their own"
    loop.now += 1 * MS
    later = loop.serve(peer, 1.0)  # after 2 ms in all, of which its part has come back, and a little meanwhile
    assert 2 * MS / 4 <= later + 1e-9 < 0.8 * MS


@pytest.mark.promise("user-next-short-time")
def test_in_the_long_run_it_has_a_part_of_the_time_however_many_clients_it_has(loop: Loop) -> None:
    went: list[int] = []
    used = 0.0
    serve = loop.serve

    def counted(peer: Peer | None, seconds: float) -> float:
        nonlocal used
        took = serve(peer, seconds)
        used += took
        return took

    loop.serve = counted  # type: ignore[method-assign]
    loop.floods(PEER, 20, went)
    loop.run(10.0)
    assert used / 10.0 == pytest.approx(1 / 4, rel=0.2)
    counts = [went.count(number) for number in range(20)]
    assert max(counts) - min(counts) <= 2, "they take turns"


def test_a_body_that_took_long_is_counted_against_its_user(loop: Loop) -> None:
    began = loop.now
    loop.now += 8 * MS
    loop.shares.spend(PEER, began)
    assert loop.serve(PEER, 1.0) == 0.0
    loop.now += 7 * MS / WITH_OTHERS.part + 0.1 * MS
    assert loop.serve(PEER, 1.0) > 0.0


@pytest.mark.promise("frames-count-their-delivery")
@pytest.mark.parametrize(
    ("frames_", "records", "has_time"), [(3, 1, True), (4, 1, False), (1, 740, True), (1, 760, False)]
)
def test_frames_count_for_their_delivery_next_to_others(loop: Loop, frames_: int, records: int, has_time: bool) -> None:
    loop.shares.spend(THIRD, loop.now)
    for _ in range(frames_):
        assert loop.shares.has_time(PEER, loop.now)
        loop.shares.will_deliver(PEER, records)
    assert loop.shares.has_time(PEER, loop.now) is has_time
    assert loop.shares.has_time(THIRD, loop.now)


@pytest.mark.promise("frames-count-their-delivery")
def test_a_breach_of_the_protocol_counts_next_to_others(loop: Loop) -> None:
    loop.shares.spend(THIRD, loop.now)
    loop.shares.broke_the_protocol(PEER)
    loop.now += 15.9 * MS  # of 5 ms, a quarter of this time has come back
    assert not loop.shares.has_time(PEER, loop.now)
    loop.now += 0.2 * MS
    assert loop.shares.has_time(PEER, loop.now)


def test_delivery_and_breaches_do_not_count_for_the_only_user(loop: Loop) -> None:
    for _ in range(1_000):
        loop.shares.will_deliver(PEER, 10_000)
        loop.shares.broke_the_protocol(PEER)
    loop.shares.spend(OTHER, loop.now)  # another user begins to speak
    assert loop.shares.has_time(PEER, loop.now)


def test_the_only_user_has_longer_at_once_and_no_limit_in_the_long_run(loop: Loop) -> None:
    loop.users = 1
    assert loop.serve(PEER, 1.0) == pytest.approx(12 * MS, abs=0.06 * MS)
    went: list[int] = []
    began = loop.now
    loop.floods(PEER, 4, went, of_each=ALONE.at_once_seconds / 4)
    loop.run(1.0)
    assert len(went) * ALONE.at_once_seconds / 4 == pytest.approx(loop.now - began, rel=0.1)


def test_the_first_who_may_go_on_sets_the_one_timer(loop: Loop) -> None:
    went: list[int] = []
    loop.shares.spend(OTHER, loop.now - 1 * MS)
    loop.shares.spend(PEER, loop.now - 51 * MS)
    loop.shares.put_off(OTHER, lambda: went.append(2))
    ((at, _),) = first = list(loop.due)
    assert at == pytest.approx(loop.now + 2 * MS), "when half of its 1 ms has come back, a quarter of the time"
    loop.shares.put_off(OTHER, lambda: went.append(2))
    loop.shares.put_off(PEER, lambda: went.append(1))
    assert len(loop.due) == 1
    assert loop.due[0] is first[0]
    loop.run(2.1 * MS)
    assert (went, len(loop.due)) == ([2, 2], 1)
    loop.run(1.0)
    assert (went, len(loop.due)) == ([2, 2, 1], 0)


def test_the_only_user_waits_until_half_of_its_time_has_come_back(loop: Loop) -> None:
    went: list[int] = []
    loop.shares.spend(PEER, loop.now - 12 * MS)
    loop.shares.put_off(PEER, lambda: went.append(1))
    loop.run(5.9 * MS)
    assert went == []
    loop.run(0.2 * MS)
    assert went == [1]


def test_who_has_used_all_of_a_share_has_no_time_and_waits(loop: Loop) -> None:
    """Also if another user is served meanwhile."""
    loop.now = 0.0
    went: list[int] = []
    loop.shares.spend(OTHER, 0.0)
    loop.shares.spend(PEER, -WITH_OTHERS.at_once_seconds)
    assert not loop.shares.has_time(PEER, 0.0)
    loop.shares.put_off(PEER, lambda: went.append(1))
    loop.shares.put_off(OTHER, lambda: went.append(2))
    loop.run(0.0)
    assert went == [2]
    loop.run(2.1 * MS)
    assert went == [2, 1]


def test_who_has_spoken_last_counts_though_they_came_before_others(loop: Loop) -> None:
    for peer in (PEER, OTHER, THIRD):
        loop.shares.spend(peer, loop.now)
    loop.now += 11.0
    for peer in (PEER, OTHER):
        loop.shares.spend(peer, loop.now)
    assert not loop.shares.has_time(PEER, loop.now - 2 * MS), "OTHER has just spoken"


@pytest.mark.parametrize(("seconds", "is_alone"), [(9.75, False), (10.0, True)])
def test_who_has_said_nothing_for_ten_seconds_is_forgotten(loop: Loop, seconds: float, is_alone: bool) -> None:
    loop.shares.spend(OTHER, loop.now)
    loop.now += seconds
    assert loop.shares.has_time(PEER, loop.now - 2 * MS) is is_alone
    loop.shares.spend(PEER, loop.now)
    assert loop.shares.users == (1 if is_alone else 2)


def test_a_debt_is_never_longer_than_a_fifth_of_a_second(loop: Loop) -> None:
    """Next to others, 51 ms count at most, and 50 ms of them come back in 200 ms."""
    loop.shares.spend(OTHER, loop.now)
    loop.shares.spend(PEER, loop.now - 10.0)
    loop.now += 199 * MS
    assert not loop.shares.has_time(PEER, loop.now)
    loop.now += 2 * MS
    assert loop.shares.has_time(PEER, loop.now)


def test_each_client_that_waits_has_its_turn_in_the_order_of_coming(loop: Loop) -> None:
    went: list[int] = []

    def client(number: int) -> Callable[[], None]:
        def go_on() -> None:
            loop.serve(PEER, 2 * WITH_OTHERS.at_once_seconds)
            went.append(number)

        return go_on

    for number in range(5):
        loop.shares.put_off(PEER, client(number))
    loop.run(1.0)
    assert went == [0, 1, 2, 3, 4]


def test_users_who_came_once_are_forgotten_though_nobody_was_put_off(loop: Loop) -> None:
    """Containers may have any number of user ids, one after the other."""
    for uid in range(1_000, 2_000):
        loop.shares.spend(Peer(uid, uid, uid), loop.now)
        loop.now += module.ACTIVE_SECONDS / 10
        loop.shares.spend(PEER, loop.now)
        assert loop.shares.users <= 1 + 11
    assert loop.shares.has_time(PEER, loop.now - 0.9 * WITH_OTHERS.at_once_seconds)
    assert not loop.shares.has_time(PEER, loop.now - 1.1 * WITH_OTHERS.at_once_seconds), "others have just spoken"


def test_nothing_is_scheduled_for_a_client_that_was_put_off_and_had_its_turn(loop: Loop) -> None:
    loop.shares.put_off(PEER, lambda: None)
    loop.run(1.0)
    assert not loop.due


async def test_the_frames_and_breaches_of_a_session_count_for_its_user() -> None:
    by_frames, by_breach = StandInHost(), StandInHost()
    for host in (by_frames, by_breach):
        host.shares.spend(OTHER, 0.0)
    session, transport = opened(by_frames)
    for number in range(1, 5):
        assert by_frames.shares.has_time(session.client.peer, 0.0)
        tell(session, put(number, one()))
    assert [type(message) for message in transport.drain()] == [messages.Grant] * 4, "no breach"
    assert not by_frames.shares.has_time(session.client.peer, 0.0)

    session, _ = opened(by_breach)
    assert by_breach.shares.has_time(session.client.peer, 0.0)
    tell(session, b"garbage " * 4)
    assert not by_breach.shares.has_time(session.client.peer, 0.0)


def test_a_flood_is_reported_once_a_minute_with_its_process(
    log: list[Any], loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand messages a second are a flood, unless they are about records."""

    def say(peer: Peer | None, message: messages.Message, times: int, now: float) -> None:
        loop.now = now
        for _ in range(times):
            loop.shares.count(peer, message)

    assert module.MOST_MESSAGES == 60_000
    most = 100
    monkeypatch.setattr(module, "MOST_MESSAGES", most)
    say(PEER, messages.Cancel(1), most - 1, 59.75)
    say(PEER, messages.Cancel(1), most - 1, 60.0)
    say(OTHER, messages.Status(1), most - 1, 60.0)
    say(PEER, messages.Reserve(1, 1, Layout(1, 0, 0)), 1_000, 60.0)  # records may come in any number of frames
    assert not log
    say(PEER, messages.Open(1, "s"), 2, 119.75)
    (line,) = log
    assert line["event"] == "clients flood the daemon"
    assert (line["uid"], line["pid"], line["log_level"]) == (1, PEER.pid, "warning")
    assert line["command"] == Path(f"/proc/{PEER.pid}/comm").read_text().strip()
    say(PEER, messages.Status(1), most - 1, 120.0)
    say(None, messages.Status(1), most, 120.0)
    assert [(line["uid"], line["command"]) for line in log[1:]] == [(None, "")]


async def test_a_session_without_time_reads_on_later() -> None:
    host = StandInHost()
    sessions = [opened(host) for _ in range(4)]
    host.shares = LoopShares()  # from now on, because opening them may take long on a loaded machine
    host.shares.spend(None, host.shares.clock() - 1.0)
    for session, transport in sessions:
        tell(session, messages.Status(1))
        assert (transport.drain(), transport.reading) == ([], False)
    await until_on_loop(lambda: all(transport.reading for _, transport in sessions))
    assert [len(transport.drain()) for _, transport in sessions] == [1] * 4
