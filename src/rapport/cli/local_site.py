"""A site's channels and interpretations read from its files, with or without a running node.
[ME-6, UX-3]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rapport.channel.access.identities import LOCAL
from rapport.channel.backends.readonly import ReadOnlyChannels
from rapport.channel.backends.stores import open_reading, read_identity, read_interceptors
from rapport.channel.config import channels_from_site
from rapport.channel.interceptors.registry import delivered_at_rest
from rapport.cli.output import print_note
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import StoredEvent
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import load_settings
from rapport.kernel.toml import TomlFile

if TYPE_CHECKING:
    from rapport.channel.channel import Channels
    from rapport.mediation.interpretations.repository import ActiveInterpretations
    from rapport.mediation.source_bindings import SourceBinding
    from rapport.site.site import Site

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
    """The error of reading a log to which nothing was written yet."""
    return InvalidInput(
        f"the site {site} has no log yet",
        code="channel.no_log",
        hint=f"run it first: rapport up --site {site}",
    )


def as_delivered(
    site: Path, channels: ReadOnlyChannels, channel: str, events: Sequence[StoredEvent]
) -> list[StoredEvent]:
    """Events as the node would deliver them to a local reader, through interceptors; raises
    Unsupported for one that only the running node can make.
    """
    declared, _problems = channels_from_site(TomlFile.load(site / "site.toml"))
    kept = read_interceptors(data_directory(site) / "log", declared, site=site)
    return delivered_at_rest(kept, channels, SystemClock(), channel, LOCAL, events)


async def in_force_of(
    directory: Path, site: Site, channels: Channels
) -> tuple[dict[str, SourceBinding], ActiveInterpretations]:
    """The bindings of sources, and the interpretations in force. Files that changed since the node
    loaded them are listed on stderr and count as they are now.
    """
    from rapport.node.interpretations import interpretations_on_record

    node = await asyncio.to_thread(_identity, directory)
    bindings, found = await interpretations_on_record(site, channels, node)
    if found.not_taken:
        names = ", ".join(found.not_taken)
        print_note(f"changed in files since the node took them in, shown as in the files: {names}")
    return bindings, found.together.standing.in_force


def in_force_at(
    directory: Path, site: Site
) -> tuple[dict[str, SourceBinding], ActiveInterpretations]:
    """The same by the site's own log; by its files alone where there is no log yet."""

    async def look(channels: Channels) -> tuple[dict[str, SourceBinding], ActiveInterpretations]:
        return await in_force_of(directory, site, channels)

    try:
        return read_channels(directory, look)
    except InvalidInput as error:
        if error.code != "channel.no_log":
            raise
    from rapport.node.interpretations import interpretations_of

    return interpretations_of(site)


def _identity(directory: Path) -> str:
    declared, _problems = channels_from_site(TomlFile.load(directory / "site.toml"))
    return read_identity(data_directory(directory) / "log", declared, site=directory)
