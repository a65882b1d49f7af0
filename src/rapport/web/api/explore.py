"""Exploring channels: which there are, and their newest events that fulfil a condition. [CN-11]

Needs the right to read the channel. To follow a channel from there, see `event_stream.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.channel.event_lookup import TimeRange, find_newest
from rapport.channel.query.query_kinds import make_query
from rapport.core.codec import stored_cloudevent
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import StoredEvent
from rapport.core.times import parse_time
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    identity_of,
    json_response,
    require_right,
)
from rapport.web.endpoint_docs import documented
from rapport.web.schemas import StoredCloudEvent


class ChannelLine(msgspec.Struct, frozen=True, kw_only=True):
    """A channel that the caller may read."""

    name: str
    last: int
    """Position of its newest event: as many were ever appended."""
    received: int = 0
    """When that event was received; 0 when it is no longer kept."""


class ChannelList(msgspec.Struct, frozen=True):
    """Channels by name."""

    channels: list[ChannelLine]


class EventSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Events, newest first; go on with `before=next`, 0 when there is no more. A page may be empty
    and have a `next`: one request looks at 20,000 events at most.
    """

    channel: str
    events: list[StoredCloudEvent]
    next: int
    reached: int
    """When the oldest event that was looked at was received; 0 when none was."""
    last: int
    """The newest position of the channel: follow it from here."""


@get("/channels", opt=documented(answer=ChannelList))
async def list_channels(request: HttpRequest, node: NodeDependency) -> Reply:
    """The channels that the caller may read, with the newest event of each."""
    identity, lines = identity_of(request), []
    for name in node.channels.names():
        if node.rights.allows(identity, "subscribe", name):
            channel = node.channels.channel(name)
            last = channel.last_position()
            newest = await channel.read_after(last - 1, limit=1) if last else []
            lines.append(
                ChannelLine(name=name, last=last, received=newest[0].received if newest else 0)
            )
    return json_response(ChannelList(lines))


@get("/channels/{name:str}/search", opt=documented(answer=EventSearch))
async def search_events(
    request: HttpRequest,
    name: FromPath[str],
    node: NodeDependency,
    condition: Annotated[str, QueryParameter(name="query")] = "",
    kind: FromQuery[str] = "",
    begin: Annotated[str, QueryParameter(name="from")] = "",
    end: Annotated[str, QueryParameter(name="to")] = "",
    before: Annotated[int, QueryParameter(ge=0, le=2**62)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=500)] = 50,
) -> Reply:
    """The newest events of a channel that fulfil a condition, newest first; of those received in a
    time, or before a position.
    """
    identity = require_right(request, node, "subscribe", name)
    source = node.channels.source
    query = make_query(kind, condition or {}, source.views, source.scripts)
    if name not in node.channels.names():
        raise UnknownName("channel", name, node.channels.names())
    arrived = TimeRange(
        since=parse_time(begin) if begin else 0, until=parse_time(end) if end else 0
    )
    if arrived.until and arrived.since >= arrived.until:
        raise InvalidInput(
            "the time ends before it begins", code="search.bad_time", hint="from is before to"
        )

    async def visible(events: Sequence[StoredEvent]) -> Sequence[StoredEvent]:
        return node.channels.delivered(name, identity, await source.not_given_out(name, events))

    channel = node.channels.channel(name)
    last = channel.last_position()
    found = await find_newest(
        *(channel, visible, query.matches, node.clock),
        arrived=arrived,
        before=before or last + 1,
        limit=limit,
    )
    return json_response(
        {
            "channel": name,
            "events": [stored_cloudevent(stored) for stored in found.events],
            "next": found.next,
            "reached": found.reached,
            "last": last,
        }
    )
