"""The client as a zip, and a driver that has nothing else of it: what ``--py-files`` ships."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.jvm import short_jvm
from tools.packaging import write_client_zip


def run_with_zip(folder: Path, script: str, *arguments: str, client: Path | None = None) -> None:
    """Run a driver's script away from the source tree; it must end well.

    Its first argument is the path of the client's zip: ``client``, or one that is made of this tree.
    """
    if client is None:
        client = folder / "client.zip"
        write_client_zip(client)
    (folder / "script.py").write_text(script)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", JAVA_TOOL_OPTIONS=short_jvm())
    command = [sys.executable, str(folder / "script.py"), str(client), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3_000:]
