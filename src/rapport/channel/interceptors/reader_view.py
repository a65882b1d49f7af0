"""A reader's view of channels with delivery interceptors, whichever way it reads. [CH-10]

Conditions are evaluated on what the reader receives, never on what is hidden: otherwise it could
probe for hidden values. Such a query cannot use an index, as an index knows only stored events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import msgspec

from rapport.channel.channel import ChannelLookup, Channels
from rapport.channel.query.query_kinds import TEMPLATE, Query
from rapport.core.event import StoredEvent

Deliver = Callable[[Sequence[StoredEvent]], Sequence[StoredEvent]]
_EVERYTHING = (TEMPLATE, "{}")


@runtime_checkable
class DeliveryFilter(Protocol):
    """Filters events on their way to a reader."""

    def delivered(
        self, channel: str, reader: str, events: Sequence[StoredEvent]
    ) -> Sequence[StoredEvent]:
        """The events that a reader receives."""


def delivered_events(
    channels: Channels, name: str, reader: str, events: Sequence[StoredEvent]
) -> Sequence[StoredEvent]:
    """The events that interceptors leave for a reader; all of them for channels without any."""
    return (
        channels.delivered(name, reader, events) if isinstance(channels, DeliveryFilter) else events
    )


class DeliveringChannels(ChannelLookup, DeliveryFilter, Protocol):
    """Channels with interceptors around delivery."""

    def intercepts_delivery(self, name: str) -> bool:
        """Whether an interceptor changes or hides events of a channel on delivery."""


def deliver_to(channels: DeliveringChannels, name: str, reader: str) -> Deliver | None:
    """The delivery filter of a channel for a reader; None without one."""
    return partial(channels.delivered, name, reader) if channels.intercepts_delivery(name) else None


class ReaderDelivery:
    """The queries of one reader, evaluated on what it receives. Each tested event passes the chain
    once for the condition, and once more when it is delivered.
    """

    def __init__(
        self, find: Callable[[], Deliver | None] = lambda: None, *, takes: bool = False
    ) -> None:
        """`find` is called for each set: interceptors change while a reader follows. `takes`:
        messages that the reader will not receive are not taken from others either.
        """
        self._find, self._takes = find, takes
        self._visible: tuple[Query, Query] | None = None

    def seen(self, query: Query) -> Query:
        """The query as evaluated on stored events; the same object for the same query."""
        deliver = self._find()
        if deliver is None or not self._is_asked(query):
            return query
        if self._visible is None or self._visible[0] is not query:
            self._visible = (query, _through(deliver, query))
        return self._visible[1]

    def given(self, query: Query, events: Sequence[StoredEvent]) -> list[StoredEvent]:
        """The matches of a query as the reader receives them."""
        deliver = self._find()
        if deliver is None:
            return list(events)
        given = deliver(events)
        return [one for one in given if query.matches(one)] if self._is_asked(query) else [*given]

    @property
    def is_intercepted(self) -> bool:
        """Whether the reader may receive anything but the stored events."""
        return self._find() is not None

    def _is_asked(self, query: Query) -> bool:
        return self._takes or (query.kind, query.text) != _EVERYTHING


def _through(deliver: Deliver, query: Query) -> Query:
    def matches(stored: StoredEvent) -> bool:
        return any(query.matches(one) for one in deliver((stored,)))

    return msgspec.structs.replace(query, matches=matches, condition=None, is_its_condition=False)
