"""The kernel says which process is at the other end of a socket, and so who may give orders."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from producerd.runtime.users.peers import Peer, may_administer, peer_of


class Transport:
    """A transport over this socket, if any."""

    def __init__(self, sock: socket.socket | None) -> None:
        self._extra: dict[str, Any] = {} if sock is None else {"socket": sock}

    def get_extra_info(self, name: str) -> Any:
        return self._extra.get(name)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="only Linux reports it")
def test_the_process_at_the_other_end_is_named_with_its_user_and_group() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_of(Transport(ours)) == Peer(os.getpid(), os.geteuid(), os.getegid())


def test_without_a_socket_or_on_another_platform_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peer_of(Transport(None)) is None
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_of(Transport(ours)) is None


@pytest.mark.promise("another-user-administer-even")
def test_root_and_the_daemon_s_own_user_may_administer_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    allowed = {uid for uid in (0, 1, 999, 1000, 1001) if may_administer(Peer(1, uid, 0))}
    assert allowed == {0, 1000}
    assert may_administer(None), "the mode of the socket decides"
