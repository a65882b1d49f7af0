"""Events as JSON text, written once for all who are told of them. [CH-12]

A hundred subscribers of one channel get the same bytes: an event is encoded when the first of them
needs it, a whole set is joined once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import msgspec

from rapport.core.codec import stored_cloudevent
from rapport.core.event import StoredEvent

CACHE_CHARACTERS = 16 * 1024 * 1024
"""Per kind of text; a text larger than a quarter of it is not kept."""


class Texts:
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


class EncodedEvents:
    """The JSON of events by channel and position, and of sets of them. All calls in one loop."""

    def __init__(self, limit: int = CACHE_CHARACTERS) -> None:
        self._events, self._sets = Texts(limit), Texts(limit)

    def event(self, channel: str, stored: StoredEvent, words: str = "") -> str:
        """One event as doors give it out; `words` is the stamp of the interpretation it is in."""
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
