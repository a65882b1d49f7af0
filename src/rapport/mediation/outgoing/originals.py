"""The raw events that readings were made of: who speaks as the producer does gets what it said.
[ME-9, ME-16]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.stretches import events_between
from rapport.core.event import CAUSE, INTERPRETATION, Event, cause_text
from rapport.mediation.binding import RAW_PREFIX
from rapport.mediation.lane import RAW_POSITION

RAW_CHANNEL = "rawchannel"
_GAP = 16
"""Events between two wanted ones that are read along rather than read around."""
_MOST = 1_000


class Raw(msgspec.Struct, frozen=True):
    """Where a raw event stands."""

    channel: str
    position: int


def raw_of(event: Event, stamp: str) -> Raw | None:
    """Where the original of an event stands that came in the interpretation `stamp`, exactly as it
    is now; None when it came in another one, or nobody says where it stands.
    """
    headers = event.headers
    if headers.get(INTERPRETATION) != stamp:
        return None
    channel, position = headers.get(RAW_CHANNEL, ""), headers.get(RAW_POSITION, "")
    is_place = position.isascii() and position.isdigit() and len(position) < 19
    if not is_place or not channel.startswith(RAW_PREFIX):
        return None
    return Raw(channel, int(position))


def is_original(raw: Event, event: Event) -> bool:
    """Whether the event was made of this raw one. Headers can be anybody's, and positions are
    those of the node where the event was made: so its name must fit, too.
    """
    return raw.source == event.source and cause_text(raw.id) == event.headers.get(CAUSE)


async def read_raws(channels: Channels, wanted: Sequence[Raw]) -> dict[Raw, Event]:
    """Those of the raw events that are still there; neighbours are read together."""
    found: dict[Raw, Event] = {}
    names = set(channels.names())
    for name in sorted({one.channel for one in wanted} & names):
        positions = sorted({one.position for one in wanted if one.channel == name})
        for first, last in _runs(positions):
            stored = await events_between(channels.channel(name), first, last)
            found |= {Raw(name, one.position): one.event for one in stored}
    return found


def as_received(raw: Event, stamp: str) -> Event:
    """The raw event as its producer's like gets it: its own bytes, and the name of its words."""
    return msgspec.structs.replace(raw, headers={**raw.headers, INTERPRETATION: stamp})


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Positions in order as ranges to read."""
    first = last = positions[0]
    for position in positions[1:]:
        if position - last > _GAP or position - first >= _MOST:
            yield first, last
            first = position
        last = position
    yield first, last
