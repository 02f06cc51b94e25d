"""A Kinesis that answers at once and does as little work as possible, so that benchmarks measure only the producers.

It speaks TLS, and JSON or CBOR as the client does.  Its answers to PutRecords are as long as Amazon's.  The stream has
one shard, so any hash of a producer is right.  A thread for each connection reads into one buffer, which needs less CPU
than an event loop.

It counts records, also the ones in KPL aggregates and in CBOR, where each must begin with `MARK`.  It writes the
certificate of an authority, which clients trust, to the file `CERTIFICATE` in the given directory.  It prints its port,
and for each line on stdin the number of records until now::

    python -m benchmarks.sink DIRECTORY
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import re
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Any, Final

import cbor2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pybase64 import b64decode

from producerd.testing.certificate import self_signed

HOST: Final = "127.0.0.1"
SHARD: Final = "shardId-000000000000"
SEQUENCE_NUMBER: Final = "49590338271490256608559692538361571095921575989136588898"
"""A sequence number that is as long as Amazon's."""
CONTENT_LENGTH: Final = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)
TARGET: Final = re.compile(rb"^x-amz-target: *Kinesis_20131202\.(\w+)", re.IGNORECASE | re.MULTILINE)
FIXED: Final[dict[bytes, Any]] = {
    b"ListShards": {
        "Shards": [
            {
                "ShardId": SHARD,
                "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
                "SequenceNumberRange": {"StartingSequenceNumber": SEQUENCE_NUMBER},
            }
        ]
    },
    b"DescribeStreamSummary": {
        "StreamDescriptionSummary": {
            "StreamName": "bench",
            "StreamARN": "arn:aws:kinesis:us-east-1:123456789012:stream/bench",
            "StreamStatus": "ACTIVE",
            "RetentionPeriodHours": 24,
            "StreamCreationTimestamp": 1.0,
            "EnhancedMonitoring": [],
            "OpenShardCount": 1,
        }
    },
}
CERTIFICATE: Final = "certificate.pem"
MARK: Final = b"\0record\0"
"""First bytes of each record's data.  They occur nowhere else in a record or an aggregate."""
MOST_REQUEST_BYTES: Final = 16 << 20
"""Size of the buffer: far above the largest request of Kinesis in base64.  Only its used pages need memory."""
CBOR: Final = b"application/x-amz-cbor-1.1"
"""Content type that Amazon's SDK for Java sends.  Its data are plain bytes, not base64."""
_CBOR: Final = re.compile(rb"^content-type: *" + re.escape(CBOR), re.IGNORECASE | re.MULTILINE)
_EXPECTS: Final = re.compile(rb"^expect: *100-continue", re.IGNORECASE | re.MULTILINE)
"""Pattern of a head after which the client waits for "100 Continue".  The official KPL does, for up to a second."""
_KEY: Final = b'"PartitionKey"'
_CBOR_KEY: Final = b"\x6cPartitionKey"
_DATA: Final = re.compile(rb'"Data":\s*"')
_AGGREGATE: Final = re.compile(rb'"Data":\s*"84ma')
"""Pattern of an aggregate, by its first bytes in base64."""


class Sink:
    """The server's counters and its loop for one connection.  ``records`` counts the records of all connections."""

    def __init__(self) -> None:
        self.records = 0
        self._counting = threading.Lock()

    def serve(self, connection: socket.socket) -> None:
        """Answer the requests of a connection, one after the other, until the client closes it."""
        buffer = bytearray(MOST_REQUEST_BYTES)
        view = memoryview(buffer)
        while True:
            head_end, filled = -1, 0
            while head_end < 0:
                if not (received := connection.recv_into(view[filled:])):
                    return
                filled += received
                head_end = buffer.find(b"\r\n\r\n", 0, filled)
            head = bytes(view[:head_end])
            if _EXPECTS.search(head):
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = CONTENT_LENGTH.search(head)
            end = head_end + 4 + (int(length[1]) if length else 0)
            while filled < end:
                if not (received := connection.recv_into(view[filled:end])):
                    return
                filled += received
            connection.sendall(self._answer(head, buffer, end))

    def _answer(self, head: bytes, buffer: bytearray, end: int) -> bytes:
        target = TARGET.search(head)
        assert target is not None
        in_cbor = _CBOR.search(head) is not None
        if target[1] != b"PutRecords":
            return _response(FIXED[target[1]], in_cbor)
        entries = buffer.count(_CBOR_KEY if in_cbor else _KEY, len(head), end)
        records = entries
        if in_cbor:
            records = buffer.count(MARK, len(head), end)
        elif _AGGREGATE.search(buffer, len(head), end):
            records = _records_in(buffer, len(head), end)
        with self._counting:
            self.records += records
        return _stored(entries, in_cbor)


def _records_in(buffer: bytearray, at: int, end: int) -> int:
    """Return the number of records in a request's entries, plain or aggregates."""
    records, view = 0, memoryview(buffer)
    for data in _DATA.finditer(buffer, at, end):
        records += b64decode(view[data.end() : buffer.index(b'"', data.end(), end)]).count(MARK)
    return records


@functools.cache
def _stored(entries: int, in_cbor: bool) -> bytes:
    record = {"SequenceNumber": SEQUENCE_NUMBER, "ShardId": SHARD}
    return _response({"EncryptionType": "KMS", "FailedRecordCount": 0, "Records": [record] * entries}, in_cbor)


def _response(answer: Any, in_cbor: bool) -> bytes:
    body = (
        cbor2.dumps(answer, indefinite_containers=True)
        if in_cbor
        else json.dumps(answer, separators=(",", ":")).encode()
    )
    head = (
        b"HTTP/1.1 200 OK\r\nx-amzn-RequestId: 00000000-0000-0000-0000-000000000000\r\n"
        b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n"
    )
    return head % (CBOR if in_cbor else b"application/x-amz-json-1.1", len(body)) + body


def signed_by(authority: Path, key_file: Path) -> ssl.SSLContext:
    """Return a context with a server's certificate for `HOST`.  Rust's clients refuse an authority's certificate."""
    signer = x509.load_pem_x509_certificate(authority.read_bytes())
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = (
        x509.CertificateBuilder(serial_number=x509.random_serial_number())
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sink")]))
        .issuer_name(signer.subject)
        .public_key(key.public_key())
        .not_valid_before(signer.not_valid_before_utc)
        .not_valid_after(signer.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    own = authority.with_name("sink.pem")
    own.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own, key_file)
    return context


def accept(listener: socket.socket, context: ssl.SSLContext, sink: Sink) -> None:
    def served(plain: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as connection:
            sink.serve(connection)

    while True:
        plain, _ = listener.accept()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=served, args=(plain,), daemon=True).start()


def main(directory: str) -> None:
    self_signed(Path(directory), HOST)
    context = signed_by(Path(directory, CERTIFICATE), Path(directory, "key.pem"))
    sink = Sink()
    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=accept, args=(listener, context, sink), daemon=True).start()
        print(listener.getsockname()[1], flush=True)
        for _ in sys.stdin:
            print(sink.records, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
