"""Finding events by time of arrival, by the beginning of an id, by their causes, and the newest
ones that fulfil a condition. [CH-1, PO-11, UX-3, CO-10, CN-11]

Every stage appends its results and names their cause in a header, so an explanation follows the
headers back through the channels. A mediated reading keeps the id of its raw event; the order of
stages distinguishes the two.

A search for a condition goes backwards, looks at a bounded number of events and says how far it
came, so that the next request goes on where it ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from rapport.channel.channel import Channel, Channels, pages_of
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import INTERPRETATION, StoredEvent
from rapport.core.release import HISTORY
from rapport.kernel.clock import Clock

BACKWARDS_MS = 60_000
"""A clock that was set back by less than this hides nothing."""
_SHORTEST = 4
_LOOKED_AT = 20_000
"""Of each channel only the newest events: older ones are found by their whole id."""
_PAGE = 5_000
_PREFIX_STAGES = ("detections", "log", "events", "control", "quarantine")
_SHOWN = 5
_MOST_EVENTS = 500
"""A bound on the tree, so that a cycle of causes or a huge detection cannot run away."""
_MOST_DEPTH = 200
"""Of events that follow each from the one before; deeper JSON could not be written."""
_STAGES = ("raw", "releases", "events", "quarantine", "detections", "log", "output", "control")


@runtime_checkable
class FoundByTime(Protocol):
    """A channel that knows positions by time, such as one of a lake."""

    async def position_before(self, received_ms: int) -> int:
        """See `position_before`."""


async def position_before(channel: Channel, received_ms: int) -> int:
    """A position before everything received at a time or later; some earlier events may follow it
    too. Reads about as many events as the logarithm of the number stored.
    """
    if isinstance(channel, FoundByTime):
        return await channel.position_before(received_ms)
    wanted = received_ms - BACKWARDS_MS
    first = await oldest(channel)
    if first is None or first.received >= wanted:
        return 0
    low, high = first.position, channel.last_position() + 1
    while high - low > 1:  # the event at `low` arrived before, everything from `high` on did not
        middle = (low + high) // 2
        found = await channel.read_after(middle - 1, limit=1)
        if found and found[0].received < wanted:
            low = max(found[0].position, middle)
        else:
            high = middle
    return low


async def oldest(channel: Channel) -> StoredEvent | None:
    found = await channel.read_after(0, limit=1)
    return found[0] if found else None


async def resolve_id_prefix(channels: Channels, text: str) -> str:
    """The id that is `text` or begins with it; raises UnknownName when there is none, InvalidInput
    when there are several. An exact id costs one look; a beginning reads the newest events.
    """
    if await channels.find_event(text):
        return text
    found: dict[str, None] = {}
    if len(text) >= _SHORTEST:
        for name in sorted(channels.names(), key=_order):
            found |= dict.fromkeys(await _beginning(channels.channel(name), text))
    if not found:
        raise UnknownName("event", text, code="event.unknown")
    if len(found) > 1:
        some = ", ".join(list(found)[:_SHOWN])
        raise InvalidInput(
            f"{len(found)} events have an id that begins with {text!r}",
            code="event.ambiguous",
            hint=f"write more of it: {some}",
        )
    return next(iter(found))


async def _beginning(channel: Channel, text: str) -> list[str]:
    position = max(0, channel.last_position() - _LOOKED_AT)
    found: list[str] = []
    while batch := await channel.read_after(position, limit=_PAGE):
        position = batch[-1].position
        found += [one.event.id for one in batch if one.event.id.startswith(text)]
    return found


def _order(name: str) -> int:
    return _PREFIX_STAGES.index(name) if name in _PREFIX_STAGES else len(_PREFIX_STAGES)


class EventFinder(Protocol):
    """Finds the positions of an event by its id."""

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """See Channels."""


class CauseNode(msgspec.Struct):
    channel: str
    position: int
    received: int
    time: int
    type: str
    source: str
    id: str
    subject: str
    data: msgspec.Raw
    causes: list[CauseNode]
    missing: list[str]
    """Ids named as causes that no channel holds (any more)."""
    interpretation: str = ""
    """`name@version` of the interpretation of a reading."""
    found_in: str = ""
    """`log` or `lake`, where the API reports it."""
    history: bool = False
    """It was imported as history, or found with readings that were."""


async def cause_tree(channels: EventFinder, event_id: str) -> CauseNode:
    """The newest stage of an event and everything it follows from; raises UnknownName."""
    found = await channels.find_event(event_id)
    if not found:
        raise UnknownName("event", event_id, code="event.unknown")
    channel, stored = max(found, key=lambda item: (stage_of(item[0]), item[1].position))
    seen: set[tuple[str, int]] = set()
    return await _node(channels, channel, stored, seen)


async def _node(
    channels: EventFinder,
    channel: str,
    stored: StoredEvent,
    seen: set[tuple[str, int]],
    depth: int = 0,
) -> CauseNode:
    seen.add((channel, stored.position))
    event = stored.event
    node = CauseNode(
        channel=channel,
        position=stored.position,
        received=stored.received,
        time=event.time,
        type=event.type,
        source=event.source,
        id=event.id,
        subject=event.subject,
        data=msgspec.Raw(event.data),
        causes=[],
        missing=[],
        interpretation=event.headers.get(INTERPRETATION, ""),
        history=HISTORY in event.headers,
    )
    for cause in event.causes() if depth < _MOST_DEPTH else ():
        before = await _one_before(channels, cause, channel, stored)
        if before is None:
            node.missing.append(cause)
        elif (before[0], before[1].position) not in seen and len(seen) < _MOST_EVENTS:
            node.causes.append(await _node(channels, *before, seen, depth + 1))
    return node


async def _one_before(
    channels: EventFinder, cause: str, channel: str, stored: StoredEvent
) -> tuple[str, StoredEvent] | None:
    """The latest stage at or before this one with an event of that id, itself excluded; a later one
    if there is none: an event appended by an action follows from a detection.
    """
    found = [
        item
        for item in await channels.find_event(cause)
        if (item[0], item[1].position) != (channel, stored.position)
    ]
    before = [
        item
        for item in found
        if stage_of(item[0]) < stage_of(channel)
        or (stage_of(item[0]) == stage_of(channel) and item[1].position < stored.position)
    ]
    candidates = before or ([] if cause == stored.event.id else found)
    return max(candidates, key=lambda item: (stage_of(item[0]), item[1].position), default=None)


def stage_of(channel: str) -> int:
    """The stage of a channel in the order of processing; 0 for user channels."""
    head = channel.split(".", 1)[0]
    return _STAGES.index(head) if head in _STAGES else 0


_WINDOW = 500
_MOST_SEEN = 20_000
_MOST_BYTES = 8 * 1024 * 1024
"""Of data in one answer, except that one event always fits."""

View = Callable[[Sequence[StoredEvent]], Awaitable[Sequence[StoredEvent]]]
"""Gives the events as their reader sees them, without those hidden from it."""


class FoundEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Matching events, newest first; go on before the position `next`, 0 when there is no more."""

    events: list[StoredEvent]
    next: int
    reached: int
    """When the oldest event that was looked at was received; 0 when none was."""


