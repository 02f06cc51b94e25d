"""The memory limit of a process is the least of its cgroup and all that this lies in, however the system shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from producerd.config.cgroup import NO_LIMIT_BYTES, MemoryLimit, memory_limit
from producerd.config.values import MIB

V2 = "35 24 0:30 {root} {point} rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup rw,nsdelegate\n"
V1 = "42 32 0:36 {root} {point} rw,nosuid,nodev,noexec,relatime shared:18 - cgroup cgroup rw,memory\n"
V1_CPU = "33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:10 - cgroup cgroup rw,cpu,cpuacct\n"
OTHER = "24 29 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw\nan odd line\n"
NO_LIMIT = "9223372036854771712"
CONTAINER = "3601745b3bd54d9780436faa5f0e4f72bb46231663bb99a6bb892764917832c2"
POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2b2d1f9c.slice"


def v2(root: str = "/", point: str = "/sys/fs/cgroup") -> str:
    return V2.format(root=root, point=point)


def v1(root: str = "/", point: str = "/sys/fs/cgroup/memory") -> str:
    return V1_CPU + V1.format(root=root, point=point)


class System:
    """A tree with the files that decide, as systems have them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def limit(self, cgroup: str, mountinfo: str, files: dict[str, str]) -> MemoryLimit:
        self.write("/proc/self/cgroup", cgroup)
        self.write("/proc/self/mountinfo", OTHER + mountinfo)
        for name, text in files.items():
            self.write(name, f"{text}\n")
        return memory_limit(self.path)

    def write(self, name: str, text: str) -> None:
        file = self.path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_a_slice_may_have_less_than_what_lies_in_it(system: System) -> None:
    limit = system.limit(
        f"0::{POD}/cri-containerd-{CONTAINER}.scope\n",
        v2(),
        {
            f"/sys/fs/cgroup{POD}/cri-containerd-{CONTAINER}.scope/memory.max": "1073741824",
            f"/sys/fs/cgroup{POD}/memory.max": "805306368",
            "/sys/fs/cgroup/kubepods.slice/memory.max": "16000000000",
        },
    )
    assert (limit.bytes, limit.path) == (768 * MIB, str(system.path / f"sys/fs/cgroup{POD}/memory.max"))


@pytest.mark.parametrize("cgroup", ["/", f"/system.slice/docker-{CONTAINER}.scope", "/../docker/other", "/ (deleted)"])
def test_a_container_with_a_namespace_of_its_own_has_its_limit_at_the_mounts_root(system: System, cgroup: str) -> None:
    files = {"/sys/fs/cgroup/memory.max": "536870912", "/sys/fs/docker/other/memory.max": "1"}
    limit = system.limit(f"0::{cgroup}\n", v2(), files)
    assert limit.bytes == 512 * MIB


def test_a_container_of_version_1_is_mounted_from_its_own_directory_on(system: System) -> None:
    limit = system.limit(
        f"12:cpu,cpuacct:/docker/{CONTAINER}\n9:memory:/docker/{CONTAINER}\n0::/system.slice/containerd.service\n",
        v1(root=f"/docker/{CONTAINER}"),
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "314572800"},
    )
    assert limit.bytes == 300 * MIB


@pytest.mark.parametrize("peers", ["", "shared:1 master:2 "])
def test_a_mount_may_share_what_is_mounted_in_it_or_not(system: System, peers: str) -> None:
    """A container's mount has none of these fields, a host's has one, and some have two."""
    assert "shared:9 " in V2
    files = {"/sys/fs/cgroup/memory.max": "104857600"}
    assert system.limit("0::/\n", v2().replace("shared:9 ", peers), files).bytes == 100 * MIB


def test_a_systemd_unit_under_version_1_and_what_has_no_limit(system: System) -> None:
    memory = "/sys/fs/cgroup/memory"
    cgroup = "9:memory:/system.slice/producerd.service\n"
    (system.path / "sys/fs/cgroup/cpu,cpuacct/system.slice/producerd.service").mkdir(parents=True)
    files = {
        f"{memory}/memory.limit_in_bytes": NO_LIMIT,
        f"{memory}/system.slice/memory.limit_in_bytes": NO_LIMIT,
        f"{memory}/system.slice/producerd.service/memory.limit_in_bytes": "314572800",
    }
    assert system.limit(cgroup, v1(), files).bytes == 300 * MIB
    files[f"{memory}/system.slice/memory.limit_in_bytes"] = "209715200"
    assert system.limit(cgroup, v1(), files).bytes == 200 * MIB
    for text in (NO_LIMIT, "9223372036854710272", str(NO_LIMIT_BYTES)):  # pages of 4 KiB, of 64 KiB, and the least
        assert system.limit(cgroup, v1(), dict.fromkeys(files, text)) == MemoryLimit()


