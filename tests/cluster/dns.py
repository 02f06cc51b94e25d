"""The cluster's DNS, as small as it can be: addresses of services, and of the pods behind headless ones.

::

    python -m tests.cluster.dns ADDRESS
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import urllib.request
from typing import Any

from tests.cluster.keys import PKI

NO_SUCH_NAME = 3
ANSWER = 0x8580
"""Flags of an authoritative answer."""


class Names:
    """Looks names up in the cluster, whose API is at an address."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._context = ssl.create_default_context(cafile=PKI / "ca.crt")
        self._context.load_cert_chain(PKI / "admin.crt", PKI / "admin.key")

    def addresses(self, name: str) -> list[str] | None:
        """Return the addresses of a service, or None if there is no such name."""
        parts = name.rstrip(".").lower().split(".")
        if len(parts) != 5 or parts[2:] != ["svc", "cluster", "local"]:
            return None
        service = self._get(parts[1], f"services/{parts[0]}")
        if service is None:
            return None
        if service["spec"].get("clusterIP") != "None":
            return [service["spec"]["clusterIP"]]
        points = self._get(parts[1], f"endpoints/{parts[0]}") or {}
        kinds = "addresses", "notReadyAddresses"
        subsets = points.get("subsets") or []
        return [one["ip"] for subset in subsets for kind in kinds for one in subset.get(kind) or []]

    def _get(self, namespace: str, what: str) -> Any:
        url = f"https://{self._server}:6443/api/v1/namespaces/{namespace}/{what}"
        try:
            with urllib.request.urlopen(url, context=self._context, timeout=5) as answer:
                return json.load(answer)
        except OSError:
            return None


def answer(query: bytes, names: Names) -> bytes:
    """Answer a query with A records (RFC 1035)."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace"))
        at += query[at] + 1
    at += 5
    found = names.addresses(".".join(labels))
    asks_addresses = query[at - 4 : at - 2] == b"\0\1"
    records = [socket.inet_aton(one) for one in found or []] if asks_addresses else []
    flags = ANSWER | (NO_SUCH_NAME if found is None else 0)
    head = query[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, 0) + query[12:at]
    return head + b"".join(struct.pack("!HHHIH", 0xC00C, 1, 1, 2, 4) + record for record in records)


def main(address: str) -> None:
    names = Names(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((address, 53))
        while True:
            query, client = udp.recvfrom(4_096)
            udp.sendto(answer(query, names), client)


if __name__ == "__main__":
    main(sys.argv[1])
