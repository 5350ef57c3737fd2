"""Run the command line by `python -m fourfold`."""

import sys

from fourfold.cli import main

if __name__ == "__main__":
    sys.exit(main())
