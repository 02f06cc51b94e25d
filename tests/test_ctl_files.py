"""What `producerctl` writes appears whole or not at all, and shows nobody more than its mode says."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from producerd import ctl
from producerd.ctl.daemon import Failed
from producerd.ctl.files import whole_file
from tests.admin_stub import admin_socket
from tests.daemon import directory

BUNDLE = {"versions": {}, "settings": [], "log": [], "metrics": ""}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A file in a folder of its own that others may read."""
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "target"
    path.write_text("former")
    path.chmod(0o644)
    return path


@pytest.mark.promise("file-could-read-replaced")
def test_a_file_that_others_could_read_is_replaced_by_one_they_cannot(target: Path) -> None:
    with target.open() as opened_before, whole_file(str(target), 0o600) as file:
        file.write(b"new")
    assert opened_before.closed
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("new", 0o600)


def test_a_link_is_replaced_and_what_it_names_stays(target: Path) -> None:
    link = target.with_name("link")
    link.symlink_to(target)
    with whole_file(str(link), 0o600) as file:
        file.write(b"new")
    assert (link.is_symlink(), link.read_text(), target.read_text()) == (False, "new", "former")


@pytest.mark.promise("file-could-read-replaced")
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_former_file_and_no_other(target: Path, error: BaseException) -> None:
    def write() -> None:
        with whole_file(str(target), 0o600) as file:
            file.write(b"a part")
            raise error

    with pytest.raises((Failed, KeyboardInterrupt)):
        write()
    assert [(path.name, path.read_text()) for path in target.parent.iterdir()] == [("target", "former")]


def test_a_pipe_or_a_device_is_written_and_stays_what_it_is(tmp_path: Path) -> None:
    """As /dev/null, of which root could make a file."""
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with whole_file(str(tmp_path / "pipe"), 0o600) as file:
        file.write(b"text")
    assert os.read(reading, 100) == b"text"
    os.close(reading)
    assert (tmp_path / "pipe").is_fifo()


def test_a_place_where_nothing_can_be_written_fails_before_the_profile(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The command does not even ask the daemon: none is there."""
    command = ["--admin-socket", "/nonexistent/s", "profile", "--output"]
    assert ctl.main([*command, str(tmp_path / "no" / "place")]) == 1
    assert capsys.readouterr().err == f"producerctl: {tmp_path}/no/place: No such file or directory\n"


def test_two_bundles_of_one_second_have_names_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.gmtime", lambda: (2026, 1, 2, 3, 4, 5, 4, 2, 0))
    with directory() as path, admin_socket(path / "s", {"/bundle": BUNDLE}):
        for process in (17, 18):
            monkeypatch.setattr("os.getpid", lambda process=process: process)
            assert ctl.main(["--admin-socket", str(path / "s"), "bundle"]) == 0
    names = ["producerd-20260102T030405Z-17.tar.gz", "producerd-20260102T030405Z-18.tar.gz"]
    assert capsys.readouterr().out.splitlines() == names
    assert sorted(os.listdir(tmp_path)) == names


@pytest.mark.promise("bundle-standard-output", "bundle-standard-output-file")
def test_a_bundle_goes_to_the_standard_output_where_no_file_can_be_written(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """As in a container whose root file system is read-only."""
    with directory() as path, admin_socket(path / "s", {"/bundle": BUNDLE}):
        assert ctl.main(["--admin-socket", str(path / "s"), "bundle", "--output", "-"]) == 0
    unpacked = gzip.decompress(capsysbinary.readouterr().out)  # which refuses any text next to the archive
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as archive:
        assert "producerd/log.txt" in archive.getnames()
