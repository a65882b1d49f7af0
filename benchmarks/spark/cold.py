"""The first run in a fresh session, as a program: `ours` or `by hand`, and the folder of files.
What it came to is one JSON object on stdout. [UX-3]
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from benchmarks.spark.history import measure
from benchmarks.spark.parts import SETTINGS
from rapport.pipeline.session import running_spark


def main(way: str, folder: Path) -> bytes:
    """Measures from when the session is there."""
    with running_spark(SETTINGS) as spark:
        return msgspec.json.encode(measure(way, spark, folder))


if __name__ == "__main__":
    sys.stdout.buffer.write(main(sys.argv[1], Path(sys.argv[2])))
