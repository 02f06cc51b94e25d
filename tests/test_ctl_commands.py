"""Each command of `producerctl` asks the daemon one thing, says its answer in words, and exits with 1 if it failed."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from producerd import __version__, ctl
from tests.ctl_asking import Replies, node, shard, stream
from tests.snapshots import Snapshot

ENDED = {"records": 1_001, "delivered": 1_001, "not_stored": 0, "unknown": 0, "returned": 0, "open": 0}
NONE = {"records": 0, "delivered": 0, "not_stored": 0, "unknown": 0, "returned": 0, "open": 0}


COMMANDS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
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
    ("drain --wait", ("/drain", {"timeout_seconds": None}, True), {"returned_records": 0, "undelivered_records": 0}),
    (
        "drain --timeout 2h",
        ("/drain", {"timeout_seconds": 7_200.0}),
        {"returned_records": 1, "undelivered_records": 0},
    ),
    ("drain", ("/drain", {"timeout_seconds": None}), {"returned_records": 1, "undelivered_records": 1_002}),
    ("status", ("/status",), node(stream())),
    ("shards a/b", ("/streams/a%2Fb/shards",), {"shards": [shard(1, waiting_records=1), shard(2)]}),
    ("ready", ("/status",), node()),
    ("ready", ("/status",), node(unready="it drains")),
]
"""Commands, what each asks of the daemon, and the daemon's reply."""


def test_a_command_asks_the_daemon_once_and_says_its_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    lines = []
    for command, asked, reply in COMMANDS:
        daemon = Replies(reply).serve(monkeypatch)
        code = ctl.main(command.split())
        output = capsys.readouterr()
        assert daemon.asked == [*[("/status",)] * command.startswith("drain"), asked], "how long a drain may take"
        assert code == output.err.count("\n"), "it fails if there is a line on stderr"
        lines += [f"$ producerctl {command}" + f"  # {reply}" * (len(asked) > 1), output.out + output.err]
    snapshot("ctl_orders", "\n".join(lines))


@pytest.mark.parametrize(
    ("command", "told", "seconds"),
    [
        ("drain", {"drain_timeout_seconds": 40}, 80),
        ("drain --timeout 2", {"drain_timeout_seconds": 40}, 42),
        ("drain", {}, None),
    ],
)
def test_a_drain_is_awaited_while_the_daemon_may_take_for_it(
    command: str, told: dict[str, Any], seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It delivers its queues until the time-out, and then has `drain_timeout_seconds` for what is in flight."""
    done = {"returned_records": 0, "undelivered_records": 0}
    daemon = Replies(done, by_target={"/status": node(**told)}).serve(monkeypatch)
    assert ctl.main(command.split()) == 0
    assert daemon.may_take_seconds == seconds


@pytest.mark.parametrize(
    ("command", "reply"),
    [("status --json", node(stream())), ("shards a --json", {"stream": "a", "shards": []}), ("dump", {"x": [1]})],
)
def test_an_answer_for_programs_is_the_daemon_s_json(
    command: str, reply: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Replies(reply).serve(monkeypatch)
    assert ctl.main(command.split()) == 0
    assert json.loads(capsys.readouterr().out) == reply


NO_TIME = "allowed: a time such as 90, 90s, 10m, 2h, 1d"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([], "arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["pause"], "arguments are required: STREAM"),
        (["loglevel", "loud"], "invalid choice: 'loud'"),
        (["top", "--count", "-1"], "argument --count"),
        (["drain", "a"], "unrecognized arguments: a"),
        (["drain", "--timeout", "366d"], NO_TIME),
        *(
            (["loglevel", "debug", f"--for={given}"], f"{given!r}: {NO_TIME}")
            for given in ("10x", "-1", "", "1h30", "366d", "99999999999999d", "9" * 400)
        ),
        *(([command, ""], "a stream's name is not empty") for command in ("shards", "flush", "pause", "resume", "put")),
    ],
)
def test_wrong_usage_exits_2(command: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        ctl.main(command)
    told = capsys.readouterr().err
    assert told.startswith("usage: producerctl")
    assert said in told


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
    daemon = Replies({"samples": 20, "stacks": stacks}, {"samples": 0, "stacks": {}}).serve(monkeypatch)
    assert ctl.main(["profile"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [f"{stack} {times}" for stack, times in stacks.items()]
    head = ["20 samples", "SHARE  SAMPLES  PLACE", "30.0%        6  c", "10.0%        2  b"]
    assert output.err.splitlines() == [*head, *(f" 5.0%        1  p{number:02}" for number in range(8))]
    assert daemon.asked == [("/profile", {"seconds": 10.0})]
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
    Replies(reply).serve(monkeypatch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert ctl.main(command) == 0
    assert capsys.readouterr().err == shown
