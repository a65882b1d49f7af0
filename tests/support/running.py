"""A node of a site in this process, for as long as a test needs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.site.site import load_site

LONGEST_SECONDS = 60.0


@asynccontextmanager
async def running(
    site: Path, *, clock: Clock | None = None, refusing_policies: bool = True
) -> AsyncIterator[Node]:
    """The started node of a site's directory, without doors; stopped whatever happens."""
    loaded = load_site(site, refusing_policies=refusing_policies)
    node = make_node(loaded, NodeSettings(port=0), clock or SystemClock())
    try:
        await node.start()
        yield node
    finally:
        await node.stop()


def play(
    site: Path,
    scenario: Callable[[Node], Awaitable[object]],
    *,
    within_seconds: float = LONGEST_SECONDS,
    refusing_policies: bool = True,
) -> None:
    """Runs a scenario at the node of a site; raises TimeoutError when it takes too long."""

    async def whole() -> None:
        async with running(site, refusing_policies=refusing_policies) as node:
            async with asyncio.timeout(within_seconds):
                await scenario(node)

    asyncio.run(whole())
