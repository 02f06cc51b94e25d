"""What is deployed does what its documents say, as far as this machine can show it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from producerd import __version__
from tests.generated import COPIES

ROOT = Path(__file__).resolve().parent.parent
BOOTSTRAP = ROOT / "deploy/emr/bootstrap.sh"
STAND_IN = """#!/bin/bash
printf '%s\\n' "$(basename "$0") $*" >> "$CALLS"
[[ $(basename "$0") == tee ]] && cat > "$UNIT"
[[ $(basename "$0") != getent ]]
"""


def bootstrapped(tmp_path: Path, *arguments: str) -> tuple[list[str], str]:
    """The commands that the script runs, stand-ins for EMR's, and the unit that it writes."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in (
        *("sudo", "id", "dnf", "aws", "python3.11", "python3", "getent", "groupadd", "useradd", "usermod"),
        *("tee", "systemctl"),
    ):
        text = STAND_IN
        if name == "sudo":
            text = '#!/bin/bash\necho "sudo" >> "$CALLS"\nexec "$@"\n'
        elif name == "id":
            text = "#!/bin/bash\necho 1000\n"
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    calls, unit = tmp_path / "calls", tmp_path / "unit"
    environment = {"PATH": f"{commands}:/usr/bin:/bin", "CALLS": str(calls), "UNIT": str(unit), "TMPDIR": str(tmp_path)}
    # What it would start by its full path is not there.
    script = BOOTSTRAP.read_text().replace("/opt/producerd/bin/python ", "python3.11 ")
    (tmp_path / "bootstrap.sh").write_text(script)
    done = subprocess.run(
        ["/bin/bash", str(tmp_path / "bootstrap.sh"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return calls.read_text().splitlines(), unit.read_text()


def test_emrs_bootstrap_makes_a_daemon_for_yarn_whose_settings_hold(tmp_path: Path) -> None:
    wheel = "s3://bucket/producerd-0.1.0-py3-none-any.whl"
    calls, unit = bootstrapped(tmp_path, wheel, "eu-west-1", "aggregation=kpl")
    plain = [call for call in calls if call != "sudo"]
    assert plain[0] == "dnf install --quiet --assumeyes python3.11 python3.11-pip"
    assert plain[1].startswith(f"aws s3 cp --only-show-errors {wheel} ")
    installs = [call for call in plain if "pip install" in call]
    assert [call.split()[0] for call in installs] == ["python3.11", "python3"]
    assert "producerd[daemon] @ file:///" in installs[0]
    assert "producerd[spark] @ file:///" in installs[1]
    assert "groupadd --system yarn" in plain
    assert "usermod --append --groups yarn producerd" in plain
    assert plain[-2:] == ["systemctl daemon-reload", "systemctl enable --now producerd"]
    (serve,) = re.findall(r"^ExecStart=/opt/producerd/bin/producerd serve(.*)$", unit, re.MULTILINE)
    assert "ExecStartPre" not in unit, "its exit code 78 would not keep systemd from starting it again"
    checked = subprocess.run(
        [sys.executable, "-m", "producerd", "check", *shlex.split(serve.replace("yarn", "root"))],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert checked.returncode == 0, checked.stderr
    assert "region: eu-west-1" in checked.stdout
    assert "aggregation kpl" in checked.stdout


def test_emrs_bootstrap_says_what_it_wants() -> None:
    done = subprocess.run(["/bin/bash", str(BOOTSTRAP)], capture_output=True, text=True, timeout=30)
    assert done.returncode != 0
    assert "the wheel, as s3://..." in done.stderr


@pytest.mark.parametrize("source", COPIES, ids=lambda path: path.name)
def test_the_charts_copies_are_what_they_are_copies_of(source: Path) -> None:
    """``python -m tests.generated`` writes them again."""
    assert COPIES[source].read_bytes() == source.read_bytes()


def test_the_chart_has_the_version_of_what_it_installs() -> None:
    chart = yaml.safe_load((ROOT / "deploy/kubernetes/chart/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
