"""The commands print any text in any encoding, with escapes for what the encoding lacks; files are UTF-8."""

from __future__ import annotations

import io
import sys

import pytest

from producerd import cli, ctl
from producerd.ctl.daemon import AdminClient
from producerd.printing import escape_unprintable, print_file

TEXT = "\xfc \u2028 \udcff"


def in_ascii(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """Make the standard output one in ASCII, and return the bytes that go there."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    return written


def test_what_the_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    output = in_ascii(monkeypatch)
    escape_unprintable()
    print(TEXT)
    assert output.getvalue() == rb"\xfc \u2028 \udcff" + b"\n"


def test_a_file_is_utf_8_and_escapes_what_utf_8_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    output = in_ascii(monkeypatch)
    print_file(TEXT)
    assert output.getvalue() == "\xfc \u2028 \\udcff\n".encode()


def test_a_closed_standard_output_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    escape_unprintable()
    print_file(TEXT)


def test_check_prints_any_path_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    output = in_ascii(monkeypatch)
    assert cli.main(["check", "--set=socket=/tmp/\xfc.sock"]) == 0
    assert rb"socket: /tmp/\xfc.sock, mode 0660" in output.getvalue()


def test_producerctl_prints_any_name_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    output = in_ascii(monkeypatch)
    monkeypatch.setattr(AdminClient, "post", lambda *_: {})
    assert ctl.main(["pause", "\xfc"]) == 0
    assert output.getvalue().startswith(rb"\xfc: nothing is sent until")
