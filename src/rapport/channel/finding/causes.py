"""The chain of causes: from any event back to what was received, by the `cause` headers. [PO-11,
CO-10]

Every stage appends what it made and names what it made it from, so explaining is walking back
through the channels. A mediated reading keeps the id of its raw event; the order of stages tells
the two apart.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from rapport.core.errors import UnknownName
from rapport.core.event import INTERPRETATION, StoredEvent
from rapport.core.release import HISTORY

_MOST_EVENTS = 500
"""A bound on the tree, so that a cycle of causes or a huge detection cannot run away."""
_MOST_DEPTH = 200
"""Of events that follow each from the one before; deeper JSON could not be written."""

_STAGES = ("raw", "releases", "events", "quarantine", "detections", "log", "output", "control")


class FindsEvents(Protocol):
    """The part of Channels that knows where an event stands."""

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """See Channels."""


class CauseNode(msgspec.Struct):
    """An event, where it stands, and what it follows from."""

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
    """`name@version` of what gave a reading its meaning."""
    found_in: str = ""
    """`log` or `lake`, where a door says it."""
    history: bool = False
    """It was imported as history, or found with readings that were."""


async def cause_tree(channels: FindsEvents, event_id: str) -> CauseNode:
    """The newest stage of the event with this id and everything it follows from; raises
    UnknownName.
    """
    found = await channels.find_event(event_id)
    if not found:
        raise UnknownName("event", event_id, code="event.unknown")
    channel, stored = max(found, key=lambda item: (stage_of(item[0]), item[1].position))
    seen: set[tuple[str, int]] = set()
    return await _node(channels, channel, stored, seen)


async def _node(
    channels: FindsEvents,
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
    channels: FindsEvents, cause: str, channel: str, stored: StoredEvent
) -> tuple[str, StoredEvent] | None:
    """The latest stage at or before this one that holds an event with that id, itself excluded; a
    later one where there is none: what an action appended follows from a detection.
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
    """How far along the walk a channel stands; 0 for channels of one's own."""
    head = channel.split(".", 1)[0]
    return _STAGES.index(head) if head in _STAGES else 0
