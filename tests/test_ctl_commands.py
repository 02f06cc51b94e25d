"""Each command of `producerctl` asks the daemon one thing, says its answer in words, and exits with 1 if it failed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from producerd import __version__, ctl
from tests.ctl_asking import node, shard, stream
from tests.snapshots import Snapshot

SHARDS = {"stream": "a/b", "shards": [shard(1, waiting_records=1), shard(2)]}
ENDED = {"records": 1_001, "delivered": 1_001, "not_stored": 0, "unknown": 0, "returned": 0, "open": 0}
NONE = {"records": 0, "delivered": 0, "not_stored": 0, "unknown": 0, "returned": 0, "open": 0}


class Daemon:
    """Stands for the way to a daemon that gives one answer to everything, and notes what it is asked."""

    def __init__(self, reply: object) -> None:
        self.reply = reply
        self.asked: list[tuple[Any, ...]] = []

    def get(self, target: str) -> Any:
        self.asked.append((target,))
        return self.reply

    def post(
        self, target: str, given: object = None, meanwhile: Callable[[], None] | None = None, *, until_end: bool = False
    ) -> Any:
        self.asked.append((target, given, until_end))
        if meanwhile is not None:
            meanwhile()
        return self.reply


ORDERS: list[tuple[str, tuple[str, object], dict[str, Any]]] = [
    ("reload", ("/reload", None), {"changed": [], "needs_restart": []}),
    ("reload", ("/reload", None), {"changed": ["a"], "needs_restart": []}),
    ("reload", ("/reload", None), {"changed": [], "needs_restart": ["b"]}),
    ("reload", ("/reload", None), {"changed": [], "needs_restart": ["b"], "unready": "it lacks a role"}),
    ("pause a/b", ("/streams/a%2Fb/pause", None), {}),
    ("resume a/b", ("/streams/a%2Fb/resume", None), {}),
    ("loglevel debug", ("/loglevel", {"level": "debug", "seconds": None}), {}),
    ("loglevel info --for 1.5m", ("/loglevel", {"level": "info", "seconds": 90.0}), {}),
    ("flush", ("/flush", {"timeout_seconds": 60.0}), {"streams": {"b": ENDED, "a": NONE}}),
    ("flush a --timeout 365d", ("/streams/a/flush", {"timeout_seconds": 365 * 86_400.0}), {"streams": {}}),
    (
        "flush --timeout 2",
        ("/flush", {"timeout_seconds": 2.0}),
        {"streams": {"a": {**ENDED, "open": 1}, "b": {**NONE, "open": 2}}},
    ),
    *(
        ("flush", ("/flush", {"timeout_seconds": 60.0}), {"streams": {"a": {**NONE, "records": 1, how: 1}}})
        for how in ("not_stored", "unknown", "returned")
    ),
    ("drain", ("/drain", {"timeout_seconds": None}), {"returned_records": 0, "undelivered_records": 0}),
    ("drain --timeout 2h", ("/drain", {"timeout_seconds": 7_200.0}), {"returned_records": 1, "undelivered_records": 0}),
    ("drain", ("/drain", {"timeout_seconds": None}), {"returned_records": 1, "undelivered_records": 1_002}),
]
"""Commands, what each asks of the daemon, and the daemon's reply."""


def test_an_order_is_sent_once_and_its_answer_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    lines = []
    for command, asked, reply in ORDERS:
        daemon = Daemon(reply)
        monkeypatch.setattr("producerd.ctl.commands.AdminClient", lambda _, daemon=daemon: daemon)
        code = ctl.main(command.split())
        output = capsys.readouterr()
        assert daemon.asked == [(*asked, False)]
        assert code == output.err.count("\n"), "it fails if there is a line on stderr"
        lines += [f"$ producerctl {command}  # {reply}", output.out + output.err]
    snapshot("ctl_orders", "\n".join(lines))


