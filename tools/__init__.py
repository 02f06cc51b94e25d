"""The parts of ``./dev``.

They use only the standard library, because they run before anything is installed.  The wheel does not contain them.
"""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MADE = ("build", "dist")
"""What `./dev build` makes, at the top of the tree only: docs/build is a source."""


def copy_tree(root: Path, copy: Path, *others: str) -> None:
    """Copy a tree without what is made in it, and without names that match one of the patterns ``others``."""
    anywhere = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", *others)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return anywhere(folder, names) | (set(MADE) & set(names) if Path(folder) == root else set())

    shutil.copytree(root, copy, ignore=left_out)
