"""A machine of its own with a real systemd as PID 1: a container of podman's, from Debian's packages, without network.

The project's tree and this environment's packages are mounted into it, and run there by Debian's own Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pyarrow

from tests.daemon import PATIENCE_SECONDS, ROOT, until
from tests.spark.service import Kinesis

DEPLOY: Final = ROOT / "deploy/systemd"
NEEDED: Final = ("podman", "runc", "mmdebstrap", "nsenter")
RELEASE, ITS_PYTHON = "bookworm", (3, 11)
PACKAGES: Final = (
    *("python3-minimal", "libpython3-stdlib"),
    *("systemd", "systemd-sysv", "dbus", "sudo"),  # for the machine
    *("python3-venv", "ca-certificates"),  # for the base of the image
)
EXCLUDED: Final = ("doc", "locale", "man")
"""Folders of /usr/share that the images of Debian do not have."""
EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
SYSTEM_SECONDS: Final = 4 * PATIENCE_SECONDS
COMMAND: Final = """\
#!/usr/bin/python3 -I
import sys
sys.path[:0] = ["/mnt/source", "/mnt/packages"]
from producerd.{module} import main
sys.exit(main())
"""
COMMANDS: Final = {"producerd": "cli", "producerctl": "ctl"}
# What systemd wants to do in a container, and what engines do not let it by themselves.
PRIVILEGES: Final = (
    "--systemd=always --network=none --ulimit nofile=4096:4096 --ulimit nproc=4096:4096"
    " --cap-add SYS_ADMIN,NET_ADMIN,SYS_PTRACE,SETPCAP,MKNOD,SYS_RAWIO,SYSLOG,SYS_TIME,SYS_MODULE,IPC_LOCK"
    " --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt unmask=all"
)
READY: Final = """\
import http.client
asked = http.client.HTTPConnection("127.0.0.1", 9474, timeout=30)
asked.request("GET", "/-/ready")
answer = asked.getresponse()
print(answer.status, answer.read().decode())
"""
ASK: Final = """\
import sys, urllib.request
url, body = sys.argv[1:]
sys.stdout.write(urllib.request.urlopen(url, body.encode() or None, timeout=30).read().decode())
"""


def missing() -> str:
    """What this machine lacks for one; empty: nothing."""
    if os.geteuid() != 0:
        return "needs root"
    if absent := [name for name in NEEDED if shutil.which(name) is None]:
        return f"needs {', '.join(absent)}: apt-get install {' '.join(absent).replace('nsenter', 'util-linux')}"
    if sys.version_info[:2] != ITS_PYTHON:
        return (
            f"needs Python {'.'.join(map(str, ITS_PYTHON))}, as Debian {RELEASE} has, for this environment's packages"
        )
    return ""


class Machine:
    """``root`` is its file system, seen from outside: its sockets can be connected to there."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.root = Path(f"/proc/{pid}/root")
        self.socket = self.root / "run/producerd/producerd.sock"
        self.admin_socket = self.root / "run/producerd/producerd.admin.sock"

    def run(self, command: str, *, codes: tuple[int, ...] = (0,), seconds: float = SYSTEM_SECONDS) -> str:
        """What a command says, in it."""
        done = subprocess.run(
            ["nsenter", f"--target={self._pid}", "--all", *shlex.split(command)],
            capture_output=True,
            text=True,
            timeout=seconds,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        assert done.returncode in codes, f"{command}: {done.returncode}\n{done.stderr}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        told = [
            "nsenter",
            f"--target={self._pid}",
            "--all",
            "journalctl",
            "--no-pager",
            "-o",
            "cat",
            "-u",
            "producerd*",
        ]
        return subprocess.run(told, capture_output=True, text=True, timeout=SYSTEM_SECONDS).stdout

    def show(self, unit: str = "producerd.service") -> dict[str, str]:
        """A unit's properties."""
        return dict(line.split("=", 1) for line in self.run(f"systemctl show {unit}").splitlines() if "=" in line)

    def starts(self) -> int:
        """How often the service was begun to be started."""
        return self.log().count("Starting producerd.service")

    def status(self) -> dict[str, Any]:
        """`producerctl status --json`."""
        command = [sys.executable, "-m", "producerd.ctl", f"--admin-socket={self.admin_socket}", "status", "--json"]
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SYSTEM_SECONDS, check=True)
        status: dict[str, Any] = json.loads(told.stdout)
        return status

    def ready(self) -> str:
        """Status and text of the daemon's /-/ready."""
        return self.run(shlex.join(["python3", "-c", READY]))

    def metrics(self) -> str:
        return self.run(shlex.join(["python3", "-c", ASK, "http://127.0.0.1:9474/metrics", ""]))

    def install(self) -> None:
        """As docs/operate/systemd.md says it.  Its environment is what is mounted at /mnt/commands."""
        self.run("ln --symbolic --force --no-target-directory /mnt/commands /opt/producerd")
        for name in ("producerd.service", "producerd.socket"):
            shutil.copy(DEPLOY / name, self.root / "etc/systemd/system" / name)
        for kind in ("sysusers.d", "tmpfiles.d"):
            (self.root / "etc" / kind).mkdir(exist_ok=True)
            shutil.copy(DEPLOY / kind / "producerd.conf", self.root / "etc" / kind)
        self.run("systemd-sysusers")
        self.run("systemd-tmpfiles --create producerd.conf")
        self.run("systemctl daemon-reload")
        self.run("systemctl enable producerd.socket producerd.service")

    def configure(self, unit: str = "", defaults: Mapping[str, Any] = EMPTY, **settings: Any) -> None:
        """Write a configuration with the settings of the node and of streams, and a drop-in of the service."""
        folder = self.root / "etc/producerd"
        folder.mkdir(exist_ok=True)
        keys = (f"AWS_{name}=testing\n" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
        (folder / "producerd.env").write_text("".join(keys))
        node, streams = (
            "\n".join(f"{key} = {json.dumps(value)}" for key, value in of.items()) for of in (settings, defaults)
        )
        (folder / "producerd.toml").write_text(f"{node}\n[defaults]\n{streams}\n")
        drop_in = self.root / "etc/systemd/system/producerd.service.d/test.conf"
        drop_in.parent.mkdir(exist_ok=True)
        drop_in.write_text(f"[Service]\n{unit}\n")
        self.run("systemctl daemon-reload")

    @contextlib.contextmanager
    def kinesis(self, *options: str) -> Iterator[Kinesis]:
        """A fake Kinesis at its 127.0.0.1."""
        enter = ["nsenter", f"--net=/proc/{self._pid}/ns/net", sys.executable]

        class Inside(Kinesis):
            def call(self, path: str, body: Any = None) -> Any:
                asked = [*enter, "-c", ASK, f"{self.url}/_fake/{path}", "" if body is None else json.dumps(body)]
                told = subprocess.run(asked, capture_output=True, text=True, timeout=SYSTEM_SECONDS, check=True)
                return json.loads(told.stdout)

        command = [*enter, "-m", "producerd.testing.fake_kinesis", "--port=0", *options]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().strip()
                assert url, "the fake Kinesis did not start"
                yield Inside(url)
            finally:
                process.kill()

    def assert_nothing_is_left(self) -> None:
        left = self.run("find /etc /opt /run /usr /var /tmp /home /root -xdev -name *producerd*", codes=(0, 1)).split()
        left = [path for path in left if not path.startswith(("/var/log/journal", "/run/log/journal"))]
        assert left == [], left
        assert self.run("grep -r --exclude=*- producerd /etc", codes=(0, 1)) == ""
        assert self.run("systemctl list-units --all --no-legend --plain producerd*") == ""


@contextlib.contextmanager
def machine(debian: Path) -> Iterator[Machine]:
    """A machine with the file system of `bootstrap`, from its tar."""
    folder = Path(tempfile.mkdtemp(prefix="producerd-system-"))
    podman = f"podman --storage-driver vfs --root {folder}/storage --runroot {folder}/run"
    podman += f" --runtime {shutil.which('runc')} --cgroup-manager=cgroupfs"
    try:
        commands = folder / "producerd/bin"
        commands.mkdir(parents=True)
        for name, module in COMMANDS.items():
            (commands / name).write_text(COMMAND.format(module=module))
        for path in (folder, commands.parent, commands, *commands.iterdir()):
            path.chmod(0o755)
        packages = Path(pyarrow.__file__).parents[1]
        mounts = {ROOT: "/mnt/source", packages: "/mnt/packages", commands.parent: "/mnt/commands"}
        shown = " ".join(f"-v {path}:{place}:ro" for path, place in mounts.items())
        (folder / "rootfs").mkdir()
        _run(f"tar --extract --numeric-owner --xattrs --file={debian} --directory={folder}/rootfs")
        run = f"{podman} run -d --name machine {PRIVILEGES} {shown} --rootfs {folder}/rootfs /sbin/init"
        _run(run)
        made = Machine(int(_run(f"{podman} inspect -f {{{{.State.Pid}}}} machine")))
        until(
            lambda: made.run("systemctl is-system-running", codes=(0, 1)) == "running\n", "systemd runs", SYSTEM_SECONDS
        )
        made.install()
        yield made
    finally:
        subprocess.run(
            shlex.split(f"{podman} rm --force --time 0 machine"), capture_output=True, timeout=SYSTEM_SECONDS
        )
        shutil.rmtree(folder)


class NotMade(Exception):
    """Debian's packages did not come."""


def bootstrap(target: Path) -> None:
    """Make a tar of a file system of `PACKAGES`.  Raise `NotMade`."""
    lists = [
        path for name in ("sources.list", "sources.list.d/debian.sources") if (path := Path("/etc/apt", name)).exists()
    ]
    options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
    options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in EXCLUDED]
    command = ["mmdebstrap", *options, RELEASE, str(target), *map(str, lists[:1])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    if done.returncode:
        raise NotMade(done.stderr.strip().splitlines()[-1])


def _run(command: str) -> str:
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=SYSTEM_SECONDS)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout.strip()
