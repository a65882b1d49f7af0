"""Sensors along highways, as in Highway Traffic Monitoring: coordinates, times and units."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from both_ways import show

if __name__ == "__main__":
    sys.exit(show(Path(__file__).parent))
