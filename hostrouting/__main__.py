"""``python -m hostrouting``."""

import sys

from hostrouting.cli import main

if __name__ == "__main__":
    sys.exit(main())
