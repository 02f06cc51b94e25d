"""What `./dev build` makes works with nothing else: the wheel in an empty environment, the zip on PYTHONPATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from producerd import __version__
from tests.daemon import CREDENTIALS, QUICK, START_SECONDS, directory, until
from tests.licences import rows
from tests.locked import locked
from tools import ROOT
from tools.packaging import WHEEL_SIDE, copy_without_modes, write_sbom, write_wheels

pytestmark = pytest.mark.slow

# The executor's first line, and all that it brings along from outside of the standard library.
IMPORT_CLIENT = """
import sys
import spark_client
from spark_client import KinesisBatchWriter
loaded = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(spark_client.__file__, *sorted(name for name in loaded if not name.startswith(("_", "site"))))
"""


def environment(folder: Path) -> Path:
    """A new interpreter with the standard library alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin/python"


def pip(python: Path, command: str, *arguments: str) -> None:
    """Run the pip that ./dev itself used, for an interpreter."""
    own = [os.path.realpath(sys.executable), "-m", "pip", "--python", str(python)]
    subprocess.run([*own, command, "--quiet", "--disable-pip-version-check", *arguments], check=True, timeout=300)


@pytest.fixture(scope="module")
def bare_python(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the standard library and the wheel."""
    python = environment(tmp_path_factory.mktemp("bare"))
    pip(python, "install", "--no-index", str(dist / f"producerd-{__version__}-py3-none-any.whl"))
    return python


def ask(python: Path, code: str, **env: str) -> str:
    done = subprocess.run([python, "-c", code], cwd="/", env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.promise("wheel-installs-bare")
def test_the_wheel_installs_bare_and_the_client_imports(bare_python: Path) -> None:
    where, *loaded = ask(bare_python, IMPORT_CLIENT).split()
    assert where.startswith(str(bare_python.parent.parent))
    assert loaded == ["producerd", "spark_client"]
    assert ask(bare_python, "import importlib.metadata as m; print(m.version('producerd'))") == __version__
    assert (bare_python.parent / "producerd").is_file()


@pytest.mark.promise("wheel-installs-bare")
def test_the_zip_on_the_path_is_enough_for_the_client(dist: Path, bare_python: Path) -> None:
    client = dist / f"producerd-client-{__version__}.zip"
    where, *loaded = ask(bare_python, IMPORT_CLIENT, PYTHONPATH=str(client)).split()
    assert where.startswith(str(client))
    assert loaded == ["producerd", "spark_client"]


@pytest.mark.promise("wheel-holds-packages")
def test_the_zip_holds_the_clients_side_and_the_licence_and_nothing_else(dist: Path) -> None:
    names = set(zipfile.ZipFile(dist / f"producerd-client-{__version__}.zip").namelist())
    assert "LICENSE" in names
    side = ("spark_client/", "producerd/wire/", "producerd/errors.py", "producerd/__init__.py", "producerd/py.typed")
    assert all(name.startswith((*side, "pyspark_producerd.py", "LICENSE")) for name in names)


@pytest.mark.promise("wheel-holds-packages", "wheel-holds-packages-their")
def test_the_wheel_holds_the_packages_their_types_and_the_licence_and_nothing_else(dist: Path) -> None:
    names = set(zipfile.ZipFile(dist / f"producerd-{__version__}-py3-none-any.whl").namelist())
    info = f"producerd-{__version__}.dist-info"
    assert {"producerd/py.typed", "spark_client/py.typed", f"{info}/licenses/LICENSE"} <= names
    assert {name.split("/")[0] for name in names} <= {"producerd", "spark_client", "pyspark_producerd.py", info}
    assert "producerd/of_another_day.py" not in names
    modules = {
        path.relative_to(ROOT).as_posix()
        for top in ("producerd", "spark_client")
        for path in (ROOT / top).rglob("*.py")
        if not path.is_relative_to(ROOT / "producerd/demo") and not path.is_relative_to(ROOT / "producerd/testing")
    }
    page = {f"producerd/runtime/page/page.{kind}" for kind in ("html", "css", "js")}
    assert {*modules, *page, "pyspark_producerd.py"} <= names
    # A daemon in production needs no demo and no Kinesis in memory.
    assert not [name for name in names if name.startswith(("producerd/demo", "producerd/testing"))]


def test_the_demos_wheel_adds_the_demo_and_the_kinesis_in_memory(dist: Path, bare_python: Path) -> None:
    def demo() -> tuple[int, str]:
        command = [str(bare_python.with_name("producerd")), "demo"]
        done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    without = f"the demo is in a wheel of its own: install producerd_demo-{__version__}"
    assert demo() == (78, f"producerd: configuration: {without}\n")
    pip(bare_python, "install", "--no-index", "--no-deps", str(dist / f"producerd_demo-{__version__}-py3-none-any.whl"))
    code, said = demo()
    assert code == 78
    assert said.endswith('is missing: pip install "producerd[demo]"\n')


@pytest.mark.promise("same-tree-gives-same")
def test_the_same_tree_gives_the_same_wheels_in_another_folder_with_other_modes(
    dist: Path, tree: Path, tmp_path: Path
) -> None:
    for name in WHEEL_SIDE:  # the demo's side is in it
        copy_without_modes(tree / name, tmp_path / name)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in files:
        path.chmod(0o600)
        os.utime(path, (1e9, 1e9))
    umask = os.umask(0o077)
    try:
        assert write_wheels(tmp_path / "dist", tmp_path) == 0
    finally:
        os.umask(umask)
    for name in (f"producerd-{__version__}-py3-none-any.whl", f"producerd_demo-{__version__}-py3-none-any.whl"):
        assert (tmp_path / "dist" / name).read_bytes() == (dist / name).read_bytes()


@pytest.mark.promise("daemon-runs-extra-alone")
def test_the_daemon_runs_on_its_extra_alone_and_installs_without_an_index(dist: Path, tmp_path: Path) -> None:
    """From a folder of wheels, as install.md has it; then `check`, `serve`, `producerctl status`, a good end.

    The bill of materials names what is there, in the versions of the lock.
    """
    python = environment(tmp_path / "own")
    (tmp_path / "locked.txt").write_text(locked())
    wheel, wheelhouse = f"{dist}/producerd-{__version__}-py3-none-any.whl", str(tmp_path / "wheelhouse")
    pip(python, "download", "--dest", wheelhouse, "--constraint", str(tmp_path / "locked.txt"), f"{wheel}[daemon]")
    pip(python, "install", "--no-compile", "--no-index", "--find-links", wheelhouse, "producerd[daemon]")
    names = ask(python, "import importlib.metadata as m; print(*{d.name.lower() for d in m.distributions()})")
    of_daemon = {name for name, (_, extra) in rows().items() if extra == "daemon"}
    assert {name.replace("_", "-") for name in names.split()} == {"producerd", *of_daemon}

    with directory() as folder:
        env = {**CREDENTIALS, "HOME": str(folder), "AWS_EC2_METADATA_DISABLED": "true"}
        settings = {**QUICK, "endpoint_url": "http://127.0.0.1:9", "socket": folder / "d.sock"}
        sets = [f"--set={name}={value}" for name, value in settings.items()]

        def run(command: str, *arguments: str) -> str:
            done = subprocess.run(
                [python.with_name(command), *arguments],
                cwd="/",
                env=env,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert (done.returncode, done.stderr) == (0, "")
            return done.stdout

        assert f"socket: {folder}/d.sock" in run("producerd", "check", *sets)
        with (folder / "log").open("wb") as log:
            daemon = subprocess.Popen(
                [python.with_name("producerd"), "serve", *sets], cwd="/", env=env, stdout=log, stderr=log
            )
        said = (folder / "log").read_text
        try:
            until(lambda: " serving " in said() or daemon.poll() is not None, "serving", START_SECONDS)
            status = run("producerctl", "--admin-socket", str(folder / "d.admin.sock"), "status", "--json")
            assert json.loads(status)["version"] == __version__
            daemon.terminate()
            assert daemon.wait(60) == 0, said()
        finally:
            daemon.kill()
            daemon.wait()
        assert "Warning" not in said()

    assert write_sbom(python, tmp_path / "sbom.json", __version__) == 0
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert bill["metadata"]["component"]["version"] == __version__
    named = {f"{each['name'].lower().replace('_', '-')}=={each['version']}" for each in bill["components"]}
    assert {name.partition("==")[0] for name in named} == of_daemon
    assert named <= {pin.split()[0] for pin in locked().splitlines()}
    assert all(each["licenses"] for each in bill["components"])
