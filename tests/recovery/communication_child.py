"""The walk of `support.processes.delivery_walk` on a real directory, killed before or after
its n-th write by its own hand.

Arguments: directory, which write (0 = none), `before` or `after`. The medium and what was
acknowledged are files whose lines are synced before anybody hears of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from rapport.channel.backends.local import open_embedded
from rapport.kernel.clock import ManualClock
from rapport.store.segment_store import SegmentLogStore
from rapport.store.sqlite import SqliteRecordStore
from support.faults.fuses import Fuse
from support.processes.delivery_walk import BEGIN, Walk


class Lines:
    """A file to which lines are added durably."""

    def __init__(self, path):
        self.path = path

    def add(self, line):
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{line}\n".encode())
        os.fsync(handle)
        os.close(handle)

    def all(self):
        return self.path.read_text().splitlines() if self.path.exists() else []


class NotedClock(ManualClock):
    """What it was set to last is known to the next process."""

    def __init__(self, lines):
        self._lines = lines
        super().__init__(max(map(int, lines.all()), default=BEGIN))

    def set_ms(self, now_ms):
        if now_ms != self.now_ms():
            self._lines.add(now_ms)
        super().set_ms(now_ms)


async def main(directory, at, after):
    fuse = Fuse(at, after=after, kill=lambda: os.kill(os.getpid(), signal.SIGKILL))
    fuse.build_into(SegmentLogStore)
    fuse.build_into(SqliteRecordStore)
    clock = NotedClock(Lines(directory / "clock"))
    noted, medium = Lines(directory / "acknowledged"), Lines(directory / "medium")
    channels = open_embedded(directory / "log", clock)
    walk = Walk(channels, clock, lambda delivery: medium.add(f"{delivery.key} {delivery.id}"))
    await walk.go(set(noted.all()), noted.add)
    await channels.close()
    print(fuse.writes)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "after"))
