"""Links to other nodes, from the site's `[links]`. [CH-11]

```toml
[links.bologna]
url = "https://bologna.example.org:8484"
token = "file:bologna.token"          # what this node shows there
receive = ["raw.*", "alarms"]         # channels whose events are taken in from there
send = ["alarms"]                     # channels whose events are handed over
query = "type LIKE 'badge.%'"         # only these, both ways
rename = { detections = "bologna.detections" }   # kept here under another name
```

A neighbour with another root is read as a consumer reads: `interpretation` names one that the
neighbour declares; what comes in its words is a source here (`rename = { events = "raw.them" }`).

The nodes an event has passed: so that it never runs in circles. Pure. [CH-11]

The header `hops` of a copy lists the nodes it came through, first the one where it was published:
`/a1/b2/`. A node asks a neighbour only for events that have not passed itself, and drops what has
all the same. The list is set by nodes; ordinary doors drop one that comes from outside.

The id by which other nodes know this one: made once, kept with the records. [CH-11]

Taking in events from another node: each is stored once, whatever way it came. [CH-11]

A repetition may come any time later, over a link that was cut for a month. So these events are
compared with the history index of the channel, not only with the latest ones. An event that the
channel will never take (too large here, not signed as the site wants) is buried with the reason:
one bad event must not hold up a link.

Where a link stands in a neighbour's channel: which token to ask for next. Pure. [CH-11, CH-3]

The place is saved after the events were appended here. If the node ends in between, the same token
gives the same events again, and they are dropped as known.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

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
from rapport.core.web_addresses import address_parts
from rapport.kernel.fields import Fields
from rapport.kernel.toml import TomlFile
from rapport.store.base import RecordStore

_KEYS = ("url", "token", "receive", "send", "query", "rename", "interpretation")

NOT_SHARED = (*NODE_CHANNELS, f"{OUTPUT}*", f"{REQUEST}*")
"""Channels whose events would be acted on twice, or mean something only where they arose: they are
received under another name, or not at all.
"""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """What the site says of one neighbour."""

    name: str
    url: str
    token: str = ""
    """Named as a secret (`env:NAME`, `file:PATH`)."""
    receive: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    query: str = ""
    rename: dict[str, str] = {}
    interpretation: str = ""
    """One of the neighbour's, in whose words it is read; empty: as the neighbour keeps it."""

    def kept_as(self, channel: str) -> str | None:
        """The channel here that takes in a neighbour's channel; None when it is not received."""
        if channel in self.rename:
            return self.rename[channel]
        return channel if is_shared(channel) and _means(channel, self.receive) else None

    def is_sent(self, channel: str) -> bool:
        """Whether the events of a channel here are handed over."""
        return is_shared(channel) and _means(channel, self.send)


def is_shared(channel: str) -> bool:
    """Whether a channel of this name may take in another node's events."""
    return not _matches(channel, NOT_SHARED)


def links_from_site(file: TomlFile) -> tuple[tuple[Link, ...], list[Problem]]:
    """What `[links]` says, and all its problems; never raises for a wrong site."""
    problems: list[Problem] = []
    section = file.section("links")
    Fields(section, problems, known=dict(section.sections()), strict=True)
    links = [
        _link(name, Fields(table, problems, known=_KEYS, strict=True))
        for name, table in section.sections()
    ]
    return tuple(links), problems


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
        message = "an interpretation of the neighbour is for what is received from it"
        hint = "the neighbour declares a link of its own for what it wants from here"
        fields.fault("interpretation", "link.one_way", message, hint=hint)
    for local in link.rename.values():
        if not is_shared(local):
            message = f"channel {local!r} cannot take in another node's events"
            hint = f"another name, such as {link.name}.{local}"
            fields.fault("rename", "link.not_shared", message, hint=hint)
    for key in ("receive", "send"):
        for pattern in getattr(link, key):
            if not is_shared(pattern):
                message = f"channel {pattern!r} is not shared under its own name"
                hint = f'receive it as: rename = {{ "{pattern}" = "{link.name}.{pattern}" }}'
                fields.fault(key, "link.not_shared", message, hint=hint)


def _means(name: str, patterns: tuple[str, ...]) -> bool:
    """No pattern means what lets a neighbour change this node: its name has to be said."""
    return name in patterns if name in NODE_CHANGING_CHANNELS else _matches(name, patterns)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


MOST_HOPS = 200
"""An event that passed so many nodes is not taken in: no sane graph is so wide."""
_NODE = re.compile(r"[a-z0-9]{8,64}\Z")


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
    """Whether the event came through the node."""
    return f"/{node}/" in event.headers.get(HOPS, "")


