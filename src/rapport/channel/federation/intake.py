"""Taking in events from another node: each is stored once, whatever way it came. [CH-11]

A repetition may come any time later, over a link that was cut for a month. So these events are
compared with the history index of the channel, not only with the latest ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from rapport.channel.channel import Appended
from rapport.channel.federation.hops import MOST_HOPS, arrived_from, has_passed, hops_of
from rapport.core.event import Event, StoredEvent

Append = Callable[[str, Sequence[Event]], Awaitable[Appended]]


class FindsEvents(Protocol):
    """The part of Channels that knows what was stored, however long ago."""

    async def holding(self, name: str, events: Sequence[Event]) -> set[tuple[str, str]]:
        """Those identities (source, id) of the events that the channel holds."""


class Intake(msgspec.Struct, frozen=True):
    """What came of one arrival."""

    stored: int
    known: int
    """Stored before: by this or another way."""
    passed: int
    """Dropped because they had been here, or had gone too far."""


class Receiver:
    """The door that links knock at, from either side."""

    def __init__(self, node: str, channels: FindsEvents, append: Append) -> None:
        self._node, self._channels, self._append = node, channels, append

    async def take_in(self, channel: str, sender: str, events: Sequence[Event]) -> Intake:
        """Stores what is new; durable when it returns. Raises as append does."""
        arriving = [
            arrived_from(event, sender)
            for event in events
            if not has_passed(event, self._node) and len(hops_of(event)) < MOST_HOPS
        ]
        held = await self._channels.holding(channel, arriving)
        fresh = [event for event in arriving if (event.source, event.id) not in held]
        if not fresh:
            return Intake(0, len(arriving), len(events) - len(arriving))
        appended = await self._append(channel, fresh)
        stored = len(fresh) - appended.duplicates
        return Intake(stored, len(arriving) - stored, len(events) - len(arriving))


def not_passed(stored: Sequence[StoredEvent], neighbour: str) -> list[StoredEvent]:
    """What may be handed to a neighbour."""
    return [one for one in stored if not has_passed(one.event, neighbour)]
