"""The node that test_policy_node.py kills: `rapport up` at a time of its own.

Argument: the site. Its wall clock is the machine's plus the milliseconds in the site's file
`ahead`. Says where it listens as `rapport up` does.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import load_settings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving


class AheadClock(SystemClock):
    """The machine's clock, set ahead."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def now_ms(self) -> int:
        return super().now_ms() + int(self._file.read_text())


async def main(site: Path) -> None:
    loaded = load_site(site)
    settings = load_settings(loaded.file.section("node"), flags={"port": 0})
    node = make_node(loaded, settings, AheadClock(site / "ahead"))
    async with serving(node) as url:
        await node.start()
        print(f"rapport is up: {url}", file=sys.stderr, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
