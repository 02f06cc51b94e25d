"""Rivals are measured alike, each record counted at the sink; what cannot be run here is named, with the reason."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import cbor2
import pytest

import benchmarks.rivals.__main__ as command
from benchmarks import maven
from benchmarks.daemon import run as daemon
from benchmarks.daemon.client import rows as new_rows
from benchmarks.daemon.run import RecordsWrong
from benchmarks.rivals import boto3_by_hand, builds, rows, run, stock_aiobotocore
from benchmarks.rivals.builds import Builds
from benchmarks.rivals.producers import RIVALS, Rival
from benchmarks.rivals.run import Bench, Cost, Figures, family
from benchmarks.sink import Sink
from benchmarks.spark.cost import cpu_seconds
from producerd.core.kpl.aggregation import Aggregate
from producerd.demo.children import Child, Children
from producerd.demo.scenario import environment

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ["cpu_ns_per_record", "peak_rss_bytes", "ratio_to_ours", "ratio_to_rust"]
KEYS = ["producer", "version", "record_bytes", "aggregation", *FIGURES]


# ------------------------------------------------------------------------------------------------------------- records


def test_what_is_written_for_rivals_is_read_as_it_was(tmp_path: Path) -> None:
    keys, data = new_rows(100, 50)
    rows.write(tmp_path / "rows", keys, data)
    assert rows.read(str(tmp_path / "rows")) == [(key.decode(), value) for key, value in zip(keys, data, strict=True)]


@pytest.mark.parametrize(
    ("row_bytes", "records", "cut"),
    [(100, 1_200, [500, 500, 200]), (100, 1_000, [500, 500]), (9_984, 900, [400, 400, 100]), (100, 1, [1])],
)
def test_a_request_has_500_records_or_4_mb(row_bytes: int, records: int, cut: list[int]) -> None:
    few = [(f"key-{i:012}", bytes(row_bytes)) for i in range(70)]
    requests = list(rows.requests(few, records))
    assert [len(request) for request in requests] == cut
    keys = [entry["PartitionKey"] for request in requests for entry in request]
    assert keys == [few[i % 70][0] for i in range(records)]


def test_a_record_that_failed_is_an_error() -> None:
    assert rows.stored({"FailedRecordCount": 0, "Records": [{}, {}]}) == 2
    with pytest.raises(RuntimeError, match="1 records failed"):
        rows.stored({"FailedRecordCount": 1, "Records": [{}, {}]})


class Refusing:
    """A client of boto3 whose every request fails in one record."""

    def put_records(self, **request: Any) -> Any:
        return {"FailedRecordCount": 1, "Records": request["Records"]}


class AsyncRefusing:
    async def put_records(self, **request: Any) -> Any:
        return {"FailedRecordCount": 1, "Records": request["Records"]}


@pytest.mark.parametrize("put", [boto3_by_hand.put_plain, boto3_by_hand.put_aggregated])
def test_boto3_by_hand_looks_at_the_failed_count(put: Any) -> None:
    with pytest.raises(RuntimeError, match="1 records failed"):
        put(Refusing(), "bench", [("key", b"data")], 10)


async def test_stock_aiobotocore_looks_at_the_failed_count() -> None:
    with pytest.raises(ExceptionGroup) as failed:
        await stock_aiobotocore.put(AsyncRefusing(), "bench", [("key", b"data")], 10)
    assert "1 records failed" in str(failed.value.exceptions)


# ---------------------------------------------------------------------------------------------------------------- sink


class Wire:
    """A connection over which a request comes, head and body by themselves; ``written``: what it is answered."""

    def __init__(self, head: str, body: bytes) -> None:
        whole = f"POST / HTTP/1.1\r\n{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        self._chunks = [whole, body]
        self.written: list[bytes] = []

    def recv_into(self, buffer: Any) -> int:
        chunk = self._chunks.pop(0) if self._chunks else b""
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def sendall(self, data: bytes) -> None:
        self.written.append(data)


TARGET = "X-Amz-Target: Kinesis_20131202.PutRecords"


def served(head: str, body: bytes) -> tuple[int, list[bytes]]:
    """How many records the sink counted, and its answers."""
    sink, wire = Sink(), Wire(f"{TARGET}{head}", body)
    sink.serve(wire)  # type: ignore[arg-type]
    return sink.records, wire.written


def test_records_in_cbor_are_counted_also_in_aggregates_and_answered_in_cbor() -> None:
    _, data = new_rows(5, 100)
    aggregate = Aggregate()
    for value in data[:4]:
        assert aggregate.add(b"key", None, value, 1 << 20)
    entries = [{"Data": value, "PartitionKey": "k"} for value in (aggregate.to_bytes(), data[4])]
    body = cbor2.dumps({"StreamName": "s", "Records": entries})
    counted, (answer,) = served("\r\nContent-Type: application/x-amz-cbor-1.1", body)
    assert counted == 5
    assert b"\r\nContent-Type: application/x-amz-cbor-1.1\r\n" in answer
    assert len(cbor2.loads(answer.partition(b"\r\n\r\n")[2])["Records"]) == 2


@pytest.mark.parametrize("indent", [None, "\t"])
def test_aggregates_are_found_however_their_json_is_spaced(indent: str | None) -> None:
    _, data = new_rows(7, 100)
    packed = list(boto3_by_hand.packed([("key", value) for value in data]))
    entries = [{"Data": rows_of_base64(entry["Data"]), "PartitionKey": "a"} for entry in packed]
    body = json.dumps({"Records": entries}, indent=indent).replace('"Data": ', '"Data":\t' if indent else '"Data": ')
    assert served("", body.encode())[0] == 7


def rows_of_base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def test_who_asks_before_a_body_is_told_to_send_it() -> None:
    _, written = served("\r\nExpect: 100-continue", b'{"Records":[]}')
    assert written[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert len(written) == 2


# ------------------------------------------------------------------------------------------------------------- figures


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """With a sink, and few records."""
    with daemon.bench(2_000, 1, quiet) as ours:
        yield Bench(ours, run.NAMES, quiet)


def rival(module: str, worth: int = 1) -> tuple[Rival, list[str]]:
    """One in Python that is run as it is, in our own environment."""
    told = [sys.executable, "-m", f"benchmarks.rivals.{module}"]
    return Rival(module, "1", ("none",), worth, lambda _: told), told


@pytest.mark.parametrize(
    ("module", "aggregation"), [("boto3_by_hand", "none"), ("boto3_by_hand", "kpl"), ("stock_aiobotocore", "none")]
)
def test_a_rival_of_which_every_record_arrives_has_a_cost(bench: Bench, module: str, aggregation: str) -> None:
    cost = bench._rival(*rival(module), 100, aggregation)
    assert cost.cpu_ns > 0
    assert cost.peak_rss_bytes > 10 << 20


def test_what_has_to_warm_up_runs_before_until_it_has(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(self: Bench, name: str, child: Child, records: int) -> float:
        before.append(sum(map(cpu_seconds, family(child.process.pid))))
        return ran(self, name, child, records)

    before: list[float] = []
    ran = Bench.run
    monkeypatch.setattr(Bench, "run", recorded)
    plain, told = rival("boto3_by_hand")
    bench._rival(replace(plain, warm_seconds=2.0), told, 100, "none")
    assert before[-1] >= 2.0 > before[-2]
    assert len(before) > 2


BOASTING = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
"""


