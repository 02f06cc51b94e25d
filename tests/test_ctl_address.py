"""`producerctl` looks for the daemon where the same environment and the same file make the daemon listen."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from producerd import ctl
from producerd.config import load
from producerd.ctl.address import admin_paths, client_path

ENVIRONMENTS = [
    {"PRODUCERD_SOCKET": "/x/a.sock"},
    {"PRODUCERD_SOCKET": "/x/a"},
    {"PRODUCERD_SOCKET": "/x/.sock"},
    {"PRODUCERD_ADMIN_SOCKET": "/y/b"},
    {"PRODUCERD_SOCKET": "/x/a.sock", "PRODUCERD_ADMIN_SOCKET": "/y/b"},
    {"PRODUCERD_SOCKET": "/x/a.sock", "PRODUCERD_ADMIN_SOCKET": ""},
    {"PRODUCERD_ADMIN_SOCKET": ""},
    {},
]
FILES = ["", '\ufeffsocket = "/f/c.sock"\n', 'admin_socket = "/f/d"\n', 'socket = "/f/c.sock"\nadmin_socket = "/f/d"\n']


@pytest.mark.promise("looks-daemon-settings")
@pytest.mark.parametrize("text", FILES)
@pytest.mark.parametrize("environ", ENVIRONMENTS, ids=str)
def test_it_looks_where_the_daemon_s_settings_put_the_socket(
    tmp_path: Path, text: str, environ: dict[str, str]
) -> None:
    file = tmp_path / "producerd.toml"
    file.write_text(text)
    given = {**environ, "PRODUCERD_CONFIG": str(file)}
    assert admin_paths(given) == [str(load(environ=given).node.admin_path)]
    assert admin_paths(environ) == [str(load(environ=environ).node.admin_path)]
    default = str(load(environ={}).node.socket)
    assert (client_path(given) or default) == str(load(environ=given).node.socket)


@pytest.mark.parametrize("text", ["socket = ", "socket = 7", 'socket = "/"', "\udcff", "[" * 100_000, None])
def test_a_file_that_says_nothing_leaves_the_usual_places(tmp_path: Path, text: str | None) -> None:
    """The daemon refuses such a file, and another user may not read it."""
    file = tmp_path / "producerd.toml"
    if text is not None:
        file.write_bytes(text.encode(errors="surrogateescape"))
    environ = {"PRODUCERD_CONFIG": str(file), "XDG_RUNTIME_DIR": "/run/user/7"}
    assert admin_paths(environ) == [f"{place}/producerd/producerd.admin.sock" for place in ("/run", "/run/user/7")]


@pytest.mark.parametrize(("text", "why"), [("socket = ", "Invalid value"), (None, "No such file or directory")])
def test_where_no_daemon_answers_it_says_why_the_file_was_not_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, why: str
) -> None:
    file = tmp_path / "producerd.toml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("PRODUCERD_CONFIG", str(file))
    monkeypatch.setenv("PRODUCERD_SOCKET", str(tmp_path / "a.sock"))
    assert ctl.main(["status"]) == 1
    assert f"; PRODUCERD_CONFIG={file} cannot be read ({why}" in capsys.readouterr().err


def test_a_pipe_is_left_to_the_daemon() -> None:
    reader, writer = os.pipe()
    os.write(writer, b'socket = "/f/c.sock"\n')
    os.close(writer)
    assert client_path({"PRODUCERD_CONFIG": f"/dev/fd/{reader}"}) is None
    assert os.read(reader, 6) == b"socket"
    os.close(reader)


def test_a_python_without_tomllib_goes_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "producerd.toml").write_text('socket = "/f/c.sock"\n')
    monkeypatch.setitem(sys.modules, "tomllib", None)
    environ = {"PRODUCERD_CONFIG": str(tmp_path / "producerd.toml")}
    assert admin_paths(environ) == ["/run/producerd/producerd.admin.sock"]
    assert admin_paths({**environ, "PRODUCERD_SOCKET": "/x/a.sock"}) == ["/x/a.admin.sock"]
