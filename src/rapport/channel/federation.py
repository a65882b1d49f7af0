"""Federation: links to other nodes, from the site's `[links]`. [CH-3, CH-11]

```toml
[links.bologna]
url = "https://bologna.example.org:8484"
token = "file:bologna.token"          # authenticates this node there
receive = ["raw.*", "alarms"]         # channels whose events are received from there
send = ["alarms"]                     # channels whose events are sent
query = "type LIKE 'badge.%'"         # only these, both ways
rename = { detections = "bologna.detections" }   # local name of a received channel
```

A neighbour with another canonical model is read like a consumer: `interpretation` names one that
the neighbour declares; its events are a source here (`rename = { events = "raw.them" }`).

The header `hops` of a copy lists the nodes it passed, first the one where it was published:
`/a1/b2/`. A node requests only events that have not passed itself, and drops others. The list is
set by nodes; other endpoints drop one that comes from outside.

Each event is stored once, whichever path it took. A repetition may arrive much later, over a link
that was down for a month, so events are compared with the history index, not only with the dedupe
window. An event that the channel can never accept (too large, not signed as required) is
dead-lettered: one bad event must not block a link. A link's position is saved after its events
were appended; after a kill in between, the same token gives the same events, which are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.channel.channel import AppendResult
from rapport.channel.log.sequences import HOPS, SEQUENCED_IN
from rapport.channel.query.query_kinds import make_query
from rapport.channel.validation import (
    NODE_CHANGING_CHANNELS,
    NODE_CHANNELS,
    OUTPUT,
    REQUEST,
    check_channel_name,
)
from rapport.core.errors import InvalidInput, Problem
from rapport.core.event import Event, StoredEvent
from rapport.core.urls import address_parts
from rapport.kernel.config_fields import Fields, named_tables
from rapport.kernel.toml import TomlFile
from rapport.store.base import RecordStore

if TYPE_CHECKING:
    from rapport.channel.log.channels import LoggedChannels

_KEYS = ("url", "token", "receive", "send", "query", "rename", "interpretation")

NOT_SHARED = (*NODE_CHANNELS, f"{OUTPUT}*", f"{REQUEST}*")
"""Channels whose events would be acted on twice, or mean something only where they arose: they are
received under another name, or not at all.
"""
MOST_HOPS = 200
"""An event that passed so many nodes is not taken in: no sane graph is so wide."""
_NODE = re.compile(r"[a-z0-9]{8,64}\Z")
_TABLE, _KEY = "federation", "node"
Append = Callable[[str, Sequence[Event]], Awaitable[AppendResult]]
Bury = Callable[[str, str, Event, InvalidInput], Awaitable[None]]
"""Keeps (channel, sender, event, reason) as a dead letter."""
WAIT_MS = 20_000
"""How long a neighbour may hold a request open when it has nothing new."""
LEASE_MINUTES = 60


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One neighbour in the site file."""

    name: str
    url: str
    token: str = ""
    """Named as a secret (`env:NAME`, `file:PATH`)."""
    receive: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    query: str = ""
    rename: dict[str, str] = {}
    interpretation: str = ""
    """One of the neighbour's interpretations, in which it is read; empty: as stored there."""

    def kept_as(self, channel: str) -> str | None:
        """The local channel for a neighbour's channel; None when it is not received."""
        if channel in self.rename:
            return self.rename[channel]
        return channel if is_shared(channel) and _means(channel, self.receive) else None

    def is_sent(self, channel: str) -> bool:
        return is_shared(channel) and _means(channel, self.send)


def is_shared(channel: str) -> bool:
    """Whether a channel of this name may receive another node's events."""
    return not _matches(channel, NOT_SHARED)


def links_from_site(file: TomlFile) -> tuple[tuple[Link, ...], list[Problem]]:
    """The `[links]` table, and all its problems; never raises for a wrong site."""
    problems: list[Problem] = []
    tables = named_tables(file.section("links"), problems, _KEYS)
    return tuple(_link(name, fields) for name, fields in tables), problems


