"""The command line: exit codes and messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from producerd import __version__, cli
from tests.snapshots import Snapshot

MIB = 1024 * 1024
CGROUPS = Path("/sys/fs/cgroup/memory")
SMALL = ("node_queue_limit_bytes=16 MiB", "node_max_in_flight_bytes=8 MiB", "queue_limit_bytes=16 MiB")
HEAVY = ("aiobotocore", "aiohttp", "pyarrow", "numpy", "pyspark", "boto3", "moto", "structlog")


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `producerd` in this process, with these variables of ours and no others."""

    def run(*arguments: str, **env: str) -> Done:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name in filter(lambda name: name.startswith("PRODUCERD_"), list(os.environ)):
                patch.delenv(name)
            for name, value in env.items():
                patch.setenv(name, value)
            try:
                code = cli.main(list(arguments))
            except SystemExit as ended:
                code = int(ended.code or 0)
        return Done(code, *capsys.readouterr())

    return run


def process(*arguments: str, code: str = "from producerd.cli import main; sys.exit(main())") -> Done:
    """Run `producerd` in a process of its own, after other code."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PRODUCERD_")}
    command = [sys.executable, "-c", f"import sys; {code}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def without(*modules: str) -> str:
    """Code for an interpreter where these modules cannot be imported."""
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in modules)
    return f"{blocked}; from producerd.cli import main; sys.exit(main())"


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"producerd {__version__}\n", "")


def test_help_documents_the_exit_codes(run: Run) -> None:
    for arguments in (["--help"], ["serve", "--help"]):
        done = run(*arguments)
        assert done.returncode == 0
        assert "78   configuration" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], ""),
        (["fly"], ""),
        (["serve", "--fast"], "no such option: --fast"),
        (["config"], ""),
        (["demo", "--shards", "0"], ""),
        (["demo", "--records", "400000"], "argument --records: '400000': allowed: 100 to 336,776"),
        *((["serve", "--owner", owner], f"{owner!r}: allowed: PID:START") for owner in ("17", "17:", "17:a", "1:2:3")),
    ],
)
def test_wrong_usage_exits_2_and_shows_the_usage(run: Run, arguments: list[str], named: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: producerd")
    assert named in done.stderr


@pytest.mark.promise("external-id-shown-nowhere")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--set", "external_id", "hunter2"], "words that belong to no option: 1 "),
        (["--external_id=hunter2"], "no such option: --external_id"),
        (
            ["--external_id", "hunter2", "--fast"],
            "no such option: --external_id --fast; words that belong to no option: 1 ",
        ),
    ],
)
def test_wrong_usage_does_not_show_what_may_be_a_secret(run: Run, words: list[str], named: str) -> None:
    wrong = run("check", *words)
    assert wrong.returncode == 2
    assert f"error: {named}" in wrong.stderr
    assert "hunter2" not in wrong.stderr


# ---- check

OF_A_STREAM = """
[defaults]
on_throttle = "fail"
[streams."orders.eu"]
queue_limit = 5
aggregation = "kpl"
[streams.partner]
stream_arn = "arn:aws:kinesis:us-east-1:210987654321:stream/events"
role_arn = "arn:aws:iam::210987654321:role/producer"
external_id = "kept-quiet"
ordering = "per_key"
record_ttl_seconds = 30
queue_limit = 5
"""
WARNS = [
    "queue_limit_bytes=128 MiB",
    "streams.short.queue_limit=500",
    "streams.slow.shard_rate_fraction=0.1",
    "streams.fine.queue_limit=1000",
    "streams.small.aggregation=kpl",
    "streams.small.queue_limit_bytes=512 KiB",
]


SETS = [
    "region=eu-west-1",
    "endpoint_url=https://vpce-1.kinesis.eu-west-1.vpce.amazonaws.com",
    "allowed_uids=9,7",
    "metrics_listen=",
    "streams_allowed=listed",
    "streams.a.queue_limit=5000",
    "socket=/s",
    "socket_mode=0600",
]


def test_check_shows_in_words_what_the_settings_mean(run: Run, tmp_path: Path, snapshot: Snapshot) -> None:
    (tmp_path / "p.toml").write_text(OF_A_STREAM)
    file, place = ("-c", str(tmp_path / "p.toml")), ("--set=socket=/run/x.sock", "--memory-limit=2GiB")
    shown = [run("check", *file, *place, PRODUCERD_QUEUE_LIMIT="2000")]
    shown += [run("check", *place, *(f"--set={one}" for one in WARNS))]
    shown += [run("check", "--memory-limit=2GiB", *(f"--set={one}" for one in SETS))]
    assert [(done.returncode, done.stderr) for done in shown] == [(0, "")] * 3
    assert "kept-quiet" not in shown[0].stdout
    snapshot("check", "\n".join(done.stdout for done in shown))


def test_check_denies_warnings(run: Run) -> None:
    sets = [f"--set={one}" for one in WARNS]
    warned, denied = run("check", *sets), run("check", *sets, "--deny-warnings")
    assert (warned.returncode, denied.returncode, denied.stdout) == (0, 1, warned.stdout)


@pytest.mark.promise("check-knows-memory-another")
def test_check_knows_the_memory_of_another_place_by_an_option(run: Run) -> None:
    fits = run("check", "--memory-limit", "1GiB")
    assert fits.returncode == 0
    assert "memory: needs at most 850 MiB; the limit of this cgroup is 1,024 MiB\n" in fits.stdout
    outgrows = run("check", "--memory-limit", "512 MiB")
    assert (outgrows.returncode, outgrows.stdout) == (78, "")
    assert (
        'the limit of this cgroup is 512 MiB (--memory-limit): set memory = "512 MiB", by which max_streams = 40, '
        in outgrows.stderr
    )
    wrong = run("check", "--memory-limit", "1Gi")
    assert wrong.returncode == 78
    assert '--memory-limit 1Gi: allowed: bytes or text such as "1 GiB"' in wrong.stderr


def test_a_stream_is_named_for_the_online_check_only(run: Run) -> None:
    assert run("check", "--stream", "flights") == (2, "", "producerd check: error: --stream is for --online\n")


def test_online_check_gets_the_option_that_denies_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = []

    def run_online(_config: object, _names: object, *, deny_warnings: bool) -> bool:
        denied.append(deny_warnings)
        return True

    monkeypatch.setattr("producerd.runtime.online.run", run_online)
    check = ["check", "--online", "--set=region=eu-west-1", "--deny-warnings"]
    assert [cli.main(check), cli.main([*check, "--set=endpoint_url=http://kinesis.example"])] == [0, 1]
    assert denied == [True, True]


@pytest.mark.promise("daemon-outgrow-cgroup")
@pytest.mark.skipif(not os.access(CGROUPS, os.W_OK), reason="needs root and cgroups of version 1")
@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_daemon_that_may_outgrow_its_cgroup_does_not_start(command: str, tmp_path: Path) -> None:
    cgroup = CGROUPS / f"producerd-test-{os.getpid()}"
    cgroup.mkdir()
    try:
        (cgroup / "memory.limit_in_bytes").write_text(str(512 * MIB))
        join = f"from pathlib import Path; Path({str(cgroup / 'cgroup.procs')!r}).write_text('0')"
        start = f"{join}; from producerd.cli import main; sys.exit(main())"
        done = process(command, f"--set=socket={tmp_path}/s", code=start)
        fits = process("check", "--set=max_streams=1", *map("--set={}".format, SMALL), code=start)
    finally:
        cgroup.rmdir()
    assert (done.returncode, done.stdout) == (78, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "producerd: configuration: memory: up to 850 MiB may be needed, and the limit of this cgroup"
    )
    assert f'is 512 MiB ({cgroup}/memory.limit_in_bytes): set memory = "512 MiB", by which max_streams = 40, ' in line
    assert fits.returncode == 0
    assert "; the limit of this cgroup is 512 MiB\n" in fits.stdout


# ---- problems of the configuration


@pytest.mark.parametrize("command", [["check"], ["serve"], ["config", "print"], ["config", "file"]])
def test_configuration_problems_are_a_line_each_and_exit_78(run: Run, command: list[str]) -> None:
    sets = ["--set=queueLimit=5", "--set=max_streams=0"]
    done = (process if command == ["serve"] else run)(*command, *sets)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.splitlines() == [
        'producerd: configuration: queueLimit = "5" (--set): no such setting; the nearest is queue_limit',
        'producerd: configuration: max_streams = "0" (--set): allowed: 1 to 10,000',
    ]


@pytest.mark.promise("requests-aws-encrypted")
def test_the_daemon_does_not_start_with_settings_that_can_only_be_a_mistake() -> None:
    done = process("serve", "--set=region=eu-west-1", "--set=endpoint_url=http://kinesis.eu-west-1.amazonaws.com")
    assert (done.returncode, done.stdout) == (78, "")
    assert "must be encrypted" in done.stderr


@pytest.mark.promise("journal-finds-lines")
def test_configuration_problems_are_errors_in_systemd_s_journal(tmp_path: Path) -> None:
    """Systemd takes a line's priority from "<3>" at its start, and names its own pipe in JOURNAL_STREAM."""
    with (tmp_path / "stderr").open("w+") as stderr:
        found = os.fstat(stderr.fileno())
        environ = os.environ | {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        command = [sys.executable, "-m", "producerd", "serve", "--set=queue_limit=0", "--set=max_streams=0"]
        done = subprocess.run(command, stderr=stderr, env=environ, timeout=60, check=False)
        stderr.seek(0)
        lines = stderr.read().splitlines()
    assert done.returncode == 78
    assert len(lines) == 2
    assert all(line.startswith("<3>producerd: configuration: ") for line in lines)


# ---- settings as text


def test_config_print_can_be_read_again(run: Run, tmp_path: Path) -> None:
    first = run("config", "print", "--set", "streams.x.queue_limit=7")
    file = tmp_path / "p.toml"
    file.write_text(first.stdout)
    assert run("config", "print", PRODUCERD_CONFIG=str(file)) == (0, first.stdout, "")


def test_config_print_shows_where_a_setting_came_from(run: Run) -> None:
    lines = run("config", "print", "--origin", "--set=region=eu-west-1", PRODUCERD_LOG_FORMAT="json").stdout
    shown = [line.split() for line in lines.splitlines()]
    assert ["region", "=", '"eu-west-1"', "#", "--set"] in shown
    assert ["log_format", "=", '"json"', "#", "environment", "PRODUCERD_LOG_FORMAT"] in shown


def test_config_file_writes_what_was_given(run: Run) -> None:
    done = run("config", "file", "--set", 'streams."a.b".queue_limit_bytes=32 MiB', "--set", "region=eu-west-1")
    assert done.stdout == 'region = "eu-west-1"\n\n[defaults]\n\n[streams."a.b"]\nqueue_limit_bytes = "32 MiB"\n'


def test_the_schema_of_the_file_is_json(run: Run) -> None:
    done = run("config", "schema")
    assert done.returncode == 0
    assert json.loads(done.stdout)["properties"]["max_streams"]["maximum"] == 10_000


# ---- what a process needs


def test_usage_and_check_need_none_of_the_daemons_machinery() -> None:
    for arguments in (["--version"], ["check"]):
        done = process(*arguments, code=without(*HEAVY))
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "missing", "code", "says"),
    [
        ("serve", "pydantic", 78, 'producerd: the package pydantic is missing: pip install "producerd[daemon]"\n'),
        ("demo", "pyspark", 78, 'producerd: the package pyspark is missing: pip install "producerd[demo]"\n'),
        ("check", "producerd.config", 1, "ModuleNotFoundError"),
    ],
)
def test_a_package_that_is_missing_is_named_and_a_module_of_ours_is_none(
    command: str, missing: str, code: int, says: str
) -> None:
    done = process(command, code=without(missing))
    assert (done.returncode, says in done.stderr, "pip install" in done.stderr) == (code, True, code == 78)


def test_an_output_that_no_process_reads_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as output:
        command = [sys.executable, "-m", "producerd", "check"]
        environ = os.environ | {"PYTHONUNBUFFERED": ""}  # with it nothing is left to be written at the end
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.PIPE, text=True, env=environ, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_exits_130_and_says_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("producerd.config.load", interrupted)
    assert cli.main(["check"]) == 130
    assert capsys.readouterr() == ("", "")


def test_where_the_demo_is_not_installed_it_names_its_wheel(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producerd.cli.find_spec", lambda _: None)
    assert cli.main(["demo"]) == 78
    assert capsys.readouterr().err == (
        f"producerd: configuration: the demo is in a wheel of its own: install producerd_demo-{__version__}\n"
    )
