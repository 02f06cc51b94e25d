"""A repeated micro-batch is stored once where it has a replay guard, and nothing is lost by it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import DaemonProcess
from tests.spark.orders import query
from tests.spark.queries import Input
from tests.spark.service import Kinesis, counted

pytestmark = pytest.mark.spark


@pytest.mark.spark_lane
def test_a_batch_whose_commit_is_lost_is_stored_once(
    spark: Any, kinesis: Kinesis, running: DaemonProcess, tmp_path: Path
) -> None:
    given, stream = Input(tmp_path, files=6, rows_a_file=100), kinesis.stream()
    guard = (tmp_path / "guard").as_uri()
    options: dict[str, Any] = {"stream": stream, "socket": str(running.socket), "replay_guard": guard}
    assert query(spark, **given.query(2), **options)["batches"].keys() == {0, 1, 2}
    given.forget_commit(2)
    again = query(spark, **given.query(2), **options)
    print(again)
    assert again["batches"].keys() == {2}
    assert kinesis.ids(stream) == Counter(range(given.rows))
    assert counted(running, stream)["left_out_records_total"] == 200
