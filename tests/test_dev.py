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
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parent.parent
LANE_LOCKS = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").glob("*.lock"))]


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
    (folder / "tests").mkdir()
    for name in ("spark-3.5.lock", "spark-4.0.lock"):
        shutil.copy(folder / "requirements.lock", folder / "tests" / name)
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
    assert env["JAVA_HOME"] == str(dev.OWN.folder / "java")
    (line,) = capsys.readouterr().err.splitlines()
    assert f"JAVA_HOME={home} is Java {feature}: not used" in line


def test_a_java_home_without_a_java_is_not_used(dev: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = {"JAVA_HOME": str(tmp_path), "PATH": "/nonexistent"}
    dev.choose_java(env)
    assert env["JAVA_HOME"] == str(dev.OWN.folder / "java")
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
    assert env["JAVA_HOME"] == str(dev.OWN.folder / "java")


@pytest.mark.parametrize(("version", "suits"), [("1.8.0_392", True), ("11.0.2", True), ("17.0.1", True), ("21", False)])
def test_an_older_spark_gets_a_java_that_it_runs_on(
    dev: Any, fake_java: Callable[[str], Path], version: str, suits: bool
) -> None:
    lane = dev.LANES["3.5"]
    own = str(lane.folder / "java")
    from_home = {"JAVA_HOME": str(fake_java(version)), "PATH": "/nonexistent"}
    dev.choose_java(from_home, lane)
    assert (from_home["JAVA_HOME"] != own) == suits
    from_path = {"PATH": f"{fake_java(version + '.0') / 'bin'}:{os.environ['PATH']}"}
    dev.choose_java(from_path, lane)
    assert from_path.get("JAVA_HOME") == (None if suits else own)


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
    env = dev.variables()
    assert env["PYSPARK_PYTHON"] == env["PYSPARK_DRIVER_PYTHON"] == str(dev.ROOT / ".venv" / "bin" / "python")
    assert env["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_HOME" not in env


# -- set-up ----------------------------------------------------------------------------------------------------------


def test_the_stamp_changes_with_the_lock_the_python_and_the_folder(dev: Any, tmp_path: Path) -> None:
    stamps = [dev.stamp(dev.OWN)]
    assert dev.stamp(dev.OWN) == stamps[0]
    stamps.append(dev.stamp(dev.OWN._replace(version="3.99")))
    stamps.append(dev.stamp(dev.OWN._replace(folder=tmp_path)))
    dev.OWN.lock.write_text("moto==3\n")
    stamps.append(dev.stamp(dev.OWN))
    assert len(set(stamps)) == 4


@pytest.fixture(params=["", "3.5"], ids=["own", "Spark 3.5"])
def made(request: pytest.FixtureRequest, dev: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The environment that is made: ours, or that of another Spark, whose Python is found."""
    monkeypatch.setattr(dev, "find_python", lambda version: f"/usr/bin/python{version}")
    return dev.LANES[request.param] if request.param else dev.OWN


def half_made(of: Any) -> Path:
    """An environment whose set-up was interrupted: all but the stamp."""
    of.python.parent.mkdir(parents=True)
    of.python.symlink_to(sys.executable)
    leftover = Path(of.folder / "leftover")
    leftover.touch()
    return leftover


def test_a_finished_set_up_is_not_done_again(dev: Any, made: Any) -> None:
    leftover = half_made(made)
    (made.folder / "stamp").write_text(dev.stamp(made))
    dev.run = None  # calling it would raise
    dev.set_up(made)
    assert leftover.exists()


@pytest.mark.parametrize("stamp", ["of another lock", None])
def test_an_old_or_half_made_environment_is_made_anew(
    dev: Any, made: Any, stamp: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leftover = half_made(made)
    if stamp:
        (made.folder / "stamp").write_text(stamp)
    commands = stand_in_for_run(dev, made, monkeypatch)
    dev.set_up(made)
    assert not leftover.exists()
    assert commands[0] == [f"/usr/bin/python{made.version}", "-m", "venv", "--without-pip", str(made.folder)]
    for command, lock in zip(commands[1:], ["/dev/stdin", str(made.lock)], strict=True):
        assert "--require-hashes" in command
        assert command[command.index("--python") + 1] == str(made.python)
        assert command[command.index("-r") + 1] == lock
    assert (made.folder / "stamp").read_text() == dev.stamp(made)
    packages = made.folder / "lib" / f"python{made.version}" / "site-packages"
    assert (packages / "producerd.pth").read_text() == f"{dev.ROOT}\n"
    assert os.access(made.folder / "bin" / "producerd", os.X_OK)
    assert os.access(made.folder / "java" / "bin" / "java", os.X_OK)
    assert not (made.folder / "tmp").exists()
    assert re.search(rf"downloads about \d+ MB.* to {made.folder}$", capsys.readouterr().out, re.MULTILINE)


def test_a_set_up_that_fails_leaves_no_stamp(dev: Any, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    half_made(made)
    (made.folder / "stamp").write_text("of another lock")
    stand_in_for_run(dev, made, monkeypatch, code_of_the_last=1)
    with pytest.raises(SystemExit, match="set-up failed"):
        dev.set_up(made)
    assert not (made.folder / "stamp").exists()


@pytest.mark.parametrize("suits", ["ours", "our base's", "its own", "none"])
def test_the_pip_that_installs_is_one_that_can_for_this_python(
    dev: Any, made: Any, suits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip --python` exists since 22.3, and a pip that is too new for a Python refuses to run under it."""
    base = os.path.realpath(sys.executable)
    pips = {"ours": [sys.executable], "our base's": [base], "its own": [f"/usr/bin/python{made.version}"], "none": []}
    owners = pips[suits]
    commands = stand_in_for_run(dev, made, monkeypatch, pips=owners)
    if not owners:
        with pytest.raises(SystemExit, match=r"no pip, or one older than 22\.3"):
            dev.set_up(made)
        assert not commands
        assert not made.folder.exists()
    else:
        dev.set_up(made)
        assert {command[0] for command in commands[1:]} == set(owners)


def stand_in_for_run(
    dev: Any,
    made: Any,
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

    monkeypatch.setattr(dev, "run", run)
    monkeypatch.setattr(subprocess, "run", asked)
    return commands


def fake_python(path: Path, version: str) -> Path:
    """An interpreter that says it is of this version; without one it fails, as pyenv's shims may."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n[[ '{version}' ]] && echo '{version} {path}'\n")
    path.chmod(0o755)
    return path


def test_a_python_is_looked_for_on_the_path_and_among_pyenvs(
    dev: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours comes first, then the one on PATH if it runs and is what its name says, then pyenv's newest that runs."""
    system = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{tmp_path}:{system.replace('pyenv', 'elsewhere')}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    versions = tmp_path / "pyenv" / "versions"
    assert dev.find_python(dev.OURS) == os.path.realpath(sys.executable)
    assert dev.find_python("3.0") is None
    old = fake_python(versions / "3.0.9" / "bin" / "python3.0", "3.0")
    assert dev.find_python("3.0") == str(old)
    new = fake_python(versions / "3.0.18" / "bin" / "python3.0", "3.0")
    fake_python(versions / "3.0.20" / "bin" / "python3.0", "")
    for wrong in ("", "3.1"):
        fake_python(tmp_path / "python3.0", wrong)
        assert dev.find_python("3.0") == str(new)
    first = fake_python(tmp_path / "python3.0", "3.0")
    assert dev.find_python("3.0") == str(first)


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
    for spark, lane in load(ROOT / "dev").LANES.items():
        asked = {re.split(r"[^\w-]", name)[0] for name in (*groups["spark-tests"], *groups[f"spark-{spark}"][1:])}
        locked = dict(re.findall(r"^([\w-]+)==([\w.]+)", lane.lock.read_text(), re.MULTILINE))
        assert asked <= set(locked)
        assert locked["pyspark"].startswith(f"{spark}.")
    assert {lane.lock for lane in load(ROOT / "dev").LANES.values()} == {ROOT / path for path in LANE_LOCKS}


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
    assert not dev.OWN.folder.exists()


def test_help_is_no_error(dev: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: ./dev COMMAND\n")


@pytest.fixture
def pytests(dev: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """`./dev test ARGUMENTS` and then: how pytest is started."""
    monkeypatch.setattr(dev, "workers", lambda: 2)
    monkeypatch.setattr(dev, "find_python", lambda _version: sys.executable)
    monkeypatch.setattr(dev, "set_up", lambda of: started.append([f"set up {of.folder.name}"]))
    monkeypatch.setattr(dev, "run", lambda command, env, **_: started.append([*command, env]))
    started: list[list[Any]] = []

    def test(*arguments: str) -> list[str]:
        started.clear()
        dev.test(list(arguments))
        *_, (python, module, pytest_, *options, env) = started
        assert [module, pytest_] == ["-m", "pytest"]
        assert env["PYSPARK_PYTHON"] == python
        return [python.removeprefix(f"{dev.ROOT}/"), *options]

    return test


OURS, SPREAD = ".venv/bin/python", ["-n2", "--dist=loadfile", "--no-loadscope-reorder"]


def test_slow_tests_run_with_all_only(pytests: Callable[..., list[str]]) -> None:
    assert pytests("-x", "tests/test_dev.py") == [OURS, "-m", "not slow", *SPREAD, "-x", "tests/test_dev.py"]
    assert pytests("--all", "-x") == [OURS, *SPREAD, "-x"]


@pytest.mark.parametrize("options", [["--pdb"], ["--trace", "-x"], ["-p", "no:xdist"]])
def test_who_debugs_has_one_process(pytests: Callable[..., list[str]], options: list[str]) -> None:
    assert pytests("--all", *options) == [OURS, *options]


def test_the_callers_own_number_of_workers_comes_last_and_so_counts(pytests: Callable[..., list[str]]) -> None:
    assert pytests("--all", "-n", "0") == [OURS, *SPREAD, "-n", "0"]


@pytest.mark.parametrize(("cores", "gib", "workers"), [(1, 64, 2), (2, 24, 3), (16, 64, 4), (8, 7.6, 2), (8, 2, 1)])
def test_there_is_a_worker_for_each_core_while_the_memory_suffices(
    dev: Any, monkeypatch: pytest.MonkeyPatch, cores: int, gib: float, workers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(cores))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": int(gib * 2**18)}.__getitem__)
    assert dev.workers() == workers


def test_another_spark_has_its_own_environment_and_a_daemon_of_ours(
    dev: Any, pytests: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tests are those of the Spark side, unless the caller names others."""
    python, *options = pytests("--spark", "3.5", "-m", "spark_lane")
    assert python == ".venv-spark-3.5/bin/python"
    assert options == ["-m", "not slow", *SPREAD, "-o", "testpaths=tests/spark_client tests/spark", "-m", "spark_lane"]
    assert pytests("--spark=4.0", "--all", "-x")[0] == ".venv-spark-4.0/bin/python"
    envs: list[dict[str, str]] = []
    monkeypatch.setattr(dev, "run", lambda _command, env, **_: envs.append(env))
    dev.test(["--spark", "3.5"])
    assert envs[0]["PRODUCERD_TEST_PYTHON"] == str(dev.PYTHON)


def test_a_spark_whose_python_is_missing_is_skipped_and_what_to_install_is_said(
    dev: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "find_python", lambda _version: None)
    dev.run = dev.set_up = None  # calling them would raise
    assert dev.test(["--spark", "3.5"]) == 0
    assert re.match(r"skipped: Spark 3\.5 .* Python 3\.9, .*pyenv install 3\.9", capsys.readouterr().out)


def test_an_unknown_spark_is_refused_with_those_there_are(dev: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        dev.test(["--spark", "2.4"])
    assert "'3.5', '4.0'" in capsys.readouterr().err


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
        "producerd/core/budget.py", "producerd/config.py", "pyspark_producerd.py", "tests/test_x.py",
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
dev.GRACE_SECONDS = int(sys.argv[3])
dev.COMMANDS["wait"] = lambda arguments: dev.run(["bash", "-c", arguments[0]])
sys.exit(dev.main(["wait", sys.argv[2]]))
"""


def start(dev: Any, script: str, driver: str = DRIVER, grace_seconds: int = 25) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", driver, str(dev.ROOT / "dev"), script, str(grace_seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("script", "grace_seconds"),
    [("sleep 1000 & echo started; wait", 25), ("trap '' INT TERM; sleep 1000 & echo started; wait; wait", 1)],
    ids=["obedient", "deaf"],
)
def test_an_interrupt_ends_everything_that_was_started(
    dev: Any, signum: signal.Signals, script: str, grace_seconds: int
) -> None:
    with start(dev, script, grace_seconds=grace_seconds) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signum)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (128 + signum, "", "")


def test_what_a_command_leaves_running_ends_with_it(dev: Any) -> None:
    with start(dev, "sleep 1000 & exit 5") as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (5, "", "")


@pytest.mark.parametrize(("tidies_up", "told"), [(True, signal.SIGINT), (False, signal.SIGTERM)])
def test_a_signal_while_the_command_is_being_born_ends_it(
    dev: Any, monkeypatch: pytest.MonkeyPatch, tidies_up: bool, told: signal.Signals
) -> None:
    """A busy machine may run the child before `Popen` returns."""
    popen, signal_group, signals = subprocess.Popen, dev.signal_group, []

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        child = popen(*arguments, **options)
        dev.on_signal(signal.SIGINT, None)
        return child

    def noted(signum: int) -> None:
        if dev._group > 0:
            signals.append(signum)
        signal_group(signum)

    dev.GRACE_SECONDS = 0  # no alarm for the tests' own process
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    monkeypatch.setattr(dev, "signal_group", noted)
    with pytest.raises(SystemExit, match=str(128 + signal.SIGINT)):
        dev.run(["sleep", "1000"], tidies_up=tidies_up)
    assert signals == [told, signal.SIGKILL]


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
