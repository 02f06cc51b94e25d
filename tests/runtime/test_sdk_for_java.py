"""AWS's SDK for Java 2, which speaks CBOR, and the fake Kinesis understand each other; and its bodies are as frozen."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest

from benchmarks import maven
from benchmarks.judges.sdk import Failed, Row, Sdk, sdk
from producerd.core.encoding.formats import CBOR
from producerd.testing import FakeKinesis, Fault
from producerd.testing.fake_kinesis import serve_in_thread
from tests.core import sdk_bodies

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mvn") is None or shutil.which("javac") is None, reason="needs a JDK and Maven"),
]

ROWS: list[Row] = [("k", b"one", None), ("é", b"", None), ("k", bytes(range(256)), str(2**128 - 1))]


@pytest.fixture(scope="module")
def fake() -> FakeKinesis:
    fake = FakeKinesis()
    fake.create_stream("flights", shards=2)
    return fake


@pytest.fixture(scope="module")
def client(fake: FakeKinesis) -> Iterator[Sdk]:
    try:
        with serve_in_thread(fake) as server, sdk(server.url) as client:
            yield client
    except maven.Unavailable as error:
        pytest.skip(str(error))


async def test_its_bodies_are_those_that_ours_are_compared_with(client: Sdk) -> None:
    found = await sdk_bodies.bodies()
    assert {content_type for content_type, _ in found} == {CBOR.content_type}
    assert [body for _, body in found] == sdk_bodies.frozen()


def test_it_reads_what_the_fake_says_and_the_fake_stores_what_it_sends(fake: FakeKinesis, client: Sdk) -> None:
    stream = fake.streams["flights"]
    fake.script(Fault("throttle", entries=1))
    results = client.put("flights", ROWS)
    entries = stream.entries()
    assert results[0][0] == "ProvisionedThroughputExceededException"
    assert results[0][1].startswith("Rate exceeded for shard shardId-")
    assert sorted(results[1:]) == sorted((entry.sequence_number, entry.shard_id) for entry in entries)
    assert {(entry.partition_key, entry.data, entry.explicit_hash_key) for entry in entries} == set(ROWS[1:])
    read = [record for shard in stream.shards for record in client.get("flights", shard.shard_id)]
    assert sorted(read) == sorted(
        (entry.partition_key, entry.data, entry.sequence_number, round(entry.stored_at * 1_000)) for entry in entries
    )
    assert all(abs(at / 1_000 - time.time()) < 60 for *_, at in read)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault("error", status=400, code="KMSDisabledException", message="é"), (400, "KMSDisabledException", "é")),
        (Fault("error", status=503), (503, "ServiceUnavailable", "Service is unable to handle request.")),
    ],
    ids=["400", "503"],
)
def test_it_reads_errors_of_the_fake(
    fake: FakeKinesis, client: Sdk, fault: Fault, expected: tuple[int, str, str]
) -> None:
    fake.script(fault)
    with pytest.raises(Failed) as caught:
        client.put("flights", ROWS)
    assert caught.value.args[:3] == expected
    assert caught.value.args[3] not in ("", "null")
