"""Remove from the image's packages what the daemon does not load: a third of PyArrow, and botocore's other services.

The test of the image lets a Spark job write through what is left.
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Final

PACKAGES: Final = Path(sysconfig.get_path("purelib"))
UNUSED: Final = (
    # Their tests, and what only compilers and type checkers read.
    *("**/tests", "**/*.c", "**/*.h", "**/*.pxd", "**/*.pyi", "**/*.pyx", "pyarrow/include", "pyarrow/src"),
    *("numpy/distutils", "numpy/f2py"),
    # rich draws tables without them.
    *("pygments", "markdown_it"),
    # The loader needs the other libraries of PyArrow, also where nothing of them is called.
    *("pyarrow/*flight*", "pyarrow/*_s3*", "pyarrow/_dataset*", "pyarrow/_parquet*", "pyarrow/_substrait*"),
    *("pyarrow/_orc*", "pyarrow/libarrow_python.so", "pyarrow/libarrow_python.so.*.*.*"),
)
SERVICES: Final = ("kinesis", "sts", "sso", "sso-oidc", "signin")
"""Kinesis, and the services from which botocore gets credentials."""


def strip() -> None:
    unused = [path for pattern in UNUSED for path in PACKAGES.glob(pattern)]
    unused += [path for path in (PACKAGES / "botocore/data").glob("*/") if path.name not in SERVICES and path.is_dir()]
    for path in unused:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it may have been in a folder of tests


strip()
