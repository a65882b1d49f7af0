"""The versions of a node's own components: they grow whatever its clock does, and another node
that claims the same component is found out. [EN-5]
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rapport.ensemble.gossip.reception_buffer import Reception
from rapport.ensemble.gossip.workplace import Workplace
from rapport.ensemble.messages import Published
from rapport.transport.base import Address, Now

CLOCK_SET_MS = 1_577_836_800_000
"""2020: a clock that shows less was never set, so nothing is judged by it."""
_REMEMBERED = 4_096
_FORMER_LIFE = 3
"""Newer versions of a component of this node, said by this node, that a life before explains."""


class Double(msgspec.Struct):
    """Somebody else who says a component of this node is its own."""

    component: str
    node: str
    address: Address | None
    times: int
    last_ms: float
    """Steady time."""


def is_far_ahead(version: int, now: Now, ahead_ms: float) -> bool:
    """Whether no node with a sound clock can have given that version yet."""
    return version > now.wall_ms + ahead_ms and now.wall_ms >= CLOCK_SET_MS


class OwnComponents:
    """What this node published of its own, and what it heard of it from others."""

    def __init__(
        self,
        place: Workplace,
        on_double: Callable[[Double], None] | None,
        *,
        given_before: int = 0,
    ) -> None:
        """`given_before`: no version of a life before is above it, as far as is known here."""
        self._place, self._on_double = place, on_double
        self._given_before = given_before
        self.given = 0
        """The version given last, of whatever component."""
        self._last: dict[str, int] = {}
        self._climbed: dict[str, int] = {}
        self.doubles: dict[str, Double] = {}

    def next_version(self, component: str, held: Reception | None, now: Now) -> int:
        """The wall clock, or one more than the last where that clock stands or went back. Only
        after it had been wrong by more than `ahead_ms` does it begin anew: nobody took those.

        `held`: what was heard of it, perhaps from a life before, ere it was known to live here.
        """
        said = held.message if held is not None else None
        if said is not None and said.node == self._place.node:
            self._remember(component, max(said.version, self._known(component)))
        version = self._known(component) + 1
        if now.wall_ms > version or is_far_ahead(version, now, self._place.settings.ahead_ms):
            version = max(now.wall_ms, 1)
        self._remember(component, version)
        self.given = version
        return version

    def heard(self, message: Published, now: Now) -> None:
        """A newer version of an own component came from outside: of a life before this one, then
        versions go on above it; or of another node with the same component, which is counted. Own
        knowledge is never replaced.
        """
        place, component = self._place, message.component
        if message.version <= self._known(component):
            return
        place.counts["own_heard"] += 1
        is_same_node = message.node == place.node
        is_same_address = message.address is None or message.address == place.address
        climbed = self._climbed.get(component, 0)
        if not (is_same_node and is_same_address and climbed < _FORMER_LIFE):
            self._is_double(message, now)
        if not is_same_node:
            return
        if is_far_ahead(message.version, now, place.settings.ahead_ms):
            place.counts["far_ahead"] += 1
            return
        self._climbed[component] = climbed + 1
        self._remember(component, message.version)

    def named(self, component: str, version: int, now: Now) -> None:
        """Somebody knows that version: if it is of an own component, and newer than any that was
        given here, it is of a life before, and versions go on above it.
        """
        if component not in self._place.own or version <= self._known(component):
            return
        if is_far_ahead(version, now, self._place.settings.ahead_ms):
            self._place.counts["far_ahead"] += 1
            return
        self._place.counts["own_named"] += 1
        self._remember(component, version)

    def _known(self, component: str) -> int:
        """The greatest version of a component that was given, as far as is known."""
        return self._last.get(component, self._given_before)

    def _is_double(self, message: Published, now: Now) -> None:
        self._place.counts["doubles"] += 1
        found = self.doubles.get(message.component)
        if found is None:
            if len(self.doubles) >= _REMEMBERED:
                del self.doubles[next(iter(self.doubles))]
            found = self.doubles[message.component] = Double(
                message.component, message.node, message.address, 0, now.steady_ms
            )
        found.node, found.address = message.node, message.address
        found.times, found.last_ms = found.times + 1, now.steady_ms
        if self._on_double is not None:
            self._on_double(found)

    def _remember(self, component: str, version: int) -> None:
        if component not in self._last and len(self._last) >= _REMEMBERED:
            forgotten = next((one for one in self._last if one not in self._place.own), None)
            if forgotten is not None:
                del self._last[forgotten]
                self._climbed.pop(forgotten, None)
        self._last[component] = version
