"""Finding the place in a channel by the time events were received. [CH-1]"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rapport.channel.channel import Channel
from rapport.core.event import StoredEvent

BACKWARDS_MS = 60_000
"""A clock that was set back by less than this hides nothing."""


@runtime_checkable
class FoundByTime(Protocol):
    """A channel that knows better than by trying, such as one of a lake."""

    async def position_before(self, received_ms: int) -> int:
        """See `position_before`."""


async def position_before(channel: Channel, received_ms: int) -> int:
    """A position after which everything stands that was received at a time or later; some earlier
    events may stand there too. Looks at about as many events as the logarithm of what is kept.
    """
    if isinstance(channel, FoundByTime):
        return await channel.position_before(received_ms)
    wanted = received_ms - BACKWARDS_MS
    first = await oldest(channel)
    if first is None or first.received >= wanted:
        return 0
    low, high = first.position, channel.last_position() + 1
    while high - low > 1:  # the event at `low` came before, everything from `high` on did not
        middle = (low + high) // 2
        found = await channel.read_after(middle - 1, limit=1)
        if found and found[0].received < wanted:
            low = max(found[0].position, middle)
        else:
            high = middle
    return low


async def oldest(channel: Channel) -> StoredEvent | None:
    """The oldest event that is still kept."""
    found = await channel.read_after(0, limit=1)
    return found[0] if found else None
