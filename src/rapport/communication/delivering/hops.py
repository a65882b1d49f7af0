"""How many actions led to a detection: what keeps policies that feed each other from running on for
ever. [PO-10]

An event that an action appended has the header `actionhops` (`hops` are the nodes a copy passed).
Readings keep the headers of what they were made of, so their look-up is enough.
"""

from __future__ import annotations

from rapport.channel.channel import Channels
from rapport.core.event import Event

ACTION_HOPS = "actionhops"


async def hops_before(channels: Channels, detection: Event) -> int:
    """The most actions that led to one of a detection's causes; costs a look-up for each."""
    found = [await channels.find_event(id) for id in detection.causes()]
    return max((hops_of(stored.event) for held in found for _, stored in held), default=0)


def hops_of(event: Event) -> int:
    """What the header says; 0 when it is absent or says nothing.

    >>> hops_of(Event("s", "1", "t", "", 0, headers={"actionhops": "2"}))
    2
    """
    text = event.headers.get(ACTION_HOPS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
