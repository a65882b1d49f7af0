"""A node for the benchmark of policies live on Spark, as a program: it listens where its site says,
so that a query beside it finds it, and says so as `rapport up` does. [PI-5]
"""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path

import uvloop

from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import load_settings
from rapport.node.wiring import make_node
from rapport.site.site import Site, load_site
from rapport.web.app import serving


async def serve(site: Site) -> None:
    """Until it is killed."""
    settings = load_settings(site.file.section("node"), flags={})
    node = make_node(site, settings, SystemClock())
    async with serving(node) as url:
        await node.start()
        gc.collect()
        gc.freeze()
        sys.stderr.write(f"rapport is up: {url}\n")
        sys.stderr.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(load_site(Path(sys.argv[1]))))
