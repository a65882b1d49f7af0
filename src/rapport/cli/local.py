"""Reading a site's channels from the terminal, beside a node that writes them or without one.
[UX-3]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rapport.channel.access.rights import LOCAL
from rapport.channel.backends.readonly import ReadOnlyChannels
from rapport.channel.backends.stores import open_reading, read_interceptors
from rapport.channel.config import channels_from_site
from rapport.channel.interceptors.registry import delivered_at_rest
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import StoredEvent
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import load_settings
from rapport.kernel.toml import TomlFile

T = TypeVar("T")


def data_directory(site: Path, data: str | None = None) -> Path:
    """Where the site's node keeps its log and lake."""
    file = TomlFile.load(site / "site.toml")
    return site / load_settings(file.section("node"), flags={"data": data}).data


def read_channels(site: Path, work: Callable[[ReadOnlyChannels], Awaitable[T]]) -> T:
    """Runs `work` on the site's channels; raises InvalidInput when there is nothing to read yet."""
    declared, _problems = channels_from_site(TomlFile.load(site / "site.toml"))

    async def run() -> T:
        try:
            channels = open_reading(
                data_directory(site) / "log", SystemClock(), declared, site=site
            )
        except UnknownName:
            raise no_log(site) from None
        try:
            return await work(channels)
        finally:
            await channels.close()

    return asyncio.run(run())


def no_log(site: Path) -> InvalidInput:
    """The error for who wants to read where nothing was written yet."""
    return InvalidInput(
        f"the site {site} has no log yet",
        code="channel.no_log",
        hint=f"run it first: rapport up --site {site}",
    )


def as_delivered(
    site: Path, channels: ReadOnlyChannels, channel: str, events: Sequence[StoredEvent]
) -> list[StoredEvent]:
    """Events as the node would give them to who sits at its machine, through interceptors; raises
    Unsupported for one that only the running node can make.
    """
    declared, _problems = channels_from_site(TomlFile.load(site / "site.toml"))
    kept = read_interceptors(data_directory(site) / "log", declared, site=site)
    return delivered_at_rest(kept, channels, SystemClock(), channel, LOCAL, events)