def _link(name: str, fields: Fields) -> Link:
    rename = fields.table("rename", None, '{ detections = "there.detections" }')
    link = Link(
        name=name,
        url=fields.filled_text("url", example='"http://10.0.0.2:8484"').rstrip("/"),
        token=fields.text("token", ""),
        receive=fields.texts("receive", ()),
        send=fields.texts("send", ()),
        query=fields.text("query", ""),
        rename={key: str(value) for key, value in rename.section.values.items()} if rename else {},
        interpretation=fields.text("interpretation", ""),
    )
    _check(link, fields)
    return link


def _check(link: Link, fields: Fields) -> None:
    parts = address_parts(link.url)
    if link.url and (parts.scheme not in ("http", "https") or not parts.hostname):
        message, hint = f"{link.url!r} is not the address of a node", "http://10.0.0.2:8484"
        fields.fault("url", "link.bad_url", message, hint=f"such as {hint}")
    if not (link.receive or link.send or link.rename):
        hint = 'such as receive = ["raw.*"]'
        fields.fault("", "link.idle", "the link shares no channel", hint=hint)
    try:
        if link.query:
            make_query("sql", link.query)
        for local in link.rename.values():
            check_channel_name(local)
    except InvalidInput as error:
        fields.report("query" if "query" in error.code else "rename", error)
    if link.interpretation and link.send:
        message = "an interpretation of the neighbour applies to events received from it"
        hint = "the neighbour declares a link of its own for the events it receives from here"
        fields.fault("interpretation", "link.one_way", message, hint=hint)
    for local in link.rename.values():
        if not is_shared(local):
            message = f"channel {local!r} cannot receive another node's events"
            hint = f"another name, such as {link.name}.{local}"
            fields.fault("rename", "link.not_shared", message, hint=hint)
    for key in ("receive", "send"):
        for pattern in getattr(link, key):
            if not is_shared(pattern):
                message = f"channel {pattern!r} is not shared under its own name"
                hint = f'receive it as: rename = {{ "{pattern}" = "{link.name}.{pattern}" }}'
                fields.fault(key, "link.not_shared", message, hint=hint)