def arrived_from(event: Event, sender: str) -> Event:
    """The event as the receiver keeps it: one hop longer. What its publisher counted holds only in
    the channel it was counted in, so that mark is dropped.
    """
    headers = {name: text for name, text in event.headers.items() if name != SEQUENCED_IN}
    headers[HOPS] = f"{event.headers.get(HOPS) or '/'}{sender}/"
    return msgspec.structs.replace(event, headers=headers)


def wanted_by(receiver: str, query: str) -> str:
    """The condition under which a neighbour wants events: not passed by it, and its own filter."""
    unseen = f"headers.{HOPS} IS NULL OR headers.{HOPS} NOT LIKE '%/{receiver}/%'"
    return f"({unseen}) AND ({query})" if query else unseen


_TABLE, _KEY = "federation", "node"


def node_identity(records: RecordStore, fresh: str) -> str:
    """The node's id; `fresh` becomes it when there is none yet. Durable when it returns."""
    saved = saved_identity(records)
    if saved:
        return saved
    records.put(_TABLE, _KEY, check_node_id(fresh).encode())
    return fresh


def saved_identity(records: RecordStore) -> str:
    """The node's id for who only looks; empty before its first start."""
    return (records.get(_TABLE, _KEY) or b"").decode()


Append = Callable[[str, Sequence[Event]], Awaitable[AppendResult]]
Bury = Callable[[str, str, Event, InvalidInput], Awaitable[None]]
"""Keeps (channel, sender, event, why) as a dead letter."""


class IdentityFinder(Protocol):
    """The part of Channels that knows what was stored, however long ago."""

    async def holding(self, name: str, events: Sequence[Event]) -> set[tuple[str, str]]:
        """Those identities (source, id) of the events that the channel holds."""


class IntakeResult(msgspec.Struct, frozen=True):
    """What came of one arrival."""

    stored: int
    known: int
    """Stored before: by this or another way."""
    passed: int
    """Dropped because they had been here, or had gone too far."""
    refused: int = 0
    """Buried: this channel will never take them."""


class LinkReceiver:
    """The door that links knock at, from either side."""

    def __init__(self, node: str, channels: IdentityFinder, append: Append, bury: Bury) -> None:
        self._node, self._channels = node, channels
        self._append, self._bury = append, bury

    async def take_in(self, channel: str, sender: str, events: Sequence[Event]) -> IntakeResult:
        """Stores what is new; durable when it returns. Raises as append does."""
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
    """What may be handed to a neighbour."""
    return [one for one in stored if not has_passed(one.event, neighbour)]


WAIT_MS = 20_000
"""How long a neighbour may hold a request open when it has nothing new."""
LEASE_MINUTES = 60


class LinkPosition(msgspec.Struct, frozen=True):
    """The token to ask for; `seen` when its events are here and only what follows is wanted."""

    query: str
    """The condition it was begun with: another one begins anew."""
    token: str = ""
    seen: bool = False
    interpretation: str = ""
    """One of the neighbour's, in whose words the events come."""


class NeighbourBatch(msgspec.Struct, frozen=True):
    """What a link needs to know of a neighbour's answer."""

    current_token: str
    next_token: str | None = None
    gone: bool = False


def position_for(saved: LinkPosition | None, query: str, interpretation: str = "") -> LinkPosition:
    """The saved place, or the beginning when there is none or what is asked for has changed."""
    begin = LinkPosition(query, interpretation=interpretation)
    return saved if saved is not None and start_position(saved) == begin else begin


def start_position(place: LinkPosition) -> LinkPosition:
    """The same before anything has come."""
    return LinkPosition(place.query, interpretation=place.interpretation)


def request_at(place: LinkPosition, *, most: int, wait_ms: int = WAIT_MS) -> dict[str, Any]:
    """The body of the request to make at a place."""
    asked: dict[str, Any] = {
        "max_messages": most,
        "wait_ms": wait_ms,
        "lease_minutes": LEASE_MINUTES,
    }
    if place.token:
        return {**asked, "token": place.token, "seen": place.seen}
    words = {"interpretation": place.interpretation} if place.interpretation else {}
    return {**asked, "query": place.query, **words}


def position_after(place: LinkPosition, received: NeighbourBatch) -> LinkPosition:
    """The place once the events of an answer are here.

    >>> after(LinkPlace("q"), Received("c", "n"))
    LinkPlace(query='q', token='n', seen=False, interpretation='')
    >>> after(LinkPlace("q", "c"), Received("c", None))
    LinkPlace(query='q', token='c', seen=True, interpretation='')
    """
    token, seen = received.next_token, False
    if token is None:
        token, seen = received.current_token, True
    return msgspec.structs.replace(place, token=token, seen=seen)
