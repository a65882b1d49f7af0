"""Telling all within some hops: flooding with a time to live, whole or of limited width.
[CX-4, CX-5, EN-5]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from rapport.core.errors import InvalidInput
from rapport.kernel.chance import Chance
from rapport.overlay.seen import Seen
from rapport.transport.base import Address, Now


class Flood:
    """Decides who gets a message on.

    Without loss exactly those within `ttl` hops of the origin get it, whatever the delays: a copy
    that comes later over a shorter way, and so may go further, is passed on again. Act on what
    `is_new` says, not on whether there is someone to pass it on to.
    """

    __slots__ = ("_chance", "_seen")

    def __init__(self, seen: Seen, chance: Chance | None = None) -> None:
        """`chance` is needed only for flooding with a `width`."""
        self._seen, self._chance = seen, chance

    def is_new(self, key: Hashable, now: Now) -> bool:
        """Whether `spread` was not called with this key; ask before."""
        return not self._seen.knows(key, now)

    def spread(
        self,
        key: Hashable,
        ttl: int,
        came_from: Address | None,
        neighbours: Sequence[Address],
        now: Now,
        *,
        width: int = 0,
    ) -> list[Address]:
        """Who gets it on, with `ttl - 1`: all neighbours but who sent it, nobody at ttl 0 or when
        it was passed on before. The origin calls it with `came_from` None.

        Normalized flooding: with a `width` (the least degree of the network) no more than so many,
        drawn uniformly, so that nodes with many neighbours do not multiply the messages.
        """
        if not self._seen.rises(key, ttl, now) or ttl <= 0:
            return []
        to = [neighbour for neighbour in neighbours if neighbour != came_from]
        if width and len(to) > width:
            if self._chance is None:
                raise InvalidInput(
                    "flooding of limited width draws who gets it",
                    code="overlay.no_chance",
                    hint="give Flood a chance",
                )
            return self._chance.sample(to, width)
        return to
