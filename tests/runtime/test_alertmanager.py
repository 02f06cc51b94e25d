"""One cause is one page: Alertmanager gets what the rules fire, and notifies of the cause only.

It needs Debian's package prometheus-alertmanager, and promtool.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.daemon import PATIENCE_SECONDS, ROOT, until
from tests.runtime.alert_fleet import DEAD_STS, LOST_ZONE, OUTAGE, Fleet, alerts

CONFIG: Final = ROOT / "deploy/prometheus/alertmanager.yml"
MISSING: Final = [name for name in ("promtool", "amtool", "prometheus-alertmanager") if shutil.which(name) is None]

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


def test_the_fragment_is_a_configuration() -> None:
    done = subprocess.run(["amtool", "check-config", CONFIG], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise("outage-dead-sts-lost")
def test_an_outage_dead_sts_and_a_lost_zone_are_one_page_each(tmp_path: Path) -> None:
    """The outage is of a region with two clusters.  Of the fourth cluster half of the nodes are gone."""
    fired = alerts(
        tmp_path,
        Fleet("a").on(1.0, **OUTAGE),
        Fleet("b").on(1.0, **OUTAGE),
        Fleet("c").on(1.0, **DEAD_STS),
        Fleet("d").on(0.5, **LOST_ZONE),
        at=("68m", "80m", "90m"),
    )
    assert len(fired.pages) > 8, "the rules alone page for what follows from a cause, too"
    others = [
        *("ProducerdNothingDelivered e flights", "ProducerdRecordsStuck e flights", "ProducerdBackpressure e flights"),
        *("ProducerdRecordsFailed f flights", "ProducerdFailedBurn f flights", "ProducerdFailedBurn f orders"),
        *("ProducerdMemoryNearLimit g", "ProducerdRestarts g"),
    ]
    with alertmanager(tmp_path) as running:
        running.take([*fired.pages, *others])
        expected = [
            ["ProducerdCredentialsExpire c flights"],
            ["ProducerdDaemonsDown d"],
            ["ProducerdFailedBurn f orders"],
            ["ProducerdMemoryNearLimit g"],
            ["ProducerdNothingDelivered e flights"],
            ["ProducerdRecordsFailed f flights"],
            ["ProducerdStreamRefused a flights", "ProducerdStreamRefused b flights"],
        ]
        until(lambda: running.notifications() == expected, "causes mute what follows from them", 10)


class Alertmanager:
    """A real Alertmanager with the fragment as its configuration."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/api/v2/alerts"

    def take(self, pages: list[str]) -> None:
        """Post alerts, each given as its name, cluster and stream."""
        names = ("alertname", "cluster", "stream")
        labels = [dict(zip(names, page.split(), strict=False), region="eu", severity="page") for page in pages]
        until(lambda: self._call("", [{"labels": each} for each in labels]), "Alertmanager serves", 30)

    def notifications(self) -> list[list[str]]:
        """Return the alerts that are not muted, by the notification that would tell of them."""
        groups = self._call("/groups?active=true&inhibited=false&silenced=false")
        assert {group["receiver"]["name"] for group in groups} <= {"pages"}
        labels = [[one["labels"] for one in group["alerts"]] for group in groups]
        named = [
            [" ".join((x["alertname"], x["cluster"], x.get("stream", ""))).strip() for x in each] for each in labels
        ]
        return sorted(sorted(each) for each in named if each)

    def _call(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return json.loads(answer.read() or b"true")
        except (urllib.error.URLError, ConnectionError):  # it does not serve yet
            return None


@contextmanager
def alertmanager(tmp_path: Path) -> Iterator[Alertmanager]:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
    command = [
        "prometheus-alertmanager",
        f"--config.file={CONFIG}",
        f"--storage.path={tmp_path}/alertmanager",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as running:
        try:
            yield Alertmanager(address)
        finally:
            running.terminate()
            running.wait(PATIENCE_SECONDS)
