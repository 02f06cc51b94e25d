"""Run the command ``producerd`` as ``python -m producerd``."""

import sys

from producerd.cli import main

sys.exit(main())
