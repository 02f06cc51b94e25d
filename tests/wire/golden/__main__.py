"""Writes the files of this version; refuses where they are there."""

from __future__ import annotations

import sys

from tests.wire.golden import FOLDER, MINOR, golden_messages, session, write

if (FOLDER / MINOR).exists():
    sys.exit(f"the golden frames of {MINOR} are there, and never change")
said = session()
write(FOLDER / MINOR / "messages.txt", [*golden_messages()])
write(FOLDER / MINOR / "session.txt", said)
print(FOLDER / MINOR)
