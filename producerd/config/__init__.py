"""Settings: if a `Config` exists, every value in it is valid, and it never changes.

A setting comes from ``--set``, else from the environment (``PRODUCERD_`` + upper case), else from the TOML file, else
from its default.  `load` finds every problem at once, and each problem is one line that names the key, the value, what
is allowed and where the value came from.  Node settings stand at the file's top level, those of a stream in
``[defaults]`` and, for one stream, in ``[streams."NAME"]``; a stream's own table is laid over the defaults.

Sizes are whole bytes or text with a unit ("64 MiB"); durations are seconds, in keys that end in ``_seconds``.
"""

from producerd.config.settings import STREAM_NAME, Config, NodeSettings, StreamSettings
from producerd.config.sources import load

__all__ = ["STREAM_NAME", "Config", "NodeSettings", "StreamSettings", "load"]
