"""Spark's tasks start their executors' daemons themselves, and none is left when Spark has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from producerd.ctl.daemon import AdminClient
from tests.spark.drivers import Driver, driver
from tests.spark.service import Kinesis, own_daemons, own_settings

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("none_is_left")]


@pytest.fixture(scope="module")
def local(one_kinesis: Kinesis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Its configuration has the settings."""
    conf = {f"spark.producerd.daemon.{name}": value for name, value in own_settings(one_kinesis).items()}
    with driver(tmp_path_factory.mktemp("local"), "local[2]", conf) as ready:
        yield ready


def test_spark_s_configuration_may_have_the_settings(local: Driver, kinesis: Kinesis) -> None:
    stream = kinesis.stream()
    result = local.ask("write", rows=100, partitions=2, stream=stream)
    assert result.get("records") == 100, result
    assert result["daemons"] == [found.pid for found in own_daemons(kinesis)]
    assert kinesis.ids(stream) == Counter(range(100))


def test_the_check_starts_it_and_says_what_its_memory_asks_of_spark(local: Driver, kinesis: Kinesis) -> None:
    shown = local.ask("check_cluster", stream=kinesis.stream()).get("shown", "")
    assert "ready to write to stream" in shown
    assert "384 MiB of it for the daemon" in shown


def test_the_data_source_takes_them_as_options(local: Driver, kinesis: Kinesis) -> None:
    if int(local.version.split(".")[0]) < 4:
        pytest.skip('format("producerd") needs Spark 4')
    stream = kinesis.stream()
    options = {f"daemon.{name}": value for name, value in own_settings(kinesis, aggregation="kpl").items()}
    result = local.ask("save", rows=100, stream=stream, **options)
    assert "error" not in result, result
    assert kinesis.ids(stream) == Counter(range(100))
    sockets = [
        found.command.partition("--set=socket=")[2].split("/producerd.sock")[0] for found in own_daemons(kinesis)
    ]
    kinds = [AdminClient(f"{folder}/producerd.admin.sock").get("/dump")["settings"] for folder in sockets]
    assert any('aggregation = "kpl"' in line for settings in kinds for line in settings)
