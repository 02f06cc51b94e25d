"""`producerctl profile` and `bundle` tell what the daemon does, and nothing of what it carries."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from producerd import __version__, ctl
from producerd.ctl.daemon import AdminClient
from producerd.testing import FakeKinesis
from producerd.testing.fake_kinesis import serve_in_thread
from tests.ctl_asking import Asking
from tests.daemon import DaemonProcess, daemon, one, session, until

PLACE = r"[^;\n]+:[^;\n]+:\d+"


SECRETS = (b"the payload", b"the key", b"AKIDSECRET", b"hushhush", b"external-hush", b"variable-hush", b"bGF5bG9hZ")
"""What a record holds, also in base64, and what the daemon's environment and settings do."""
ENVIRON = {"AWS_ACCESS_KEY_ID": "AKIDSECRET", "AWS_SECRET_ACCESS_KEY": "hushhush", "OTHERS": "variable-hush"}
SETTINGS = '[streams.partner]\nrole_arn = "arn:aws:iam::123456789012:role/x"\nexternal_id = "external-hush"\n'


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that has stored a record and refused another one."""
    file = tmp_path_factory.mktemp("settings") / "producerd.toml"
    file.write_text(SETTINGS)
    fake = FakeKinesis()
    fake.create_stream("flights", shards=2)
    with (
        serve_in_thread(fake) as server,
        daemon(server.url, environ=ENVIRON, options=["-c", str(file)]) as running,
        session(running) as client,
    ):
        client.put(one(b"the payload", b"the key"))
        client.acks(1)
        client.put(one(b"the payload", b"the key", b"not a number"))
        client.acks(1)
        yield running


@pytest.fixture
def to(running: DaemonProcess, capsys: pytest.CaptureFixture[str]) -> Asking:
    return Asking(capsys, running)


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
def test_a_profile_is_stacks_of_places_and_how_often_each_was_seen(to: Asking, tmp_path: Path) -> None:
    code, out, err = to("profile", "--seconds", "0.5", "--output", tmp_path / "stacks")
    assert (code, out) == (0, "")
    lines = (tmp_path / "stacks").read_text().splitlines()
    assert all(re.fullmatch(rf"{PLACE}(;{PLACE})* \d+", line) for line in lines), lines
    assert any("asyncio/runners.py:Runner.run:" in line for line in lines)
    samples = sum(int(line.rpartition(" ")[2]) for line in lines)
    assert 10 < samples <= 50
    head, places = rf"{samples} samples\n *SHARE +SAMPLES  PLACE", rf"( *\d+\.\d% +\d+  {PLACE}\n)+"
    assert re.fullmatch(f"{head}\n{places}", err), err
    assert re.fullmatch(rf"({PLACE}(;{PLACE})* \d+\n)+", to("profile", "--seconds", "0.1")[1])


@pytest.mark.promise("profile-time-ends-client")
def test_one_profile_at_a_time_of_a_bounded_length_and_it_ends_with_its_client(
    running: DaemonProcess, to: Asking
) -> None:
    for seconds in ("301", "0"):
        code, _, err = to("profile", "--seconds", seconds)
        assert code == 1
        assert "allowed: more than 0, at most 300" in err
    command = [sys.executable, "-m", "producerd.ctl", "--admin-socket", to.admin, "profile", "--seconds", "300"]
    long = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(lambda: "producerd/runtime/sampling.py" in to.succeeds("dump"))
        until(lambda: f" order path=/profile uid={os.getuid()} pid={long.pid}" in running.log)
        assert to("profile", "--seconds", "0.1") == (1, "", "producerctl: a profile is under way already\n")
    finally:
        long.kill()
        long.wait()
    until(lambda: to("profile", "--seconds", "0.1")[0] == 0)


# ---- bundle


@pytest.mark.promise("bundle-report-needs")
def test_a_bundle_has_what_a_report_needs_and_neither_records_nor_secrets(to: Asking, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    assert to.succeeds("bundle", "--output", file) == f"{file}\n"
    nowhere = f"{tmp_path}/no/place"
    assert to("bundle", "--output", nowhere) == (1, "", f"producerctl: {nowhere}: No such file or directory\n")
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
