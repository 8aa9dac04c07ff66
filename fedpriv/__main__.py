"""`python -m fedpriv`."""

import sys

from fedpriv.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
