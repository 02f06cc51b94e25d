"""The command ``producerctl bundle``: one file with what a report of a fault needs, and no record, key or secret."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from producerd import __version__
from producerd.ctl.daemon import AdminClient
from producerd.ctl.files import whole_file


def bundle(daemon: AdminClient, parsed: argparse.Namespace) -> Iterator[str]:
    """Write the bundle, which only its owner may read, and yield its name.

    The name "-" stands for the standard output, which then has nothing else.
    """
    path = parsed.output or _own_name()
    reply = daemon.get("/bundle")
    reply["versions"]["producerctl"] = __version__
    files = {
        "settings.txt": "\n".join(reply.pop("settings")),
        "log.txt": "\n".join(reply.pop("log")),
        "metrics.txt": reply.pop("metrics"),
        **{f"{name}.json": json.dumps(part, indent=1) for name, part in reply.items()},
    }
    if path == "-":
        _write(sys.stdout.buffer, files)
        sys.stdout.buffer.flush()
        return
    with whole_file(path, 0o600) as file:
        _write(file, files)
    yield path


def _own_name() -> str:
    """Return a name with the time, and with the process: two commands may run in one second."""
    return time.strftime(f"producerd-%Y%m%dT%H%M%SZ-{os.getpid()}.tar.gz", time.gmtime())


def _write(file: BinaryIO, files: Mapping[str, str]) -> None:
    import tarfile  # it takes 20 ms, which no other command should

    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode(errors="backslashreplace")  # a file's name may have bytes that are not UTF-8
            info = tarfile.TarInfo(f"producerd/{name}")
            info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
            archive.addfile(info, io.BytesIO(data))
