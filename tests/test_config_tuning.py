"""Values that are not settings have one place, in which no user can change them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from producerd.config import load
from producerd.config.sources import GONE
from producerd.config.tuning import TUNING, Tuning
from producerd.errors import ConfigurationError

pytestmark = pytest.mark.law("Config")


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
    """As ``config print`` of an earlier version wrote it."""
    values = {name: getattr(TUNING, name, 0) for name in GONE if name != "transport"}
    lines = "".join(f"{name} = {value}\n" for name, value in values.items())
    file = tmp_path / "producerd.toml"
    file.write_text(f"{lines}[defaults]\n{lines}")
    assert load(file, [], {}) == load(None, [], {})


def test_a_user_has_all_but_a_sixteenth_of_streams_and_connections() -> None:
    assert [TUNING.most_of_a_user(count) for count in (1, 15, 16, 512)] == [1, 15, 15, 480]
