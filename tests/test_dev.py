"""./dev sets itself up once and completely, picks a Java that Spark runs on, and leaves nothing running.

The set-up itself, from an empty home, is what every run of the tests begins with; here its decisions are shown.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import ROOT, commands, environments, testing
from tools.environments import LANES, OWN, Environment, find_python, set_up, stamp, variables
from tools.java import choose_java, java_shim
from tools.packaging import write_client_zip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LANE_LOCKS = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").glob("*.lock"))]


# -- Java ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_java(tmp_path: Path) -> Callable[[str], Path]:
    """Make a JAVA_HOME whose java tells the version that it is given."""

    def make(version: str) -> Path:
        home = tmp_path / f"java-{version}"
        (home / "bin").mkdir(parents=True)
        java = home / "bin" / "java"
        java.write_text(f"#!/usr/bin/env bash\necho 'openjdk version \"{version}\" 2025-01-21' >&2\n")
        java.chmod(0o755 if version else 0o644)
        return home

    return make


OWN_JAVA = Path("/own/java")


@pytest.mark.parametrize(
    ("spark", "version", "found"),
    [
        ("", "17.0.15", "used"),
        ("", "21", "used"),
        ("", "25-ea", "used"),
        ("", "1.8.0_392", "is Java 8: not used"),
        ("", "11.0.2", "is Java 11: not used"),
        ("", "26", "is Java 26: not used"),
        ("", "", "has no bin/java that runs"),
        ("3.5", "1.8.0_392", "used"),
        ("3.5", "17.0.1", "used"),
        ("3.5", "21", "is Java 21: not used"),
    ],
)
def test_a_java_home_is_used_if_that_spark_runs_on_it_and_otherwise_one_line_says_why_not(
    fake_java: Callable[[str], Path], capsys: pytest.CaptureFixture[str], spark: str, version: str, found: str
) -> None:
    home = fake_java(version)
    env = {"JAVA_HOME": str(home), "PATH": "/nonexistent"}
    choose_java(env, (LANES[spark] if spark else OWN).java, OWN_JAVA)
    lines = capsys.readouterr().err.splitlines()
    assert env["JAVA_HOME"] == str(home if found == "used" else OWN_JAVA)
    assert [f"JAVA_HOME={home} {found}" in line for line in lines] == [True] * (found != "used")


@pytest.mark.parametrize(("version", "suits"), [("17.0.1", True), ("11.0.2", False)])
@pytest.mark.parametrize("home", ["", "11.0.1"])
def test_without_a_suitable_java_home_a_suitable_java_on_the_path_is_used(
    fake_java: Callable[[str], Path], version: str, suits: bool, home: str
) -> None:
    env = {"PATH": f"{fake_java(version) / 'bin'}:{os.environ['PATH']}"}
    if home:
        env["JAVA_HOME"] = str(fake_java(home))
    choose_java(env, OWN.java, OWN_JAVA)
    assert env.get("JAVA_HOME") == (None if suits else str(OWN_JAVA))


def test_the_shim_drops_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    real = tmp_path / "a folder with spaces" / "java"
    real.parent.mkdir()
    real.write_text('#!/usr/bin/env bash\nprintf "<%s>" "$@"\nexit 7\n')
    real.chmod(0o755)
    shim = tmp_path / "shim"
    shim.write_text(java_shim(real))
    shim.chmod(0o755)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "--add-modules=java.sql", "*"]
    done = subprocess.run([shim, *arguments], capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout == "<-Xmx1g><-Da=b c><><--add-modules=java.sql><*>"
    assert done.returncode == 7


def test_spark_finds_this_python_and_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/another/spark")
    env = variables()
    assert env["PYSPARK_PYTHON"] == env["PYSPARK_DRIVER_PYTHON"] == str(OWN.python)
    assert env["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_HOME" not in env


# -- set-up ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["", "3.5"], ids=["own", "Spark 3.5"])
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment to make: our own, or the environment for another Spark, whose Python is found."""
    monkeypatch.setattr(environments, "find_python", lambda version: f"/usr/bin/python{version}")
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    (tmp_path / "dev").touch()
    lock = tmp_path / "lock"
    lock.write_text("setuptools==1 \\\n    --hash=sha256:00\n    # via x\nmoto==2\n")
    like = LANES[request.param] if request.param else OWN
    return like._replace(folder=tmp_path / "environment", lock=lock)


