"""What a message shows of a value that may hold a secret: no external ID, no login, and no query of a URL.

A user may give a secret under a wrong name or in a wrong table, so every text of a message passes through here.
"""

from __future__ import annotations

import json
import re
from typing import Final

NOT_SHOWN: Final = "(set, not shown)"
"""Text in place of a secret.  It is not a valid value, so no reader takes it for one."""
MAX_SHOWN: Final = 200
"""Most characters of a value that a message shows."""
MAX_LEVELS: Final = 8
"""Most levels of tables and lists that a message shows.  A dotted key can make thousands, and Python would give up."""
_SECRET_NAME: Final = re.compile("external|secret|passw|token|credential|access_?key", re.IGNORECASE)
"""Pattern of the keys whose values are not shown, also misspelt: our ``external_id``, and the keys of AWS."""
_TABLE: Final = re.compile(r'^streams\.("[^"]*"|[^."]*)\.')
"""Table of a stream in a key: a stream's own name says nothing about its settings."""
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


def shown(value: object, key: str = "") -> str:
    """Return the value of a key for a message, without secrets and at most `MAX_SHOWN` characters long."""
    if _SECRET_NAME.search(_TABLE.sub("", key)):
        return NOT_SHOWN
    text = json.dumps(_redacted(value), ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _redacted(value: object, levels: int = MAX_LEVELS) -> object:
    if isinstance(value, str):
        return redacted_url(value)
    if not isinstance(value, list | dict):
        return value
    if not levels:
        return "..."
    if isinstance(value, list):
        return [_redacted(item, levels - 1) for item in value]
    return {key: NOT_SHOWN if _SECRET_NAME.search(key) else _redacted(item, levels - 1) for key, item in value.items()}


def redacted_url(url: str) -> str:
    """Return a URL as it may be shown: ``***`` stands for its login and for its query.

    The login ends at the last @, since people write passwords with any character in them.  If a ? comes before that @,
    the login cannot be distinguished from the query, and the host is not shown either.  A text that is not a URL loses
    the same parts, because its scheme may be missing.
    """
    scheme = found[0] if (found := _SCHEME.match(url)) else ""
    login, at, place = url[len(scheme) :].rpartition("@")
    if "?" in login:
        return f"{scheme}***"
    host, _, query = place.partition("?")
    return scheme + ("***@" if at else "") + (f"{host}?***" if query else place)
