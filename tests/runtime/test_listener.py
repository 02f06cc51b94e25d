"""A path leads to its daemon, with mode and group set before any client connects, and a lost file is bound again."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from producerd.errors import ConfigurationError, PlaceTaken
from producerd.runtime.listener import Listener, Passed, PathProblem
from tests.daemon import directory

UNIT = "producerd.socket"


@pytest.fixture
def path() -> Iterator[Path]:
    with directory() as folder:
        yield folder / "inner" / "daemon.sock"


@contextlib.contextmanager
def listening(path: Path, mode: int = 0o640) -> Iterator[Listener]:
    listener = Listener(path, mode)
    sockets = [listener.bound[0]]
    try:
        yield listener
    finally:
        sockets += listener.bound
        listener.close()
        for one in sockets:
            one.socket.close()


@contextlib.contextmanager
def manager(path: Path, mode: int = 0o660) -> Iterator[Callable[[], Passed]]:
    """A service manager's socket, which can be passed several times."""
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as held, contextlib.ExitStack() as ends:
        held.bind(os.fspath(path))
        os.chmod(path, mode)
        held.listen()

        def give() -> Passed:
            passed = Passed(ends.enter_context(held.dup()), 0o600, unit=UNIT)
            ends.callback(passed.close)
            return passed

        yield give


def reaches(path: Path, listener: Listener) -> bool:
    """Whether who connects at the path is accepted by the newest socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(os.fspath(path))
        with listener.bound[-1].socket.accept()[0]:
            return True


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def umask() -> int:
    current = os.umask(0o22)
    os.umask(current)
    return current


@contextlib.contextmanager
def another_program(path: Path) -> Iterator[None]:
    """Another program listens at the path; it leaves its file there."""
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(os.fspath(path))
        other.listen()
        yield


def test_folders_that_are_missing_are_made(path: Path) -> None:
    deeper = path.parent / "deeper" / path.name
    with listening(deeper) as listener:
        assert reaches(deeper, listener)


def test_mode_file_and_lock_come_and_go(path: Path) -> None:
    before = umask()
    listener = Listener(path, 0o640, None)
    assert umask() == before
    assert (mode_of(path), mode_of(path.with_name("daemon.sock.lock"))) == (0o640, 0o600)
    assert not listener.bound[0].socket.getblocking()
    open_before = descriptors()
    with pytest.raises(PlaceTaken) as caught:
        Listener(path, 0o640, None)
    why = "in use by another producerd: stop that one"
    assert str(caught.value) == f"socket = {path}: {why}; set socket to another path"
    assert descriptors() == open_before
    listener.close()
    assert listener.bound[0].socket.fileno() == -1
    assert not path.exists()
    Listener(path, 0o640, None).close()


def test_a_stale_file_is_replaced(path: Path) -> None:
    with another_program(path):
        pass
    with listening(path) as listener:
        assert reaches(path, listener)


def test_a_group_that_does_not_exist_leaves_no_file(path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^socket_group = nobody-of-that-name: there is no such group$"):
        Listener(path, 0o600, "nobody-of-that-name")
    assert not path.exists()
    Listener(path, 0o600, None).close()


# ---- the file goes while the daemon runs


def delete_file(path: Path) -> None:
    path.unlink()


def delete_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def make_directory_again(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.mkdir()


def leave_a_stale_one(path: Path) -> None:
    path.unlink()
    with another_program(path):
        pass


@pytest.mark.parametrize("what", [delete_file, delete_directory, make_directory_again, leave_a_stale_one])
def test_a_path_whose_file_has_gone_is_bound_again_with_its_mode(path: Path, what: Callable[[Path], None]) -> None:
    with listening(path) as listener:
        assert not listener.look()
        what(path)
        assert listener.look()
        assert mode_of(path) == 0o640
        assert reaches(path, listener)
        assert not listener.look()
        with pytest.raises(ConfigurationError, match="in use by another producerd"):
            Listener(path, 0o640)
    assert not path.exists()


def test_a_file_that_is_not_a_socket_is_left_alone_until_it_is_removed(path: Path) -> None:
    with listening(path) as listener:
        path.unlink()
        path.write_text("mine")
        for _ in range(2):
            with pytest.raises(PathProblem, match="a file of that name which is not a socket"):
                listener.look()
        assert path.read_text() == "mine"
        with pytest.raises(ConfigurationError, match="which is not a socket"):
            Listener(path, 0o640)  # no lock keeps it off a path that nobody has
        path.unlink()
        assert listener.look()
        assert reaches(path, listener)


@pytest.mark.promise("socket-another-program")
def test_a_socket_that_another_program_answers_on_is_taken_over_when_that_program_ends(path: Path) -> None:
    with listening(path) as listener:
        path.unlink()
        with another_program(path):
            with pytest.raises(PathProblem, match="another process answers"):
                listener.look()
            listener.close()
            assert path.exists(), "it is not this one's to delete"
        with listening(path) as listener:
            assert reaches(path, listener)


def test_a_path_that_another_daemon_took_meanwhile_is_that_daemons_until_it_ends(path: Path) -> None:
    """Its lock went with the directory, so that a second daemon could start."""
    with listening(path) as first:
        shutil.rmtree(path.parent)
        with listening(path) as second:
            with pytest.raises(PathProblem, match="in use by another producerd"):
                first.look()
            assert not second.look()
            assert reaches(path, second)
        assert first.look()
        assert reaches(path, first)


def test_a_lock_whose_file_was_deleted_is_taken_again(path: Path) -> None:
    """Also where the socket's file is still there."""
    lock = path.with_name("daemon.sock.lock")
    with listening(path) as listener:
        before = descriptors()
        lock.unlink()
        assert not listener.look()
        assert lock.exists()
        assert descriptors() == before
        with pytest.raises(ConfigurationError, match="in use by another producerd"):
            Listener(path, 0o640)


