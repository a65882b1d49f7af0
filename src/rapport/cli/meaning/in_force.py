"""What a site has in force by its files and its log, for commands that look. [ME-6, UX-3]"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from rapport.channel.backends.stores import read_identity
from rapport.channel.config import channels_from_site
from rapport.cli.local import data_directory, read_channels
from rapport.cli.terminal import stderr
from rapport.core.errors import InvalidInput
from rapport.kernel.toml import TomlFile

if TYPE_CHECKING:
    from rapport.channel.channel import Channels
    from rapport.mediation.interpretations.repository import ActiveInterpretations
    from rapport.mediation.source_bindings import SourceBinding
    from rapport.site.site import Site


async def in_force_of(
    directory: Path, site: Site, channels: Channels
) -> tuple[dict[str, SourceBinding], ActiveInterpretations]:
    """How sources are bound, and what is in force. Files that the node has not taken in as they are
    now are told on stderr: what they say is shown.
    """
    from rapport.node.interpretations import interpretations_on_record

    node = await asyncio.to_thread(_identity, directory)
    bindings, found = await interpretations_on_record(site, channels, node)
    if found.not_taken:
        names = ", ".join(found.not_taken)
        told = f"changed in files since the node took them in, shown as in the files: {names}"
        stderr().print(told, highlight=False, markup=False)
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
