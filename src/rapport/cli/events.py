"""`rapport publish`, `read` and `listen`: events of channels. [CH-4, CH-7, CH-12]

`read` reads the site's files, with or without a running node; the others use a node's endpoints.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from rapport.channel.agents.connection import Reason
from rapport.channel.agents.listener import Listener
from rapport.channel.agents.listener_state import ReceivedEvent
from rapport.channel.requests.request import event_json
from rapport.cli.arguments import (
    STDIN,
    SiteOption,
    check_count,
    may_be_stdin,
    prompt_for_input,
    site_directory,
)
from rapport.cli.hints import read_given, unknown, wrong_use
from rapport.cli.node_api import HERE, Remote, TokenFileOption, Where, read_token, request_bodies
from rapport.cli.output import (
    print_note,
    stdout,
    visible,
    write_bytes,
    write_gaps,
    write_json,
    write_table,
)
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.event import Event, StoredEvent
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock

if TYPE_CHECKING:
    from rapport.channel.backends.readonly import ReadOnlyChannels
    from rapport.core.event import Gap


def publish(
    file: Annotated[
        str, may_be_stdin(lambda: publish), Parameter(help="JSON lines; - for standard input.")
    ] = STDIN,
    *,
    source: Annotated[str | None, Parameter(help="Send as readings of this source.")] = None,
    channel: Annotated[str | None, Parameter(help="Send CloudEvents to this channel.")] = None,
    where: Where = HERE,
) -> None:
    """Send events to a running node; each line of the file is one JSON object."""
    if (source is None) == (channel is None):
        raise wrong_use(
            "say either --source or --channel",
            "--source NAME for what an interpretation reads, --channel NAME for events",
        )
    lines = _read_lines(file)
    remote = where.remote()
    name = quote(source or channel or "", safe="")
    path = f"/sources/{name}" if source else f"/channels/{name}/events"
    sent = duplicates = 0
    for count, body in request_bodies(lines):
        duplicates += remote.post(path, body)["duplicates"]
        sent += count
    write_json({"published": sent - duplicates, "duplicates": duplicates})
    if duplicates:
        print_note(f"{duplicates} of {sent} had been published before")


def _typed() -> bytes:
    prompt_for_input()
    return sys.stdin.buffer.read()


def _read_lines(file: str) -> list[bytes]:
    wanted = "a file of one JSON object per line, or - for what is piped in"
    raw = _typed() if file == STDIN else read_given(Path(file), wanted=wanted)
    lines = [line.strip() for line in raw.splitlines()]
    for number, line in enumerate(lines, start=1):
        try:
            msgspec.json.decode(line or b"null")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(
                f"{file}:{number}: not JSON: {error}",
                code="event.bad_data",
                hint="each line is one JSON object (rapport import takes CSV and others); nothing "
                "was sent",
            ) from None
    return [line for line in lines if line]


_COLUMNS = ("position", "time", "source", "id", "type", "data")
_AT_ONCE = 500
_LOOK_UP_SECONDS = 1.0
_DATA_SHOWN = 120


def listen(
    channel: str,
    *,
    query: Annotated[
        str | None, Parameter(help="A condition, such as \"type = 'badge.seen'\".")
    ] = None,
    interpretation: Annotated[
        str, Parameter(name="--as", help="In this interpretation, the query too.")
    ] = "",
    url: Annotated[str | None, Parameter(help="The node's address; else the site's.")] = None,
    site: SiteOption = None,
    token_file: TokenFileOption = None,
    from_start: Annotated[
        bool, Parameter(negative="--new", help="From the oldest event, or only new ones.")
    ] = True,
    count: Annotated[int | None, Parameter(help="End after this many events.")] = None,
    directory: Annotated[
        Path | None, Parameter(help="Keep the position here, and go on from it next time.")
    ] = None,
    handback: Annotated[str, Parameter(help="A text that comes back with each event.")] = "",
    json: Annotated[bool, Parameter(help="One CloudEvent per line.")] = False,
) -> int:
    """Print what a query finds in a channel: history first, then live, until Ctrl-C."""
    check_count(count, "events")
    try:
        remote = Remote(url, read_token(token_file)) if url else _node_of_site(site, token_file)
    except KeyboardInterrupt:
        return 0
    listener = Listener(
        remote.url,
        channel,
        {} if query is None else query,
        interpretation=interpretation,
        directory=directory,
        token=remote.token,
        from_start=from_start,
        handback=handback,
        acknowledging="explicit",
        on_gap=lambda gap: write_gaps((gap,), as_json=json),
    )
    try:
        _print_all(listener, count, as_json=json, start="" if url else _start(site))
    except KeyboardInterrupt:
        return 0  # the usual end: printed events are acknowledged
    finally:
        listener.close()
    return 0


def _start(site: Path | None) -> str:
    return f"rapport up --site {site}" if site is not None else "rapport up"


def _print_all(listener: Listener, count: int | None, *, as_json: bool, start: str) -> None:
    """Prints until `count` events are out; acknowledged once they are. `start`: the command that
    starts the node.
    """
    if not as_json:
        write_bytes(_row(_COLUMNS))
    left, reported = count, None
    while left is None or left > 0:
        events = listener.pull(min(left or _AT_ONCE, _AT_ONCE), timeout=_LOOK_UP_SECONDS)
        if events:
            write_bytes(b"".join(_line(one, as_json) for one in events))
            listener.acknowledge(events[-1])
            left = None if left is None else left - len(events)
        reported = _report_once(listener.status().trouble, reported, start)


def _report_once(trouble: Reason | None, reported: Reason | None, start: str) -> Reason | None:
    """Prints a trouble on stderr once; returns the one printed last."""
    if trouble is not None and trouble != reported:
        _print_trouble(trouble.message, start if trouble.code == "node.unreachable" else "")
    return trouble


def _print_trouble(message: str, start: str) -> None:
    print_note(f"{message}; trying again")
    if start:
        print_note(f"hint: start it: {start}")


def _line(received: ReceivedEvent, as_json: bool) -> bytes:
    event = received.event
    if as_json:
        stored = StoredEvent(received.position, received.received, event)
        own = {"handback": received.handback} if received.handback else {}
        return msgspec.json.encode(event_json(stored, **own)) + b"\n"
    return _row(_cells(received.position, event))


def _cells(position: int, event: Event) -> tuple[str, ...]:
    data = " ".join(event.data[:_DATA_SHOWN].decode("utf-8", "replace").split())
    return (str(position), format_time(event.time), event.source, event.id, event.type, data)


def _row(cells: tuple[str, ...]) -> bytes:
    return "\t".join(visible(cell) for cell in cells).encode("utf-8", "replace") + b"\n"


def _node_of_site(site: Path | None, token_file: Path | None) -> Remote:
    """The node of the site, once it answers: no other gets the token."""
    remote = Remote.of_site(site_directory(site), None, token_file)
    is_reported = False
    while True:
        try:
            remote.verify()
        except Unavailable as error:
            if error.code != "node.unreachable":
                raise
            if not is_reported:
                _print_trouble(error.message, _start(site))
            is_reported = True
            asyncio.run(SystemClock().sleep(_LOOK_UP_SECONDS * 1_000))
        else:
            return remote


def read(
    channel: str | None = None,
    *,
    site: SiteOption = None,
    after: Annotated[int, Parameter(help="Begin after this position.")] = 0,
    limit: Annotated[int, Parameter(help="At most this many events.")] = 100,
    interpretation: Annotated[str, Parameter(name="--as", help="In this interpretation.")] = "",
    explain_query: Annotated[
        str, Parameter(help="Read nothing: show how this condition would be evaluated.")
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
            print_note(f"{left:,} more: rapport read {channel} --after {reached}")
        found = as_delivered(directory, channels, str(channel), stored)
        if not interpretation:
            return found, gaps
        shown = await _in_interpretation(directory, channels, str(channel), found, interpretation)
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
    rows = [_cells(item.position, item.event) for item in stored]
    write_table(channel, _COLUMNS, rows)


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


async def _in_interpretation(
    directory: Path,
    channels: ReadOnlyChannels,
    channel: str,
    stored: list[StoredEvent],
    interpretation: str,
) -> list[StoredEvent]:
    """Events as a consumer gets them; those that cannot be expressed are listed on stderr."""
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
