"""The node of a site that does not run, opened for one command. [UX-3]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rapport.kernel.clock import SystemClock

if TYPE_CHECKING:
    from rapport.node.node import Node

T = TypeVar("T")


def with_resting_node(
    site: Path, work: Callable[[Node], Awaitable[T]], *, record: bool = True
) -> T:
    """What `work` does with the node; its readers and doors are not started.

    Without `record` nothing is put on record about the site's files: for commands that only look.
    """
    return asyncio.run(_run(site, work, record))


async def _run(site: Path, work: Callable[[Node], Awaitable[T]], record: bool) -> T:
    node = await asyncio.to_thread(_open, site)
    try:
        await node.meanings.begin(record=record)
        await node.fresh_tables.begin(record=record)
        await node.policies.begin(record=record)
        if record:
            await node.fresh_tables.settle()
        return await work(node)
    finally:
        await node.stop()


def _open(site: Path) -> Node:
    from rapport.kernel.settings import load_settings
    from rapport.node.wiring import make_node
    from rapport.site.site import load_site

    loaded = load_site(site, refusing_policies=False)
    settings = load_settings(loaded.file.section("node"), flags={})
    return make_node(loaded, settings, SystemClock())
