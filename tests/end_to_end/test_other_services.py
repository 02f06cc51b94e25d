"""What other stand-ins for Kinesis store of requests in CBOR: one of them, the records; another one, something else.

So the daemon sends CBOR to no other endpoint than AWS's own, unless its operator says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import boto3
import pytest

from producerd.demo.ports import free_port
from producerd.wire.columns import lay_out
from tests.daemon import CREDENTIALS, daemon, session, until
from tools import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node.js with npm"),
]

KINESALITE: Final = "kinesalite@3.3.3"
KINESIS_LOCAL: Final = "kinesis-local@0.6.2"
INSTALL_SECONDS: Final = 300
ROWS: Final = [bytes([length % 256]) * length for length in range(300)]
FEW_ROWS: Final = ROWS[1:9]
"""Some that kinesalite takes at all: in CBOR it never answers to longer ones."""


def installed(package: str) -> Path:
    """The folder of an npm package below the ignored folder ``build``, to which it is installed once."""
    folder = ROOT / "build" / "npm" / package
    if not folder.exists():
        partial = folder.with_name(f"{package}.{os.getpid()}")
        partial.mkdir(parents=True)
        command = ["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--prefix", str(partial), package]
        try:
            subprocess.run(command, check=True, timeout=INSTALL_SECONDS, capture_output=True)
        except subprocess.SubprocessError as error:
            shutil.rmtree(partial)
            pytest.skip(f"{package} cannot be installed: {error}")
        with contextlib.suppress(OSError):  # somebody else was faster
            partial.rename(folder)
    return folder / "node_modules" / package.partition("@")[0]


@contextlib.contextmanager
def serving(package: str) -> Iterator[tuple[str, Any]]:
    """The URL of a service with the stream "flights", and a client of boto3's."""
    folder, port = installed(package), free_port()
    if package == KINESALITE:
        command = ["node", str(folder / "cli.js"), "--port", str(port), "--createStreamMs", "0"]
        environ = {}
    else:
        command = ["node", str(folder / "main.js")]
        ports = {"KINESIS_MOCK_PLAIN_PORT": str(port), "KINESIS_MOCK_TLS_PORT": str(free_port())}
        environ = {**ports, "KINESIS_MOCK_CERT_PATH": str(folder / "server.json"), "CREATE_STREAM_DURATION": "0ms"}
    with subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: accepts(port), f"{package} listens", 30)
            client = boto3.client(
                "kinesis",
                endpoint_url=f"http://127.0.0.1:{port}",
                region_name="us-east-1",
                aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
                aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            )
            client.create_stream(StreamName="flights", ShardCount=2)
            client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
            yield f"http://127.0.0.1:{port}", client
        finally:
            process.kill()


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def stored(client: Any) -> list[bytes]:
    found: list[bytes] = []
    for shard in client.list_shards(StreamName="flights")["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName="flights", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        found += [record["Data"] for record in client.get_records(ShardIterator=iterator)["Records"]]
    return found


def put(url: str, wire_format: str, rows: list[bytes]) -> None:
    with daemon(url, wire_format=wire_format) as running, session(running) as client:
        client.put(lay_out([b"key %d" % (number % 100) for number in range(len(rows))], rows))
        assert client.acks()[0].stored == len(rows)


@pytest.mark.parametrize("wire_format", ["cbor", "auto"])
def test_kinesis_local_stores_what_it_gets_in_either_format(wire_format: str) -> None:
    with serving(KINESIS_LOCAL) as (url, client):
        put(url, wire_format, ROWS)
        assert sorted(stored(client)) == sorted(ROWS)


def test_kinesalite_acknowledges_cbor_and_stores_something_else() -> None:
    """Its answers to GetRecords have an object in place of the data, of which boto3 makes nothing."""
    answers: list[bytes] = []
    with serving(KINESALITE) as (url, client):
        put(url, "cbor", FEW_ROWS)
        client.meta.events.register("before-parse", lambda response_dict, **_: answers.append(response_dict["body"]))
        with pytest.raises(TypeError, match="not 'dict'"):
            stored(client)
    (data, *_) = [record["Data"] for record in json.loads(answers[-1])["Records"]]
    assert data["type"] == "Buffer"


def test_kinesalite_gets_json_unless_its_operator_says_otherwise() -> None:
    with serving(KINESALITE) as (url, client):
        put(url, "auto", ROWS)
        assert sorted(stored(client)) == sorted(ROWS)
