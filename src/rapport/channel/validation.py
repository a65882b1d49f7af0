"""Rules for names and events of channels: checks, reserved channels, time to live. Pure. [CH-1,
CH-14, CH-15]

The time to live counts from arrival. A publisher sets it with the attribute `ttlms`, a channel with
`ttl`; the shorter one counts. 0 means: until delivered once, to a request or to the streams that
were open when it arrived. An expired event is delivered to no reader, and trimmed by the next
sweep.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from rapport.core.codec import TRUSTED_BATCHES
from rapport.core.errors import InvalidInput, NotAllowed, TooLarge
from rapport.core.event import MAX_NAME, Event, StoredEvent, check_envelope

MAX_DATA_BYTES = 1024 * 1024
"""Largest data of one event, unless the channel sets another limit."""
LARGEST_DATA_BYTES = 32 * 1024 * 1024
"""Largest limit of a channel: one event must fit into one block of the log."""
MAX_HEADER_CHARACTERS = 64 * 1024
"""Most characters in all header names and values of one event."""

_CHANNEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}\Z")
_READER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}\Z")
SUMMARIES = "overlay.summaries"
"""Summaries of the node's broker and ensemble node, one per minute each."""
NODE_CHANNELS = (
    "auth",
    "context.audit",
    "context.found",
    "context.wishes",
    "control",
    "dead_letters",
    "detections",
    "handed",
    "info",
    "input",
    "intercepted",
    "log",
    SUMMARIES,
    "pipeline",
    "policies",
    "quarantine",
    "releases",
    "site.changes",
    "tables.rows",
)
"""Their events are acted on, or mean something only where they arose."""
NODE_CHANGING_CHANNELS = ("interpretations",)
"""Shared channels whose events change the receiving node: no pattern of a link covers them, and
sending them needs the right to change the node.
"""
_SHARED = ("context", "events", "knowledge", *NODE_CHANGING_CHANNELS)
"""Appended to by the node alone, but neighbours may send theirs."""
PIPELINE_CHANNELS = ("detections", "quarantine", "pipeline")
"""Channels of the node that results of the pipeline are appended to: policies on Spark write what
the node's own engine would write, and the pipeline reports on itself.
"""
READER_PREFIX = "intercept."
"""Prefix of interceptors' reader names, which no identity has: no interceptor hides from them."""
OUTPUT = "output."
"""Before the names of channels in which deliveries wait for their adapter."""
REQUEST = "request."
"""Prefix of channels with requests to pull adapters."""


def check_channel_name(name: str) -> None:
    """Raises InvalidInput unless the name can be a channel's."""
    if not isinstance(name, str) or not _CHANNEL_NAME.match(name):
        raise InvalidInput(
            f"{str(name)[:140]!r} cannot be the name of a channel",
            code="channel.bad_name",
            hint="1 to 128 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit",
        )


def check_reader_name(name: str) -> None:
    """Raises InvalidInput unless the name can be a reader's."""
    if not isinstance(name, str) or not _READER_NAME.match(name):
        raise InvalidInput(
            f"{str(name)[:140]!r} cannot be the name of a reader",
            code="channel.bad_reader",
            hint="1 to 100 of letters, digits, '.', '_', ':', '@' and '-'",
        )


def check_read_range(position: int, limit: int) -> None:
    """Raises InvalidInput unless so many events can be read after a position."""
    if limit < 1 or position < 0:
        raise InvalidInput(
            f"cannot read {limit} events after position {position}",
            code="channel.bad_position",
            hint="a position is 0 or more, and one event is the least to read",
        )


def snapshot_events(events: Sequence[Event]) -> tuple[Event, ...]:
    """An immutable copy of the caller's events; already checked types are returned as they are."""
    return events if type(events) in TRUSTED_BATCHES else tuple(events)  # type: ignore[return-value]


def check_events(events: Sequence[Event], max_data_bytes: int) -> int:
    """Bytes of data and headers in all events; raises InvalidInput or TooLarge naming the first
    event at fault.

    The whole batch is checked by a few joins; each event is examined only if one of them fails.
    Events known to be sound are checked only for their size.
    """
    try:
        if type(events) in TRUSTED_BATCHES:
            return _check_sizes([len(event.data) for event in events], max_data_bytes)
        return _check_together(events, max_data_bytes)
    except (_CheckFailed, TypeError, AttributeError, UnicodeEncodeError, OverflowError):
        for index, event in enumerate(events):
            _check_one(event, index, max_data_bytes)
        raise InvalidInput("the events cannot be kept", code="event.invalid") from None


