"""What is deployed, as far as any machine can show it; tests/system runs it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from producerd import __version__
from producerd.config import load

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


def bootstrap_function(name: str) -> str:
    """The text of one function of the script, which does more when it is sourced."""
    found = re.search(rf"^{name}\(\) {{.*?^}}$", BOOTSTRAP.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


@pytest.mark.promise("emrs-bootstrap-removes")
@pytest.mark.parametrize("in_use", ["0123456789abcdef", None])
def test_emrs_bootstrap_removes_nothing_that_it_has_not_made(tmp_path: Path, in_use: str | None) -> None:
    """And of its own it leaves the environment in use and its folder of work.  Uninstalling leaves nothing."""
    others = ["producerd-logs", "producerd-0123", "producerd-work", "producerd-0123456789abcdef-mine", "producerd.d"]
    others += ["old-producerd-0123456789abcdef", "producerd-work.Ab12Cdx"]
    for name in (*others, "producerd-0123456789abcdef", "producerd-fedcba9876543210", "producerd-work.Ab12Cd"):
        (tmp_path / name / "inner").mkdir(parents=True)
    kept = list(others)
    work = "producerd-work.Ef34Gh"
    if in_use is not None:
        (tmp_path / work).mkdir()
        (tmp_path / "producerd").symlink_to(f"producerd-{in_use}")
        kept += [work, "producerd", f"producerd-{in_use}"]
    lines = [f"home={tmp_path}/producerd", f"work={tmp_path}/{work}" if in_use else "", "set -euo pipefail"]
    script = "\n".join([*lines, bootstrap_function("remove_unused"), "remove_unused"])
    subprocess.run(["bash", "-c", script], check=True, timeout=30)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_the_chart_has_the_version_of_what_it_installs() -> None:
    chart = yaml.safe_load((ROOT / "deploy/kubernetes/chart/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.promise("settings-hold-whatever")
def test_the_settings_on_the_page_for_emr_hold() -> None:
    example = (ROOT / "docs/use/emr.md").read_text().partition("```json\n")[2].partition("```")[0]
    (action,) = json.loads(example)
    _, _, region, *settings = action["Args"]
    config = load(sets=[f"region={region}", *settings], environ={})
    assert set(config.streams) == {"flights", "orders.v2"}
