"""A question that came from elsewhere, or from here: look, look ahead, send it on. [CX-5]"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from rapport.context.broker.answering import Answering
from rapport.context.broker.hopping import Hopping
from rapport.context.broker.looking import Looking
from rapport.context.broker.workplace import Workplace
from rapport.context.messages import Ask
from rapport.context.search.strategies import FLOOD, NORMALIZED, WALK
from rapport.overlay.routing import Flood, SeenFilter, next_hop
from rapport.transport.base import Address, Now, Sender

HOP_LIMIT = "the walk reached its hop limit"
OUT_OF_TIME = "the walk ran out of time"
EVERYWHERE = "the walk was everywhere it could go"
"""Why a walker goes home; the text that a consumer is told."""

_TRAVELS = (WALK, FLOOD, NORMALIZED)
_FLOODS_KEPT_MS = 60_000.0


class Walking:
    """Carries questions through this broker. Keeps nothing about walkers but hops under way."""

    __slots__ = ("_answering", "_flood", "_hopping", "_looking", "_place")

    def __init__(
        self, place: Workplace, hopping: Hopping, answering: Answering, looking: Looking
    ) -> None:
        self._place, self._hopping, self._answering = place, hopping, answering
        self._looking = looking
        looking.walk_on = self.step
        seen = SeenFilter(place.settings.limits.remembered, _FLOODS_KEPT_MS)
        self._flood = Flood(seen, place.chance)

    def asked(self, ask: Ask, sender: Sender, now: Now) -> None:
        """A question came from another broker."""
        search = self._place.settings.search
        too_long = len(ask.path) > search.hop_limit + 2
        if not ask.path or too_long or ask.hop < 0 or ask.strategy not in _TRAVELS:
            # Not acknowledged either: whoever sent it finds another way.
            self._place.counts["malformed"] += 1
            return
        if self._hopping.arrived(ask, sender, now):
            if len(ask.path) > 1:
                self._place.membership.heard_of(ask.path[1])  # where the search began
            self.take(ask, sender.address, now)

    def take(self, ask: Ask, came_from: Address | None, now: Now) -> None:
        """Answers a question, or sends it on in the way it travels."""
        if ask.strategy != WALK and not self._spread(ask, came_from, now):
            return
        place = self._place
        held = place.answer(ask.question, ask.without, now, fresh=ask.fresh)
        if held is not None:
            holder = held.holder or place.address
            self._answering.found_here(ask, held.record, holder, now)
        elif ask.strategy == WALK:
            self._walk(ask, now)

    def failed(self, ask: Ask, to: Address, now: Now) -> None:
        """A neighbour did not acknowledge: a walker goes another way, a flood has others.

        It may have got the walker all the same, and then there are two: with half the hops left
        for this one their number stays bounded at any loss.
        """
        if ask.strategy != WALK:
            return
        self._place.counts["forward_repairs"] += 1
        half = (ask.hops_left + 1) // 2
        here = msgspec.structs.replace(ask, path=ask.path[:-1], hops_left=half, doubtful=True)
        self.step(here, now, also_avoid=(to,))

    def step(self, ask: Ask, now: Now, also_avoid: Collection[Address] = ()) -> None:
        """Sends a walker on: to a neighbour where it was not, else back, else home refused."""
        place = self._place
        if ask.hops_left <= 0 or ask.left_ms <= 0:
            why = HOP_LIMIT if ask.left_ms > 0 else OUT_OF_TIME
            self._answering.refused_here(ask, why, now)
            return
        membership = place.membership
        avoid: tuple[Address, ...] = tuple(also_avoid)
        if self._hopping.silent:
            avoid = (*self._hopping.avoided(now), *avoid)
        doubtful = ask.doubtful
        if avoid and not doubtful:
            doubtful = any(one in membership.neighbours and one not in ask.path for one in avoid)
        step = next_hop(
            membership.neighbours,
            ask.path,
            place.chance,
            own=place.address,
            avoid=avoid,
            revisit=not place.settings.search.avoid_visited,
        )
        if step.to is None:
            if doubtful != ask.doubtful:
                ask = msgspec.structs.replace(ask, doubtful=doubtful)
            self._answering.refused_here(ask, EVERYWHERE, now)
            return
        self._forward(ask, step.to, doubtful, now)

    def _walk(self, ask: Ask, now: Now) -> None:
        search = self._place.settings.search
        if ask.hops_left > 0 and ask.left_ms > 0 and search.look_ahead != "off":
            likely = self._looking.likely(ask)
            if likely is not None and likely not in self._hopping.avoided(now):
                self._place.counts["filter_hops"] += 1
                self._forward(ask, likely, ask.doubtful, now)
                return
            if self._looking.look(ask, now):
                return
        self.step(ask, now)

    def _forward(self, ask: Ask, to: Address, doubtful: bool, now: Now) -> None:
        settings = self._place.settings
        on = Ask(
            ask.search,
            ask.walker,
            ask.hop + 1,
            ask.question,
            (*ask.path, self._place.address),
            min(ask.left_ms, settings.limits.within_ms) - 1,
            min(ask.hops_left, settings.search.hop_limit) - 1,
            ask.strategy,
            ask.identity,
            doubtful,
            ask.without,
            ask.fresh,
        )
        self._hopping.send(on, to, now)

    def _spread(self, ask: Ask, came_from: Address | None, now: Now) -> bool:
        """Floods a question further, unless it ends here; false when it was here before."""
        place = self._place
        search = place.settings.search
        key = (ask.search, ask.walker)
        is_new = self._flood.is_new(key, now)
        if not is_new:
            place.counts["flood_repeats"] += 1
        held = place.answer(ask.question, ask.without, now, fresh=ask.fresh)
        ends = held is not None or ask.left_ms <= 0
        ttl = 0 if ends else min(ask.hops_left, search.flood_ttl)
        width = search.width if ask.strategy == NORMALIZED else 0
        neighbours = place.membership.neighbours
        for to in self._flood.spread(key, ttl, came_from, neighbours, now, width=width):
            self._forward(ask, to, ask.doubtful, now)
        return is_new
