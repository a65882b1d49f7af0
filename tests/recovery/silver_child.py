"""The process that test_silver.py kills: takes bronze into silver and kills itself at a commit."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rapport.pipeline.lake.silver import update_silver
from support.servers.spark import TEST_SETTINGS
from support.silver_lake import make_ontology


def main(lake: Path, deadly: int) -> None:
    from rapport.pipeline.session import spark_session

    left = deadly

    def at_commit(_table: str) -> None:
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    update_silver(spark_session(TEST_SETTINGS), lake, make_ontology(), at_commit=at_commit)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
