"""Nodes that began anew with a clock set back: whoever holds a version of their former life tells
them so, and they go on above it. [EN-5]
"""

from __future__ import annotations

from typing import NamedTuple

from rapport.ensemble.gossip.own_components import is_far_ahead
from rapport.ensemble.gossip.reception_buffer import Reception
from rapport.ensemble.gossip.workplace import Workplace
from rapport.ensemble.messages import Published, PullParts
from rapport.transport.base import Now, Sender

_MOST = 1_024
"""Components that are watched."""
_LATE_MS = 1_000
"""What a message may be late, however often its node speaks."""


class _Old(NamedTuple):
    """An older version than the one held, when it came, and when its node was last told."""

    version: int
    heard_ms: float
    told_ms: float


class Overtaken:
    """Tells nodes that say what others think is old: at once who says so itself, else when such
    versions follow each other as time does. What was only late, and copies that somebody kept, do
    not.

    What is said is a pull of no parts: it names a version, and asks for nothing.
    """

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._late_ms = max(2 * place.settings.knowledge_ms, _LATE_MS)
        self._old: dict[str, _Old] = {}

    def heard(self, message: Published, held: Reception, sender: Sender, now: Now) -> None:
        """An older version than the one held came."""
        place, known = self._place, held.message
        if held.version - message.version <= self._late_ms or known is None:
            return
        if known.node != message.node or message.component in place.own:
            return  # of two nodes with one component neither is told to outdo the other
        if is_far_ahead(held.version, now, place.settings.ahead_ms):
            return
        is_direct = not sender.to_all and message.address == sender.address
        if self._is_to_be_told(message, now, is_direct=is_direct):
            place.counts["overtaken"] += 1
            self._tell(message, known, sender)

    def _tell(self, message: Published, known: Published, sender: Sender) -> None:
        place, to = self._place, message.address
        component, version = known.component, known.version
        if place.radio and sender.to_all:
            place.say(PullParts(component, version, ()), None)
        if place.ip and to is not None and to in (sender.address, known.address):
            # Never to an address that only a copy of something old names.
            place.say(PullParts(component, version, (), place.address or to), to)

    def _is_to_be_told(self, message: Published, now: Now, *, is_direct: bool) -> bool:
        """Whether it lives and says so now; not again within a while."""
        before = self._old.pop(message.component, None)
        if len(self._old) >= _MOST:
            del self._old[next(iter(self._old))]
        told_ms = before.told_ms if before is not None else float("-inf")
        is_alive = is_direct or (before is not None and self._follows(message, before, now))
        is_told = is_alive and now.steady_ms >= told_ms + self._place.settings.answer_gap_ms
        told_ms = now.steady_ms if is_told else told_ms
        self._old[message.component] = _Old(message.version, now.steady_ms, told_ms)
        return is_told

    def _follows(self, message: Published, before: _Old, now: Now) -> bool:
        """Whether it is as much newer than the one before as it came later."""
        newer_ms, later_ms = message.version - before.version, now.steady_ms - before.heard_ms
        return newer_ms > 0 and abs(newer_ms - later_ms) <= _LATE_MS
