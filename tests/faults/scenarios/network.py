"""The network between the daemon and the service fails."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from producerd.testing.certificate import self_signed
from tests.daemon import until
from tests.faults.network import Proxy
from tests.faults.scenarios import scenario
from tests.faults.stage import Stage

HOST: Final = "kinesis.example"
OTHER_ADDRESS: Final = "127.0.0.2"
HANDSHAKE_BYTES: Final = 300
"""Bytes of the service's side of a TLS handshake, which is longer."""
OWN_NAMES: Final = 'mount --bind "$1" /etc/hosts && mount --bind "$2" /etc/resolv.conf && shift 2 && exec "$@"'


@scenario("the network carries nothing for 30 s", patient=True)
def blackhole(stage: Stage) -> None:
    stage.proxy.set_mode("blackhole")
    stage.wait(30, 3)
    stage.must_have_filled_a_queue()


@scenario("every connection is reset 100 times, and then for 10 s as soon as it is made", patient=True)
def resets(stage: Stage) -> None:
    for _ in stage.times(100, 8):
        stage.wait_a_while(0.02, 0.3)
        stage.proxy.reset_connections()
    stage.proxy.set_mode("reset")
    stage.wait(10, 1)


@scenario("the network carries requests for 30 s, and no answer", patient=True)
def half_open(stage: Stage) -> None:
    stage.proxy.set_mode("half_open")
    stage.wait(30, 3)


@scenario("all open connections are forgotten without a word, 10 times", patient=True)
def forgotten_connections(stage: Stage) -> None:
    for _ in stage.times(10, 2):
        stage.proxy.forget_connections()
        stage.wait(4, 2)


@scenario("TLS handshakes stall for 20 s, then each connection after 6 kB for 20 s", tls=True, patient=True)
def tls_stall(stage: Stage) -> None:
    stage.proxy.after_bytes = HANDSHAKE_BYTES
    stage.proxy.reset_connections()
    stage.wait(20, 3)
    stage.proxy.after_bytes = 6_000
    stage.wait(20, 3)


@contextlib.contextmanager
def with_bundle_of_its_own(stage: Stage) -> Iterator[Path]:
    assert stage.service.certificate is not None
    bundle = stage.folder / "bundle.pem"
    bundle.write_bytes(stage.service.certificate.read_bytes())
    stage.environ["AWS_CA_BUNDLE"] = str(bundle)
    yield bundle


@scenario(
    "the service has another certificate than the bundle for 20 s, and then the bundle is extended",
    tls=True,
    around=with_bundle_of_its_own,
    patient=True,
)
def replaced_certificate(stage: Stage) -> None:
    bundle: Path = stage.given
    trusted = bundle.read_bytes()
    _, other = self_signed(stage.folder, "other.example")
    bundle.write_bytes(other.read_bytes())
    stage.daemon.signal(signal.SIGHUP)
    until(lambda: f"certificates: {bundle} has others" in stage.daemon.log, "the bundle is read again")
    stage.proxy.reset_connections()
    stage.wait(20, 3)
    bundle.write_bytes(trusted + other.read_bytes())


def lacks_names_of_its_own() -> str:
    return "" if os.geteuid() == 0 else "only root may give a process a hosts file of its own"


def _hosts(stage: Stage) -> Path:
    return stage.folder / "hosts"


def _name(stage: Stage, *addresses: str) -> None:
    """Give the service's name these addresses; with none it does not exist."""
    lines = [f"{address} {HOST}\n" for address in addresses]
    _hosts(stage).write_text("127.0.0.1 localhost\n" + "".join(lines))


@contextlib.contextmanager
def with_names_of_its_own(stage: Stage) -> Iterator[None]:
    """Start the daemon where the hosts file is the stage's, and where nobody answers DNS."""
    resolver = stage.folder / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    _name(stage, stage.proxy.address)
    stage.prefix = ("unshare", "-m", "sh", "-c", OWN_NAMES, "sh", str(_hosts(stage)), str(resolver))
    yield


@scenario(
    "the endpoint's name fails for 20 s; then it has another address, and at the old one nobody answers for 20 s",
    host=HOST,
    around=with_names_of_its_own,
    lacks=lacks_names_of_its_own,
    patient=True,
)
def moved_endpoint(stage: Stage) -> None:
    _name(stage)
    for _ in stage.times(20, 3):  # else those that are open need no name
        stage.proxy.reset_connections()
        stage.wait(1)
    old, new = stage.proxy, Proxy("127.0.0.1", stage.service.port, address=OTHER_ADDRESS, listen_port=stage.proxy.port)
    stage.proxy = stage.ending.enter_context(new.running())
    _name(stage, new.address)
    old.set_mode("blackhole")
    stage.wait(20, 3)
