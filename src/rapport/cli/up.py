"""`rapport up`: runs a node until it is told to stop; SIGTERM drains, SIGKILL loses nothing
acknowledged. [UX-5]
"""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

from cyclopts import Parameter

from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import stderr
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import load_settings
from rapport.kernel.telemetry import configure_logs


def up(
    *,
    site: SiteOption = None,
    host: Annotated[str | None, Parameter(help="Address to listen on.")] = None,
    port: Annotated[int | None, Parameter(help="Port to listen on; 0 takes a free one.")] = None,
    data: Annotated[str | None, Parameter(help="Data directory, relative to the site.")] = None,
    log_json: Annotated[bool, Parameter(help="Logs as JSON lines.")] = False,
) -> None:
    """Run a node: doors, mediation, policies, deliveries."""
    from rapport.site.site import load_site

    configure_logs(json=log_json)
    loaded = load_site(site_directory(site))
    flags = {"host": host, "port": port, "data": data}
    settings = load_settings(loaded.file.section("node"), flags=flags)
    token = ""
    if settings.token_file:
        from rapport.kernel.settings import read_secret

        token = read_secret(f"file:{settings.token_file}", loaded.directory)
    _run(_serve(loaded, settings, token))


async def _serve(loaded: object, settings: object, token: str) -> None:
    from rapport.node.wiring import make_node
    from rapport.web.app import serving

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    node = make_node(loaded, settings, SystemClock())  # type: ignore[arg-type]
    try:
        async with serving(node, token=token) as url:
            await node.start()
            stderr().print(f"rapport is up: {url}  (stop with Ctrl-C)", soft_wrap=True)
            await stop.wait()
    finally:
        await node.stop()


def _run(work: object) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)  # type: ignore[arg-type]
    else:
        uvloop.run(work)  # type: ignore[arg-type]
