"""Each message, ours or a library's, is one line on stderr, as text or as JSON."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator

import pytest
import structlog

from producerd.runtime import logs


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, {name: logging.getLogger(name).level for name in logs.LIBRARIES}
    yield
    root.handlers[:], level, levels = before
    root.setLevel(level)
    for name, library_level in levels.items():
        logging.getLogger(name).setLevel(library_level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_text_has_time_level_logger_event_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    logs.get_logger("producerd.gate").warning("caller blocked", stream="flights", queue=20_000, reason="queue full")
    (line,) = lines(capsys)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z WARNING producerd\.gate: caller blocked "
        r'stream=flights queue=20000 reason="queue full"',
        line,
    )


def test_json_has_the_same_as_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    logs.get_logger("producerd.gate").info("caller blocked", stream="flights", queue=7, who=object)
    (line,) = lines(capsys)
    read = json.loads(line)
    assert list(read)[:4] == ["timestamp", "level", "logger", "event"]
    assert read["timestamp"].endswith("Z")
    assert (read["level"], read["logger"], read["stream"], read["queue"]) == ("info", "producerd.gate", "flights", 7)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_library_comes_out_of_the_same_renderer(capsys: pytest.CaptureFixture[str], form: logs.Format) -> None:
    logs.configure("info", form)
    logging.getLogger("aiohttp.access").warning("%s took %d ms", "GET", 7)
    (line,) = lines(capsys)
    if form == "json":
        assert json.loads(line)["event"] == "GET took 7 ms"
    else:
        assert line.endswith("Z WARNING aiohttp.access: GET took 7 ms")


def test_messages_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "text")
    log = logs.get_logger("x")
    log.info("no")
    log.warning("yes")
    assert len(lines(capsys)) == 1


def test_a_logger_made_before_follows_the_newest_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    log = logs.get_logger("x")
    logs.configure("error", "text")
    log.info("no")
    logs.configure("debug", "json")
    log.debug("yes")
    (line,) = lines(capsys)
    assert json.loads(line)["event"] == "yes"


def test_at_debug_aws_still_writes_no_requests(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("debug", "text")
    logging.getLogger("botocore.auth").debug("StringToSign ... x-amz-security-token")
    logging.getLogger("botocore.credentials").info("Found credentials")
    logs.configure("info", "text")
    logging.getLogger("botocore.credentials").info("Found credentials")
    (line,) = lines(capsys)
    assert line.endswith("Found credentials")


def test_a_traceback_is_told_without_the_values_of_variables(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    payload = "customer's " + "data"
    try:
        raise RuntimeError("it broke")
    except RuntimeError:
        logs.get_logger("x").exception("job failed")
    text = "\n".join(lines(capsys))
    assert "RuntimeError: it broke" in text
    assert payload not in text


def test_a_text_with_a_line_break_cannot_look_like_two_messages(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    logs.get_logger("x").info("first\nERROR second", client="a\nb")
    (line,) = lines(capsys)
    assert line.endswith(r'first\nERROR second client="a\nb"')


def test_warnings_are_messages(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.configure("info", "text")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert "DeprecationWarning: old" in lines(capsys)[0]