class TimeRange(msgspec.Struct, frozen=True, kw_only=True):
    """Times of arrival in ms; `until` is not included, 0 means any."""

    since: int = 0
    until: int = 0

    def includes(self, received: int) -> bool:
        """Whether something that arrived then lies in the range."""
        return self.since <= received and (not self.until or received < self.until)


async def find_newest(
    channel: Channel,
    view: View,
    matches: Callable[[StoredEvent], bool],
    clock: Clock,
    *,
    arrived: TimeRange,
    before: int,
    limit: int,
) -> FoundEvents:
    """The newest matching events before a position (0: from the end) that arrived in a time."""
    low = await position_before(channel, arrived.since) if arrived.since else 0
    high = before - 1 if before else channel.last_position()
    if arrived.until:
        # Twice: a clock that was set back hides nothing on either side.
        high = min(high, await position_before(channel, arrived.until + 2 * BACKWARDS_MS))
    found: list[StoredEvent] = []
    seen = size = reached = 0
    while high > low and seen < _MOST_SEEN:
        begin = max(high - _WINDOW, low)
        window = _Window(limit - len(found), _MOST_BYTES - size)
        async for page in pages_of(channel, begin, limit=high - begin, last=high):
            reached = min(reached or page[0].received, page[0].received)
            for stored in await view(page):
                if arrived.includes(stored.received) and matches(stored):
                    window.add(stored)
            await clock.sleep(0)  # a long search lets others work
        found += reversed(window.kept)
        size += window.size
        if found and (window.dropped or len(found) == limit or size >= _MOST_BYTES):
            return FoundEvents(events=found, next=found[-1].position, reached=reached)
        seen, high = seen + high - begin, begin
    return FoundEvents(events=found, next=high + 1 if high > low else 0, reached=reached)


class _Window:
    """The newest matches of a stretch of the log, within a number and a size."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self.kept: deque[StoredEvent] = deque()
        self.size, self.dropped = 0, False

    def add(self, stored: StoredEvent) -> None:
        self.kept.append(stored)
        self.size += len(stored.event.data)
        while len(self.kept) > self._most or (self.size > self._most_bytes and len(self.kept) > 1):
            self.size -= len(self.kept.popleft().event.data)
            self.dropped = True