def _means(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether an entry covers a channel. No pattern covers a channel that lets a neighbour change
    this node: its exact name is needed.
    """
    return name in patterns if name in NODE_CHANGING_CHANNELS else _matches(name, patterns)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_node_id(node: str) -> str:
    """The id, if it can be one; raises InvalidInput."""
    if not _NODE.match(node):
        raise InvalidInput(
            f"{node[:70]!r} is not the id of a node",
            code="link.bad_node",
            hint="8 to 64 of a-z and 0-9",
        )
    return node


def hops_of(event: Event) -> tuple[str, ...]:
    """The nodes the event has passed, in order.

    >>> hops_of(Event("s", "1", "t", "", 0, headers={"hops": "/aaaaaaaa/bbbbbbbb/"}))
    ('aaaaaaaa', 'bbbbbbbb')
    """
    return tuple(hop for hop in event.headers.get(HOPS, "").split("/") if hop)


def has_passed(event: Event, node: str) -> bool:
    return f"/{node}/" in event.headers.get(HOPS, "")


def arrived_from(event: Event, sender: str) -> Event:
    """The event as the receiver stores it: one hop longer. Sequence numbers count only in their
    original channel, so that mark is dropped.
    """
    headers = {name: text for name, text in event.headers.items() if name != SEQUENCED_IN}
    headers[HOPS] = f"{event.headers.get(HOPS) or '/'}{sender}/"
    return msgspec.structs.replace(event, headers=headers)


def neighbour_condition(receiver: str, query: str) -> str:
    """The condition of a neighbour's events: not passed by it, and its own filter."""
    unseen = f"headers.{HOPS} IS NULL OR headers.{HOPS} NOT LIKE '%/{receiver}/%'"
    return f"({unseen}) AND ({query})" if query else unseen


def node_identity(records: RecordStore, fresh: str) -> str:
    """The node's id; `fresh` becomes it when there is none yet. Durable when it returns."""
    saved = saved_identity(records)
    if saved:
        return saved
    records.put(_TABLE, _KEY, check_node_id(fresh).encode())
    return fresh


def saved_identity(records: RecordStore) -> str:
    """The node's id for read-only access; empty before its first start."""
    return (records.get(_TABLE, _KEY) or b"").decode()


class IntakeResult(msgspec.Struct, frozen=True):
    stored: int
    known: int
    """Stored before, over this or another path."""
    passed: int
    """Dropped because they had been here, or had gone too far."""
    refused: int = 0
    """Buried: this channel will never take them."""


class LinkReceiver:
    """Receives events from links of either direction."""

    def __init__(self, node: str, channels: LoggedChannels, append: Append, bury: Bury) -> None:
        self._node, self._channels = node, channels
        self._append, self._bury = append, bury

    async def take_in(self, channel: str, sender: str, events: Sequence[Event]) -> IntakeResult:
        """Stores new events; durable when it returns. Raises as append does."""
        arriving = [
            arrived_from(event, sender)
            for event in events
            if not has_passed(event, self._node) and len(hops_of(event)) < MOST_HOPS
        ]
        held = await self._channels.holding(channel, arriving)
        fresh = [event for event in arriving if (event.source, event.id) not in held]
        stored, refused = await self._store(channel, sender, fresh)
        known = len(arriving) - stored - refused
        return IntakeResult(stored, known, len(events) - len(arriving), refused)

    async def _store(self, channel: str, sender: str, events: Sequence[Event]) -> tuple[int, int]:
        """How many were stored and refused; the refused ones are found by halving."""
        if not events:
            return 0, 0
        try:
            appended = await self._append(channel, events)
            return len(events) - appended.duplicates, 0
        except InvalidInput as error:
            if len(events) == 1:
                await self._bury(channel, sender, events[0], error)
                return 0, 1
        middle = len(events) // 2
        first = await self._store(channel, sender, events[:middle])
        second = await self._store(channel, sender, events[middle:])
        return first[0] + second[0], first[1] + second[1]


def not_passed(stored: Sequence[StoredEvent], neighbour: str) -> list[StoredEvent]:
    return [one for one in stored if not has_passed(one.event, neighbour)]


class LinkPosition(msgspec.Struct, frozen=True):
    """The token to request; `seen` when its events are stored and only the next ones are needed."""

    query: str
    """The condition it began with; another one starts over."""
    token: str = ""
    seen: bool = False
    interpretation: str = ""
    """One of the neighbour's interpretations, in which the events arrive."""


class NeighbourBatch(msgspec.Struct, frozen=True):
    """The part of a neighbour's answer that a link uses."""

    current_token: str
    next_token: str | None = None
    gone: bool = False


def position_for(saved: LinkPosition | None, query: str, interpretation: str = "") -> LinkPosition:
    """The saved position, or the start when there is none or the request has changed."""
    begin = LinkPosition(query, interpretation=interpretation)
    return saved if saved is not None and start_position(saved) == begin else begin


def start_position(place: LinkPosition) -> LinkPosition:
    return LinkPosition(place.query, interpretation=place.interpretation)


def request_at(place: LinkPosition, *, most: int, wait_ms: int = WAIT_MS) -> dict[str, Any]:
    request: dict[str, Any] = {
        "max_messages": most,
        "wait_ms": wait_ms,
        "lease_minutes": LEASE_MINUTES,
    }
    if place.token:
        return {**request, "token": place.token, "seen": place.seen}
    words = {"interpretation": place.interpretation} if place.interpretation else {}
    return {**request, "query": place.query, **words}


def position_after(place: LinkPosition, received: NeighbourBatch) -> LinkPosition:
    """The position once the events of an answer are stored.

    >>> position_after(LinkPosition("q"), NeighbourBatch("c", "n"))
    LinkPosition(query='q', token='n', seen=False, interpretation='')
    >>> position_after(LinkPosition("q", "c"), NeighbourBatch("c", None))
    LinkPosition(query='q', token='c', seen=True, interpretation='')
    """
    token, seen = received.next_token, False
    if token is None:
        token, seen = received.current_token, True
    return msgspec.structs.replace(place, token=token, seen=seen)
