"""A badge reader without a link to the node, as `rapport ensemble run` runs it: what its hardware
writes into a file it notes, keeps in a backlog, and gossips. [EN-14]
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from rapport.ensemble import Local, process
from rapport.ensemble.device_readings import Backlog, Confirming, Reader
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.runtime.node_status import RuntimeSettings


class BadgeReader(Reader):
    hardware: Local[Path]

    @process(every="50 ms")
    def read(self) -> None:
        for line in self.hardware.read_text().splitlines()[self.backlog.last :]:
            seen = json.loads(line)
            self.note(seen, seen["ms"])


settings = RuntimeSettings(gossip=GossipSettings(knowledge_ms=200, probability=1.0))
ensembles = [Confirming]
components = [
    BadgeReader(
        id="reader-gallery",
        hardware=Path(os.environ["BADGE_LINES"]),
        backlog=Backlog(Path(os.environ["BADGE_BACKLOG"])),
    )
]
