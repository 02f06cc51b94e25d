"""What `./dev build` makes works with nothing else: the wheel in an empty environment, the zip on PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from producerd import __version__
from tests.test_dev import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

# The executor's first line, and all that it brings along from outside of the standard library.
IMPORT_CLIENT = """
import sys
import spark_client
from spark_client import KinesisBatchWriter
loaded = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(spark_client.__file__, *sorted(name for name in loaded if not name.startswith(("_", "site"))))
"""


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter with the standard library alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare" / "bin" / "python"


@pytest.fixture
def install(bare_python: Path) -> Callable[[Path], None]:
    """Install a wheel for `bare_python`, without an index, by the pip that ./dev itself used."""

    def run(wheel: Path) -> None:
        pip = [
            os.path.realpath(sys.executable),
            "-m",
            "pip",
            "--python",
            str(bare_python),
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, "install", "--quiet", "--no-index", str(wheel)], check=True)

    return run


def ask(python: Path, code: str, **env: str) -> str:
    done = subprocess.run([python, "-c", code], cwd="/", env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.strip()


def test_the_wheel_installs_bare_and_the_client_imports(
    dist: Path, bare_python: Path, install: Callable[[Path], None]
) -> None:
    install(dist / f"producerd-{__version__}-py3-none-any.whl")
    where, *loaded = ask(bare_python, IMPORT_CLIENT).split()
    assert where.startswith(str(bare_python.parent.parent))
    assert loaded == ["producerd", "spark_client"]
    assert ask(bare_python, "import importlib.metadata as m; print(m.version('producerd'))") == __version__
    assert (bare_python.parent / "producerd").is_file()


def test_the_zip_on_the_path_is_enough_for_the_client(dist: Path, bare_python: Path) -> None:
    client = dist / f"producerd-client-{__version__}.zip"
    where, *loaded = ask(bare_python, IMPORT_CLIENT, PYTHONPATH=str(client)).split()
    assert where.startswith(str(client))
    assert loaded == ["producerd", "spark_client"]


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
    }
    assert {*modules, "pyspark_producerd.py"} <= names
