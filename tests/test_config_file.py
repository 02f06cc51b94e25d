"""A configuration is read from a file or a pipe, in bounded time and memory, and from nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from producerd.config import file, load
from producerd.errors import ConfigurationError


def problem(path: Path | str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(Path(path), (), {})
    (line,) = caught.value.problems
    return line


def piped(text: bytes) -> Path:
    """A pipe whose writer has written and gone, as after a process substitution."""
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    return Path(f"/dev/fd/{reader}")


def test_a_byte_order_mark_is_no_part_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(b"\xef\xbb\xbfmax_streams = 7\n")
    assert load(path, (), {}).node.max_streams == 7


@pytest.mark.promise("pipe-read-once-end")
def test_a_pipe_is_read_once_to_its_end() -> None:
    """A reload of a daemon must not take the empty pipe for an empty file, and all settings back to their defaults."""
    pipe = piped(b"max_streams = 7\n")
    assert load(pipe, (), {}).node.max_streams == 7
    assert problem(pipe) == f"file {pipe}: cannot be read: the pipe gave nothing; it can be read only once"
    os.close(int(pipe.name))


def test_a_named_pipe_may_get_its_writer_later_and_give_pieces(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with subprocess.Popen(["sh", "-c", f"{{ printf max_streams; sleep 0.1; printf ' = 7'; }} > {path}"]):
        assert load(path, (), {}).node.max_streams == 7


@pytest.mark.promise("pipe-read-once-end")
def test_a_pipe_without_an_end_is_refused_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "PIPE_SECONDS", 0.1)
    monkeypatch.setattr(file, "MOST_BYTES", 1_000)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    late = f"file {path}: cannot be read: the pipe had no end within 0.1 s"
    assert problem(path) == late, "without a writer"
    with subprocess.Popen(["sh", "-c", f"while printf '#'; do sleep 0.02; done > {path}"]):
        assert problem(path) == late


def test_a_file_and_a_pipe_that_are_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of them is read than it takes to see that: the pipe has no end, and the file more than any memory."""
    monkeypatch.setattr(file, "MOST_BYTES", 1 << 10)
    monkeypatch.setattr(file, "_PIECE_BYTES", 1 << 8)
    path = tmp_path / "p.toml"
    path.write_text("#" * (1 << 10))
    load(path, (), {})
    os.truncate(path, 1 << 40)
    reader, writer = os.pipe()
    os.write(writer, b"#" * ((1 << 10) + 1))
    for each in (path, Path(f"/dev/fd/{reader}")):
        assert problem(each) == f"file {each}: cannot be read: it has more than 0 MiB"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(device: str) -> None:
    assert problem(device) == f"file {device}: cannot be read: it is a device; allowed: a file or a pipe"
