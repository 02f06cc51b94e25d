"""What ``./dev build`` makes: the wheel, and the zip for Spark's ``--py-files``."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from tools import ROOT
from tools.environments import OWN
from tools.processes import run

CLIENT_SIDE = ["spark_client", "producerd/wire", "producerd/errors.py", "producerd/__init__.py"]
WHEEL_SIDE = ["pyproject.toml", "README.md", "LICENSE", "producerd", "spark_client", "pyspark_producerd.py"]


def build(tree: Path = ROOT) -> int:
    """Build both into dist/ and print their paths."""
    with tempfile.TemporaryDirectory() as folder:  # a clean copy: setuptools would pack what an old build/ holds
        for name in WHEEL_SIDE:
            if (tree / name).is_dir():
                shutil.copytree(tree / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(tree / name, folder)
        command = [str(OWN.python), "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tree / "dist"), folder]
        env = dict(os.environ, SOURCE_DATE_EPOCH="315532800")  # 1980, as in the zip
        if code := run(command, env, show="(ERROR.*)"):
            return code
    version = (tree / "producerd" / "__init__.py").read_text().split('__version__ = "')[1].split('"')[0]
    client = tree / "dist" / f"producerd-client-{version}.zip"
    write_client_zip(client, tree)
    print(tree / "dist" / f"producerd-{version}-py3-none-any.whl", client, sep="\n")
    return 0


def write_client_zip(target: Path, tree: Path = ROOT) -> None:
    """Write the client's side.  Spark puts a zip on the executors' path, but no wheel.

    The same tree gives the same bytes.
    """
    tops = [tree / name for name in (*CLIENT_SIDE, "producerd/py.typed", "pyspark_producerd.py")]
    paths = {path for top in tops for path in (top, *top.rglob("*")) if path.suffix in (".py", ".typed", ".json")}
    paths.add(tree / "LICENSE")
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(filter(Path.is_file, paths)):
            entry = zipfile.ZipInfo(str(path.relative_to(tree)))  # dated 1980
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
