"""The process that test_lake.py kills: takes bronze into silver and kills itself at a step."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rapport.pipeline.lake.silver import update_silver
from rapport.policy.ontology import Ontology, PushSource

SOURCE = PushSource(name="s", concept="room", attribute="warmth", key="k", value=("v",))
ONTOLOGY = Ontology(
    concepts={"room": {"warmth": "number"}}, relationships={}, sources={"s": SOURCE}
)


def main(lake: Path, deadly: str) -> None:
    def step(name: str) -> None:
        if name == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    update_silver(None, lake, ONTOLOGY, rows_per_step=5, at_step=step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
