"""How many events a channel took per minute, found in its log. [CN-4]

The boundaries of past minutes never change, so each is searched for once. Nothing is counted while
nobody looks.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from rapport.channel.channel import Channel, Channels

MINUTE_MS = 60_000
_MOST_KEPT = 4_096


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

    async def rate(self, name: str, now_ms: int, minutes: int = 60) -> Rate:
        """The last minutes of a channel."""
        channel = self._channels.channel(name)
        this = now_ms - now_ms % MINUTE_MS
        begin = this - (minutes - 1) * MINUTE_MS
        last = channel.last_position()
        edges = [await self._edge(channel, begin, 0, last)]
        for number in range(1, minutes):
            edges.append(await self._edge(channel, begin + number * MINUTE_MS, edges[-1], last))
        counts = [after - before for before, after in zip(edges, [*edges[1:], last], strict=True)]
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
        self._edges[channel.name, at_ms] = low
        while len(self._edges) > _MOST_KEPT:
            self._edges.popitem(last=False)
        return low
