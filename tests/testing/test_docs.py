"""The Python examples of docs/use/testing.md, and the first one of docs/use/quick-start.md, run from the wheels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

IS_INSTALLED = 'assert {"site-packages"} <= {*producerd.__file__.split("/")} & {*spark_client.__file__.split("/")}'
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "use/testing.md"


def examples(page: Path = PAGE) -> Iterator[tuple[str, str]]:
    """Section and code, each with the lines before it left empty, so that a traceback names the page's own lines."""
    text, section = page.read_text(), ""
    for found in re.finditer(r"^## (.*?)$|^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        heading, code = found.groups()
        if heading:
            section = heading
        else:
            yield section, "\n" * text.count("\n", 0, found.start(2)) + code


def of_page(*, with_spark: bool) -> list[Any]:
    return [pytest.param(code, id=section) for section, code in examples() if ("pyspark" in code) == with_spark]


def quick_start() -> Any:
    """The example that runs without AWS."""
    (code,) = (code for section, code in examples(DOCS / "use/quick-start.md") if section == "Without AWS")
    return pytest.param(code, id="quick-start")


@pytest.fixture(scope="module")
def python(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with both wheels, and with the packages of others that this one has."""
    env = tmp_path_factory.mktemp("installed") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    python = env / "bin/python"
    pip = [os.path.realpath(sys.executable), "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, *map(str, dist.glob("*.whl"))], check=True, timeout=300)
    own, theirs = ((base / "lib").glob("python3*/site-packages") for base in (Path(sys.prefix), env))
    # A folder that a .pth names has no .pth read in it, so that this checkout is not found there.
    (next(theirs) / "others.pth").write_text(f"{next(own)}\n")
    return python


@pytest.mark.parametrize("code", of_page(with_spark=False))
def test_an_example_runs_from_the_wheels(code: str, tmp_path: Path, python: Path) -> None:
    runs(code, tmp_path, python)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("code", [*of_page(with_spark=True), quick_start()])
def test_an_example_with_spark_runs_from_the_wheels(code: str, tmp_path: Path, python: Path) -> None:
    runs(code, tmp_path, python)


def runs(code: str, folder: Path, python: Path) -> None:
    """Run it as a file where no environment is activated, as Spark's workers would take the python3 on PATH."""
    (folder / "example.py").write_text(f"{code}\nimport producerd, spark_client\n{IS_INSTALLED}")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHON"))}
    own = str(Path(sys.executable).parent)
    environ["PATH"] = os.pathsep.join(part for part in environ["PATH"].split(os.pathsep) if part != own)
    done = subprocess.run([python, "example.py"], cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4_000:]