def test_the_stamp_changes_with_the_lock_the_python_and_the_folder(made: Environment, tmp_path: Path) -> None:
    stamps = [stamp(made)]
    assert stamp(made) == stamps[0]
    stamps.append(stamp(made._replace(version="3.99")))
    stamps.append(stamp(made._replace(folder=tmp_path)))
    made.lock.write_text("moto==3\n")
    stamps.append(stamp(made))
    assert len(set(stamps)) == 4


def half_made(of: Environment) -> Path:
    """An environment whose set-up was interrupted: all but the stamp."""
    of.python.parent.mkdir(parents=True)
    of.python.symlink_to(sys.executable)
    leftover = Path(of.folder / "leftover")
    leftover.touch()
    return leftover


def test_a_finished_set_up_is_not_done_again(made: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    leftover = half_made(made)
    (made.folder / "stamp").write_text(stamp(made))
    monkeypatch.setattr(environments, "run", None)  # calling it would raise
    set_up(made)
    assert leftover.exists()


@pytest.mark.parametrize("old_stamp", ["of another lock", None])
def test_an_old_or_half_made_environment_is_made_anew(
    made: Environment, old_stamp: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leftover = half_made(made)
    if old_stamp:
        (made.folder / "stamp").write_text(old_stamp)
    commands = stand_in_for_run(made, monkeypatch)
    set_up(made)
    assert not leftover.exists()
    assert commands[0] == [f"/usr/bin/python{made.version}", "-m", "venv", "--without-pip", str(made.folder)]
    for command, lock in zip(commands[1:], ["/dev/stdin", str(made.lock)], strict=True):
        assert "--require-hashes" in command
        assert command[command.index("--python") + 1] == str(made.python)
        assert command[command.index("-r") + 1] == lock
    assert (made.folder / "stamp").read_text() == stamp(made)
    packages = made.folder / "lib" / f"python{made.version}" / "site-packages"
    assert (packages / "producerd.pth").read_text() == f"{made.lock.parent}\n"
    assert os.access(made.folder / "bin" / "producerd", os.X_OK)
    assert os.access(made.folder / "java" / "bin" / "java", os.X_OK)
    assert not (made.folder / "tmp").exists()
    assert re.search(rf"downloads about \d+ MB.* to {made.folder}$", capsys.readouterr().out, re.MULTILINE)


def test_a_set_up_that_fails_leaves_no_stamp(made: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    half_made(made)
    (made.folder / "stamp").write_text("of another lock")
    stand_in_for_run(made, monkeypatch, code_of_the_last=1)
    with pytest.raises(SystemExit, match="set-up failed"):
        set_up(made)
    assert not (made.folder / "stamp").exists()


@pytest.mark.parametrize("suits", ["ours", "our base's", "its own", "none"])
def test_the_pip_that_installs_is_one_that_can_for_this_python(
    made: Environment, suits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip --python` exists since 22.3, and a pip that is too new for a Python refuses to run under it."""
    base = os.path.realpath(sys.executable)
    pips = {"ours": [sys.executable], "our base's": [base], "its own": [f"/usr/bin/python{made.version}"], "none": []}
    owners = pips[suits]
    commands = stand_in_for_run(made, monkeypatch, pips=owners)
    if not owners:
        with pytest.raises(SystemExit, match=r"no pip, or one older than 22\.3"):
            set_up(made)
        assert not commands
        assert not made.folder.exists()
    else:
        set_up(made)
        assert {command[0] for command in commands[1:]} == set(owners)


def stand_in_for_run(
    made: Environment,
    monkeypatch: pytest.MonkeyPatch,
    code_of_the_last: int = 0,
    pips: Sequence[str] = (sys.executable,),
) -> list[list[str]]:
    """Let set_up run nothing but say what it would; `pips`: the Pythons whose pip can install for the one needed."""
    commands: list[list[str]] = []

    def run(command: list[str], env: dict[str, str] | None = None, **_: object) -> int:
        commands.append(command)
        if "pip" in command:  # /tmp may be too small for Spark
            assert env is not None
            assert env["TMPDIR"] == str(made.folder / "tmp")
        (made.folder / "lib" / f"python{made.version}" / "site-packages").mkdir(parents=True, exist_ok=True)
        (made.folder / "bin").mkdir(exist_ok=True)
        return code_of_the_last if "--no-build-isolation" in command else 0

    def asked(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["-m", "pip", "--python", f"/usr/bin/python{made.version}", "--version"]
        return subprocess.CompletedProcess([], 0 if command[0] in pips else 2)

    monkeypatch.setattr(environments, "run", run)
    monkeypatch.setattr(subprocess, "run", asked)
    return commands


def fake_python(path: Path, version: str) -> Path:
    """An interpreter that says it is of this version; without one it fails, as pyenv's shims may."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n[[ '{version}' ]] && echo '{version} {path}'\n")
    path.chmod(0o755)
    return path


def test_a_python_is_looked_for_on_the_path_and_among_pyenvs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours comes first, then the one on PATH if it runs and is of that version, then pyenv's newest that is."""
    system = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{tmp_path}:{system.replace('pyenv', 'elsewhere')}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    versions = tmp_path / "pyenv" / "versions"
    assert find_python(environments.OURS) == os.path.realpath(sys.executable)
    assert find_python("3.0") is None
    old = fake_python(versions / "3.0.9" / "bin" / "python3.0", "3.0.9")
    assert find_python("3.0") == str(old)
    new = fake_python(versions / "3.0.18" / "bin" / "python3.0", "3.0.18")
    fake_python(versions / "3.0.20" / "bin" / "python3.0", "")
    for wrong in ("", "3.1.0", "3.00.1"):
        fake_python(tmp_path / "python3.0", wrong)
        assert find_python("3.0") == str(new)
    assert find_python("3.0.9") == str(old)
    assert find_python("3.0.1") is None
    first = fake_python(tmp_path / "python3.0", "3.0.2")
    assert find_python("3.0") == find_python("3.0.2") == str(first)
    monkeypatch.setattr(environments, "PYTHONS", ("3.0", "3.1"))
    assert (find_python("oldest"), find_python("newest")) == (str(first), str(new))
    monkeypatch.setattr(environments, "PYTHONS", ("3.2",))
    assert find_python("oldest") is None


def test_a_command_starts_again_under_the_python_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment of that Python's own."""
    here = {"newest": "/python3.12", "3.11.2": "/usr/bin/python3.11"}
    started: list[tuple[list[str], str]] = []

    def execve(_: str, arguments: list[str], env: dict[str, str]) -> None:
        started.append((arguments, env[environments.OF_ITS_OWN]))
        raise SystemExit  # a real one does not return

    monkeypatch.setattr(environments, "find_python", here.get)
    monkeypatch.setattr(os, "execve", execve)
    for asked in (["--python", "newest"], ["--python=3.11.2"]):
        with pytest.raises(SystemExit):
            commands.main(["test", "-x", *asked, "tests/test_dev.py"])
    dev = [str(ROOT / "dev"), "test", "-x", "tests/test_dev.py"]
    assert started == [(["/python3.12", *dev], "newest"), (["/usr/bin/python3.11", *dev], "3.11.2")]


@pytest.mark.parametrize(
    ("version", "code", "said"),
    [
        ("3.10", 2, "--python 3.10: the daemon runs on Python 3.11, "),
        ("3.1", 2, "--python 3.1: the daemon runs on Python 3.11, "),
        ("3.12.99", 69, "--python 3.12.99: neither on PATH, "),
    ],
)
def test_a_python_that_is_not_supported_or_not_here_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str, code: int, said: str
) -> None:
    monkeypatch.setattr(environments, "find_python", lambda _version: None)
    with pytest.raises(SystemExit) as ended:
        commands.main(["demo", "--python", version])
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, line[: len("./dev: " + said)]) == (code, f"./dev: {said}")


def test_each_python_of_the_daemon_is_classified() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {name.rpartition(" ")[2] for name in project["classifiers"] if "Python :: 3." in name}
    assert names == {"3.9", "3.10", *environments.PYTHONS}


def test_an_old_python_hands_over_to_a_newer_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "dev"))
    use_new_enough_python = script["use_new_enough_python"]
    assert "{}.{}".format(*script["OLDEST_PYTHON"]) == environments.OLDEST_PYTHON
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    monkeypatch.setattr(sys, "argv", ["dev", "test", "-x"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer"):
        use_new_enough_python()
    (tmp_path / "python3.12").touch(mode=0o755)
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append((path, arguments)))
    with pytest.raises(SystemExit):  # a real execv does not return
        use_new_enough_python()
    newer = str(tmp_path / "python3.12")
    assert started == [(newer, [newer, str(ROOT / "dev"), "test", "-x"])]


def test_a_python_of_2016_can_read_the_script() -> None:
    source = (ROOT / "dev").read_text()
    assert "__future__" not in source
    ast.parse(source, feature_version=(3, 6))


@pytest.mark.parametrize(("lock", "packages"), [("requirements.lock", 50), *((str(p), 15) for p in LANE_LOCKS)])
def test_a_lock_names_no_index_and_no_path_and_hashes_everything(lock: str, packages: int) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-\w|--(?!hash=sha256:))", text, re.MULTILINE)  # an option, such as --find-links
    assert not re.search(r"(^|[\s@])(/|\./|~/|file:)", text)
    blocks = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
    assert len(blocks) > packages
    for block in blocks:
        assert re.match(r"[\w-]+==[\w.]+( ; [^\n]+)? \\\n    --hash=sha256:[0-9a-f]{64}", block), block


def test_the_lock_holds_everything_that_the_project_asks_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {re.split(r"[^\w-]", requirement)[0] for extra in extras.values() for requirement in extra}
    locked = set(re.findall(r"^([\w-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert asked - locked == {"producerd"}


def test_every_other_spark_has_its_packages_locked() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    for spark, lane in LANES.items():
        asked = {re.split(r"[^\w-]", name)[0] for name in (*groups["spark-tests"], *groups[f"spark-{spark}"][1:])}
        locked = dict(re.findall(r"^([\w-]+)==([\w.]+)", lane.lock.read_text(), re.MULTILINE))
        assert asked <= set(locked)
        assert locked["pyspark"].startswith(f"{spark}.")
    assert {lane.lock for lane in LANES.values()} == {ROOT / path for path in LANE_LOCKS}


def test_a_bare_install_has_no_dependencies_and_the_spark_extra_no_spark() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert project["requires-python"] == ">=3.9"
    assert not any("pyspark" in requirement for requirement in project["optional-dependencies"]["spark"])
    for extra in ("daemon", "demo", "dev"):
        for requirement in project["optional-dependencies"][extra]:
            assert "python_version >= '3.11'" in requirement


# -- commands --------------------------------------------------------------------------------------------------------


def test_an_unknown_command_shows_the_usage_and_sets_nothing_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "set_up", None)  # calling it would raise
    for arguments, code in (([], 2), (["nonsense"], 2), (["--help"], 0)):
        assert commands.main(arguments) == code
        usage, silent = capsys.readouterr()[::-1] if code else capsys.readouterr()
        assert silent == ""
        assert usage.startswith("usage: ./dev COMMAND [--python VERSION]\n")
        assert all(f"\n  {name} " in usage for name in commands.COMMANDS)


@pytest.fixture
def pytests(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], dict[str, str]]]:
    """`./dev test ARGUMENTS` and then: how pytest is started, and its environment."""
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(testing, "workers", lambda *, alone: 4 if alone else 2)
    monkeypatch.setattr(testing, "find_python", lambda _version: sys.executable)
    monkeypatch.setattr(testing, "set_up", lambda of: None)
    monkeypatch.setattr(testing, "run", lambda command, env, **_: started.append((command, env)))

    def test(*arguments: str) -> tuple[list[str], dict[str, str]]:
        testing.test(list(arguments))
        (python, module, pytest_, *options), env = started.pop()
        assert [module, pytest_] == ["-m", "pytest"]
        assert env["PYSPARK_PYTHON"] == python
        return [python.removeprefix(f"{ROOT}/"), *options], env

    return test


SPREAD = ["-n2", "--dist=loadfile", "--no-loadscope-reorder", "--max-worker-restart=0"]
OURS = [f"{OWN.folder.name}/bin/python", "-o", "faulthandler_timeout=600", "-o", "faulthandler_exit_on_timeout=true"]
Started = tuple[list[str], dict[str, str]]


@pytest.mark.parametrize(
    ("arguments", "started"),
    [
        (["-x", "tests/test_dev.py"], ["-m", "not slow", "-n4", *SPREAD[1:], "-x", "tests/test_dev.py"]),
        (["--all", "-x"], [*SPREAD, "-x"]),
        (["--all", "--pdb"], ["--pdb"]),
        (["--all", "--trace", "-x"], ["--trace", "-x"]),
        (["--all", "-p", "no:xdist"], ["-p", "no:xdist"]),
    ],
)
def test_slow_tests_run_with_all_only_and_a_debugger_has_one_process(
    pytests: Callable[..., Started], arguments: list[str], started: list[str]
) -> None:
    assert pytests(*arguments)[0] == [*OURS, *started]


def test_another_spark_has_its_own_environment_and_a_daemon_of_ours(pytests: Callable[..., Started]) -> None:
    """It runs the tests of the Spark side, unless the caller names others."""
    (python, *options), env = pytests("--spark", "3.5", "-m", "spark_lane")
    assert python == ".venv-spark-3.5/bin/python"
    lane = ["-o", "testpaths=tests/spark_client tests/spark", "-m", "spark_lane"]
    assert options == ["-m", "not slow", "-n4", *SPREAD[1:], *lane]
    assert env["PRODUCERD_TEST_PYTHON"] == str(OWN.python)


def test_a_spark_whose_python_is_missing_is_skipped_and_what_to_install_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(testing, "find_python", lambda _version: None)
    for name in ("run", "set_up"):  # calling them would raise
        monkeypatch.setattr(testing, name, None)
    assert testing.test(["--spark", "3.5"]) == 0
    assert re.match(r"skipped: Spark 3\.5 .* Python 3\.9, .*pyenv install 3\.9", capsys.readouterr().out)


def test_check_goes_on_after_a_failure_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(testing, "run", lambda command: int("mypy" in command))
    assert testing.check() == 1
    said = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [name for verdict, name in said if verdict == "FAILED"] == ["types"]
    assert said[-1][0] == "ok"
    monkeypatch.setattr(testing, "run", lambda _command: 0)
    assert testing.check() == 0


def test_the_same_tree_gives_the_same_zip_with_only_the_clients_side(tmp_path: Path) -> None:
    ours = ["producerd/__init__.py", "producerd/errors.py", "producerd/py.typed", "producerd/wire/messages.py"]
    ours += ["pyspark_producerd.py", "spark_client/__init__.py", "spark_client/py.typed"]
    others = ["spark_client/__pycache__/x.cpython-311.pyc", "producerd/core/budget.py", "producerd/config.py"]
    tree = tmp_path / "tree"
    for name in (*ours, *others, "tests/test_x.py"):
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    write_client_zip(tmp_path / "1.zip", tree)
    os.utime(tree / "pyspark_producerd.py", (10**9, 10**9))
    write_client_zip(tmp_path / "2.zip", tree)
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    assert sorted(zipfile.ZipFile(tmp_path / "1.zip").namelist()) == ours


# -- signals ---------------------------------------------------------------------------------------------------------

# The grandchild holds our pipe: its end is seen when it has ended, and not before.
DRIVER = """
import sys
from tools import commands, processes
commands.set_up = lambda: None
processes.GRACE_SECONDS = int(sys.argv[2])
wait = lambda arguments: processes.run(["bash", "-c", arguments[0]])
commands.COMMANDS["wait"] = commands.Command("", wait)
sys.exit(commands.main(["wait", sys.argv[1]]))
"""


def start(script: str, grace_seconds: int = 25) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DRIVER, script, str(grace_seconds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("signum", "script", "grace_seconds"),
    [
        (signal.SIGINT, "sleep 1000 & echo started; wait", 25),
        (signal.SIGTERM, "trap '' INT TERM; sleep 1000 & echo started; wait; wait", 1),
    ],
    ids=["obedient", "deaf"],
)
def test_an_interrupt_ends_everything_that_was_started(signum: signal.Signals, script: str, grace_seconds: int) -> None:
    with start(script, grace_seconds) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signum)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (128 + signum, "", "")


def test_what_a_command_leaves_running_ends_with_it() -> None:
    with start("sleep 1000 & exit 5") as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (5, "", "")
