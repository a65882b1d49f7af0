"""How many events a channel took per minute, found in its log. [CN-4]

Past minutes never change, so each is searched for, and counted by type, once. Nothing is counted
while nobody looks.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import TypeVar

import msgspec

from rapport.channel.channel import Channel, Channels, pages_of

_Key = TypeVar("_Key")
MINUTE_MS = 60_000
_MOST_KEPT = 4_096
_MOST_READ = 20_000
"""Events that one request reads for their types; it counts the newest minutes first."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Events per minute; `minutes[i]` begins `i` minutes after `since`, the last is not over."""

    channel: str
    since: int
    minutes: list[int]


class Rates:
    """Rates of the channels of a node."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._edges: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._typed: OrderedDict[tuple[str, str, int, int], int] = OrderedDict()
        """By channel, type and the positions between which they stand."""

    async def rate(self, name: str, now_ms: int, minutes: int = 60, *, of_type: str = "") -> Rate:
        """The last minutes of a channel; `of_type`: only events of this type, as far back as one
        request may read, and all events before.
        """
        channel = self._channels.channel(name)
        this = now_ms - now_ms % MINUTE_MS
        begin = this - (minutes - 1) * MINUTE_MS
        last = channel.last_position()
        edges = [await self._edge(channel, begin, 0, last)]
        for number in range(1, minutes):
            edges.append(await self._edge(channel, begin + number * MINUTE_MS, edges[-1], last))
        spans = list(pairwise([*edges, last]))
        counts = [after - before for before, after in spans]
        left = _MOST_READ
        for number in reversed(range(minutes if of_type else 0)):
            key = (name, of_type, *spans[number])
            if key not in self._typed:
                if (left := left - counts[number]) < 0:
                    break
                _keep(self._typed, key, await _count(channel, of_type, *spans[number]))
            counts[number] = self._typed[key]
        return Rate(channel=name, since=begin, minutes=counts)

    async def _edge(self, channel: Channel, at_ms: int, low: int, high: int) -> int:
        """The last position received before a time, between two positions."""
        known = self._edges.get((channel.name, at_ms))
        if known is not None:
            return known
        high += 1
        while high - low > 1:
            middle = (low + high) // 2
            found = await channel.read_after(middle - 1, limit=1)
            if found and found[0].received < at_ms:
                low = min(max(found[0].position, middle), high - 1)
            else:
                high = middle
        _keep(self._edges, (channel.name, at_ms), low)
        return low


async def _count(channel: Channel, type: str, after: int, last: int) -> int:
    found = 0
    if after < last:
        async for page in pages_of(channel, after, limit=last - after, last=last):
            found += sum(stored.event.type == type for stored in page)
    return found


def _keep(kept: OrderedDict[_Key, int], key: _Key, value: int) -> None:
    kept[key] = value
    while len(kept) > _MOST_KEPT:
        kept.popitem(last=False)
