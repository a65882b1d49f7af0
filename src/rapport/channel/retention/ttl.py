"""Time to live: an expired event is delivered to nobody, and trimmed by the next sweep. Pure.
[CH-1, CH-14]

Counted from arrival. A publisher sets it with the attribute `ttlms`, a channel with `ttl`; the
shorter one counts. 0 means: until delivered once, to a request or to the streams that were open
when it arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.channel.requests.request import KEEP_AS_LONG_AS_POSSIBLE
from rapport.core.event import Event, StoredEvent

TTL = "ttlms"
"""Attribute: milliseconds, -1 = as long as possible, 0 = drop after processing."""
ONCE = 0
_MOST_DIGITS = 15


def ttl_of(event: Event, rule_ms: int) -> int:
    """The event's time to live in a channel with that rule; -1 = as long as possible.

    >>> ttl_of(Event("s", "1", "t", "", 0, b"{}", {"ttlms": "5000"}), 60_000)
    5000
    >>> ttl_of(Event("s", "1", "t", "", 0, b"{}", {"ttlms": "for ever"}), 60_000)
    60000
    """
    text = event.headers.get(TTL, "")
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        return rule_ms
    return int(text) if rule_ms < 0 else min(int(text), rule_ms)


def have_ttl(events: Sequence[Event]) -> bool:
    """Whether a publisher gave one of the events a time to live."""
    return any(TTL in event.headers for event in events)


def is_over(stored: StoredEvent, rule_ms: int, now_ms: int) -> bool:
    """Whether the event has expired; one that is delivered once never does."""
    ttl_ms = ttl_of(stored.event, rule_ms)
    return ttl_ms > 0 and stored.received + ttl_ms <= now_ms


def unexpired(events: list[StoredEvent], rule_ms: int, now_ms: int) -> list[StoredEvent]:
    """The unexpired events; the same list when none has a time to live."""
    if rule_ms <= 0 and not any(TTL in stored.event.headers for stored in events):
        return events
    return [stored for stored in events if not is_over(stored, rule_ms, now_ms)]


def is_delivered_once(stored: StoredEvent, rule_ms: int) -> bool:
    """Whether an event is removed by its delivery."""
    return ttl_of(stored.event, rule_ms) == ONCE


def delivered_once(events: Sequence[StoredEvent], rule_ms: int) -> tuple[StoredEvent, ...]:
    """The events that are removed by their delivery."""
    if rule_ms < 0 and not any(TTL in stored.event.headers for stored in events):
        return ()
    return tuple(stored for stored in events if is_delivered_once(stored, rule_ms))


def batch_ttl(events: Sequence[StoredEvent], rule_ms: int, now_ms: int) -> int:
    """How long the messages of a batch may be used: the shortest; of none, the channel's."""
    shortest = KEEP_AS_LONG_AS_POSSIBLE if events else rule_ms
    if rule_ms < 0 and not any(TTL in stored.event.headers for stored in events):
        return shortest
    for stored in events:
        ttl_ms = ttl_of(stored.event, rule_ms)
        if ttl_ms == ONCE:
            return ONCE
        if ttl_ms > 0:
            left_ms = max(stored.received + ttl_ms - now_ms, 1)
            shortest = left_ms if shortest < 0 else min(shortest, left_ms)
    return shortest
