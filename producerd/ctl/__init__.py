"""The command ``producerctl``: ask the daemon of this machine about its state, and control it, over its admin socket.

The command imports only the standard library, so that it starts at once.
"""

from producerd.ctl.commands import main

__all__ = ["main"]
