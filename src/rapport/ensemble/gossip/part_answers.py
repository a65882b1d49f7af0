"""Parts that somebody pulled, sent by one of those that heard the pull. [EN-4, EN-8]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rapport.ensemble.gossip.workplace import Workplace
from rapport.ensemble.messages import Outgoing, Part
from rapport.kernel.chance import Chance
from rapport.transport.base import Address, Now

_MOST_ANSWERED = 8_192
_MOST_WAITING = 1_024
"""Parts that wait to be sent; further ones are not, and are pulled again."""
_NEVER: Final = float("inf")

_Name = tuple[str, int, int]
"""Component, version and index."""


class PartAnswers:
    """What a node says in answer to pulls of parts.

    By radio all who hold a part hear the pull at the same time. Each waits a time of its own, up to
    half of `part_wait_ms`, and says nothing if it hears another say it meanwhile; the one who asked
    waits longer than that before it asks again.
    """

    def __init__(self, place: Workplace, chance: Chance) -> None:
        self._place, self._random = place, chance.random
        self._longest_ms = place.settings.part_wait_ms / 2
        self._gap_ms = min(place.settings.answer_gap_ms, place.settings.part_wait_ms)
        self._waiting: dict[_Name, tuple[float, Part]] = {}
        self._answered: dict[tuple[_Name, Address | None], float] = {}
        self._due_ms = _NEVER

    def to_one(self, parts: Iterable[Part], to: Address, now: Now) -> None:
        """Sends the parts to one address, at once."""
        for part in parts:
            if self._may_answer(_name(part), to, now):
                self._send(part, to, now)

    def to_all(self, parts: Iterable[Part], now: Now) -> None:
        """Plans to send the parts by radio."""
        for part in parts:
            name = _name(part)
            if name in self._waiting or len(self._waiting) >= _MOST_WAITING:
                continue
            if self._may_answer(name, None, now):
                due_ms = now.steady_ms + self._longest_ms * self._random()
                self._waiting[name] = (due_ms, part)
                self._due_ms = min(self._due_ms, due_ms)

    def heard(self, part: Part) -> None:
        """Somebody in range said the part: it need not be said again."""
        if self._waiting and self._waiting.pop(_name(part), None) is not None:
            self._place.counts["parts_left_to_others"] += 1

    def tick(self, now: Now) -> None:
        """Sends what was not said by others."""
        if now.steady_ms < self._due_ms:
            return
        due = [(when, name) for name, (when, _part) in self._waiting.items()]
        for when, name in sorted(due):
            if when > now.steady_ms:
                break
            self._send(self._waiting.pop(name)[1], None, now)
        self._due_ms = min((when for when, _part in self._waiting.values()), default=_NEVER)

    def next_due_ms(self) -> float:
        """Steady time of the next tick that may send something; infinite for none."""
        return self._due_ms

    def clear(self) -> None:
        """Sends nothing of what waits."""
        self._waiting.clear()
        self._due_ms = _NEVER

    def _send(self, part: Part, to: Address | None, now: Now) -> None:
        if len(self._answered) >= _MOST_ANSWERED:
            del self._answered[next(iter(self._answered))]
        mark = (_name(part), to)
        self._answered.pop(mark, None)
        self._answered[mark] = now.steady_ms
        self._place.outbox.append(Outgoing(part, to))
        self._place.counts["parts_answered"] += 1

    def _may_answer(self, name: _Name, to: Address | None, now: Now) -> bool:
        last = self._answered.get((name, to))
        return last is None or now.steady_ms >= last + self._gap_ms


def _name(part: Part) -> _Name:
    return part.component, part.version, part.index
