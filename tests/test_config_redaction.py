"""No message shows an external ID, or the login and query of a URL; what is around them stays readable."""

from __future__ import annotations

import pytest

from producerd.config.redaction import MAX_LEVELS, MAX_SHOWN, redacted_url, shown


@pytest.mark.promise("url-shown-login-query")
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://user:kept@host:9/path", "http://***@host:9/path"),
        ("https://kept@host", "https://***@host"),
        ("http://user:ke/pt@host", "http://***@host"),
        ("http://user:ke@pt@host", "http://***@host"),
        ("http://user:ke#pt@host", "http://***@host"),
        ("http://user:kept\n@host", "http://***@host"),
        ("user:kept@host", "***@host"),
        ("user:ke//pt@host", "***@host"),
        ("//user:kept@host", "//***@host"),
        (" http://user:kept@host", "***@host"),
        ("https://host/path?sig=kept", "https://host/path?***"),
        ("host?sig=kept", "host?***"),
        ("https://user:kept@host/?sig=kept", "https://***@host/?***"),
        ("https://user:ke?pt@host", "https://***"),
        ("https://host?at=@kept", "https://***"),
    ],
)
def test_a_url_is_shown_without_login_and_query_however_it_is_written(url: str, text: str) -> None:
    assert redacted_url(url) == text
    assert redacted_url(text) == text, "and again"


@pytest.mark.parametrize("url", ["", "https://host:1/a/b#c", "localhost:4599", "http://[::1", "/run/p.sock", "a?"])
def test_a_text_without_a_secret_is_shown_as_it_is(url: str) -> None:
    assert redacted_url(url) == url


def test_values_are_shown_without_what_secret_keys_hold_at_any_depth() -> None:
    table = {"region": "eu", "external_id": "kept", "x": [{"AWS_SECRET_ACCESS_KEY": {"y": "kept"}, "url": "u:kept@h"}]}
    assert shown(table) == (
        '{"region": "eu", "external_id": "(set, not shown)", '
        '"x": [{"AWS_SECRET_ACCESS_KEY": "(set, not shown)", "url": "***@h"}]}'
    )
    assert shown("kept", 'streams."a".external_id') == shown(["kept"], "Password") == "(set, not shown)"
    assert shown(7, "max_streams") == shown(7, 'streams."tokens".queue_limit') == "7"
    assert shown("kept", 'streams."a".streams."token".x') == "(set, not shown)", "only the first is a stream's name"


def test_a_value_of_many_levels_is_cut_at_the_same_level_whatever_they_are() -> None:
    lists: object = "x"
    tables: object = "x"
    for _ in range(3 * MAX_LEVELS):
        lists, tables = [lists], {"k": tables}
    assert shown(lists) == "[" * MAX_LEVELS + '"..."' + "]" * MAX_LEVELS
    assert shown(tables) == '{"k": ' * MAX_LEVELS + '"..."' + "}" * MAX_LEVELS


def test_a_long_value_is_cut_after_its_secrets_are_gone() -> None:
    whole = "x" * (MAX_SHOWN - 2)
    assert shown(whole) == f'"{whole}"'
    assert shown("x" * 1_000) == f'"{"x" * (MAX_SHOWN - 1)}...'
    assert "kept" not in shown("http://" + "x" * MAX_SHOWN + ":kept@host")
