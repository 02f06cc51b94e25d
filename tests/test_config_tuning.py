"""Values that are not settings have one place, in which no user can change them."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from producerd.config import load
from producerd.config.sources import GONE
from producerd.config.tuning import TUNING, Tuning
from producerd.errors import ConfigurationError

pytestmark = pytest.mark.law("Config")
PRINTED_BEFORE = """\
max_streams_per_user = 0
worker_threads = 1
max_connections_per_user = 0
max_frame_bytes = "1 MiB"
max_frame_records = 10000
session_window_bytes = "8 MiB"
session_window_frames = 64
body_timeout_seconds = 10
[defaults]
aggregate_max_records = 4294967295
request_max_records = 500
max_in_flight_bytes = "32 MiB"
connect_timeout_seconds = 5
shard_map_wait_seconds = 10
permanent_error_grace_seconds = 60
first_contact_timeout_seconds = 60
"""
"""These settings as ``config print`` wrote them when there were such settings."""


@pytest.mark.parametrize("name", sorted({*GONE, *(field.name for field in fields(Tuning))}))
def test_no_file_variable_or_option_changes_one(name: str, tmp_path: Path) -> None:
    file = tmp_path / "producerd.toml"
    file.write_text(f'{name} = "7"\n[defaults]\n{name} = "7"\n[streams.a]\n{name} = "7"\n')
    places = name, f"defaults.{name}", f"streams.a.{name}"
    with pytest.raises(ConfigurationError) as caught:
        load(file, [f"{place}=7" for place in places], {f"PRODUCERD_{name.upper()}": "7"})
    assert len(caught.value.problems) == 2 * len(places) + 1
    why = f": {name} is gone since 0.2, so delete it: {GONE[name]}" if name in GONE else ": no such setting; "
    assert all(why in problem for problem in caught.value.problems)


def test_a_file_that_names_the_constants_as_they_are_still_starts_a_daemon(tmp_path: Path) -> None:
    named = set(re.findall(r"^(\w+) = ", PRINTED_BEFORE, re.MULTILINE))
    assert named == set(GONE) - {"transport"}
    file = tmp_path / "producerd.toml"
    file.write_text(PRINTED_BEFORE)
    assert load(file, [], {}) == load(None, [], {})
    file.write_text(PRINTED_BEFORE.replace("8 MiB", "9 MiB"))
    with pytest.raises(ConfigurationError, match=r"session_window_bytes.*9 MiB"):
        load(file, [], {})


def test_a_user_has_all_but_a_sixteenth_of_streams_and_connections() -> None:
    assert [TUNING.most_of_a_user(count) for count in (1, 15, 16, 512)] == [1, 15, 15, 480]
