"""`python -m rapport` is the command `rapport`. [UX-3]"""

import sys

from rapport.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