def test_a_hybrid_system_has_its_limits_in_version_1(system: System) -> None:
    unified = v2(point="/sys/fs/cgroup/unified")
    limit = system.limit(
        "4:memory:/batch\n1:name=systemd:/batch\n0::/batch\n",
        v1() + unified,
        {
            "/sys/fs/cgroup/memory/batch/memory.limit_in_bytes": "314572800",
            "/sys/fs/cgroup/unified/batch/cgroup.procs": "1",
        },
    )
    assert limit.bytes == 300 * MIB
    system.write("/sys/fs/cgroup/unified/batch/memory.max", "104857600")
    assert memory_limit(system.path).bytes == 100 * MIB, "and whichever is less counts"


@pytest.mark.parametrize(("cgroup", "limit_mib"), [("/a", 200), ("/a/b", 100)])
def test_a_mount_whose_name_has_a_space_and_one_of_another_part_of_the_hierarchy(
    system: System, cgroup: str, limit_mib: int
) -> None:
    files = {f"/mnt/{name}memory.max": "1" for name in ("", "a/", "a/b/")}
    files |= {"/my groups/b/memory.max": "104857600", "/my groups/memory.max": "209715200"}
    mounts = v2(root="/other", point="/mnt") + v2(root="/a", point="/my\\040groups")
    assert system.limit(f"0::{cgroup}\n", mounts, files).bytes == limit_mib * MIB


def test_a_mount_may_lie_over_another_one_and_hide_it(system: System) -> None:
    """A container that gets the host's /sys and its own mount sees the second alone, and mountinfo names both."""
    files = {"/sys/fs/cgroup/b/memory.max": "104857600", "/sys/fs/cgroup/memory.max": "209715200"}
    assert system.limit("0::/a/b\n", v2() + v2(root="/a"), files).bytes == 100 * MIB


def test_no_limit_at_all(system: System) -> None:
    assert system.limit("0::/user.slice\n", v2(), {"/sys/fs/cgroup/user.slice/memory.max": "max"}) == MemoryLimit()
    assert system.limit("0::/user.slice\n", "", {}) == MemoryLimit(), "nothing is mounted"


@pytest.mark.parametrize("text", ["", "lots", "-1", "1e9", "12 34", "9" * 21])
def test_what_is_no_number_of_bytes_is_unknown_and_said(system: System, text: str) -> None:
    files = {"/sys/fs/cgroup/a/memory.max": text}
    limit = system.limit("0::/a\n", v2(), files)
    assert limit.bytes is None
    assert limit.problem.endswith(f"a/memory.max: not a number of bytes: {text!r}")
    limit = system.limit("0::/a\n", v2(), {"/sys/fs/cgroup/memory.max": "104857600"})
    assert limit.bytes == 100 * MIB, "what is known counts all the same"
    assert limit.problem


def test_what_cannot_be_read_is_unknown_and_said(system: System) -> None:
    (system.path / "sys/fs/cgroup/memory.max").mkdir(parents=True)
    limit = system.limit("0::/\n", v2(), {})
    assert limit.bytes is None
    assert "Is a directory" in limit.problem


def test_a_system_without_cgroups_is_unknown_and_said(tmp_path: Path) -> None:
    limit = memory_limit(tmp_path)
    assert limit.bytes is None
    assert "No such file" in limit.problem
    assert System(tmp_path).limit("what is this\n\n5:memory\n", v2(), {}).problem == "/proc/self/cgroup names no cgroup"
    (tmp_path / "proc/self/cgroup").write_bytes(b"0::/\xff\n")
    assert memory_limit(tmp_path).problem


def test_this_process_has_a_limit_or_none() -> None:
    limit = memory_limit()
    assert limit.bytes is None or limit.bytes > 10 * MIB