def test_a_rival_whose_records_do_not_arrive_ends_it(bench: Bench) -> None:
    boasting = Rival("boasting", "1", ("none",), 1, lambda _: [])
    with pytest.raises(RecordsWrong, match="boasting should put 2,000 records and put 2,000, of which 0 arrived"):
        bench._rival(boasting, [sys.executable, "-c", BOASTING], 100, "none")


class Told:
    """A child, or the sink, that says the next of its lines."""

    def __init__(self, *lines: str) -> None:
        self.process = type("Process", (), {"pid": os.getpid()})
        self._lines = list(lines)

    def tell(self, _line: str) -> None:
        pass

    def line(self, _within_seconds: float) -> str:
        return self._lines.pop(0)


def a_run(arrived: str, put: str) -> float:
    nobody: Any = None
    sink: Any = Told("1000", arrived)
    child: Any = Told(put)
    ours = daemon.Bench(nobody, nobody, sink, "https://sink", 100, 1, quiet)
    return Bench(ours, [], quiet).run("rival", child, 100)


def test_processor_time_is_of_what_was_put() -> None:
    assert a_run("1104", "104") > 0


@pytest.mark.parametrize(("arrived", "put"), [("1103", "104"), ("1105", "104"), ("1099", "99")])
def test_a_record_that_is_missing_or_came_twice_ends_it(arrived: str, put: str) -> None:
    with pytest.raises(RecordsWrong, match=r"rival should put 100 records and put \d+, of which \d+ arrived"):
        a_run(arrived, put)


