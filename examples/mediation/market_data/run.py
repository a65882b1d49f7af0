"""Prices of several exchanges, as in Marketcetera: currencies, times and names of indicators."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from both_ways import show

if __name__ == "__main__":
    sys.exit(show(Path(__file__).parent))
