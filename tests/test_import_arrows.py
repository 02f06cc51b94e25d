"""The arrows of docs/build/laws.md hold in this tree, and an import against one of them is found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.import_arrows import violations

ROOT = Path(__file__).resolve().parent.parent


def found(tmp_path: Path, place: str, source: str) -> list[str]:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return list(violations(tmp_path))


@pytest.mark.promise("tree-clean")
def test_this_tree_is_clean() -> None:
    assert list(violations(ROOT)) == []


def test_this_tree_is_looked_at() -> None:
    """An empty answer above would also come from a checker that finds no file."""
    assert (ROOT / "producerd" / "__init__.py").is_file()
    assert (ROOT / "producerd" / "errors.py").is_file()


@pytest.mark.promise("tree-clean")
@pytest.mark.parametrize(
    ("place", "source", "reason"),
    [
        ("spark_client/writer.py", "import producerd.core.lanes", "no arrow to producerd.core.lanes"),
        ("spark_client/writer.py", "from producerd import config", "no arrow to producerd.config"),
        ("spark_client/writer.py", "def put():\n    import producerd.runtime", "no arrow to producerd.runtime"),
        ("spark_client/writer.py", "import pyarrow", "may import pyarrow only where it is used"),
        ("spark_client/writer.py", "from pyspark.sql import DataFrame", "may import pyspark.sql.DataFrame only where"),
        ("spark_client/writer.py", "try:\n    import pandas\nexcept ImportError:\n    pass", "may import pandas only"),
        ("spark_client/writer.py", "class A:\n    import pyarrow", "may import pyarrow only where it is used"),
        ("spark_client/writer.py", "if not TYPE_CHECKING:\n    import pyarrow", "may import pyarrow only where"),
        ("spark_client/writer.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import pyarrow", "may import pyarrow only"),
        ("spark_client/writer.py", "def put():\n    import numpy", "must do without the third party numpy"),
        ("producerd/wire/frames.py", "import socket", "must do without socket"),
        ("producerd/wire/frames.py", "from time import monotonic", "must do without time.monotonic"),
        ("producerd/wire/frames.py", "def f():\n    import asyncio.events", "must do without asyncio.events"),
        ("producerd/wire/frames.py", "import numpy", "must do without the third party numpy"),
        ("producerd/wire/frames.py", "from producerd.core import lanes", "no arrow to producerd.core.lanes"),
        ("producerd/wire/frames.py", "from ..core import lanes", "no arrow to producerd.core.lanes"),
        ("producerd/wire/frames.py", "from .. import config", "no arrow to producerd.config"),
        ("producerd/core/budget.py", "from producerd.wire import frames", "no arrow to producerd.wire.frames"),
        ("producerd/core/budget.py", "import producerd.wire.columns_of_old", "no arrow to producerd.wire.columns_of"),
        ("producerd/core/budget.py", "import producerd.wire", "no arrow to producerd.wire"),
        ("producerd/core/budget.py", "from producerd.runtime import gate", "no arrow to producerd.runtime.gate"),
        ("producerd/core/budget.py", "from producerd.config import Settings", "no arrow to producerd.config.Settings"),
        ("producerd/core/budget.py", "import time", "must do without time"),
        ("producerd/core/budget.py", "import structlog", "must do without the third party structlog"),
        ("producerd/runtime/gate.py", "import aiobotocore.session", "only producerd/runtime/aws/ may import"),
        ("producerd/runtime/app.py", "from botocore import config", "only producerd/runtime/aws/ may import"),
        ("producerd/runtime/app.py", "import prometheus_client", "only producerd/runtime/metrics.py may import"),
        ("producerd/runtime/app.py", "from producerd import testing", "no arrow to producerd.testing"),
        ("producerd/runtime/app.py", "import spark_client", "no arrow to spark_client"),
        ("producerd/errors.py", "from producerd import wire", "no arrow to producerd.wire"),
        ("producerd/__init__.py", "from producerd.errors import ProducerdError", "no arrow to producerd.errors"),
        ("producerd/cli.py", "from producerd.runtime.app import App", "may import producerd.runtime.app.App only"),
        ("producerd/testing/fake.py", "import botocore", "only producerd/runtime/aws/ may import botocore"),
        ("pyspark_producerd.py", "import producerd.wire", "no arrow to producerd.wire"),
        ("producerd/demo/run.py", "import tools.processes", "no arrow to tools.processes"),
        ("tools/java.py", "from producerd.errors import Code", "no arrow to producerd.errors.Code"),
        ("tools/java.py", "def f():\n    import numpy", "must do without the third party numpy"),
    ],
)
def test_an_import_against_an_arrow_is_found(tmp_path: Path, place: str, source: str, reason: str) -> None:
    (violation,) = found(tmp_path, place, source)
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "import " in text)
    assert violation.startswith(f"{place}:{line}: {reason}")


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("spark_client/writer.py", "from producerd.wire import frames\nfrom producerd.errors import ProducerdError"),
        ("spark_client/writer.py", "from producerd import __version__\nfrom spark_client.client import KinesisClient"),
        ("spark_client/writer.py", "def put():\n    import pyarrow\n    from pyspark import TaskContext"),
        ("spark_client/writer.py", "async def put():\n    import pyarrow"),
        ("spark_client/writer.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow"),
        ("spark_client/connection.py", "import socket, time"),
        ("producerd/wire/frames.py", "import struct\nfrom . import columns\nfrom ..errors import ProtocolError"),
        ("producerd/core/budget.py", "from producerd.wire import columns\nfrom producerd.wire.columns import Columns"),
        (
            "producerd/core/budget.py",
            "import numpy, pyarrow, orjson, pybase64\nfrom producerd.core.rows.buffers import Span",
        ),
        ("producerd/runtime/aws/clients.py", "import aiobotocore, botocore.awsrequest"),
        ("producerd/runtime/metrics.py", "import prometheus_client\nfrom producerd.core import stats"),
        ("producerd/cli.py", "def serve():\n    from producerd.runtime.app import App"),
        ("producerd/testing/fake.py", "import spark_client, producerd.core, producerd.runtime, aiohttp"),
        ("pyspark_producerd.py", "from pyspark.sql.datasource import DataSource\nimport spark_client"),
    ],
)
def test_an_import_along_an_arrow_passes(tmp_path: Path, place: str, source: str) -> None:
    assert found(tmp_path, place, source) == []
