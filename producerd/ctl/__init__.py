"""The command ``producerctl``: asks the daemon of this machine, over its admin socket, and tells it what to do.

The standard library alone, so that it answers at once.
"""

from producerd.ctl.commands import main

__all__ = ["main"]
