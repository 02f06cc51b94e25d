import sys

from producerd.ctl import main

if __name__ == "__main__":
    sys.exit(main())