class _CheckFailed(Exception):
    """The fast check failed; the slow one finds the fault."""


def _check_together(events: Sequence[Event], max_data_bytes: int) -> int:
    needed = [name for event in events for name in (event.source, event.id, event.type)]
    names = list(chain(needed, (event.subject for event in events)))
    data, times = [event.data for event in events], [event.time for event in events]
    sound = (
        all(needed)
        and max(map(len, names), default=0) <= MAX_NAME
        and "".join(names).isprintable()
        and set(map(type, data)) <= {bytes}
        and set(map(type, times)) <= {int}
        and min(times, default=0) >= -(2**63)
        and max(times, default=0) < 2**63
    )
    if not sound:
        raise _CheckFailed
    headers = [event.headers for event in events]
    if not set(map(type, headers)) <= {dict}:
        raise _CheckFailed
    header_bytes = _check_headers_together(headers) if any(headers) else 0
    return header_bytes + _check_sizes(list(map(len, data)), max_data_bytes)


def _check_headers_together(headers: Sequence[dict[str, str]]) -> int:
    """Their bytes."""
    texts = list(chain.from_iterable(map(dict.items, headers)))
    together = "".join(chain.from_iterable(texts))
    size = len(together.encode())  # refuses lone surrogates, which no reader could decode again
    if len(together) > MAX_HEADER_CHARACTERS:
        most = max(sum(len(name) + len(text) for name, text in each.items()) for each in headers)
        if most > MAX_HEADER_CHARACTERS:
            raise _CheckFailed
    return size


def _check_sizes(sizes: Sequence[int], max_data_bytes: int) -> int:
    """Their sum."""
    if max(sizes, default=0) > max_data_bytes:
        raise _CheckFailed
    return sum(sizes)


def _check_headers(event: Event) -> None:
    if type(event.headers) is not dict:
        raise TypeError("headers are no dict")
    text = "".join(chain.from_iterable(event.headers.items()))
    text.encode()  # refuses lone surrogates, which no reader could decode again
    if len(text) > MAX_HEADER_CHARACTERS:
        raise _CheckFailed


def _check_one(event: Event, index: int, max_data_bytes: int) -> None:
    """Raises the matching error for a faulty event."""
    try:
        check_envelope(event)
        if type(event.data) is not bytes or type(event.time) is not int:
            raise InvalidInput(
                "its data are not bytes or its time is no integer", code="event.bad_field"
            )
        if len(event.data) > max_data_bytes:
            raise TooLarge(
                f"its data have {len(event.data)} bytes; {max_data_bytes} are allowed",
                code="event.too_large",
                hint="keep large things elsewhere and put their address into the event",
            )
        _check_headers(event)
    except (InvalidInput, TooLarge) as error:
        kind = type(error)
        raise kind(f"event {index}: {error.message}", code=error.code, hint=error.hint) from None
    except _CheckFailed:
        raise TooLarge(
            f"event {index}: its headers have more than {MAX_HEADER_CHARACTERS} characters",
            code="event.too_large",
        ) from None
    except (TypeError, AttributeError, UnicodeEncodeError, OverflowError) as error:
        raise InvalidInput(
            f"event {index}: a field has the wrong type: {error}", code="event.bad_field"
        ) from None


def is_node_channel(channel: str) -> bool:
    """Whether only the node itself appends to it, not even a neighbour."""
    return channel in NODE_CHANNELS or channel.startswith((OUTPUT, REQUEST))


def is_reserved(channel: str) -> bool:
    """Whether no publisher may append to it, whatever its rights."""
    return channel in _SHARED or is_node_channel(channel)


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
    return ttl_of(stored.event, rule_ms) == ONCE


def delivered_once(events: Sequence[StoredEvent], rule_ms: int) -> tuple[StoredEvent, ...]:
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


KEEP_AS_LONG_AS_POSSIBLE = -1


def check_pipeline_channel(channel: str) -> None:
    """Raises NotAllowed for a channel that takes no results of the pipeline."""
    if channel not in PIPELINE_CHANNELS:
        raise NotAllowed(
            f"channel {channel!r} takes in no results of the pipeline",
            code="channel.reserved",
            hint=f"those that do: {', '.join(PIPELINE_CHANNELS)}; or publish to "
            f"/channels/{channel}/events",
        )
