"""Each recipe of docs/use/recipes.md, run as it stands, stores what a consumer can decode."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.daemon import ROOT, DaemonProcess
from tests.spark.drivers import spark_environ
from tests.spark.orders import QUERY_SECONDS, start_query
from tests.spark.queries import Input
from tests.spark.service import Kinesis

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = [("N101", "EWR", 719), ("N102", "JFK", 1_089), ("N102", "JFK", 1_089), (None, "LGA", 200), ("N103", "EWR", 9)]
NAMES = ("tailnum", "origin", "distance")
SPARK = pyspark.__version__[:3]
AVRO = {"3.5": "spark-avro_2.12:3.5.9", "4.0": "spark-avro_2.13:4.0.2"}.get(SPARK, "spark-avro_2.13:4.2.0")
"""The newest package that Maven Central had for each Spark.  The package for 4.2 works on 4.3."""
FLIGHTS_PB2 = """
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.internal import builder

file = descriptor_pb2.FileDescriptorProto(name="flights.proto", syntax="proto3")
flight = file.message_type.add(name="Flight")
for number, (name, kind) in enumerate([("tailnum", 9), ("origin", 9), ("distance", 5)], 1):
    flight.field.add(name=name, number=number, type=kind, label=1)
DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, "flights_pb2", globals())
"""
"""What protoc makes of a `.proto` file with two strings and an int32."""


def code(section: str, language: str = "python") -> str:
    """Return the code of one recipe."""
    text = (ROOT / "docs/use/recipes.md").read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return text.split(f"\n```{language}\n")[1].split("\n```\n")[0] + "\n"


def run(text: str, **given: Any) -> dict[str, Any]:
    """Run a recipe, and return its names."""
    names = {"__name__": "recipe", **given}
    exec(compile(text, "docs/use/recipes.md", "exec"), names)
    return names


@pytest.fixture
def flights(spark: Any, kinesis: Kinesis, running: DaemonProcess) -> Iterator[Any]:
    """The rows, in two partitions, for a new stream `flights` of the daemon that the session names."""
    kinesis.call("streams", {"name": "flights", "shards": 2})
    spark.conf.set("spark.producerd.socket", str(running.socket))
    yield spark.createDataFrame(ROWS, "tailnum STRING, origin STRING, distance INT")
    spark.conf.unset("spark.producerd.socket")


def rows(records: Iterable[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(record.get(name) for name in NAMES) for record in records)


@pytest.mark.promise("avro-header-registry")
def test_avro_has_the_header_of_a_registry_and_decodes(spark: Any, flights: Any, kinesis: Kinesis) -> None:
    try:
        spark.sql(f"ADD JAR ivy://org.apache.spark:{AVRO}?transitive=false")
    except Exception as error:  # py4j's, of whatever Ivy raised
        pytest.skip(f"{AVRO} cannot be had: {str(error)[:300]}")
    names = run(code("Avro with a registry's header"), df=flights)
    stored = kinesis.data("flights")
    assert {data[:18] for data in stored} == {b"\3\0" + uuid.UUID(names["version_id"]).bytes}
    from pyspark.sql.avro.functions import from_avro

    bodies = spark.createDataFrame([(data[18:],) for data in stored], "body BINARY")
    decoded = bodies.select(from_avro("body", names["schema"]).alias("flight")).select("flight.*").collect()
    assert rows(row.asDict() for row in decoded) == Counter(ROWS)


@pytest.mark.promise("avro-header-registry")
def test_protobuf_decodes(
    spark: Any, flights: Any, kinesis: Kinesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("google.protobuf")
    (tmp_path / "flights_pb2.py").write_text(FLIGHTS_PB2)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spark.sparkContext.addPyFile(str(tmp_path / "flights_pb2.py"))
    run(code("Protobuf"), df=flights)
    flight = importlib.import_module("flights_pb2").Flight
    decoded = [flight.FromString(data) for data in kinesis.data("flights")]
    assert Counter((each.tailnum or None, each.origin, each.distance) for each in decoded) == Counter(ROWS)


@pytest.mark.promise("avro-header-registry")
def test_compressed_payloads_decode(flights: Any, kinesis: Kinesis) -> None:
    run(code("Compressed payloads"), df=flights)
    assert rows(json.loads(gzip.decompress(data)) for data in kinesis.data("flights")) == Counter(ROWS)


@pytest.mark.promise("avro-header-registry")
def test_a_consumer_drops_copies_by_id_and_never_a_row(flights: Any, kinesis: Kinesis) -> None:
    """The first attempt of each batch has stored one partition when it is repeated."""
    write = run(code("An id that lets a consumer drop copies"))["write"]

    def read() -> Counter[tuple[Any, ...]]:
        found: dict[str, Any] = {}
        for record in map(json.loads, kinesis.data("flights")):
            found.setdefault(record["id"], record)
        return rows(found.values())

    first = flights.where("spark_partition_id() = 0")
    write(first, 0)
    write(flights, 0)
    assert len(kinesis.data("flights")) > len(ROWS)
    assert read() == Counter(ROWS)
    kinesis.call("streams", {"name": "flights", "shards": 2})
    write(first, 1)
    write(flights.coalesce(1).sortWithinPartitions("distance"), 1)
    assert not Counter(ROWS) - read()


@pytest.mark.promise("avro-header-registry")
def test_a_repeated_batch_is_archived_once(spark: Any, flights: Any, kinesis: Kinesis, tmp_path: Path) -> None:
    given = Input(tmp_path, files=2, rows_a_file=10)
    archive = tmp_path / "archive"
    write = run(code("Several sinks").replace("/archive", str(archive)))["write"]

    def write_one(df: Any, batch_id: int) -> None:
        write(df.withColumnRenamed("partition_key", "tailnum"), batch_id)

    for _ in range(2):
        query = start_query(spark, str(given.files), str(given.checkpoint), 1, write_one)
        assert query.awaitTermination(QUERY_SECONDS)
        given.forget_commit(1)
    assert kinesis.ids("flights") == Counter(range(given.rows)) + Counter(given.batch(1))
    archived = spark.read.parquet(str(archive / "flights")).collect()
    assert Counter(row["id"] for row in archived) == Counter(range(given.rows))


@pytest.mark.promise("avro-header-registry")
def test_each_row_goes_to_every_stream_it_names(flights: Any, kinesis: Kinesis) -> None:
    kinesis.call("streams", {"name": "flights-audit", "shards": 1})
    run(code("Several streams"), df=flights)
    for stream in ("flights", "flights-audit"):
        assert rows(map(json.loads, kinesis.data(stream))) == Counter(ROWS)


@pytest.mark.promise("avro-header-registry")
@pytest.mark.skipif(
    SPARK < "4.1" or importlib.util.find_spec("grpc_status") is None, reason="needs pyspark[pipelines] of Spark 4.1"
)
def test_a_declarative_pipeline_stores_its_rows(kinesis: Kinesis, running: DaemonProcess, tmp_path: Path) -> None:
    """The sink finds the node's daemon, and the run ends when its rows are stored."""
    kinesis.call("streams", {"name": "flights", "shards": 2})
    (tmp_path / "data").mkdir()
    lines = [json.dumps(dict(zip(NAMES, row))) for row in ROWS]
    (tmp_path / "data" / "flights.json").write_text("\n".join(lines))
    section = "Spark Declarative Pipelines"
    (tmp_path / "flights.py").write_text(code(section).replace("/data/flights", str(tmp_path / "data")))
    yaml = code(section, "yaml").replace("/checkpoints/flights", str(tmp_path / "checkpoints"))
    (tmp_path / "spark-pipeline.yml").write_text(yaml)
    done = subprocess.run(
        [str(Path(sys.executable).parent / "spark-pipelines"), "run"],
        cwd=tmp_path,
        env=spark_environ(tmp_path, PRODUCERD_SOCKET=str(running.socket)),
        capture_output=True,
        text=True,
        timeout=QUERY_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert rows(map(json.loads, kinesis.data("flights"))) == Counter(ROWS)
