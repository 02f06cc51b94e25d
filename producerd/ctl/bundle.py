"""The command ``producerctl bundle``: one file with what a report of a fault needs, and no record, key or secret."""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from collections.abc import Iterator, Mapping

from producerd import __version__
from producerd.ctl.daemon import AdminClient, Failed


def bundle(daemon: AdminClient, parsed: argparse.Namespace) -> Iterator[str]:
    """Write the bundle, which only its owner may read, and yield its name."""
    path = parsed.output or time.strftime("producerd-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime())
    reply = daemon.get("/bundle")
    reply["versions"]["producerctl"] = __version__
    files = {
        "settings.txt": "\n".join(reply.pop("settings")),
        "log.txt": "\n".join(reply.pop("log")),
        "metrics.txt": reply.pop("metrics"),
        **{f"{name}.json": json.dumps(part, indent=1) for name, part in reply.items()},
    }
    try:
        _write(path, files)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}") from None
    yield path


def _write(path: str, files: Mapping[str, str]) -> None:
    import tarfile  # it takes 20 ms, which no other command should

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode()
            info = tarfile.TarInfo(f"producerd/{name}")
            info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
            archive.addfile(info, io.BytesIO(data))
