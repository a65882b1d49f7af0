"""Where the commands that explain read: a lake, or a site's log with its lake behind it. [PO-11,
CH-16]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from rapport.core.errors import Corrupt

if TYPE_CHECKING:
    from rapport.channel.backends.lake import LakeChannels
    from rapport.channel.channel import Channels

T = TypeVar("T")

LakeOption = Annotated[
    str | None, Parameter(name="lake", help="Read this lake instead of the site's log.")
]


def read_history(
    site: Path, lake: str | None, work: Callable[[Channels], Awaitable[T]]
) -> tuple[T, list[str]]:
    """Runs `work` on a lake, or on the site's log, which is helped out by the site's lake where it
    has let events go; and what people should know about where the answer comes from.
    """
    if lake is not None:
        return _from_lake(Path(lake), work)
    from rapport.channel.backends.lake import open_lake
    from rapport.channel.backends.log_and_lake import LogAndLake, lake_ranges_text
    from rapport.channel.export.parquet_files import BRONZE
    from rapport.cli.local import data_directory, read_channels

    behind = data_directory(site) / "lake"
    if not (behind / BRONZE).is_dir():
        return read_channels(site, work), []
    try:
        opened = open_lake(behind)
    except Corrupt as fault:  # the log may well have everything
        return read_channels(site, work), [_told(fault)]
    said: list[str] = []

    async def both(channels: Channels) -> T:
        joined = LogAndLake(channels, opened)
        found = await work(joined)
        if joined.was_needed:
            said.append(
                f"some of this is no longer in the log and was read from the lake {behind}: "
                f"{lake_ranges_text(joined.found())}"
            )
        return found

    return read_channels(site, both), said + _damage(opened)


def _from_lake(directory: Path, work: Callable[[Channels], Awaitable[T]]) -> tuple[T, list[str]]:
    from rapport.channel.backends.lake import open_lake

    opened = open_lake(directory)

    async def run() -> T:
        return await work(opened)

    return asyncio.run(run()), _damage(opened)


def _damage(lake: LakeChannels) -> list[str]:
    return [_told(fault) for fault in lake.damaged()]


def _told(fault: Corrupt) -> str:
    return f"{fault.message}; what it holds is not shown here"