def test_processes_below_a_producers_are_counted_with_it() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list(family(process.pid))) == 2
        process.communicate(b"\n")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is built, and nothing runs; there is no Java."""

    def absent(_project: Path, _main: str, *_options: str) -> NoReturn:
        raise maven.Unavailable("no mvn on PATH: install Maven 3")

    @contextlib.contextmanager
    def no_sink(*_: object) -> Iterator[Any]:
        yield daemon.Bench(*[None] * 7)  # type: ignore[arg-type]

    monkeypatch.setattr(maven, "command", absent)
    for tool in ("python", "go", "rust"):
        monkeypatch.setattr(Builds, tool, lambda _builds, _project: "/no/such/program")
    monkeypatch.setattr(
        Bench, "_ours", lambda _, size, aggregation: Cost(1_000.0 if aggregation == "kpl" else 2_000.0, 7)
    )
    monkeypatch.setattr(Bench, "_naive", lambda *_: Cost(5_000.0, 8))
    monkeypatch.setattr(Bench, "_rival", lambda *_: Cost(3_000.0, 9))
    monkeypatch.setattr(daemon, "bench", no_sink)
    monkeypatch.setattr(maven, "java", lambda: "/a/jdk/bin/java")
    monkeypatch.setattr(run, "told_version", lambda asked: f"told by {' '.join(asked)}" if asked[0] != "rustc" else "")
    monkeypatch.setattr(daemon.Bench, "conditions", "2 cores")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert command.main(["--json", *arguments]) == 0
    answer: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.usefixtures("stand_in")
def test_json_has_the_same_keys_in_each_row_and_what_is_absent_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    answer = told(capsys)
    assert all(list(row) == [*KEYS, "absent"] for row in answer)
    assert {row["producer"] for row in answer} == set(run.NAMES)
    absent = [row for row in answer if row["absent"]]
    assert [(row["producer"], row["version"]) for row in absent] == [
        (rival.name, rival.version) for rival in RIVALS if rival.name in ("official-kpl", "aws-sdk-java")
    ]
    assert all(
        row["absent"] == "no mvn on PATH: install Maven 3" and row["cpu_ns_per_record"] is None for row in absent
    )
    assert len(answer) - len(absent) == 3 * (2 + 1 + 2 + 1 + 2 + 1 + 1)
    assert all(row["cpu_ns_per_record"] and row["peak_rss_bytes"] for row in answer if not row["absent"])


@pytest.mark.usefixtures("stand_in")
def test_a_ratio_is_to_ours_for_the_same_aggregation(capsys: pytest.CaptureFixture[str]) -> None:
    answer = told(capsys, "--only", "producerd", "boto3", "--bytes", "100")
    assert [(row["producer"], row["aggregation"], row["ratio_to_ours"]) for row in answer] == [
        ("producerd", "none", 1.0),
        ("producerd", "kpl", 1.0),
        ("boto3", "none", 1.5),
        ("boto3", "kpl", 3.0),
    ]


@pytest.mark.usefixtures("stand_in")
def test_a_ratio_to_rust_is_to_its_plain_records(capsys: pytest.CaptureFixture[str]) -> None:
    answer = told(capsys, "--only", "producerd", "aws-sdk-rust", "official-kpl", "--bytes", "100")
    assert [(row["producer"], row["aggregation"], row["ratio_to_rust"]) for row in answer] == [
        ("official-kpl", None, None),
        ("producerd", "none", 0.67),
        ("producerd", "kpl", 0.33),
        ("aws-sdk-rust", "none", 1.0),
    ]
    without = told(capsys, "--only", "producerd", "boto3", "--bytes", "100")
    assert {row["ratio_to_rust"] for row in without} == {None}


@pytest.mark.usefixtures("stand_in")
def test_ours_is_measured_as_those_who_are_asked_for_need(capsys: pytest.CaptureFixture[str]) -> None:
    answer = told(capsys, "--only", "aws-sdk-go", "--bytes", "1024")
    assert [(row["producer"], row["aggregation"]) for row in answer] == [("producerd", "none"), ("aws-sdk-go", "none")]


@pytest.mark.usefixtures("stand_in")
def test_records_that_are_wrong_fail_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*_: object) -> NoReturn:
        raise RecordsWrong("boto3 should put 100 records")

    monkeypatch.setattr(Bench, "_rival", lost)
    assert command.main(["--json", "--only", "boto3"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "FAILED: boto3 should put 100 records" in err


@pytest.mark.usefixtures("stand_in")
def test_another_producer_that_fails_is_measured_once_more_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes: Iterator[RecordsWrong | Cost] = iter(
        [RecordsWrong("boto3 should put 100 records"), Cost(3_000.0, 9), Cost(4_000.0, 9)]
    )

    def fails_first(*_: object) -> Cost:
        outcome = next(outcomes)
        if isinstance(outcome, RecordsWrong):
            raise outcome
        return outcome

    monkeypatch.setattr(Bench, "_rival", fails_first)
    assert command.main(["--json", "--only", "boto3", "--bytes", "100"]) == 0
    out, err = capsys.readouterr()
    assert [row["cpu_ns_per_record"] for row in json.loads(out) if row["producer"] == "boto3"] == [3_000, 4_000]
    assert "boto3 is measured once more: boto3 should put 100 records" in err


def test_every_rivals_version_is_pinned() -> None:
    assert [rival.name for rival in RIVALS if not rival.version[0].isdigit()] == []


# -------------------------------------------------------------------------------------------------------------- builds

TOOL = """#!/bin/sh
echo "$@" >> {log}
made="$CARGO_TARGET_DIR/release/rival"
while [ $# -gt 0 ]; do case $1 in -o) made=$2 ;; esac; shift; done
mkdir -p "${{made%/*}}"
echo made > "$made"
{end}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of Go's and Rust's, and tools on PATH that write down their arguments."""
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    for name in ("go.mod", "go.sum", "main.go", "Cargo.toml", "Cargo.lock", "src/main.rs"):
        (project / name).write_text(name)
    use_tool(tmp_path, monkeypatch)
    monkeypatch.setattr(builds, "BUILT", tmp_path / "built")
    return project


def use_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str = "") -> None:
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for tool in ("go", "cargo"):
        (tools / tool).write_text(TOOL.format(log=tmp_path / "log", end=end))
        (tools / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")


@contextlib.contextmanager
def building(tmp_path: Path) -> Iterator[Builds]:
    with Children(tmp_path, environment(tmp_path)) as children:
        yield Builds(children, quiet)


@pytest.mark.parametrize(
    ("tool", "source"), [("go", "go.sum"), ("go", "main.go"), ("rust", "Cargo.lock"), ("rust", "src/main.rs")]
)
def test_a_program_is_built_once_for_its_sources(project: Path, tmp_path: Path, tool: str, source: str) -> None:
    with building(tmp_path) as made:
        build = getattr(made, tool)
        first = build(project)
        assert build(project) == first
        assert Path(first).read_text() == "made\n"
        (project / source).write_text("changed")
        assert build(project) != first
    assert len((tmp_path / "log").read_text().splitlines()) == 2
    assert len(list(builds.BUILT.iterdir())) == 1


def test_what_go_keeps_lies_beside_what_it_builds_and_what_a_user_told_it_holds(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("GOPATH", "GOCACHE", "XDG_CONFIG_HOME", "GOENV")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    use_tool(tmp_path, monkeypatch, end=f"env > {tmp_path / 'env'}")
    with building(tmp_path) as made:
        made.go(project)
    told = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    *kept, goenv = (told[name] for name in names)
    assert len(set(kept)) == 3
    assert all(Path(path).is_relative_to(builds.BUILT) for path in kept)
    assert goenv == str(tmp_path / "home" / ".config" / "go" / "env")


def test_nothing_is_left_of_a_build_that_fails_and_why_is_told(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_tool(tmp_path, monkeypatch, end="echo no such module >&2; exit 3")
    with building(tmp_path) as made, pytest.raises(maven.Unavailable, match=r"exit code 3:\n  \| no such module"):
        made.go(project)
    assert list(builds.BUILT.iterdir()) == []


@pytest.mark.parametrize("tool", ["go", "rust"])
def test_a_tool_that_is_missing_is_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    nobody: Any = None
    with pytest.raises(maven.Unavailable, match=r"no (go|cargo) on PATH"):
        getattr(Builds(nobody, quiet), tool)(project)


# --------------------------------------------------------------------------------------------------------- all of them


@pytest.mark.slow
@pytest.mark.parametrize("name", [rival.name for rival in RIVALS])
def test_each_rival_on_few_records(name: str, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was built when somebody ran the benchmark: SDKs take too long to be built by a test."""

    def not_built(*_: object) -> NoReturn:
        raise maven.Unavailable(f"not built: `./dev bench rivals --only {name}` does it")

    monkeypatch.setattr(maven, "_build", not_built)
    monkeypatch.setattr(Builds, "_run", not_built)
    (chosen,) = (rival for rival in RIVALS if rival.name == name)
    try:
        line = chosen.command(Builds(bench.ours.children, quiet))
    except maven.Unavailable as reason:
        pytest.skip(str(reason))
    for aggregation in chosen.aggregations:
        assert bench._rival(chosen, line, 100, aggregation).cpu_ns > 0


@pytest.mark.slow
def test_the_whole_of_it_on_few_records() -> None:
    """Measure ours and the naive daemon.  Standard output has only JSON."""
    few = ["--bytes", "100", "--records", "20000", "--repeat", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.rivals", "--json", *few, "--only", "producerd", "naive-daemon"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = [Figures(**row) for row in json.loads(done.stdout)]
    assert [(row.producer, row.aggregation) for row in figures] == [
        ("producerd", "none"),
        ("producerd", "kpl"),
        ("naive-daemon", "none"),
    ]
    assert all((row.cpu_ns_per_record or 0) > 0 and (row.peak_rss_bytes or 0) > 1 << 20 for row in figures)
    assert " cores, " in done.stderr
