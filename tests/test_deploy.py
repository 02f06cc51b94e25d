"""What is deployed, as far as any machine can show it; tests/system runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from producerd import __version__
from producerd.config import load
from tests.generated import COPIES

ROOT = Path(__file__).resolve().parent.parent
BOOTSTRAP = ROOT / "deploy/emr/bootstrap.sh"


@pytest.mark.system
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is missing: apt-get install shellcheck")
def test_shellcheck_finds_nothing_in_emrs_bootstrap() -> None:
    done = subprocess.run(["shellcheck", BOOTSTRAP], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("arguments", [[], ["s3://bucket/bundle.tar", "0" * 64]])
def test_emrs_bootstrap_says_what_it_wants(arguments: list[str]) -> None:
    done = subprocess.run(["bash", BOOTSTRAP, *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "wanted: s3://BUCKET/producerd-VERSION-emr-MACHINE.tar SHA256 REGION" in done.stderr


@pytest.mark.parametrize("source", COPIES, ids=lambda path: path.name)
def test_the_charts_copies_are_what_they_are_copies_of(source: Path) -> None:
    """``python -m tests.generated`` writes them again."""
    assert COPIES[source].read_bytes() == source.read_bytes()


def test_the_chart_has_the_version_of_what_it_installs() -> None:
    chart = yaml.safe_load((ROOT / "deploy/kubernetes/chart/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_settings_on_the_page_for_emr_hold() -> None:
    example = (ROOT / "docs/emr.md").read_text().partition("```json\n")[2].partition("```")[0]
    (action,) = json.loads(example)
    _, _, region, *settings = action["Args"]
    config = load(sets=[f"region={region}", *settings], environ={})
    assert set(config.streams) == {"flights", "orders.v2"}