def test_a_file_that_is_moved_back_leads_to_its_socket_again(path: Path) -> None:
    with listening(path) as listener:
        path.rename(path.with_name("aside"))
        assert listener.look()
        path.with_name("aside").rename(path)
        assert not listener.look()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(os.fspath(path))
            with listener.bound[0].socket.accept()[0]:
                pass


def test_however_often_its_file_goes_few_sockets_stay_open(path: Path) -> None:
    """The first one, which a mount may lead to, and the last two."""
    with contextlib.ExitStack() as ends, listening(path) as listener:
        first = listener.bound[0]
        for _ in range(5):
            path.unlink()
            assert listener.look()
            ends.callback(listener.bound[-1].socket.close)
        assert len(listener.bound) == 3
        assert listener.bound[0] is first
        assert reaches(path, listener)


# ---- a socket that was passed


@pytest.mark.parametrize("what", [delete_file, delete_directory])
def test_in_the_place_of_a_passed_socket_one_is_bound_that_lets_the_same_clients_in(
    path: Path, what: Callable[[Path], None]
) -> None:
    with manager(path) as give:
        if os.geteuid() == 0:
            os.chown(path, 4711, 4712)
        before = os.stat(path)
        passed = give()
        assert not passed.look()
        what(path)
        assert passed.look()
        after = os.stat(path)
        assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
        assert reaches(path, passed)
        assert passed.remedy == "systemctl restart producerd.socket"


