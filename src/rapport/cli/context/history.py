"""`rapport context history`: what was told of an entity in the past. [CX-8]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from rapport.cli.arguments import SiteOption, moment, site_directory
from rapport.cli.context.options import JsonOption, record_as_json, shown_value
from rapport.cli.local_site import read_channels
from rapport.cli.output import write_json, write_table
from rapport.context.persistence import PastUpdate
from rapport.context.persistence import history as past_of
from rapport.core.context_record import EntityRef
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock

if TYPE_CHECKING:
    from rapport.channel.backends.readonly import ReadOnlyChannels

_COLUMNS = ("told", "scope", "provider", "valid from", "valid until", "values")


def history(
    entity: Annotated[str, Parameter(help="Whom it is about: TYPE/ID, such as room/r3.")],
    *,
    scope: Annotated[str, Parameter(help="Only this group of values.")] = "",
    since: Annotated[str, Parameter(help="A time, or 2h for two hours ago.")] = "",
    until: Annotated[str, Parameter(help="A time, or how long ago.")] = "",
    limit: Annotated[int, Parameter(help="The last so many.")] = 1_000,
    directory: Annotated[
        Path | None, Parameter(help="The directory of `rapport context broker`.")
    ] = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Show what was told of an entity, oldest first: from a site's log, or a broker's directory.

    rapport context history room/r3 --since 2h
    """
    subject = EntityRef.parse(entity)
    begin, end = moment(since), moment(until)

    async def read(channels: ReadOnlyChannels) -> list[PastUpdate]:
        found = past_of(channels, subject, scope, since=begin, until=end)
        return await _last(found, limit)

    if directory is not None:
        rows = asyncio.run(_of_directory(directory, read))
    else:
        rows = read_channels(site_directory(site), read)
    if json:
        for one in rows:
            write_json({"told": one.told, "identity": one.identity, **record_as_json(one.record)})
        return
    write_table(f"history of {entity}", _COLUMNS, [_row(one) for one in rows])


async def _of_directory(directory: Path, read: Any) -> list[PastUpdate]:
    from rapport.channel.backends.readonly import open_readonly

    try:
        channels = open_readonly(directory, SystemClock())
    except UnknownName:
        raise InvalidInput(
            f"there is no log in {directory}",
            code="channel.no_log",
            hint="name the directory that `rapport context broker --directory` was given",
        ) from None
    try:
        found: list[PastUpdate] = await read(channels)
        return found
    finally:
        await channels.close()


async def _last(found: AsyncIterator[PastUpdate], limit: int) -> list[PastUpdate]:
    from collections import deque

    kept: deque[PastUpdate] = deque(maxlen=max(limit, 1))
    async for one in found:
        kept.append(one)
    return list(kept)


def _row(one: PastUpdate) -> tuple[str, ...]:
    record = one.record
    values = " ".join(f"{name}={shown_value(value)}" for name, value in record.values.items())
    return (
        format_time(one.told),
        record.scope,
        record.provider,
        format_time(record.valid_from),
        format_time(record.valid_until),
        values,
    )
