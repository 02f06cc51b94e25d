"""A node of EMR as its bootstrap actions find it: a user with sudo, an S3, no Python 3.11, and no Hadoop yet.

Stand-ins are the commands `aws` and `dnf` alone.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import zipfile
from pathlib import Path
from typing import Final

from tests.daemon import ROOT
from tests.system.machine import SYSTEM_SECONDS, Machine
from tools.packaging import write_emr_bundle

BUCKET: Final = "bucket"
AWS: Final = """\
#!/bin/sh
[ "$1 $2 $3" = "s3 cp --only-show-errors" ] && exec cp "/srv/${4#s3://}" "$5"
"""
DNF: Final = """\
#!/bin/sh
[ "$*" = "install --quiet --assumeyes python3.11" ] && ln -s python3.spark /usr/bin/python3.11
"""
PEX: Final = """\
import os, sys
venv, compiled, folder = sys.argv[1:]
os.mkdir(folder)
os.symlink("/mnt/commands/bin", f"{folder}/bin")
"""
"""Stands for a pex: its environment is what the machine mounts."""


class EmrNode:
    """``machine`` is the node, seen from outside."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._s3 = machine.root / "srv" / BUCKET

    def prepare(self) -> None:
        self.machine.run("useradd --create-home hadoop")
        _write(self.machine.root / "etc/sudoers.d/hadoop", "hadoop ALL=(ALL) NOPASSWD: ALL\n", 0o440)
        _write(self.machine.root / "usr/local/bin/aws", AWS, 0o755)
        _write(self.machine.root / "usr/local/bin/dnf", DNF, 0o755)
        self._s3.mkdir()
        self.machine.run("mv /usr/bin/python3.11 /usr/bin/python3.spark")
        self.machine.run("ln --symbolic --force python3.spark /usr/bin/python3")

    def copy_script(self) -> None:
        """Bring the script, in the place of one that a test has changed."""
        shutil.copy(ROOT / "deploy/emr/bootstrap.sh", self.machine.root / "srv")

    def restore(self) -> None:
        """Make it what it was before."""
        self.machine.run("mv /usr/bin/python3.spark /usr/bin/python3.11")
        self.machine.run("ln --symbolic --force python3.11 /usr/bin/python3")
        self.machine.run(
            "rm -r /srv/bucket /srv/bootstrap.sh /usr/local/bin/aws /usr/local/bin/dnf /etc/sudoers.d/hadoop"
        )
        self.machine.run("userdel --remove hadoop", codes=(0, 12))
        self.machine.run("groupdel yarn", codes=(0, 6))

    def give_credentials(self) -> None:
        """As the instance profile does."""
        file = self.machine.root / "etc/producerd/producerd.env"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"AWS_{name}=testing\n" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")))

    def upload(self, bundle: Path) -> str:
        """Put a bundle into S3, and return what the script wants to know of it."""
        shutil.copy(bundle, self._s3)
        return f"s3://{BUCKET}/{bundle.name} {hashlib.sha256(bundle.read_bytes()).hexdigest()}"

    def light_bundle(self, folder: Path, name: str = "a", machine: str = "x86_64") -> str:
        """Upload a bundle with the real units and a stand-in for the pex.  Each name gives another hash."""
        pex, client = folder / f"producerd-0.0-cp311-{machine}.pex", folder / "producerd-client-0.0.zip"
        pex.write_text(f"{PEX}# {name}\n")
        with zipfile.ZipFile(client, "w") as archive:
            archive.writestr("spark_client.py", "")
        bundle = folder / f"producerd-{name}.tar"
        write_emr_bundle(bundle, pex, client)
        return self.upload(bundle)

    def bootstrap(self, arguments: str, *settings: str, code: int = 0) -> str:
        """Run the script as EMR does, and return what stands in the node's log of it."""
        command = shlex.join(["/srv/bootstrap.sh", *arguments.split(), *settings])
        as_hadoop = ["runuser", "-u", "hadoop", "--", "bash", "-c", f"cd; exec 2>&1; {command}"]
        return self.machine.run(shlex.join(as_hadoop), codes=(code,), seconds=3 * SYSTEM_SECONDS)


def _write(path: Path, text: str, mode: int) -> None:
    path.write_text(text)
    path.chmod(mode)
