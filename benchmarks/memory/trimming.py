"""`producerd` as anybody runs it, but at SIGUSR2 glibc gives back what it keeps of freed memory: the rest is in use."""

from __future__ import annotations

import ctypes
import signal
import sys

from producerd.cli import main

if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, lambda *_: ctypes.CDLL(None).malloc_trim(0))
    sys.exit(main())
