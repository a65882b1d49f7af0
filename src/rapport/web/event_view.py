"""Events as consumers see them: in their interpretation, and as JSON text. [ME-9, CH-12]

A hundred subscribers of one channel receive the same bytes: an event is encoded for the first of
them, a whole batch is joined once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import msgspec

from rapport.channel.requests.request import interpretation_of
from rapport.channel.requests.source import ChannelFollower, FollowedSet
from rapport.core.codec import stored_cloudevent
from rapport.core.event import StoredEvent
from rapport.node.node import Node

INTERCEPTED = "(intercepted)"
"""Stamp of canonical events that passed interceptors; no interpretation has such a name."""


class ConsumerView:
    """The interpretation of a subscription; canonical events pass unchanged."""

    def __init__(self, node: Node, channel: str, identity: str, following: ChannelFollower) -> None:
        self._node, self._channel, self._identity = node, channel, identity
        self._following = following
        self.interpretation = interpretation_of(following.query)

    @property
    def is_shared(self) -> bool:
        """Whether others who follow the same are given the same; not while interceptors are at
        work, which come and go and may depend on the reader.
        """
        return not self._following.is_intercepted

    @property
    def stamp(self) -> str:
        """The interpretation with its present version; empty for the canonical model. Equal stamps
        promise equal texts for equal events.
        """
        if not self.interpretation:
            return INTERCEPTED if self._following.is_intercepted else ""
        return self._node.outgoing.transformer_for(self.interpretation).stamp

    async def delivered(self, followed: FollowedSet) -> Sequence[StoredEvent]:
        """The events of a set in the consumer's form; raises as `Outgoing.view` does."""
        return await in_interpretation(
            self._node,
            self._channel,
            self._following.given(followed),
            self.interpretation,
            self._identity,
        )


async def in_interpretation(
    node: Node, channel: str, stored: Sequence[StoredEvent], interpretation: str, identity: str
) -> Sequence[StoredEvent]:
    """Events of a channel in an interpretation, as they are without one."""
    if not interpretation:
        return stored
    return await node.outgoing.view(channel, stored, interpretation, identity=identity)


CACHE_CHARACTERS = 16 * 1024 * 1024
"""Per kind of text; a text larger than a quarter of it is not kept."""


class TextCache:
    """Texts by key; those not used for longest leave first."""

    def __init__(self, limit: int = CACHE_CHARACTERS) -> None:
        self._limit, self._size = limit, 0
        self._texts: OrderedDict[Hashable, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, key: Hashable, make: Callable[[], str]) -> str:
        """The text of a key, made when it is not here."""
        found = self._texts.get(key)
        if found is not None:
            self._texts.move_to_end(key)
            return found
        made = make()
        if len(made) <= self._limit // 4:
            self._texts[key] = made
            self._size += len(made)
            while self._size > self._limit:
                self._size -= len(self._texts.popitem(last=False)[1])
        return made


class EventTextCache:
    """The JSON of events by channel and position, and of sets of them. All calls in one loop."""

    def __init__(self, limit: int = CACHE_CHARACTERS) -> None:
        self._events, self._sets = TextCache(limit), TextCache(limit)

    def event(self, channel: str, stored: StoredEvent, words: str = "") -> str:
        """One event as JSON; `words` is the stamp of its interpretation."""
        key: Hashable = (channel, stored.position)
        if words:
            # One position may stand for several events, and for an original or its translation.
            event = stored.event
            key = (key, words, event.id, event.type, event.data, *event.headers.items())
        return self._events.get(key, lambda: _encoded(stored))

    def whole(self, key: Hashable, make: Callable[[], str]) -> str:
        """A text about a set; equal keys promise equal texts."""
        return self._sets.get(key, make)

    def joined(self, channel: str, events: Sequence[StoredEvent], words: str = "") -> str:
        """Events as they stand in a JSON array, without its brackets."""
        return ",".join([self.event(channel, stored, words) for stored in events])


def _encoded(stored: StoredEvent) -> str:
    return msgspec.json.encode(stored_cloudevent(stored)).decode()
