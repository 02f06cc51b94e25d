"""Each message, also of a library, is one line on stderr, as text or JSON.  The daemon never waits for its reader."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import importlib
import json
import logging
import os
import re
import select
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import structlog

from producerd.config import load
from producerd.errors import ConfigurationError
from producerd.runtime import app, log_lines, logs
from producerd.runtime.log_lines import LogLines
from producerd.runtime.repeats import Repeats
from tests.daemon import PATIENCE_SECONDS, until
from tests.remedies import calls
from tests.runtime.timers import Timers

PIPE_BYTES: Final = 4_096
"""The least that a pipe can hold."""


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level, {name: logging.getLogger(name).level for name in logs.LIBRARIES}
    yield
    level, levels = before
    root.setLevel(level)
    for name, library_level in levels.items():
        logging.getLogger(name).setLevel(library_level)
    structlog.reset_defaults()


Written = Callable[[logs.Level, logs.Format], AbstractContextManager[list[str]]]


@pytest.fixture
def running(capfd: pytest.CaptureFixture[str]) -> Written:
    """Run the log for a block, at whose end the list has the lines that were written."""

    @contextlib.contextmanager
    def run(level: logs.Level, form: logs.Format) -> Iterator[list[str]]:
        lines: list[str] = []
        with logs.running(level, form):
            yield lines
        captured = capfd.readouterr()
        assert captured.out == ""
        lines += captured.err.splitlines()

    return run


def test_when_a_log_ends_what_was_there_before_writes_again() -> None:
    root = logging.getLogger()
    before, shows_warnings = list(root.handlers), warnings.showwarning
    with logs.running("info", "text"):
        assert root.handlers != before
        assert warnings.showwarning is not shows_warnings
    assert root.handlers == before
    assert warnings.showwarning is shows_warnings


def test_a_log_that_runs_can_be_asked_for_its_last_lines_and_for_how_many_were_lost(running: Written) -> None:
    with running("info", "text") as written:
        assert logs.lost_lines() == {"full": 0, "failed": 0}
        assert logs.recent_lines() == []
        logs.get_logger("x").info("event")
        recent = logs.recent_lines()
    assert recent == written
    assert len(recent) == 1


# ---- lines


@pytest.mark.parametrize(
    ("event", "values", "line"),
    [
        (
            *("caller blocked", {"stream": "flights", "queue": 20_000, "reason": "queue full"}),
            'caller blocked stream=flights queue=20000 reason="queue full"',
        ),
        ("first\nERROR second", {"client": "a\nb"}, r'first\nERROR second client="a\nb"'),
        ('a \\ and a "quote"', {"none": None, "path": "a\\b"}, r'a \ and a "quote" none=None path=a\b'),
        ("only what could be misread", {"empty": "", "pair": "a=b"}, 'only what could be misread empty="" pair="a=b"'),
        ("what Unicode cannot say", {"path": "/tmp/\udcff"}, r'what Unicode cannot say path="/tmp/\udcff"'),
    ],
)
def test_a_message_is_one_line_of_text_with_its_values(
    running: Written, event: str, values: dict[str, Any], line: str
) -> None:
    with running("info", "text") as written:
        logs.get_logger("producerd.gate").warning(event, **values)
    (told,) = written
    head, text = told.split(" producerd.gate: ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z WARNING", head)
    assert text == line


def test_json_has_the_same_as_one_object(running: Written) -> None:
    with running("info", "json") as written:
        logs.get_logger("producerd.gate").info("caller blocked", stream="flights", queue=7, who=object)
    (line,) = written
    read = json.loads(line)
    assert list(read)[:4] == ["timestamp", "level", "logger", "event"]
    assert read["timestamp"].endswith("Z")
    assert (read["level"], read["logger"], read["stream"], read["queue"]) == ("info", "producerd.gate", "flights", 7)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_library_comes_out_of_the_same_renderer(running: Written, form: logs.Format) -> None:
    with running("info", form) as written:
        logging.getLogger("aiohttp.access").warning("%s took %d ms", "GET", 7)
    (line,) = written
    if form == "json":
        assert json.loads(line)["event"] == "GET took 7 ms"
    else:
        assert line.endswith("Z WARNING aiohttp.access: GET took 7 ms")


@pytest.mark.parametrize("character", ["\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u202e"])
def test_what_a_terminal_would_obey_is_escaped(capfd: pytest.CaptureFixture[str], character: str) -> None:
    """Also beyond ASCII: U+009B begins a command, U+0085 and U+2028 end a line, U+202E turns its order around."""
    with logs.running("info", "text"):
        logs.get_logger("x").info(f"café{character}", client=f"café {character}[31m", stream="café au lait")
    told = capfd.readouterr().err
    assert told.removesuffix("\n").isprintable()
    assert 'stream="café au lait"' in told


def test_warnings_are_messages(running: Written) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with running("info", "text") as written:
            warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert "DeprecationWarning: old" in written[0]


def test_a_line_says_what_was_so_when_it_was_logged(running: Written) -> None:
    shards = ["shardId-0"]
    with running("info", "json") as written:
        logs.get_logger("x").info("shards", shards=shards)
        logging.getLogger("y").info("%s", shards)
        shards.clear()
    assert [json.loads(line).get("shards", "shardId-0") for line in written] == [["shardId-0"], "shardId-0"]


class Unspeakable:
    def __str__(self) -> str:
        raise ValueError("s3cret")


def test_a_message_that_cannot_be_rendered_ends_nothing_and_says_whose_it_is(running: Written) -> None:
    with running("info", "text") as written:
        logs.get_logger("x").info("what", value=Unspeakable())
        logging.getLogger("y").info("%d rows", "s3cret")
    told = [line.partition(" ")[2] for line in written]
    assert told == [f"ERROR   producerd: a message could not be rendered of={logger}" for logger in "xy"]


# ---- what is never told


@pytest.mark.promise("exception-quote-row")
def test_at_debug_aws_still_writes_no_requests(running: Written) -> None:
    importlib.import_module("producerd.runtime.aws.credentials")
    with running("debug", "text") as written:
        logging.getLogger("botocore.auth").debug("StringToSign ... x-amz-security-token")
        logging.getLogger("botocore.credentials").info("Found credentials from IAM Role: what the source said")
        logging.getLogger("aiobotocore.tokens").warning("what the source said")
        logging.getLogger("aiohttp.access").info("a request")
    (line,) = written
    assert line.endswith("a request")


@pytest.mark.promise("exception-quote-row")
@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_is_told_with_its_code_and_where_it_may_quote_a_row_without_its_words(
    running: Written, form: logs.Format
) -> None:
    key = b"s3" + b"cret"
    with running("info", form) as written:
        for quotes in (False, True):
            try:
                int(key if quotes else b"of nobody")
            except ValueError:
                options: dict[str, Any] = {"exc_text": False} if quotes else {}
                logs.get_logger("x").exception("a job could not be sorted", stream="flights", **options)
    text = "\n".join(written)
    assert "ValueError: invalid literal for int() with base 10: b'of nobody'" in text
    assert text.count("int(key if quotes") == text.count("ValueError") == 2
    assert "s3cret" not in text
    assert "exc_text" not in text


@pytest.mark.promise("exception-quote-row", "key-service-quotes-left")
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("key", ["s3cret", "s3cret' s3cret", "it's s3cret"])
def test_a_key_that_the_service_quotes_is_left_out(running: Written, form: logs.Format, key: str) -> None:
    said = f"Value '{key}' at 'records.1.member.partitionKey' failed to satisfy constraint"
    with running("info", form) as written:
        logs.get_logger("x").warning("stream looks refused", message=f"2 validation errors detected: {said}; {said}")
    (line,) = written
    assert line.count("at 'records.1.member.partitionKey' failed to satisfy constraint") == 2
    assert "s3cret" not in line


@pytest.mark.promise("url-shown-login-query")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_url_s_login_and_query_are_left_out_and_nothing_else(running: Written, form: logs.Format) -> None:
    with running("info", form) as written:
        logs.get_logger("x").warning(
            "refused", message="by http://user:s3/cret@proxy:1/?s3cret", url="http://here", at="a@b"
        )
    (line,) = written
    assert "s3" not in line
    assert "http://***@proxy:1/" in line
    assert "http://here" in line
    assert "a@b" in line


# ---- which events there are


def test_every_event_is_a_constant_text_with_values_that_have_names() -> None:
    """The events of `Outage` are the exception, and their names are constants."""
    events = [
        call.args for called, call in calls() if re.fullmatch(r"log\.(debug|info|warning|error|exception)", called)
    ]
    assert len(events) > 20
    others = [ast.unparse(event[0]) for event in events if len(event) != 1 or not isinstance(event[0], ast.Constant)]
    assert others == ["self._ends"]


@pytest.mark.promise("key-service-quotes-left")
def test_wherever_work_on_rows_may_raise_the_exceptions_words_are_left_out() -> None:
    """An exception of the owners of state, which ends the daemon, is logged whole, as they see no row."""
    exceptions = [call for called, call in calls() if called == "log.exception"]
    assert len(exceptions) > 3
    told_whole = [ast.literal_eval(c.args[0]) for c in exceptions if "exc_text=False" not in ast.unparse(c)]
    assert told_whole == ["the daemon has failed"]


# ---- repeats


def repeated(line: str) -> tuple[str, int | None]:
    """A line of JSON: its event, and how many like it were held back."""
    read = json.loads(line)
    return read["event"], read.get("repeated")


@pytest.mark.promise("same-message-written")
def test_the_same_message_is_written_a_few_times_and_then_counted(running: Written) -> None:
    with running("info", "json") as written:
        log = logs.get_logger("x")
        for number in range(1_000):
            log.warning("caller blocked", stream="flights", session=number)
        log.warning("caller blocked", stream="clicks", session=0)
    *first, other, count = written
    assert [json.loads(line)["session"] for line in first] == [0, 1, 2, 3, 4]
    assert json.loads(other)["stream"] == "clicks"
    told = json.loads(count)
    del told["timestamp"]
    assert told == {
        "level": "warning", "logger": "x", "event": "caller blocked", "stream": "flights", "repeated": 995,
    }  # fmt: skip


def test_of_libraries_the_template_is_what_repeats_and_tracebacks_are_no_difference(running: Written) -> None:
    with running("info", "json") as written:
        for number in range(7):
            logging.getLogger("aiohttp.client").warning("%s took %d ms", "GET", number)
            try:
                raise RuntimeError(number)
            except RuntimeError:
                logs.get_logger("x").exception("job failed")
    told = [repeated(line) for line in written]
    assert told[-2:] == [("%s took %d ms", 2), ("job failed", 2)]
    assert "stream" not in json.loads(written[-1])
    assert len(told) == 2 * 5 + 2


@pytest.mark.parametrize(("level", "logger", "orders"), [("debug", "x", False), ("info", "producerd.orders", True)])
def test_for_debugging_and_of_orders_each_is_written_however_many_repeat(
    running: Written, level: logs.Level, logger: str, orders: bool
) -> None:
    """The log is the record of who ordered what."""
    with running(level, "json") as written:
        log = logs.get_logger(logger)
        for number in range(20):
            (log.info if orders else log.debug)("order", pid=number)
    assert [json.loads(line)["pid"] for line in written] == list(range(20))


class Reader:
    """The other end of stderr: a pipe that holds little, and is read when somebody asks."""

    def __init__(self) -> None:
        self.end, self.descriptor = os.pipe()
        fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._left = b""

    def line(self) -> str:
        """The next one, waited for."""
        while b"\n" not in self._left:
            assert select.select([self.end], [], [], PATIENCE_SECONDS)[0], "nothing more came"
            data = os.read(self.end, 65_536)
            assert data, f"the end, after {self._left!r}"
            self._left += data
        line, _, self._left = self._left.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        os.close(self.end)
        for thread in threading.enumerate():
            if thread.name == "producerd-log":  # else its next line might go to who has the descriptor's number then
                thread.join(PATIENCE_SECONDS)
        os.close(self.descriptor)


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


def full(reader: Reader) -> bool:
    return not select.select([], [reader.descriptor], [], 0)[1]


@contextlib.contextmanager
def writing(reader: Reader, *arguments: Any) -> Iterator[logging.Logger]:
    """A logger whose lines go to that reader."""
    log = logging.Logger("x")
    handler = LogLines(reader.descriptor, *arguments)
    handler.setFormatter(Formatter())
    log.addHandler(handler)
    try:
        yield log
    finally:
        handler.close()


class Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        values = getattr(record, log_lines.VALUES, {})
        return " ".join([super().format(record), *(f"{key}={value}" for key, value in values.items())])


@pytest.mark.promise("same-message-written")
def test_a_count_is_told_at_the_end_of_its_window_though_nothing_else_is_logged(reader: Reader) -> None:
    with writing(reader, Repeats(1, within_seconds=0.05)) as log:
        for _ in range(3):
            log.warning("slow")
        assert [reader.line(), reader.line()] == ["slow", "slow repeated=2"]


@pytest.mark.parametrize(
    ("next_one", "written"), [("slow", ["slow repeated=1"]), ("other", ["slow repeated=1", "other"])]
)
def test_the_next_line_after_a_window_tells_the_count_or_follows_it(
    reader: Reader, next_one: str, written: list[str]
) -> None:
    now = 0.0
    with writing(reader, Repeats(1), lambda: now) as log:
        log.warning("slow")
        log.warning("slow")
        assert reader.line() == "slow"
        now = 60.0
        log.warning(next_one)
        assert [reader.line() for _ in written] == written


@pytest.mark.parametrize(("written_at", "waited"), [(45.0, 15.0), (70.0, 0.0)])
def test_the_writer_waits_until_the_first_window_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_at: float, waited: float
) -> None:
    """It does not wait where the line took longer to write."""
    path, waits = tmp_path / "log", list[float]()

    class Condition(threading.Condition):
        """A wait for a time ends at once, and that much later."""

        def wait(self, timeout: float | None = None) -> bool:
            nonlocal written_at
            if timeout is None:
                return super().wait()
            waits.append(timeout)
            written_at += timeout or 60.0
            return False

    monkeypatch.setattr(log_lines, "threading", SimpleNamespace(Condition=Condition, Thread=threading.Thread))
    with path.open("wb") as file:
        handler = LogLines(file.fileno(), Repeats(1), lambda: written_at if path.stat().st_size else 0.0)
        handler.handle(logging.LogRecord("x", logging.WARNING, "", 0, "slow", None, None))
        until(lambda: waits)
        handler.close()
    assert waits == [waited]
    assert path.read_text() == "slow\n"


# ---- nobody reads


@pytest.mark.promise("daemon-log-nobody-reads")
def test_who_logs_does_not_wait_for_a_reader_and_what_was_dropped_is_told(reader: Reader) -> None:
    with writing(reader) as log:
        line = "x" * 1_000
        for number in range(3_000):
            log.debug("%d %s", number, line)
        log.warning("lost, too")
        numbers = []
        while (read := reader.line()).endswith(line):
            numbers.append(int(read.split()[0]))
        assert numbers == list(range(len(numbers)))
        assert 1_000_000 < len(numbers) * 1_000 < (1 << 20) + 2 * PIPE_BYTES
        assert read == f"log lines were dropped lines={3_001 - len(numbers)}"
        handler = log.handlers[0]
        assert handler.lost == {"full": 3_001 - len(numbers), "failed": 0}  # type: ignore[attr-defined]
        log.warning("read again")
        assert reader.line() == "read again"


def test_the_last_lines_are_kept_within_bounds_whether_written_or_not(reader: Reader) -> None:
    with writing(reader) as log:
        (handler,) = log.handlers
        assert isinstance(handler, LogLines)
        for number in range(3_000):
            log.debug("line %d", number)
        assert handler.recent() == [f"line {number}" for number in range(2_500, 3_000)]
        log.debug("x" * 1_000_000)
        assert len(handler.recent()[-1]) == 8_192
        for _ in range(1_000):
            log.debug("y" * 5_000)
        kept = handler.recent()
        assert 250_000 < sum(map(len, kept)) <= 262_144
        assert handler.lost["full"] > 0
        assert set(kept) == {"y" * 5_000}


def test_of_short_lines_256_kibibytes_are_kept_to_the_byte() -> None:
    with open(os.devnull, "wb") as nowhere:
        handler = LogLines(nowhere.fileno())
        texts = [f"{number:08191}" for number in range(32)]
        for text in texts:
            handler.note(text)
        assert handler.recent() == texts
        handler.note("")
        assert handler.recent() == [*texts[1:], ""]
        handler.close()


def test_a_line_of_a_mebibyte_is_written_and_a_longer_one_is_dropped_at_once(reader: Reader) -> None:
    with writing(reader) as log:
        log.debug("x" * 1_048_575)
        assert reader.line() == "x" * 1_048_575
        log.debug("x" * 1_048_576)
        assert reader.line() == "log lines were dropped lines=1"
        log.debug("next")
        assert reader.line() == "next"


def test_the_end_of_a_log_is_the_end_of_its_thread(tmp_path: Path) -> None:
    path, before = tmp_path / "log", set(threading.enumerate())
    with path.open("wb") as file:
        handler = LogLines(file.fileno())
        (thread,) = set(threading.enumerate()) - before
        handler.note("event")
        until(lambda: path.read_text() == "event\n")
        handler.close()
        assert not thread.is_alive()
    assert thread.daemon, "the interpreter does not wait for it"


def test_the_end_does_not_wait_for_ever(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "LAST_LINES_SECONDS", 0.05)
    with writing(reader) as log:
        for _ in range(100):
            log.debug("x" * 100)
    assert full(reader)


def test_the_last_lines_are_written_before_the_end(reader: Reader) -> None:
    with writing(reader) as log:
        log.debug("x" * 2 * PIPE_BYTES)
        log.error("last")
        reading = threading.Timer(0.05, reader.line)
        reading.start()
    reading.join()
    assert reader.line() == "last"


def test_a_pipe_that_somebody_has_made_non_blocking_loses_nothing(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[Any, ...]]()

    def wait_for(*descriptors: Any) -> Any:
        asked.append(descriptors)
        return select.select(*descriptors)

    monkeypatch.setattr(log_lines, "select", SimpleNamespace(select=wait_for))
    os.set_blocking(reader.descriptor, False)
    with writing(reader) as log:
        for number in range(100):
            log.debug("%d %s", number, "x" * 200)
        until(lambda: asked)
        assert asked[0] == ([], [reader.descriptor], [])
        assert [int(reader.line().split()[0]) for _ in range(100)] == list(range(100))


def test_without_a_reader_or_room_on_the_disk_it_goes_on_and_says_so_later(reader: Reader, tmp_path: Path) -> None:
    device = os.open("/dev/full", os.O_WRONLY)
    os.dup2(device, reader.descriptor)
    os.close(device)
    with writing(reader) as log:
        handler = log.handlers[0]
        for _ in range(3):
            log.debug("lost")
        until(lambda: handler.lost == {"full": 0, "failed": 3})  # type: ignore[attr-defined]
        file = tmp_path / "log"
        with file.open("wb") as mended:
            os.dup2(mended.fileno(), reader.descriptor)
        log.debug("read")
        until(lambda: file.read_text().splitlines() == ["read", "log lines were dropped lines=3"])


def test_with_stderr_closed_nothing_is_written_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with logs.running("info", "text"):
        logs.get_logger("x").error("nobody hears this")


# ---- the end


CONFIG: Final = ["region=us-east-1", "log_format=json"]


@pytest.mark.parametrize("error", [RuntimeError("half settled"), ConfigurationError(["no"])])
def test_an_exception_that_ends_the_daemon_is_its_last_line_and_a_wrong_setting_is_left_to_the_command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> int:
        logs.get_logger("x").info("before")
        raise error

    monkeypatch.setattr(app, "_run", fail)
    if isinstance(error, ConfigurationError):
        with pytest.raises(ConfigurationError):
            app.run(load(None, CONFIG), load)
    else:
        assert app.run(load(None, CONFIG), load) == 1
    before, *last = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert before["event"] == "before"
    if not isinstance(error, ConfigurationError):
        (told,) = last
        assert (told["level"], told["event"]) == ("error", "the daemon has failed")
        assert "RuntimeError: half settled" in told["exception"]
    else:
        assert last == []


# ---- levels


def test_a_logger_made_before_follows_the_level_of_the_newest_configuration(running: Written) -> None:
    log = logs.get_logger("x")
    with running("error", "text") as nothing:
        log.info("no")
    with running("debug", "json") as written:
        log.debug("yes")
        with structlog.testing.capture_logs() as captured:
            log.debug("for a test")
    assert (nothing, [json.loads(line)["event"] for line in written]) == ([], ["yes"])
    assert captured == [{"event": "for a test", "log_level": "debug"}]


@pytest.mark.promise("another-level-holds")
def test_another_level_holds_for_its_period_and_each_change_is_told(running: Written, timers: Timers) -> None:
    began = datetime.now(UTC)
    with running("error", "json") as written:
        log = logs.get_logger("x")
        log.debug("before")
        logs.set_level("debug", 600.0)
        assert logs.level() == "debug"
        log.debug("within")
        timers.go_on(599.0)
        assert logs.level() == "debug"
        timers.go_on(1.0)
        assert logs.level() == "error"
        log.debug("after")
    changed, within, back = [json.loads(line) for line in written]
    assert (changed["event"], changed["to"], changed["before"]) == ("log level changed", "debug", "error")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", changed["until"])
    assert 599 < (datetime.fromisoformat(changed["until"]) - began).total_seconds() < 600 + PATIENCE_SECONDS
    assert within["event"] == "within"
    assert (back["event"], back["to"], back["before"]) == ("log level changed", "error", "debug")


def test_each_change_is_told_however_many_there_are(running: Written) -> None:
    with running("error", "json") as written:
        for level in ("warning", "error") * 10:
            logs.set_level(level)
    assert [json.loads(line)["until"] for line in written] == ["the next change"] * 20


def test_a_new_call_takes_the_place_of_the_last_one(timers: Timers) -> None:
    with logs.running("info", "text"):
        logs.set_level("debug", 600.0)
        logs.set_level("warning", 900.0)
        timers.go_on(600.0)
        assert logs.level() == "warning"
        timers.go_on(300.0)
        assert logs.level() == "info"
        logs.set_level("debug", 600.0)
        logs.set_level("error")
        timers.go_on(600.0)
        assert logs.level() == "error"


@pytest.mark.promise("another-level-holds")
def test_a_reload_takes_effect_at_the_end_of_a_period_and_else_if_it_says_something_new(timers: Timers) -> None:
    with logs.running("info", "text"):
        logs.set_level("debug", 600.0)
        logs.reconfigure("warning")
        assert logs.level() == "debug"
        timers.go_on(600.0)
        assert logs.level() == "warning"
        logs.reconfigure("error")
        assert logs.level() == "error", "no period is under way any more"
        logs.set_level("debug")
        logs.reconfigure("error")
        assert logs.level() == "debug"
        logs.reconfigure("info")
        assert logs.level() == "info"


def test_libraries_follow_a_level_as_they_follow_the_configured_one(timers: Timers) -> None:
    with logs.running("info", "text"):
        library = logging.getLogger("asyncio")
        levels = [library.level]
        for level in ("debug", "error"):
            logs.set_level(level, 600.0)
            levels.append(library.level)
        timers.go_on(600.0)
        levels.append(library.level)
    assert levels == [logging.WARNING, logging.INFO, logging.ERROR, logging.WARNING]


# ---- a file whose size is bounded


@pytest.mark.promise("bounded-file-new-last")
def test_a_bounded_file_goes_on_in_a_new_one_and_the_last_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "MAX_FILE_BYTES", 1_000)
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    handler = LogLines(descriptor, file=path)
    open_files = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        handler.note(f"line {number:060}")
    handler.close()
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert os.get_inheritable(descriptor), "as standard error is"
    assert path.stat().st_mode & 0o7777 == 0o600
    os.close(descriptor)
    assert {found.name for found in tmp_path.iterdir()} == {"log", "log.1"}
    kept = [(tmp_path / name).read_bytes() for name in ("log.1", "log")]
    assert all(0 < len(data) <= 1_000 for data in kept)
    numbers = [int(found) for found in re.findall(rb"line (\d+)", b"".join(kept))]
    assert numbers == list(range(100 - len(numbers), 100)), "the last ones, in order"


def test_a_bounded_file_that_somebody_deletes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "MAX_FILE_BYTES", 1_000)
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"x" * 1_000)
    path.unlink()
    handler = LogLines(descriptor, file=path)
    handler.note("event")
    handler.close()
    os.close(descriptor)
    assert "event" in path.read_text()


@pytest.mark.parametrize(
    ("size", "is_bounded", "sizes"),
    [
        (4_194_298, True, {"log": 4_194_304}),
        (4_194_299, True, {"log": 6, "log.1": 4_194_299}),
        (4_194_299, False, {"log": 4_194_305}),
    ],
)
def test_a_bounded_file_has_at_most_four_mebibytes(
    tmp_path: Path, size: int, is_bounded: bool, sizes: dict[str, int]
) -> None:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.truncate(descriptor, size)
    handler = LogLines(descriptor, file=path if is_bounded else None)
    handler.note("event")
    handler.close()
    os.close(descriptor)
    assert {found.name: found.stat().st_size for found in tmp_path.iterdir()} == sizes
