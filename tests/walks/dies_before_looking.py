"""`rapport up` that is killed when a release is over and before policies look again.

Argument: the site. Says where it listens as `rapport up` does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import load_settings
from rapport.node.wiring import make_node
from rapport.policy.replay.reevaluation import ReevaluationService
from rapport.site.site import load_site
from rapport.web.app import serving


async def die(_looker: ReevaluationService, _event: Event) -> NoReturn:
    """In the place of the second look."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


async def main(site: Path) -> None:
    loaded, clock = load_site(site), SystemClock()
    settings = load_settings(loaded.file.section("node"), flags={"port": 0})
    node = make_node(loaded, settings, clock)
    async with serving(node) as url:
        await node.start()
        print(f"rapport is up: {url}", file=sys.stderr, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    ReevaluationService.look = die  # type: ignore[assignment, method-assign]
    asyncio.run(main(Path(sys.argv[1])))
