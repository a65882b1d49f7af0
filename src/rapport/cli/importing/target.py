"""Where imported events go: through the node when one runs, else into the site's store. [CH-12]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from rapport.channel.backends.stores import open_channels
from rapport.channel.config import channels_from_site
from rapport.channel.log.channels import LoggedChannels
from rapport.cli.remote import Remote
from rapport.cli.requests import request_bodies
from rapport.cli.where import Where
from rapport.core.codec import to_cloudevent
from rapport.core.errors import SiteError, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import load_settings
from rapport.kernel.toml import TomlFile

Send = Callable[[list[Event]], int]
"""Stores events and returns how many were there already."""


@contextmanager
def open_target(where: Where, source: str) -> Iterator[Send]:
    """A way to store events of a source. The lock of the store tells whether a node runs; with
    `--url` it is that node in any case.
    """
    with asyncio.Runner() as runner:
        channels = None if where.url else _open_store(where.directory, runner)
        if channels is None:
            yield _through_node(where.remote(), source)
            return
        try:
            yield lambda events: runner.run(_append(channels, source, events))
        finally:
            runner.run(channels.close())


async def _append(channels: LoggedChannels, source: str, events: list[Event]) -> int:
    appended = await channels.channel(f"raw.{source}").append(events)
    return appended.duplicates


def _through_node(remote: Remote, source: str) -> Send:
    def send(events: list[Event]) -> int:
        parts = [msgspec.json.encode(to_cloudevent(event)) for event in events]
        path = f"/channels/raw.{quote(source, safe='')}/events"
        return sum(remote.post(path, body)["duplicates"] for _count, body in request_bodies(parts))

    return send


def _open_store(site: Path, runner: asyncio.Runner) -> LoggedChannels | None:
    """The site's channels for this process; None when a node has them."""
    file = TomlFile.load(site / "site.toml")
    declared, problems = channels_from_site(file)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    settings = load_settings(file.section("node"), flags={})

    async def open_them() -> LoggedChannels:
        return open_channels(
            site / settings.data / "log",
            SystemClock(),
            declared,
            site=site,
            segment_bytes=settings.segment_bytes,
        )

    try:
        return runner.run(open_them())
    except StoreUnavailable as error:
        if error.code == "store.locked":
            return None
        raise
