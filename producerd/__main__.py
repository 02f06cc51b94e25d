"""``python -m producerd`` is the command ``producerd``."""

import sys

from producerd.cli import main

sys.exit(main())
