"""The command line: exit codes and messages of real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from producerd import __version__, cli

MIB = 1024 * 1024
CGROUPS = Path("/sys/fs/cgroup/memory")
SMALL = ("node_queue_limit_bytes=16 MiB", "node_max_in_flight_bytes=8 MiB", "queue_limit_bytes=16 MiB")
IN_FLIGHT = "in flight 24 requests, 32 MiB"
HEAVY = ("aiobotocore", "aiohttp", "pyarrow", "numpy", "pyspark", "boto3", "moto", "structlog")


def producerd(*arguments: str, env: dict[str, str] | None = None, code: str = "") -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PRODUCERD_")}
    run = ["-c", code] if code else ["-m", "producerd"]
    return subprocess.run(
        [sys.executable, *run, *arguments],
        capture_output=True,
        text=True,
        env=clean | (env or {}),
        timeout=60,
        check=False,
    )


def without(*modules: str) -> str:
    """A program: the command line in an interpreter where these modules cannot be imported."""
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in modules)
    return f"import sys; {blocked}; from producerd.cli import main; sys.exit(main())"


def test_version() -> None:
    done = producerd("--version")
    assert (done.returncode, done.stdout) == (0, f"producerd {__version__}\n")


def test_help_documents_the_exit_codes() -> None:
    for arguments in (["--help"], ["serve", "--help"]):
        done = producerd(*arguments)
        assert done.returncode == 0
        assert "78   configuration" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["fly"], ["serve", "--fast"], ["config"], ["demo", "--shards", "0"]])
def test_wrong_usage_exits_2_and_shows_the_usage(arguments: list[str]) -> None:
    done = producerd(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: producerd")


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
def test_wrong_usage_does_not_show_what_may_be_a_secret(words: list[str], named: str) -> None:
    wrong = producerd("check", *words)
    assert wrong.returncode == 2
    assert f"error: {named}" in wrong.stderr
    assert "hunter2" not in wrong.stderr


def test_a_number_of_the_demo_out_of_range_names_the_range() -> None:
    done = producerd("demo", "--records", "400000")
    assert done.returncode == 2
    assert "argument --records: '400000': allowed: 100 to 336,776" in done.stderr


def test_check_says_ok_and_what_holds(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('[streams."orders.eu"]\nqueue_limit = 5\naggregation = "kpl"\n')
    done = producerd("check", "-c", str(file), "--set", "socket=/run/x.sock", env={"PRODUCERD_QUEUE_LIMIT": "2000"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.pop(6).startswith("memory: needs at most 982 MiB; ")
    assert lines == [
        "OK: the settings hold",
        "region: not set here: AWS_REGION or a profile of AWS must name one",
        "endpoint: the default of the region",
        "socket: /run/x.sock, mode 0660; at most 512 connections",
        "producerctl: /run/x.admin.sock",
        "metrics: 127.0.0.1:9474",
        "streams: any stream, at most 64 at a time",
        f"each stream: queue 2,000 records, 64 MiB (2 s of one shard, 0.5 s of four); {IN_FLIGHT}; aggregation none",
        f"stream orders.eu: queue 5 records, 64 MiB (64 s of one shard, 16 s of four); {IN_FLIGHT}; aggregation kpl",
    ]


@pytest.mark.promise("check-knows-memory-another")
def test_check_knows_the_memory_of_another_place_by_an_option() -> None:
    fits = producerd("check", "--memory-limit", "1GiB")
    assert fits.returncode == 0
    assert "memory: needs at most 982 MiB; the limit of this cgroup is 1,024 MiB\n" in fits.stdout
    outgrows = producerd("check", "--memory-limit", "512 MiB")
    assert (outgrows.returncode, outgrows.stdout) == (78, "")
    assert "the limit of this cgroup is 512 MiB (--memory-limit): set max_streams = 30, " in outgrows.stderr
    wrong = producerd("check", "--memory-limit", "1Gi")
    assert wrong.returncode == 78
    assert '--memory-limit 1Gi: allowed: bytes or text such as "1 GiB"' in wrong.stderr


def test_a_stream_is_named_for_the_online_check_alone() -> None:
    done = producerd("check", "--stream", "flights")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "producerd check: error: --stream is for --online\n"


def test_check_warns_where_a_queue_lasts_for_less_than_a_second_or_for_more_than_a_hundred() -> None:
    of = "of one shard, and less of more (--online counts them)"
    sets = [
        "queue_limit_bytes=128 MiB",
        "streams.short.queue_limit=500",
        "streams.slow.shard_rate_fraction=0.1",
        "streams.fine.queue_limit=1000",
        "streams.small.aggregation=kpl",
        "streams.small.queue_limit_bytes=512 KiB",
    ]
    done, denied = (producerd("check", *(f"--set={one}" for one in sets), *more) for more in ([], ["--deny-warnings"]))
    assert (done.returncode, denied.returncode, denied.stdout) == (0, 1, done.stdout)
    waits, stands = "records may wait that long; lower queue_limit_bytes", "they will wait for callers; raise"
    assert [line for line in done.stdout.splitlines() if line.startswith("WARNING")] == [
        f"WARNING each stream: a full queue is 128 s {of}: {waits}",
        f"WARNING stream short: a full queue is 0.5 s {of}: {stands} queue_limit",
        f"WARNING stream slow: a full queue is 1,280 s {of}: {waits}",
        f"WARNING stream small: a full queue is 0.5 s {of}: {stands} queue_limit_bytes",
    ]


def test_check_denies_warnings_of_the_settings_and_of_the_online_report(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = []

    def run(_config: object, _names: object, *, deny_warnings: bool) -> bool:
        denied.append(deny_warnings)
        return True

    monkeypatch.setattr("producerd.runtime.online.run", run)
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
        start = f"{join}; import sys; from producerd.cli import main; sys.exit(main())"
        done = producerd(command, f"--set=socket={tmp_path}/s", code=start)
        fits = producerd("check", "--set=max_streams=1", *map("--set={}".format, SMALL), code=start)
    finally:
        cgroup.rmdir()
    assert (done.returncode, done.stdout) == (78, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "producerd: configuration: memory: up to 982 MiB may be needed, and the limit of this cgroup"
    )
    assert f"is 512 MiB ({cgroup}/memory.limit_in_bytes): set max_streams = 30, node_queue_limit_bytes = " in line
    assert fits.returncode == 0
    assert "; the limit of this cgroup is 512 MiB\n" in fits.stdout


def test_check_says_of_each_stream_what_is_not_as_it_comes_but_no_external_id(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    arn, role = "arn:aws:kinesis:us-east-1:210987654321:stream/events", "arn:aws:iam::210987654321:role/producer"
    file.write_text(
        f"""
        [defaults]
        on_throttle = "fail"
        [streams.partner]
        stream_arn = "{arn}"
        role_arn = "{role}"
        external_id = "kept-quiet"
        ordering = "per_key"
        record_ttl_seconds = 30
        queue_limit = 5
        """
    )
    done = producerd("check", "-c", str(file))
    assert done.returncode == 0, done.stderr
    assert "kept-quiet" not in done.stdout
    others = 'external_id is set, record_ttl_seconds = 30, on_throttle = "fail", ordering = "per_key"'
    assert done.stdout.splitlines()[-5:-1] == [
        (
            "each stream: queue 1,000,000 records, 64 MiB (64 s of one shard, 16 s of four); "
            f"{IN_FLIGHT}; aggregation none"
        ),
        '  on_throttle = "fail"',
        (
            "stream partner: queue 5 records, 64 MiB (0.005 s of one shard, 0.00125 s of four); "
            f"{IN_FLIGHT}; aggregation none"
        ),
        f'  stream_arn = "{arn}", role_arn = "{role}", {others}',
    ]


@pytest.mark.parametrize("command", [["check"], ["serve"], ["config", "print"]])
def test_configuration_problems_are_a_line_each_and_exit_78(command: list[str]) -> None:
    done = producerd(*command, "--set", "queueLimit=5", env={"PRODUCERD_MAX_STREAMS": "0"})
    assert done.returncode == 78
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        'producerd: configuration: queueLimit = "5" (--set): no such setting; the nearest is queue_limit',
        'producerd: configuration: PRODUCERD_MAX_STREAMS = "0" (environment): allowed: 1 to 10,000',
    ]


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


def test_config_print_can_be_read_again(tmp_path: Path) -> None:
    first = producerd("config", "print", "--set", "streams.x.queue_limit=7")
    file = tmp_path / "p.toml"
    file.write_text(first.stdout)
    again = producerd("config", "print", env={"PRODUCERD_CONFIG": str(file)})
    assert (again.returncode, again.stdout) == (0, first.stdout)


def test_config_file_writes_what_was_given_or_exits_78() -> None:
    done = producerd("config", "file", "--set", 'streams."a.b".queue_limit_bytes=32 MiB', "--set", "region=eu-west-1")
    assert done.stdout == 'region = "eu-west-1"\n\n[defaults]\n\n[streams."a.b"]\nqueue_limit_bytes = "32 MiB"\n'
    done = producerd("config", "file", "--set", "regin=eu-west-1")
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith('producerd: configuration: regin = "eu-west-1" (--set): no such setting')


def test_a_file_of_settings_is_utf_8_whatever_the_terminal_shows(tmp_path: Path) -> None:
    for what in ("file", "print"):
        done = producerd("config", what, "--set=socket=/tmp/\xfc.sock", env={"PYTHONIOENCODING": "ascii"})
        assert (done.returncode, done.stderr) == (0, "")
        assert 'socket = "/tmp/\xfc.sock"' in done.stdout


def test_usage_and_check_need_none_of_the_daemons_machinery() -> None:
    for arguments in (["--version"], ["check"]):
        done = producerd(*arguments, code=without(*HEAVY))
        assert done.returncode == 0, done.stderr


def test_a_bare_installation_is_told_what_to_install() -> None:
    done = producerd("serve", code=without("pydantic"))
    assert done.returncode == 78
    assert done.stderr == 'producerd: the package pydantic is missing: pip install "producerd[daemon]"\n'
    done = producerd("demo", code=without("pyspark"))
    assert done.returncode == 78
    assert done.stderr == 'producerd: the package pyspark is missing: pip install "producerd[demo]"\n'


def test_a_module_of_its_own_that_is_missing_is_no_package_to_install() -> None:
    done = producerd("check", code=without("producerd.config"))
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
    assert "pip install" not in done.stderr


def test_an_output_that_nobody_reads_ends_the_command_quietly() -> None:
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


@pytest.mark.parametrize("owner", ["17", "17:", "17:a", "1:2:3"])
def test_an_owner_is_a_process_and_its_start(owner: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "--owner", owner])
    assert ended.value.code == 2
    assert f"{owner!r}: allowed: PID:START" in capsys.readouterr().err


def test_the_schema_of_the_file_is_json() -> None:
    done = producerd("config", "schema")
    assert done.returncode == 0
    assert json.loads(done.stdout)["properties"]["max_streams"]["maximum"] == 10_000


def test_settings_are_printed_with_where_they_came_from() -> None:
    done = producerd("config", "print", "--origin", "--set=region=eu-west-1", env={"PRODUCERD_LOG_FORMAT": "json"})
    assert done.returncode == 0
    assert re.search(r'^region = "eu-west-1" +# --set$', done.stdout, re.MULTILINE)
    assert re.search(r'^log_format = "json" +# environment PRODUCERD_LOG_FORMAT$', done.stdout, re.MULTILINE)
