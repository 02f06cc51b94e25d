"""Where the code of a daemon is found that a task starts.  tests/spark/test_pex.py starts one from it."""

from __future__ import annotations

import os
import platform
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from producerd import __version__
from producerd.errors import ConfigurationError
from spark_client.daemon_code import DaemonCode, find

OWN_MINOR = sys.version_info[1]
OTHER, NEWER = OWN_MINOR + 1, OWN_MINOR + 2
MACHINE = platform.machine()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of Spark's files."""
    folder = tmp_path / "files"
    folder.mkdir()
    its = SimpleNamespace(SparkFiles=SimpleNamespace(getRootDirectory=lambda: str(folder)))
    monkeypatch.setitem(sys.modules, "pyspark.files", its)
    return folder


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def pex(folder: Path, minor: int, version: str = __version__, machine: str = MACHINE) -> Path:
    folder.mkdir(exist_ok=True)
    made = folder / f"producerd-{version}-cp3{minor}-{machine}.pex"
    zipfile.ZipFile(made, "w").close()
    return made


def interpreter(folder: Path, minor: int, code: int = 0) -> str:
    """A stand-in for an interpreter: it starts, or as pyenv's for a version that is not there, it does not."""
    made = folder / f"python3.{minor}"
    made.write_text(f"#!/bin/sh\necho noise; echo noise >&2; exit {code}\n")
    made.chmod(0o755)
    return str(made)


def from_pex(python: str, path: Path, root: Path) -> DaemonCode:
    variables = {"PEX_ROOT": f"{root}/.producerd-pex", "PEX_IGNORE_RCFILES": "1", "PEX_EMIT_WARNINGS": "0"}
    return DaemonCode((python, "-I", str(path)), variables)


def test_a_command_is_taken_as_it_is(files: Path) -> None:
    pex(files, OWN_MINOR)
    assert find(["python3.12", "-m", "producerd"], files) == DaemonCode(["python3.12", "-m", "producerd"], {})


@pytest.mark.parametrize("where", ["no Spark", "no session", "no pex"])
def test_without_a_pex_it_is_this_python_s(where: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "producerd-notes.txt").touch()
    if where == "no Spark":
        monkeypatch.delitem(sys.modules, "pyspark.files")
    elif where == "no session":
        monkeypatch.setattr(sys.modules["pyspark.files"].SparkFiles, "getRootDirectory", lambda: 1 / 0)
    assert find((), files) == DaemonCode((sys.executable, "-I", "-m", "producerd"), {})


def test_the_one_for_this_python_comes_first(files: Path, path: Path) -> None:
    pex(files, OTHER)
    interpreter(path, OTHER)
    own = pex(files, OWN_MINOR)
    assert find((), files) == from_pex(sys.executable, own, files)


def test_else_the_newest_whose_python_starts(files: Path, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (files / "producerd-of-somebody.pex").touch()
    _, newer, _ = (pex(files, minor) for minor in (OTHER, NEWER, NEWER + 1))
    interpreter(path, OTHER)
    interpreter(path, NEWER + 1, code=127)
    works = interpreter(path, NEWER)
    assert find((), files) == from_pex(works, newer, files)
    assert capfd.readouterr() == ("", "")


def test_it_may_be_in_an_archive(files: Path) -> None:
    own = pex(files / "tools", OWN_MINOR)
    assert find((), files) == from_pex(sys.executable, own, files / "tools")


def test_spark_s_folder_may_be_relative_as_an_executor_s_is(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = pex(files, OWN_MINOR)
    monkeypatch.setattr(sys.modules["pyspark.files"].SparkFiles, "getRootDirectory", lambda: ".")
    monkeypatch.chdir(files)
    assert find((), files) == from_pex(sys.executable, own, files), "the daemon has another folder"


def test_it_is_unpacked_elsewhere_if_nobody_may_write_next_to_it(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = pex(files, OWN_MINOR)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may always
    assert find((), tmp_path) == from_pex(sys.executable, own, tmp_path)


@pytest.mark.promise("run-here-error-says", "executors-lack-daemon-packages-start")
@pytest.mark.parametrize(
    ("minor", "version", "machine"),
    [(OTHER, __version__, MACHINE), (OWN_MINOR, "9.9", MACHINE), (OWN_MINOR, __version__, "pdp11")],
)
def test_what_does_not_run_here_is_an_error_that_says_what_does(
    minor: int, version: str, machine: str, files: Path, path: Path
) -> None:
    shipped = pex(files, minor, version, machine)
    with pytest.raises(ConfigurationError) as caught:
        find((), files)
    said = str(caught.value)
    assert f"none of Spark's files {shipped.name} runs on host " in said
    needs = f"which needs producerd-{__version__}-cp3N-{MACHINE}.pex for Python {platform.python_version()} or for a "
    assert needs in said


def test_a_part_of_a_pex_is_an_error(files: Path) -> None:
    own = pex(files, OWN_MINOR)
    own.write_bytes(b"PK")
    with pytest.raises(ConfigurationError, match=rf"{own} on host .* is not a whole pex"):
        find((), files)
