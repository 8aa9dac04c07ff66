"""`python -m fedpriv`."""

import sys

from fedpriv.common.command_line import importing

with importing():
    from fedpriv.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
