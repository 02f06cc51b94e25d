"""What a soak works on: a fake Kinesis that forgets its records, a daemon that counts its objects, and writers."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_client.task import Plan, send
from tests.daemon import CREDENTIALS, DaemonProcess
from tests.faults.service import Service, serving
from tests.faults.watch import look
from tests.soak import census

STREAMS: Final = {
    "plain": {"aggregation": "none"},
    "packed": {"aggregation": "kpl"},
    "ordered": {"aggregation": "kpl", "ordering": "per_key"},
}
DATA: Final = b"thirty bytes of some payload.."
RECONNECT_SECONDS: Final = 30.0
UNCACHED: Final = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""Without it each thread keeps freed chunks, which glibc counts as in use: 10 kB more or less in each sample."""


class Ground:
    """A soak's processes.  ``told`` has figures of the soak's own, which are sampled like the others."""

    def __init__(self, service: Service, folder: Path, leaks: Sequence[str]) -> None:
        self.service = service
        self.folder = folder
        self.socket = folder / "s" / "daemon.sock"
        self.environ = dict(CREDENTIALS)
        self.told: Callable[[], Mapping[str, float]] = dict
        self.daemon: DaemonProcess
        self._leaks = leaks
        self._census = folder / "census"
        self._writers = ThreadPoolExecutor(len(STREAMS))

    def start_daemon(self, *options: str, **sets: Any) -> None:
        """Start a daemon, or its next life, and wait until it serves."""
        self.socket.parent.mkdir(exist_ok=True)
        self._census.unlink(missing_ok=True)
        own = {f'streams."{name}".{key}': value for name, of in STREAMS.items() for key, value in of.items()}
        self.daemon = DaemonProcess(
            self.folder,
            {"endpoint_url": self.service.url, **own, **sets},
            {**self.environ, **UNCACHED, "AWS_CA_BUNDLE": str(self.service.certificate)},
            socket_path=self.socket,
            prefix=[sys.executable, "-m", "tests.soak.census", str(self._census), ",".join(self._leaks)],
            options=options,
        )
        self.daemon.wait_ready()

    def end(self) -> None:
        """End the daemon.  Its log must be calm."""
        self._writers.shutdown()
        code, log = self.daemon.end(), self.daemon.log
        assert code == 0, f"exit code {code}: {log[-2_000:]}"
        assert "Traceback" not in log, log[log.index("Traceback") :]

    def write(self, stream: str, keys: pa.Array) -> None:
        """Write rows with these partition keys as a Spark task does, until they are stored."""
        rows = pa.RecordBatch.from_pydict({"partition_key": keys, "data": pa.array([DATA] * len(keys), pa.binary())})
        plan = Plan(stream, str(self.socket), reconnect_timeout_seconds=RECONNECT_SECONDS)
        result = send(plan, [rows])
        assert result is not None
        assert not result.failures, result.failures

    def write_at_once(self, keys: Mapping[str, pa.Array]) -> None:
        """Write to several streams side by side."""
        with self.writing(keys):
            pass

    @contextlib.contextmanager
    def writing(self, keys: Mapping[str, pa.Array]) -> Iterator[None]:
        """Write to several streams during the block, whose end waits until all is stored."""
        writing = [self._writers.submit(self.write, *of) for of in keys.items()]
        yield
        for each in writing:
            each.result()

    def sample(self) -> dict[str, float]:
        """Return every figure of the daemon, of this process, which has the clients, and of the soak's own."""
        daemon, here = self.daemon.process.pid, os.getpid()
        return {
            **{f"daemon {name}": value for name, value in _figures(daemon, census.ask(self._census)).items()},
            **{f"client {name}": value for name, value in _figures(here, census.take()).items()},
            **self.told(),
        }


def _figures(pid: int, counted: census.Census) -> dict[str, float]:
    process = look(pid)
    assert process is not None
    return {
        "rss_bytes": _anonymous_bytes(pid),
        "threads": process.threads,
        "descriptors": process.descriptors,
        "bytes_in_use": counted.bytes_in_use,
        **{f"objects {name}": count for name, count in counted.objects.items()},
        **{f"elements {name}": count for name, count in counted.elements.items()},
    }


def _anonymous_bytes(pid: int) -> int:
    """Return the resident memory without pages of files, which the kernel brings in and drops as it likes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def keys_from(first: int, count: int) -> pa.Array:
    """Return keys that occur only once in all keys of other numbers."""
    return pa.array(np.arange(first, first + count)).cast(pa.string())


@contextlib.contextmanager
def ground(shards: int, leaks: Sequence[str] = ()) -> Iterator[Ground]:
    """Return the ground of a soak.  Its daemon has to be started, and ends with the block."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        with serving(list(STREAMS), shards, 1, folder, tls=True) as service:
            service.control("settings", streams={stream: {"keeps_entries": False} for stream in STREAMS})
            made = Ground(service, folder, leaks)
            try:
                yield made
                made.end()
            finally:
                if made.daemon.process.poll() is None:
                    made.daemon.process.kill()
                    made.daemon.process.wait()
