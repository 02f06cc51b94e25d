"""Streaming queries from files: their input, and what their checkpoint says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Input:
    """``files`` files of ``rows_a_file`` rows each, whose ids count from 0; a checkpoint next to them."""

    def __init__(self, folder: Path, files: int, rows_a_file: int) -> None:
        self.files = folder / "input"
        self.checkpoint = folder / "checkpoint"
        self.rows = files * rows_a_file
        self._ids_of_file = {}
        self.files.mkdir()
        for number in range(files):
            ids = range(number * rows_a_file, (number + 1) * rows_a_file)
            name = f"{number:04}.json"
            self._ids_of_file[name] = ids
            lines = [json.dumps({"id": i, "partition_key": f"N{i % 211}"}) for i in ids]
            (self.files / name).write_text("\n".join(lines))

    def query(self, files_a_batch: int) -> dict[str, Any]:
        """The arguments of `tests.spark.orders.query` that are about it."""
        return {"files": str(self.files), "checkpoint": str(self.checkpoint), "files_a_batch": files_a_batch}

    def committed(self) -> list[int]:
        """The batches that Spark has committed."""
        return self._logged("commits")

    def planned(self) -> list[int]:
        """The batches whose rows are fixed: those that are not committed will be written, again if they were."""
        return self._logged("offsets")

    def _logged(self, log: str) -> list[int]:
        return sorted(int(path.name) for path in (self.checkpoint / log).glob("*") if path.name.isdigit())

    def batch(self, number: int) -> set[int]:
        """The ids of a batch's rows, whatever files Spark chose for it."""
        before, until = self._read_until(number - 1), self._read_until(number)
        ids: set[int] = set()
        for log in (self.checkpoint / "sources" / "0").glob("*"):
            if log.name.startswith("."):
                continue
            for line in log.read_text().splitlines()[1:]:  # the first is the log's version
                entry = json.loads(line)
                if before < entry["batchId"] <= until:
                    ids.update(self._ids_of_file[entry["path"].rsplit("/", 1)[1]])
        return ids

    def _read_until(self, number: int) -> int:
        """Return the last entry of the source's own log that a batch has, or -1 before the first batch.

        A driver that is killed while it plans a batch leaves an entry, which the next plan has in addition to its own.
        """
        if number < 0:
            return -1
        *_, of_source = (self.checkpoint / "offsets" / str(number)).read_text().splitlines()
        offset: int = json.loads(of_source)["logOffset"]
        return offset

    def forget_commit(self, number: int) -> None:
        """As if Spark had been killed just before it committed the batch."""
        (self.checkpoint / "commits" / str(number)).unlink()
        (self.checkpoint / "commits" / f".{number}.crc").unlink(missing_ok=True)
