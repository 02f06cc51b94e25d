"""The parts of ``./dev``.

They use only the standard library, because they run before anything is installed.  The wheel does not contain them.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
