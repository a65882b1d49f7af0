"""Events of which the keys in a field index do not say everything. [CH-4]

Positions alone make a set when the keys decide its condition. That does not hold for what has a
time to live of its own, is large enough to fill a set by itself, or has values that keys do not
tell apart: so every indexed log has one field more, with a key for such events only.
"""

from __future__ import annotations

from rapport.channel.query.xml_values import is_xml
from rapport.channel.retention.ttl import TTL
from rapport.core.event import Event
from rapport.store.field_keys import Lookup, RangeLookup, points

UNUSUAL = "(unusual)"
"""The path of that field; no field of an event can have it."""
LARGEST_USUAL = 64 * 1024
"""Bytes of data."""
_NUL, _NUL_IN_JSON = "\0", b"\\u0000"


def is_unusual(event: Event) -> bool:
    """Whether the event itself has to be looked at."""
    data, headers = event.data, event.headers
    if len(data) > LARGEST_USUAL or _NUL_IN_JSON in data:
        return True
    if _NUL in event.type or _NUL in event.subject or _NUL in event.id or _NUL in event.source:
        return True
    if not headers:
        return False
    return TTL in headers or is_xml(headers) or any(_NUL in text for text in headers.values())


def unusual_ones() -> Lookup:
    """What to look up to find them."""
    return RangeLookup(UNUSUAL, points(1), False)
