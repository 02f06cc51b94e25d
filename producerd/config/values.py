"""Types of single values, which read sizes, modes, paths and addresses from text.  They raise ValueError."""

from __future__ import annotations

import ipaddress
import json
import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": KIB, "MIB": MIB, "GIB": GIB}
"""Bytes of each unit of size.  A bare "m" is missing, because it may mean 10^6 or, as in Spark, 2^20."""
SOCKET_PATH_BYTES: Final = 107
"""Longest path of a unix socket.  Linux's sockaddr_un holds 108 bytes with the closing zero."""
NO_UID: Final = 2**32 - 1
"""The kernel's number for "no user", (uid_t)-1."""
_URL_FORM: Final = re.compile(r"https?://[^\s/?#@]+(/[\w.~%/+:=,-]*)?", re.ASCII)
_HOST_LABEL: Final = re.compile(r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)")
"""A label of a host's name (RFC 1123).  Underscores are not allowed, because botocore refuses such a host."""


def _not_bool(value: object) -> object:
    if isinstance(value, bool):  # for Python True is a number
        raise ValueError("not a number")
    return value


def to_bytes(value: object) -> object:
    if not isinstance(value, str):
        return _not_bool(value)
    match = re.fullmatch(r"\s*([\d_]+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in UNITS:
        raise ValueError("not a size")
    return float(match[1]) * UNITS[match[2].upper()]


def _to_mode(value: object) -> int:
    """Read a file mode from octal text.  A number is refused: in TOML 660 is decimal, and another mode than 0660."""
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", value):
        raise ValueError("not an octal mode")
    mode = int(value, 8)
    if not mode & 0o222:  # connecting needs the permission to write (unix(7))
        raise ValueError("no user may connect")
    return mode


def _to_uids(value: object) -> frozenset[int]:
    """Read user ids from a list or from text with commas, and look up the ids of names once, here (pwd)."""
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",")] if value.strip() else []
    if not isinstance(value, list | frozenset):
        raise ValueError("not a list")
    return frozenset(map(_to_uid, value))


def _to_uid(user: object) -> int:
    if isinstance(user, str) and not user.isdecimal():
        try:
            return pwd.getpwnam(user).pw_uid
        except (KeyError, ValueError):
            raise PydanticCustomError("unknown", "there is no user {user}", {"user": json.dumps(user)}) from None
    uid = int(user) if isinstance(user, str) else user
    if not isinstance(uid, int) or isinstance(uid, bool) or not 0 <= uid < NO_UID:
        raise ValueError("not a user id")
    return uid


def _to_path(value: object) -> Path:
    if not isinstance(value, str | Path):
        raise ValueError("not a path")
    if len(os.fsencode(value)) > SOCKET_PATH_BYTES:
        raise ValueError("too long")
    if not os.path.isabs(value):  # the daemon and its clients would look in different places
        raise ValueError("not absolute")
    return Path(value)


def _to_url(value: object) -> object:
    if value is None or value == "":
        return None
    if isinstance(value, str) and _URL_FORM.fullmatch(value) and is_endpoint(value):
        return value
    raise ValueError("not a URL")


def is_endpoint(url: str) -> bool:
    """Return whether a URL is one of HTTP(S) with a host that botocore sends to; login and query do not matter."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and parts.port != 0 and _is_host(parts.hostname or "")
    except ValueError:  # as `port` raises for 99999
        return False


def _is_host(name: str) -> bool:
    """Return whether this is an IP address or the name of a host, whose last label is not a number."""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        labels = name.removesuffix(".").split(".")
        return len(name) <= 253 and all(map(_HOST_LABEL.fullmatch, labels)) and not labels[-1].isdigit()


def _to_listen(value: object) -> object:
    if value != "":
        split_listen(str(value))
    return value


def split_listen(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[v6 address]:port``.  Raise ValueError for any other text.

    A host may have underscores, unlike the host of a URL.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]+)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        raise ValueError("not host:port")
    host = match[1] or match[2]
    host.encode("idna")  # as the resolver's caller does; it raises UnicodeError, a ValueError, for labels like ".."
    return host, int(match[3])


def checked_text(value: object) -> object:
    """Return a value.  Raise ValueError for text or a path that no file, name or log could hold.

    These are a zero byte, at which the system's calls end a text, and bytes that are not UTF-8.
    """
    if isinstance(value, str | Path) and b"\0" in str(value).encode():  # it raises UnicodeEncodeError, a ValueError
        raise ValueError("a zero byte")
    return value


def _blank_is_none(value: object) -> object:
    return None if value == "" else value


Count = Annotated[int, BeforeValidator(_not_bool)]
Bytes = Annotated[int, BeforeValidator(to_bytes)]
MaybeBytes = Annotated[int | None, BeforeValidator(lambda value: None if value in (None, "") else to_bytes(value))]
Seconds = Annotated[float, BeforeValidator(_not_bool)]
Fraction = Annotated[float, BeforeValidator(_not_bool)]
Mode = Annotated[int, BeforeValidator(_to_mode)]
Uids = Annotated[frozenset[int], BeforeValidator(_to_uids)]
SocketPath = Annotated[Path, BeforeValidator(_to_path)]
AdminPath = Annotated[Path | None, BeforeValidator(lambda value: _to_path(value) if value else None)]
Url = Annotated[str | None, BeforeValidator(_to_url)]
Listen = Annotated[str, BeforeValidator(_to_listen)]
Name = Annotated[str | None, BeforeValidator(_blank_is_none)]


def default_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the socket's path in /run/producerd if this process may write there, otherwise in the user's folder."""
    system, user = Path("/run/producerd"), environ.get("XDG_RUNTIME_DIR", "")
    if user and os.geteuid() != 0 and not os.access(system, os.W_OK):
        return Path(user, "producerd", "producerd.sock")
    return system / "producerd.sock"


def size(count: int) -> str:
    """Return a number of bytes in the largest unit that divides it."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count % factor == 0:
            return f"{count // factor:,} {unit}"
    return f"{count:,}"
