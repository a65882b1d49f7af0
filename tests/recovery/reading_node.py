"""The node that test_kill_rounds.py kills: `rapport up` with a reader of its own that promises one
effect per event.

Argument: the site. Says where it listens as `rapport up` does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from rapport.channel.consumers import Effect, Emit, serve_with
from rapport.core.event import StoredEvent
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import load_settings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from support.faults.crowd import CHANNEL

READER, RESULTS = "adder", "results"


async def add_up(stored: StoredEvent, state: bytes) -> Effect:
    """Count and sum of positions, and a result for each event."""
    number, total = json.loads(state or b"[0, 0]")
    emit = Emit(channel=RESULTS, type="added", data={"of": stored.event.id})
    return Effect(state=json.dumps([number + 1, total + stored.position]).encode(), emits=(emit,))


async def main(site: Path) -> None:
    loaded, clock = load_site(site), SystemClock()
    settings = load_settings(loaded.file.section("node"), flags={"port": 0})
    node = make_node(loaded, settings, clock)
    async with serving(node) as url:
        await node.start()
        print(f"rapport is up: {url}", file=sys.stderr, flush=True)
        await serve_with("exactly-once", node.channels, CHANNEL, READER, add_up, clock, limit=25)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
