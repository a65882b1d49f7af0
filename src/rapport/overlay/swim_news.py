"""News that a member passes on: what was told least often goes first, and each often enough.
[EN-10]
"""

from __future__ import annotations

import msgspec

from rapport.overlay.swim_messages import Claim, News, encode
from rapport.overlay.swim_settings import SwimSettings
from rapport.transport.base import Address

_HEADER_BYTES = 5
"""What an array of claims needs beside them."""


class _Item(msgspec.Struct, gc=False):
    claim: Claim
    size: int
    told: int = 0


class NewsQueue:
    """The claims that are passed on, at most one about each member: the latest.

    `take` costs in proportion to the claims that wait; without news nothing.
    """

    __slots__ = ("_items", "_settings")

    def __init__(self, settings: SwimSettings) -> None:
        self._settings = settings
        self._items: dict[Address, _Item] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, claim: Claim) -> None:
        """From now on this is told of the member, and nothing older."""
        self._items[claim.address] = _Item(claim, len(encode(claim)))

    def forget(self, address: Address) -> None:
        """Tells no more about it."""
        self._items.pop(address, None)

    def take(self, nodes: int, first: Claim | None = None) -> News:
        """What goes with the next message to one other, `first` before all else; news that is too
        large to go with others goes alone.
        """
        if not self._items:
            return () if first is None else (first,)
        chosen = [] if first is None else [first]
        room = self._settings.news_bytes - _HEADER_BYTES
        room -= len(encode(first)) if first is not None else 0
        most = self._settings.tellings(nodes)
        for item in sorted(self._items.values(), key=_times_told):
            if (item.size > room and chosen) or item.claim == first:
                continue
            room -= item.size
            chosen.append(item.claim)
            item.told += 1
            if item.told >= most:
                del self._items[item.claim.address]
        return tuple(chosen)


def _times_told(item: _Item) -> int:
    return item.told
