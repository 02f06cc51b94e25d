"""./dev sets itself up once and completely, picks a Java that Spark runs on, and leaves nothing running.

The set-up itself, from an empty home, is what every run of the tests begins with; here its decisions are shown.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent


def load(path: Path) -> Any:
    """A fresh ./dev as a module: it has no .py at its end, and its state belongs to one test."""
    spec = importlib.util.spec_from_loader("dev_script", SourceFileLoader("dev_script", str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def dev(tmp_path: Path) -> Any:
    """A ./dev in a folder of its own, with a lock."""
    folder = tmp_path / "tree"
    folder.mkdir()
    shutil.copy(ROOT / "dev", folder)
    (folder / "requirements.lock").write_text("setuptools==1 \\\n    --hash=sha256:00\n    # via x\nmoto==2\n")
    return load(folder / "dev")


# -- Java ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_java(tmp_path: Path) -> Callable[[str], Path]:
    """Make a JAVA_HOME whose java tells the version that it is given."""

    def make(version: str) -> Path:
        home = tmp_path / f"java-{version}"
        (home / "bin").mkdir(parents=True)
        java = home / "bin" / "java"
        java.write_text(f"#!/usr/bin/env bash\necho 'openjdk version \"{version}\" 2025-01-21' >&2\n")
        java.chmod(0o755)
        return home

    return make


@pytest.mark.parametrize("version", ["17.0.15", "21", "21.0.8", "25-ea"])
def test_a_suitable_java_home_is_used(dev: Any, fake_java: Callable[[str], Path], version: str) -> None:
    env = {"JAVA_HOME": str(fake_java(version)), "PATH": "/nonexistent"}
    dev.choose_java(env)
    assert env["JAVA_HOME"].endswith(f"java-{version}")


@pytest.mark.parametrize(("version", "feature"), [("1.8.0_392", 8), ("11.0.2", 11), ("26", 26)])
def test_an_unsupported_java_home_is_not_used_and_one_line_says_so(
    dev: Any, fake_java: Callable[[str], Path], capsys: pytest.CaptureFixture[str], version: str, feature: int
) -> None:
    home = fake_java(version)
    env = {"JAVA_HOME": str(home), "PATH": "/nonexistent"}
    dev.choose_java(env)
    assert env["JAVA_HOME"] == str(dev.VENV / "java")
    (line,) = capsys.readouterr().err.splitlines()
    assert f"JAVA_HOME={home} is Java {feature}: not used" in line


def test_a_java_home_without_a_java_is_not_used(dev: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = {"JAVA_HOME": str(tmp_path), "PATH": "/nonexistent"}
    dev.choose_java(env)
    assert env["JAVA_HOME"] == str(dev.VENV / "java")
    assert "has no bin/java that runs" in capsys.readouterr().err


def test_a_suitable_java_on_the_path_is_used(dev: Any, fake_java: Callable[[str], Path]) -> None:
    env = {"PATH": f"{fake_java('17.0.1') / 'bin'}:{os.environ['PATH']}"}
    dev.choose_java(env)
    assert "JAVA_HOME" not in env


def test_an_unsupported_java_home_leaves_the_one_on_the_path(dev: Any, fake_java: Callable[[str], Path]) -> None:
    env = {"JAVA_HOME": str(fake_java("11.0.2")), "PATH": f"{fake_java('21.0.8') / 'bin'}:{os.environ['PATH']}"}
    dev.choose_java(env)
    assert "JAVA_HOME" not in env


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_an_unsupported_java_on_the_path_is_not_used(dev: Any, fake_java: Callable[[str], Path], version: str) -> None:
    env = {"PATH": f"{fake_java(version) / 'bin'}:{os.environ['PATH']}"}
    dev.choose_java(env)
    assert env["JAVA_HOME"] == str(dev.VENV / "java")


def test_the_shim_drops_one_argument_and_keeps_the_others(dev: Any, tmp_path: Path) -> None:
    real = tmp_path / "a folder with spaces" / "java"
    real.parent.mkdir()
    real.write_text('#!/usr/bin/env bash\nprintf "<%s>" "$@"\nexit 7\n')
    real.chmod(0o755)
    shim = tmp_path / "shim"
    shim.write_text(dev.java_shim(real))
    shim.chmod(0o755)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "--add-modules=java.sql", "*"]
    done = subprocess.run([shim, *arguments], capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout == "<-Xmx1g><-Da=b c><><--add-modules=java.sql><*>"
    assert done.returncode == 7


def test_spark_finds_this_python_and_itself(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/another/spark")
    env = dev.environment()
    assert env["PYSPARK_PYTHON"] == env["PYSPARK_DRIVER_PYTHON"] == str(dev.ROOT / ".venv" / "bin" / "python")
    assert env["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_HOME" not in env


# -- set-up ----------------------------------------------------------------------------------------------------------


def test_the_stamp_changes_with_the_lock_the_python_and_the_folder(
    dev: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stamps = [dev.stamp()]
    assert dev.stamp() == stamps[0]
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    stamps.append(dev.stamp())
    dev.LOCK.write_text("moto==3\n")
    stamps.append(dev.stamp())
    dev.ROOT = tmp_path
    stamps.append(dev.stamp())
    assert len(set(stamps)) == 4


def half_made(dev: Any) -> Path:
    """An environment whose set-up was interrupted: all but the stamp."""
    dev.PYTHON.parent.mkdir(parents=True)
    dev.PYTHON.symlink_to(sys.executable)
    leftover = Path(dev.VENV / "leftover")
    leftover.touch()
    return leftover


def test_a_finished_set_up_is_not_done_again(dev: Any) -> None:
    leftover = half_made(dev)
    (dev.VENV / "stamp").write_text(dev.stamp())
    dev.run = None  # calling it would raise
    dev.set_up()
    assert leftover.exists()


@pytest.mark.parametrize("stamp", ["of another lock", None])
def test_an_old_or_half_made_environment_is_made_anew(
    dev: Any, stamp: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leftover = half_made(dev)
    if stamp:
        (dev.VENV / "stamp").write_text(stamp)
    commands = stand_in_for_run(dev, monkeypatch)
    dev.set_up()
    assert not leftover.exists()
    assert [("venv" in command, "--require-hashes" in command) for command in commands] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    assert (dev.VENV / "stamp").read_text() == dev.stamp()
    packages = dev.VENV / "lib" / "python3.11" / "site-packages"
    assert (packages / "producerd.pth").read_text() == f"{dev.ROOT}\n"
    assert os.access(dev.VENV / "bin" / "producerd", os.X_OK)
    assert os.access(dev.VENV / "java" / "bin" / "java", os.X_OK)
    assert not (dev.VENV / "tmp").exists()
    assert re.search(r"downloads about \d+ MB.* to \S+/\.venv", capsys.readouterr().out)


def test_a_set_up_that_fails_leaves_no_stamp(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    half_made(dev)
    (dev.VENV / "stamp").write_text("of another lock")
    stand_in_for_run(dev, monkeypatch, code_of_the_last=1)
    with pytest.raises(SystemExit, match="set-up failed"):
        dev.set_up()
    assert not (dev.VENV / "stamp").exists()


@pytest.mark.parametrize(("version", "suffices"), [("22.2.2", False), ("22.3", True), ("9.0.1", False), ("23.0", True)])
def test_a_pip_that_cannot_install_elsewhere_is_refused(
    dev: Any, version: str, suffices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = stand_in_for_run(dev, monkeypatch, pip=version)
    if not suffices:
        with pytest.raises(SystemExit, match=r"older than 22\.3"):
            dev.set_up()
    else:
        dev.set_up()
    assert bool(commands) == suffices


def stand_in_for_run(
    dev: Any, monkeypatch: pytest.MonkeyPatch, code_of_the_last: int = 0, pip: str = "23.0.1"
) -> list[list[str]]:
    """Let set_up run nothing but say what it would, and find this pip."""
    commands: list[list[str]] = []

    def run(command: list[str], env: dict[str, str] | None = None, **_: object) -> int:
        commands.append(command)
        if "pip" in command:  # /tmp may be too small for Spark
            assert env is not None
            assert env["TMPDIR"] == str(dev.VENV / "tmp")
        (dev.VENV / "lib" / "python3.11" / "site-packages").mkdir(parents=True, exist_ok=True)
        (dev.VENV / "bin").mkdir(exist_ok=True)
        return code_of_the_last if "--no-build-isolation" in command else 0

    def found_pip(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, stdout=f"pip {pip} from /somewhere/python3.11")

    monkeypatch.setattr(dev, "run", run)
    monkeypatch.setattr(subprocess, "run", found_pip)
    return commands


def test_a_python_without_pip_gets_one_clear_line(dev: Any, tmp_path: Path) -> None:
    python = tmp_path / "bare" / "bin" / "python3"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    done = subprocess.run([python, dev.ROOT / "dev", "test"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "has no pip" in line
    assert not dev.VENV.exists()


def test_an_old_python_hands_over_to_a_newer_one(dev: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    monkeypatch.setattr(sys, "argv", ["dev", "test", "-x"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer"):
        dev.use_new_enough_python()
    (tmp_path / "python3.12").touch(mode=0o755)
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append((path, arguments)))
    with pytest.raises(SystemExit):  # a real execv does not return
        dev.use_new_enough_python()
    newer = str(tmp_path / "python3.12")
    assert started == [(newer, [newer, str(dev.ROOT / "dev"), "test", "-x"])]


def test_the_lock_names_no_index_and_no_path_and_hashes_everything() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-\w|--(?!hash=sha256:))", text, re.MULTILINE)  # an option, such as --find-links
    assert not re.search(r"(^|[\s@])(/|\./|~/|file:)", text)
    blocks = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
    assert len(blocks) > 50
    for block in blocks:
        assert re.match(r"[\w-]+==[\w.]+( ; [^\n]+)? \\\n    --hash=sha256:[0-9a-f]{64}", block), block


def test_the_lock_holds_everything_that_the_project_asks_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {re.split(r"[^\w-]", requirement)[0] for extra in extras.values() for requirement in extra}
    locked = set(re.findall(r"^([\w-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert asked - locked == {"producerd"}


def test_a_bare_install_has_no_dependencies_and_the_spark_extra_no_spark() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert project["requires-python"] == ">=3.9"
    assert not any("pyspark" in requirement for requirement in project["optional-dependencies"]["spark"])
    for extra in ("daemon", "demo", "dev"):
        for requirement in project["optional-dependencies"][extra]:
            assert "python_version >= '3.11'" in requirement


# -- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["nonsense"], []])
def test_an_unknown_command_shows_the_usage_and_sets_nothing_up(dev: Any, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, dev.ROOT / "dev", *arguments], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ./dev COMMAND\n")
    assert all(f"\n  {name} " in done.stderr for name in dev.COMMANDS)
    assert not dev.VENV.exists()


def test_help_is_no_error(dev: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: ./dev COMMAND\n")


def test_slow_tests_run_with_all_only(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = stand_in_for_run(dev, monkeypatch)
    monkeypatch.setattr(dev, "environment", dict)
    dev.test(["-x", "tests/test_dev.py"])
    dev.test(["--all", "-x"])
    pytest_command = [str(dev.PYTHON), "-m", "pytest"]
    assert commands == [[*pytest_command, "-m", "not slow", "-x", "tests/test_dev.py"], [*pytest_command, "-x"]]


def test_check_goes_on_after_a_failure_and_fails(dev: Any, capsys: pytest.CaptureFixture[str]) -> None:
    dev.run = lambda command: int("mypy" in command)
    assert dev.check([]) == 1
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["ok", "format"],
        ["ok", "lint"],
        ["FAILED", "types"],
        ["ok", "arrows"],
        ["ok", "python 3.9"],
    ]
    dev.run = lambda _command: 0
    assert dev.check([]) == 0


def test_the_same_tree_gives_the_same_zip_with_the_clients_side_alone(dev: Any, tmp_path: Path) -> None:
    for name in [
        "spark_client/__init__.py", "spark_client/py.typed", "spark_client/__pycache__/x.cpython-311.pyc",
        "producerd/__init__.py", "producerd/errors.py", "producerd/py.typed", "producerd/wire/frames.py",
        "producerd/core/lanes.py", "producerd/config.py", "pyspark_producerd.py", "tests/test_x.py",
    ]:  # fmt: skip
        path = dev.ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    dev.write_client_zip(tmp_path / "1.zip")
    os.utime(dev.ROOT / "pyspark_producerd.py", (10**9, 10**9))
    dev.write_client_zip(tmp_path / "2.zip")
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    assert sorted(zipfile.ZipFile(tmp_path / "1.zip").namelist()) == [
        "producerd/__init__.py",
        "producerd/errors.py",
        "producerd/py.typed",
        "producerd/wire/frames.py",
        "pyspark_producerd.py",
        "spark_client/__init__.py",
        "spark_client/py.typed",
    ]


# -- signals ---------------------------------------------------------------------------------------------------------

# The grandchild holds our pipe: its end is seen when it has ended, and not before.
DRIVER = """
import sys
from importlib.machinery import SourceFileLoader
dev = SourceFileLoader("dev_script", sys.argv[1]).load_module()
dev.set_up = lambda: None
dev.GRACE_SECONDS = 1
dev.COMMANDS["wait"] = lambda arguments: dev.run(["bash", "-c", arguments[0]])
sys.exit(dev.main(["wait", sys.argv[2]]))
"""


def start(dev: Any, script: str, driver: str = DRIVER) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", driver, str(dev.ROOT / "dev"), script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "script",
    ["sleep 1000 & echo started; wait", "trap '' INT TERM; sleep 1000 & echo started; wait; wait"],
    ids=["obedient", "deaf"],
)
def test_an_interrupt_ends_everything_that_was_started(dev: Any, signum: signal.Signals, script: str) -> None:
    with start(dev, script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signum)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (128 + signum, "", "")


def test_what_a_command_leaves_running_ends_with_it(dev: Any) -> None:
    with start(dev, "sleep 1000 & exit 5") as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (5, "", "")


def test_a_signal_while_the_command_is_being_born_ends_it(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        child = popen(*arguments, **options)
        dev.on_signal(signal.SIGTERM, None)
        return child

    dev.GRACE_SECONDS = 0  # no alarm for the tests' own process
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        dev.run(["sleep", "1000"])


@pytest.mark.parametrize(("tidies_up", "told"), [(True, "INT"), (False, "TERM")])
def test_only_a_command_that_tidies_up_is_told_of_ctrl_c(dev: Any, tidies_up: bool, told: str) -> None:
    driver = DRIVER.replace("arguments[0]])", f"arguments[0]], tidies_up={tidies_up})")
    script = 'for s in INT TERM; do trap "echo $s; exit" $s; done; echo started; while :; do sleep 0.05; done'
    with start(dev, script, driver) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, f"{told}\n")
