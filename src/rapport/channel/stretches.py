"""A stretch of a channel, however large its events are. [CH-1]"""

from __future__ import annotations

from collections.abc import AsyncIterator

from rapport.channel.channel import Channel
from rapport.core.event import StoredEvent


async def pages_of(
    channel: Channel, after: int, *, limit: int, last: int | None = None
) -> AsyncIterator[list[StoredEvent]]:
    """The events after a position, at most `limit` of them and none beyond `last`, in portions of
    bounded size; what is not there any more is passed over.
    """
    left = limit
    while last is None or after < last:
        page = await channel.read_after(after, limit=left)
        if not page:
            return
        found = page if last is None else [stored for stored in page if stored.position <= last]
        if found:
            yield found
        after, left = page[-1].position, left - len(page)
        if left <= 0:
            return


async def events_between(channel: Channel, first: int, last: int) -> list[StoredEvent]:
    """The events at positions `first` to `last` that are still there; costs their memory."""
    found: list[StoredEvent] = []
    async for page in pages_of(channel, first - 1, limit=last - first + 1, last=last):
        found += page
    return found
