"""Taking in events from another node: each is stored once, whatever way it came. [CH-11]

A repetition may come any time later, over a link that was cut for a month. So these events are
compared with the history index of the channel, not only with the latest ones. An event that the
channel will never take (too large here, not signed as the site wants) is buried with the reason:
one bad event must not hold up a link.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from rapport.channel.channel import Appended
from rapport.channel.federation.hops import MOST_HOPS, arrived_from, has_passed, hops_of
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent

Append = Callable[[str, Sequence[Event]], Awaitable[Appended]]
Bury = Callable[[str, str, Event, InvalidInput], Awaitable[None]]
"""Keeps (channel, sender, event, why) as a dead letter."""


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
    refused: int = 0
    """Buried: this channel will never take them."""


class Receiver:
    """The door that links knock at, from either side."""

    def __init__(self, node: str, channels: FindsEvents, append: Append, bury: Bury) -> None:
        self._node, self._channels = node, channels
        self._append, self._bury = append, bury

    async def take_in(self, channel: str, sender: str, events: Sequence[Event]) -> Intake:
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
        return Intake(stored, known, len(events) - len(arriving), refused)

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