def test_drain_with_wait_returns_after_the_daemon_has_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon({"returned_records": 0, "undelivered_records": 0})
    monkeypatch.setattr("producerd.ctl.commands.AdminClient", lambda _: daemon)
    assert ctl.main(["drain", "--wait"]) == 0
    assert capsys.readouterr().out == "the daemon has stopped, all delivered\n"
    assert daemon.asked == [("/drain", {"timeout_seconds": None}, True)]


@pytest.mark.parametrize(
    ("command", "asked", "reply", "holds"),
    [
        (["status"], "/status", node(stream()), lambda out: "\nSTREAM " in out),
        (["status", "--json"], "/status", node(stream()), lambda out: json.loads(out) == node(stream())),
        (["shards", "a/b"], "/streams/a%2Fb/shards", SHARDS, lambda out: out.startswith("SHARD ")),
        (["shards", "a/b", "--json"], "/streams/a%2Fb/shards", SHARDS, lambda out: json.loads(out) == SHARDS),
        (["dump"], "/dump", {"x": [1]}, lambda out: json.loads(out) == {"x": [1]}),
        (["ready"], "/status", node(), lambda out: out == "ready\n"),
    ],
)
def test_a_question_is_answered_for_people_or_as_json(
    command: list[str],
    asked: str,
    reply: object,
    holds: Callable[[str], bool],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = Daemon(reply)
    monkeypatch.setattr("producerd.ctl.commands.AdminClient", lambda _: daemon)
    assert ctl.main(command) == 0
    assert holds(capsys.readouterr().out)
    assert daemon.asked == [(asked,)]


def test_a_daemon_that_is_not_ready_fails_its_probe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producerd.ctl.commands.AdminClient", lambda _: Daemon(node(unready="it drains")))
    assert ctl.main(["ready"]) == 1
    assert capsys.readouterr() == ("", "producerctl: not ready: it drains\n")


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["fly"],
        ["pause"],
        ["pause", ""],
        ["loglevel", "loud"],
        ["top", "--count", "-1"],
        ["drain", "a"],
        ["drain", "--timeout", "366d"],
    ],
)
def test_wrong_usage_exits_2(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ctl.main(command)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: producerctl")


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ctl.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"producerctl {__version__}\n"


def test_ctrl_c_exits_130_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("producerd.ctl.commands.AdminClient", interrupted)
    assert ctl.main(["status"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_profile_says_which_places_took_the_most_samples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks = {"a;b;c": 5, "c": 1, "a;b": 2, **{f"x;p{number:02}": 1 for number in range(12)}}
    daemon = Daemon({"samples": 20, "stacks": stacks})
    monkeypatch.setattr("producerd.ctl.commands.AdminClient", lambda _: daemon)
    assert ctl.main(["profile"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [f"{stack} {times}" for stack, times in stacks.items()]
    head = ["20 samples", "SHARE  SAMPLES  PLACE", "30.0%        6  c", "10.0%        2  b"]
    assert output.err.splitlines() == [*head, *(f" 5.0%        1  p{number:02}" for number in range(8))]
    assert daemon.asked == [("/profile", {"seconds": 10.0}, False)]
    daemon.reply = {"samples": 0, "stacks": {}}
    assert ctl.main(["profile"]) == 0
    assert capsys.readouterr() == ("", "0 samples\n")


@pytest.mark.parametrize(
    ("command", "reply", "shown"),
    [
        (
            ["drain"],
            {"returned_records": 0, "undelivered_records": 0, "streams": [stream(), stream(stream="b")]},
            "\r3,000 records left  ",
        ),
        (["profile", "--seconds", "1m"], {"samples": 0, "stacks": {}}, "\r3 of 60 s\r0 samples\n"),
    ],
)
def test_on_a_terminal_a_long_command_shows_how_far_it_is(
    command: list[str],
    reply: dict[str, Any],
    shown: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([100.0, 103.0])
    monkeypatch.setattr("producerd.ctl.profiling.time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr("producerd.ctl.commands.AdminClient", lambda _: Daemon(reply))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert ctl.main(command) == 0
    assert capsys.readouterr().err == shown
