"""Blocks of the log as events without headers: as columns where all are alike, else one by one.
[CH-1]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rapport.core.codec import decode_bare_block
from rapport.core.errors import Corrupt
from rapport.core.event import BareStoredEvent
from rapport.core.event_columns import BlockEvents, decode_block_events
from rapport.store.base import Block

_MANY = 500
"""From so many events on, columns are worth their preparation."""


def may_hold(body: bytes, name: bytes) -> bool:
    """Whether a name of at least three characters stands somewhere in a block. Two neighbours in it
    are looked for first, by comparisons that cost a third of a search.
    """
    octets = np.frombuffer(body, np.uint8)
    middle = len(name) // 2
    here = (octets[:-1] == name[middle]) & (octets[1:] == name[middle + 1])
    return bool(here.any()) and name in body


def bare_events(blocks: Sequence[Block], position: int) -> Sequence[BareStoredEvent]:
    """The events after a position, up to a block that cannot be read: who reads whole ones tells
    of it.
    """
    if sum(block.count for block in blocks) >= _MANY:
        found = decode_block_events([(block.first, block.received, block.body) for block in blocks])
        if found is not None:
            return _after(found, position)
    return _one_by_one(blocks, position)


def _after(events: BlockEvents, position: int) -> BlockEvents:
    return events[int(events.positions.searchsorted(position, side="right")) :]


def _one_by_one(blocks: Sequence[Block], position: int) -> list[BareStoredEvent]:
    found: list[BareStoredEvent] = []
    for block in blocks:
        try:
            events = decode_bare_block(block.body)
        except Corrupt:
            break
        received = block.received
        found += [
            BareStoredEvent(place, received, event)
            for place, event in enumerate(events, start=block.first)
            if place > position
        ]
    return found
