"""`producerctl profile` and `bundle` tell what the daemon does, and nothing of what it carries."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from producerd import __version__, ctl
from producerd.ctl.daemon import AdminClient
from producerd.runtime import sampling
from producerd.runtime.sampling import OTHER_STACKS, StackSampler
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import FakeServer, serve_in_thread
from tests.daemon import DaemonProcess, daemon, one, session, until

PLACE = r"[^;\n]+:[^;\n]+:\d+"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeKinesis()
    fake.create_stream("flights", shards=2)
    with serve_in_thread(fake) as server:
        yield server


def admin_path(running: DaemonProcess) -> str:
    return str(running.socket.with_suffix(".admin.sock"))


def asked(running: DaemonProcess, *arguments: object) -> int:
    return ctl.main(["--admin-socket", admin_path(running), *map(str, arguments)])


# ---- bundle, without a daemon


def test_a_bundle_takes_the_name_of_any_file_of_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A name may have bytes that are not UTF-8, and each setting names its file."""
    reply = {"versions": {}, "settings": ["max_streams = 7  # file \udcff.toml"], "log": [], "metrics": ""}
    monkeypatch.setattr(AdminClient, "get", lambda *_: reply)
    assert ctl.main(["bundle", "--output", str(tmp_path / "b.tar.gz")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'b.tar.gz'}\n"
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        settings = archive.extractfile("producerd/settings.txt")
        assert settings is not None
        assert settings.read() == rb"max_streams = 7  # file \udcff.toml"


# ---- profile


@pytest.mark.promise("profile-time-ends-client")
def test_a_profile_is_stacks_of_places_and_how_often_each_was_seen(
    capsys: pytest.CaptureFixture[str], server: FakeServer, tmp_path: Path
) -> None:
    with daemon(server.url) as running, session(running) as client:
        client.put(one(b"the payload", b"the key"))
        client.acks(1)
        assert asked(running, "profile", "--seconds", "0.5", "--output", tmp_path / "stacks") == 0
        told = capsys.readouterr()
        assert asked(running, "profile", "--seconds", "0.1") == 0
        assert re.fullmatch(rf"({PLACE}(;{PLACE})* \d+\n)+", capsys.readouterr().out)
    lines = (tmp_path / "stacks").read_text().splitlines()
    assert all(re.fullmatch(rf"{PLACE}(;{PLACE})* \d+", line) for line in lines), lines
    assert any("asyncio/runners.py:Runner.run:" in line for line in lines)
    samples = sum(int(line.rpartition(" ")[2]) for line in lines)
    assert 10 < samples <= 50
    assert told.out == ""
    head, places = rf"{samples} samples\n *SHARE +SAMPLES  PLACE", rf"( *\d+\.\d% +\d+  {PLACE}\n)+"
    assert re.fullmatch(f"{head}\n{places}", told.err), told.err


@pytest.mark.promise("profile-time-ends-client")
def test_one_profile_at_a_time_and_it_ends_with_its_client(
    capsys: pytest.CaptureFixture[str], server: FakeServer
) -> None:
    with daemon(server.url) as running:
        command = [sys.executable, "-m", "producerd.ctl", "--admin-socket", admin_path(running)]
        long = subprocess.Popen([*command, "profile", "--seconds", "300"], stdout=subprocess.DEVNULL)
        try:
            until(lambda: " order path=/profile " in running.log)
            assert asked(running, "profile", "--seconds", "0.1") == 1
            assert capsys.readouterr().err == "producerctl: a profile is under way already\n"
        finally:
            long.kill()
            long.wait()
        until(lambda: asked(running, "profile", "--seconds", "0.1") == 0)


def test_a_profile_is_bounded_in_time(capsys: pytest.CaptureFixture[str], server: FakeServer) -> None:
    with daemon(server.url) as running:
        for seconds in ("301", "0"):
            assert asked(running, "profile", "--seconds", seconds) == 1
            assert "allowed: more than 0, at most 300" in capsys.readouterr().err


async def test_a_profile_shows_the_line_that_keeps_the_loop_busy() -> None:
    def work() -> None:
        until_ = time.monotonic() + 0.3
        while time.monotonic() < until_:
            sum(range(100))

    sampling_ = asyncio.create_task(StackSampler().sample(0.3))
    await asyncio.sleep(0)
    work()
    stacks = (await sampling_)["stacks"]
    (most, *_) = stacks
    assert re.search(r"tests/test_ctl_reports.py:[\w.<>]+work:\d+", most), stacks


async def test_a_profile_keeps_so_many_stacks_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon's memory is bounded, and a recursion may have any number."""
    monkeypatch.setattr(sampling, "MOST_STACKS", 0)
    told = await StackSampler().sample(0.1)
    assert told["stacks"] == {OTHER_STACKS: told["samples"]}


# ---- bundle

SECRETS = (b"the payload", b"the key", b"AKIDSECRET", b"hushhush", b"external-hush", b"variable-hush", b"bGF5bG9hZ")
"""What a record holds, also in base64, and what the daemon's environment and settings do."""


@pytest.mark.promise("bundle-report-needs")
def test_a_bundle_has_what_a_report_needs_and_neither_records_nor_secrets(
    capsys: pytest.CaptureFixture[str], server: FakeServer, tmp_path: Path
) -> None:
    environ = {"AWS_ACCESS_KEY_ID": "AKIDSECRET", "AWS_SECRET_ACCESS_KEY": "hushhush", "OTHERS": "variable-hush"}
    settings = tmp_path / "producerd.toml"
    settings.write_text(
        '[streams.partner]\nrole_arn = "arn:aws:iam::123456789012:role/x"\nexternal_id = "external-hush"\n'
    )
    file = tmp_path / "bundle.tar.gz"
    with daemon(server.url, environ=environ, options=["-c", str(settings)]) as running, session(running) as client:
        client.put(one(b"the payload", b"the key"))
        client.acks(1)
        client.put(one(b"the payload", b"the key", b"not a number"))
        client.acks(1)
        assert asked(running, "bundle", "--output", file) == 0
        assert capsys.readouterr().out == f"{file}\n"
        assert asked(running, "bundle", "--output", tmp_path / "no" / "place") == 1
        assert capsys.readouterr().err == f"producerctl: {tmp_path}/no/place: No such file or directory\n"
    assert file.stat().st_mode & 0o777 == 0o600
    unpacked = gzip.decompress(file.read_bytes())
    for secret in SECRETS:
        assert secret not in unpacked, secret
    with tarfile.open(file) as archive:
        texts = {name.removeprefix("producerd/"): partial(archive.extractfile, name) for name in archive.getnames()}
        read = {name: (text() or pytest.fail(name)).read().decode() for name, text in texts.items()}
    assert set(read) == {
        *("log.txt", "metrics.txt", "settings.txt"),
        *(f"{name}.json" for name in ("process", "shards", "status", "tasks", "threads", "versions")),
    }
    assert " producerd: serving version=" in read["log.txt"]
    assert "queue_limit = " in read["settings.txt"]
    assert 'external_id = "(set, not shown)"' in read["settings.txt"]
    assert 'producerd_delivered_records_total{stream="flights"} 1' in read["metrics.txt"]
    versions = json.loads(read["versions.json"])
    assert versions["producerd"] == versions["producerctl"] == __version__
    assert versions["botocore"]
    assert [stream["stream"] for stream in json.loads(read["status.json"])["streams"]] == ["flights"]
