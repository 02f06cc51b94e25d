"""docs/build/licences.md names every package that an extra brings, with the licence that its own metadata tell."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Final

import pytest

from tests.licences import LOCKS, locked, page, rows
from tools import ROOT

FAMILIES: Final = {
    "Apache": "Apache",
    "BSD": "BSD",
    "CC0": "CC0",
    "GPL": "GPL",
    "General Public": "GPL",
    "ISC": "ISC",
    "MIT": "MIT",
    "MPL": "MPL",
    "Mozilla": "MPL",
    "PSF": "PSF",
    "Python Software": "PSF",
    "Zlib": "Zlib",
}
"""Words by which a package's metadata name its licence."""
PERMISSIVE: Final = {"Apache", "BSD", "CC0", "ISC", "MIT", "PSF", "Zlib"}


def families(text: str) -> set[str]:
    return {family for word, family in FAMILIES.items() if word in text}


def told_by(name: str) -> str:
    """What a package's own metadata say of its licence; "" where it is not installed."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    if expression := metadata.get_all("License-Expression", []):
        return str(expression[0])
    classifiers = [each for each in metadata.get_all("Classifier", []) if each.startswith("License ::")]
    return " ".join([*"".join(metadata.get_all("License", [])).splitlines()[:1], *classifiers])


@pytest.mark.promise("package-locks-row")
def test_every_package_of_the_locks_has_its_row_and_no_other_has() -> None:
    """A new dependency needs a row, so that its author looks at its licence."""
    assert rows().keys() == {name for lock in LOCKS for name in locked(lock)}


@pytest.mark.promise("package-locks-row")
def test_each_licence_is_what_the_packages_own_metadata_say() -> None:
    """Of those that are installed here: some are for other systems."""
    told = {name: families(text) for name in rows() if (text := told_by(name))}
    assert len(told) > 60
    assert {name: families(rows()[name][0]) for name in told} == told


def test_what_is_not_permissive_is_named() -> None:
    """Whatever else a row's licence asks for stands in the page's list, with what follows from it."""
    named = set(re.findall(r"^- \*\*`([\w.-]+)`", page(), re.MULTILINE))
    assert named == {name for name, (licence, _) in rows().items() if not families(licence) <= PERMISSIVE}
    assert all(families(licence) for licence, _ in rows().values())


def test_the_daemon_s_lock_has_what_its_extra_brings_in_the_tested_versions() -> None:
    """A pex, and an image, are made from it."""
    daemon, every = ((ROOT / lock).read_text() for lock in ("deploy/daemon.lock", "requirements.lock"))
    pins = re.findall(r"^[\w.-]+==[^ ]+", daemon, re.MULTILINE)
    assert {pin.partition("==")[0] for pin in pins} == {
        name for name, (_, extra) in rows().items() if extra == "daemon"
    }
    assert set(pins) <= set(re.findall(r"^[\w.-]+==[^ ]+", every, re.MULTILINE))
