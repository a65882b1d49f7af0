"""`rapport up`: runs a node until it is told to stop. [UX-5]

SIGTERM and Ctrl-C drain: doors close, readers finish what they hold. SIGKILL loses nothing that was
acknowledged; the next start takes it up.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rapport.cli.running.service import NodeProcess
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import show_problem, stderr
from rapport.core.errors import RapportError, Unavailable
from rapport.kernel.clock import SystemClock
from rapport.kernel.files import make_private_directory
from rapport.kernel.settings import load_settings
from rapport.kernel.telemetry import configure_logs
from rapport.kernel.threads import pinned_to_cpu

if TYPE_CHECKING:
    from rapport.kernel.settings import NodeSettings
    from rapport.site.site import Site


def up(
    *,
    site: SiteOption = None,
    host: Annotated[str | None, Parameter(help="Address to listen on.")] = None,
    port: Annotated[int | None, Parameter(help="Port to listen on; 0 takes a free one.")] = None,
    data: Annotated[str | None, Parameter(help="Data directory, relative to the site.")] = None,
    log_json: Annotated[bool, Parameter(help="Logs as JSON lines.")] = False,
    processor: Annotated[
        int | None,
        Parameter(
            help="Hold the node on this processor, counted from 0, but for its indexes: faster "
            "where little else runs there."
        ),
    ] = None,
) -> None:
    """Run a node: doors, mediation, policies, deliveries."""
    import uvloop

    from rapport.channel.access.admission import read_node_token
    from rapport.site.site import load_site

    os.umask(0o077)  # what a node writes is its owner's, whichever part writes it
    configure_logs(json=log_json)
    _raise_descriptor_limit()
    directory = site_directory(site)
    loaded = load_site(
        directory,
        refusing_policies=False,
        data_directory=None if data is None else directory / data,
    )
    for fault in loaded.faults:
        show_problem(fault)
    flags = {"host": host, "port": port, "data": data}
    settings = load_settings(loaded.file.section("node"), flags=flags)
    token = read_node_token(settings.token_file, loaded.directory)
    make_private_directory(loaded.data_directory)
    configure_logs(json=log_json, directory=loaded.data_directory)
    with nullcontext() if processor is None else pinned_to_cpu(processor):
        uvloop.run(_serve(loaded, settings, token))


async def _serve(loaded: Site, settings: NodeSettings, token: str) -> None:
    from rapport.node.wiring import make_node
    from rapport.web.app import serving

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    node = make_node(loaded, settings, SystemClock())
    try:
        async with serving(node, token=token) as url:
            await node.start()
            _settle()
            process = NodeProcess(os.getpid(), url)
            await asyncio.to_thread(process.write, loaded.data_directory)
            stderr().print(f"rapport is up: {url}  (stop with Ctrl-C)", soft_wrap=True)
            await stop.wait()
    except Unavailable as error:
        if error.code != "web.cannot_listen":
            raise
        raise await asyncio.to_thread(_port_taken, settings, error) from None
    finally:
        await node.stop()


def _port_taken(settings: NodeSettings, error: Unavailable) -> Unavailable:
    """Says whose the port is, where that is the node of a site."""
    from rapport.cli.remote import Remote

    try:
        found = Remote(settings.local_url()).identity()
    except RapportError:
        return error  # another program's
    return Unavailable(
        f"cannot listen on {settings.host}:{settings.port}: the port is taken by the node of the "
        f"site {found.site!r}",
        code=error.code,
        hint="give this site a port of its own: port in [node] of its site.toml, or --port",
    )


def _raise_descriptor_limit() -> None:
    """Lets the process open as many files and connections as the system allows it; a shell gives
    less unless it is told.
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system that gives the limit and then refuses it (macOS does) leaves the node as it was.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _settle() -> None:
    """What is there when the doors open stays to the end: it is not searched for garbage again and
    again, which would cost a twelfth of the work of taking in events.
    """
    gc.collect()
    gc.freeze()
