"""A tool for architectures used by several people, as DRADEL: paths and lines of each platform."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from both_ways import show

if __name__ == "__main__":
    sys.exit(show(Path(__file__).parent))
