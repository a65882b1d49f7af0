"""Moves a channel and kills itself at a step. Arguments: site, channel, target, step."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rapport.channel.backends import migration
from rapport.cli import channel as command


def main(site: Path, channel: str, target: str, at: str) -> None:
    migration._RECORDS_AT_ONCE = 40  # several rounds of copying

    def report(what: object) -> None:
        if str(what) == at or (at == "copying" and isinstance(what, int)):
            os.kill(os.getpid(), signal.SIGKILL)

    with command._stores(site) as stores:
        stores.open(target)
        command._mover(stores).move(channel, target, report=report)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