@pytest.fixture
def may_not_chown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the units' system call filter has it."""

    def forbidden(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chown", forbidden)


@pytest.mark.usefixtures("may_not_chown")
def test_a_socket_whose_owners_are_right_by_themselves_needs_no_right_to_change_them(path: Path) -> None:
    group = grp.getgrgid(os.getegid()).gr_name
    Listener(path, 0o640, group).close()
    with manager(path) as give:
        passed = give()
        passed.look()
        path.unlink()
        assert passed.look()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_socket_that_would_keep_clients_out_is_not_bound_in_the_place_of_a_passed_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with manager(path) as give:
        os.chown(path, 0, 4712)
        passed = give()
        passed.look()
        path.unlink()
        request.getfixturevalue("may_not_chown")
        with pytest.raises(PathProblem, match="its owner or group cannot be set: Operation not permitted"):
            passed.look()
        assert not path.exists()
        monkeypatch.undo()
        assert passed.look()
        assert os.stat(path).st_gid == 4712


def test_the_next_daemon_that_is_passed_a_deaf_socket_lets_the_same_clients_in(path: Path) -> None:
    """The one before it was killed, or has ended: its file says who may connect."""
    with manager(path, 0o664) as give:
        first = give()
        first.look()
        path.unlink()
        first.look()
        first.close()
        second = give()
        assert second.look()
        assert mode_of(path) == 0o664
        assert reaches(path, second)


def test_a_socket_that_was_deaf_when_it_was_passed_is_bound_with_the_mode_of_the_settings(path: Path) -> None:
    with manager(path, 0o664) as give:
        path.unlink()
        passed = give()
        assert passed.look()
        assert mode_of(path) == 0o600
        assert not passed.look()
        assert len(passed.bound) == 2
        assert reaches(path, passed)


def test_a_passed_socket_that_cannot_be_bound_again_says_why_until_it_can(path: Path) -> None:
    """A file has replaced the directory, so not even root can bind a socket in it."""
    with manager(path) as give:
        passed = give()
        passed.look()
        shutil.rmtree(path.parent)
        path.parent.touch()
        with pytest.raises(PathProblem, match="its directory cannot be used"):
            passed.look()
        path.parent.unlink()
        assert passed.look()


def test_looking_at_a_passed_socket_disturbs_nobody(path: Path) -> None:
    """Nobody is in its backlog but who was there, and no lock is left."""
    with manager(path) as give:
        passed = give()
        assert not passed.look()
        passed.bound[0].socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            passed.bound[0].socket.accept()
        assert os.listdir(path.parent) == [path.name]


def test_a_passed_socket_without_a_path_that_can_be_seen_is_not_watched(path: Path) -> None:
    """An abstract name; and the path of another file system, as in a container."""
    for name in (f"\0{path}", os.fspath(path)):
        with socket.socket(socket.AF_UNIX) as held:
            path.parent.mkdir(exist_ok=True)
            held.bind(name)
            held.listen()
            shutil.rmtree(path.parent)
            passed = Passed(held, 0o600, unit=UNIT)
            assert not passed.look()
            assert not path.parent.exists()
            passed.close()


@pytest.mark.promise("lock-link-followed")
def test_a_lock_that_is_a_link_is_not_followed(path: Path) -> None:
    """The daemon may be root, and the link may lead to a file of somebody else."""
    path.parent.mkdir()
    theirs = path.with_name("theirs")
    path.with_name(f"{path.name}.lock").symlink_to(theirs)
    with pytest.raises(ConfigurationError, match="its directory cannot be used"):
        Listener(path, 0o600)
    assert not theirs.exists()


@pytest.mark.parametrize(
    ("error", "why"),
    [(OSError(errno.EMFILE, "Too many open files"), "Too many open files"), (OSError("not today"), "not today")],
)
def test_a_path_that_cannot_be_bound_for_the_system_s_own_reasons_is_a_problem_of_the_path(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, why: str
) -> None:
    def fails(*_: object) -> None:
        raise error

    with listening(path) as listener:
        os.unlink(path)
        monkeypatch.setattr("producerd.runtime.listener._bind", fails)
        with pytest.raises(PathProblem) as caught:
            listener.look()
        assert str(caught.value) == why


def test_a_path_on_which_another_program_answers_is_taken(path: Path) -> None:
    with another_program(path):
        with pytest.raises(PlaceTaken) as caught:
            Listener(path, 0o600)
        why = "in use: another process answers on it"
        assert str(caught.value) == f"socket = {path}: {why}; set socket to another path"
        assert path.exists()


def test_a_program_that_accepts_nobody_is_not_waited_for(path: Path) -> None:
    """Its backlog is full."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as other, contextlib.ExitStack() as ends:
        other.bind(os.fspath(path))
        other.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = ends.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(os.fspath(path))
        with pytest.raises(ConfigurationError) as caught:
            Listener(path, 0o600)
        why = "in use, or this process may not replace it (Resource temporarily unavailable)"
        assert str(caught.value) == f"socket = {path}: {why}; set socket to another path"
        assert path.exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_path_that_is_too_long_for_a_socket_is_named_so(path: Path, is_there: bool) -> None:
    longer = path.parent / ("x" * 100) / path.name
    longer.parent.mkdir(parents=True)
    why = "cannot be bound: AF_UNIX path too long"
    if is_there:
        with another_program(path):
            path.rename(longer)
        why = "in use, or this process may not replace it (AF_UNIX path too long)"
    before = descriptors()
    with pytest.raises(ConfigurationError) as caught:
        Listener(longer, 0o600)
    assert str(caught.value) == f"socket = {longer}: {why}; set socket to another path"
    assert descriptors() == before


def test_no_client_may_connect_before_the_file_has_its_mode(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    chmod = os.chmod

    def watched(file: Path, mode: int) -> None:
        modes.append(mode_of(file))
        chmod(file, mode)

    monkeypatch.setattr(os, "chmod", watched)
    with listening(path):
        assert (modes, mode_of(path)) == ([0], 0o640)


@pytest.mark.usefixtures("may_not_chown")
def test_a_group_that_the_file_cannot_get_leaves_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grp, "getgrnam", lambda _: SimpleNamespace(gr_gid=os.getegid() + 1))
    before = descriptors()
    with pytest.raises(ConfigurationError) as caught:
        Listener(path, 0o600, "others")
    why = "its owner or group cannot be set: Operation not permitted"
    assert str(caught.value) == f"socket_group = others: {why}"
    assert (path.exists(), descriptors()) == (False, before)
    Listener(path, 0o600).close()


def test_a_file_that_is_not_a_socket_does_not_decide_who_may_connect(path: Path) -> None:
    with manager(path, 0o660) as give:
        path.unlink()
        path.write_text("mine")
        path.chmod(0o644)
        passed = give()
        with pytest.raises(PathProblem, match=r"^there is a file of that name which is not a socket: remove it$"):
            passed.look()
        path.unlink()
        assert passed.look()
        assert mode_of(path) == 0o600


def test_an_abstract_name_is_not_taken_for_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path, which is for people, would be one in the folder of the process."""
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(f"\0producerd-{os.getpid()}")
        held.listen()
        passed = Passed(held, 0o600, unit=UNIT)
        assert str(passed.path) == f"@producerd-{os.getpid()}"
        assert not passed.look()
        assert os.listdir() == []
        passed.close()


@pytest.mark.parametrize(
    ("mode", "uid", "changes"),
    [
        pytest.param(0o660, 4711, [(4711, 4712)], id="owner and group"),
        pytest.param(0o660, 1000, [(-1, 4712)], id="the daemon itself"),
        pytest.param(0o660, 0, [(-1, 4712)], id="root needs no permission"),
        pytest.param(0o640, 4711, [(4711, -1)], id="the group may not connect anyway"),
        pytest.param(0o662, 4711, [], id="every user may connect"),
    ],
)
def test_a_replacement_gets_the_owners_who_decide_who_may_connect(
    monkeypatch: pytest.MonkeyPatch, path: Path, mode: int, uid: int, changes: list[tuple[int, int]]
) -> None:
    with manager(path) as give:
        passed, changed = give(), list[tuple[int, int]]()
        assert not passed.look()
        path.chmod(mode)  # the manager may change it later
        found = os.stat(path)
        theirs = SimpleNamespace(
            st_mode=found.st_mode, st_uid=uid, st_gid=4712, st_dev=found.st_dev, st_ino=found.st_ino
        )
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", lambda _: theirs)
            patch.setattr(os, "geteuid", lambda: 1000)
            assert not passed.look()
        path.unlink()
        monkeypatch.setattr(os, "chown", lambda _, uid, gid: changed.append((uid, gid)))
        assert passed.look()
        assert (changed, mode_of(path)) == (changes, mode)
