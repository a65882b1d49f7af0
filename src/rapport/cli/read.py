"""`rapport read CHANNEL`: the events of a channel, as CloudEvents or as a table. [CH-4]"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from rapport.cli.arguments import SiteOption, site_directory
from rapport.cli.hints import unknown
from rapport.cli.output import print_note, stdout, write_gaps, write_json, write_table
from rapport.core.times import format_time

if TYPE_CHECKING:
    from rapport.channel.backends.readonly import ReadOnlyChannels
    from rapport.core.event import Gap, StoredEvent


def read(
    channel: str | None = None,
    *,
    site: SiteOption = None,
    after: Annotated[int, Parameter(help="Begin after this position.")] = 0,
    limit: Annotated[int, Parameter(help="At most this many events.")] = 100,
    interpretation: Annotated[
        str, Parameter(name="--as", help="In the words of this interpretation.")
    ] = "",
    explain_query: Annotated[
        str, Parameter(help="Read nothing: say how this condition would be answered.")
    ] = "",
    json: Annotated[bool, Parameter(help="One CloudEvent per line.")] = False,
) -> None:
    """Read a channel of a site; without a name, list the channels."""
    if channel is not None and explain_query:
        stdout().print(_plan(site_directory(site), channel, explain_query), soft_wrap=True)
        return
    from rapport.channel.channel import gaps_between, pages_of
    from rapport.cli.local_site import as_delivered, read_channels
    from rapport.core.codec import to_cloudevent

    async def counts(channels: ReadOnlyChannels) -> list[tuple[str, int]]:
        return [(name, channels.channel(name).last_position()) for name in channels.names()]

    async def events(channels: ReadOnlyChannels) -> tuple[list[StoredEvent], Sequence[Gap]]:
        if channel not in (filled := channels.names()):
            if not _may_come(directory, str(channel)):
                raise unknown(
                    "channel",
                    str(channel),
                    filled,
                    if_none="nothing was published yet: rapport publish --channel NAME",
                )
            print_note(_nothing_yet(channels, str(channel)))
        chosen = channels.channel(str(channel))
        stored = [one async for page in pages_of(chosen, after, limit=limit) for one in page]
        is_cut = len(stored) >= limit > 0
        reached = stored[-1].position if is_cut else chosen.last_position()
        gaps = gaps_between(chosen, after, reached)
        if is_cut and (left := chosen.last_position() - stored[-1].position):
            place = stored[-1].position
            print_note(f"{left:,} more: rapport read {channel} --after {place}")
        found = as_delivered(directory, channels, str(channel), stored)
        if not interpretation:
            return found, gaps
        shown = await _in_words(directory, channels, str(channel), found, interpretation)
        return shown, gaps

    directory = site_directory(site)
    if channel is None:
        found = read_channels(directory, counts)
        if json:
            write_json([{"channel": name, "events": count} for name, count in found])
        else:
            write_table("channels", ("channel", "events"), [(n, str(c)) for n, c in found])
        return
    stored, gaps = read_channels(directory, events)
    write_gaps(gaps, as_json=json)
    if json:
        for item in stored:
            line = {"position": item.position, "received": item.received}
            sys.stdout.buffer.write(msgspec.json.encode(line | to_cloudevent(item.event)) + b"\n")
        return
    rows = [
        (
            str(item.position),
            format_time(item.event.time),
            item.event.source,
            item.event.id,
            item.event.type,
            item.event.data[:120].decode("utf-8", "replace"),
        )
        for item in stored
    ]
    write_table(channel, ("position", "time", "source", "id", "type", "data"), rows)


def _may_come(directory: Path, channel: str) -> bool:
    """Whether a node of the site fills a channel of this name, though nothing is in it yet."""
    from rapport.channel.config import channels_from_site
    from rapport.channel.validation import is_reserved
    from rapport.kernel.toml import TomlFile
    from rapport.mediation.source_bindings import RAW_PREFIX

    file = TomlFile.load(directory / "site.toml")
    declared, _problems = channels_from_site(file)
    named = [rule.pattern for rule in declared.rules]
    raw = [RAW_PREFIX + source for source, _section in file.section("sources").sections()]
    return is_reserved(channel) or channel in (*named, *raw)


def _nothing_yet(channels: ReadOnlyChannels, channel: str) -> str:
    """An empty channel in words, with the place where its events may have stopped."""
    quarantined = channels.channel("quarantine").last_position()
    if channel != "events" or not quarantined:
        return f"nothing is in {channel!r} yet"
    return f"nothing is in 'events' yet; {quarantined:,} quarantined: rapport mediate quarantine"


def _plan(directory: Path, channel: str, condition: str) -> str:
    """What a node that runs this site would look up; its indexes are those the site declares."""
    from rapport.channel.config import channels_from_site
    from rapport.channel.query.index_plan import explain_query, index_path
    from rapport.channel.query.query_kinds import make_query
    from rapport.kernel.toml import TomlFile

    declared, _problems = channels_from_site(TomlFile.load(directory / "site.toml"))
    indexed = [index_path(text) for text in declared.rules_for(channel).index or ()]
    return explain_query(make_query("sql", condition), indexed)


async def _in_words(
    directory: Path,
    channels: ReadOnlyChannels,
    channel: str,
    stored: list[StoredEvent],
    interpretation: str,
) -> list[StoredEvent]:
    """Events as a consumer gets them; what cannot be said is told on stderr."""
    from rapport.cli.local_site import in_force_of
    from rapport.kernel.clock import SystemClock
    from rapport.node.interpretations import outgoing_of_site
    from rapport.site.site import load_site

    site = await asyncio.to_thread(load_site, directory, policies=[])
    _, in_force = await in_force_of(directory, site, channels)
    outgoing = outgoing_of_site(site, channels, SystemClock(), in_force)
    try:
        events = await outgoing.view(channel, stored, interpretation)
    finally:
        await outgoing.close()
    for one in outgoing.statistics.undeliverable:
        print_note(f"{one.position}: {one.code}: {one.message}")
    return events
