"""The settings.  Every value of a `Config` is valid, and a `Config` never changes.

`load` takes each setting from the first source that has it: ``--set``, the environment (``PRODUCERD_`` + upper case),
the TOML file, the default.  It reports every problem at once.  A problem is one line with the key, the value, what is
allowed, and the source of the value.

Settings of the node are at the file's top level.  Settings of streams are in ``[defaults]``; a table
``[streams."NAME"]`` overrides them for one stream.  Sizes are whole bytes or text with a unit ("64 MiB").  Durations
are seconds, in keys that end in ``_seconds``.
"""

from producerd.config.settings import STREAM_NAME, Config, NodeSettings, StreamSettings
from producerd.config.sources import load

__all__ = ["STREAM_NAME", "Config", "NodeSettings", "StreamSettings", "load"]
