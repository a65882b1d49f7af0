"""Those that fell silent are asked now and then whether they are back. [CX-4]

A partition that heals leaves two networks that are content with themselves; only who remembers
the others can join them again. A restarted broker is found in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.kernel.chance import Chance
from rapport.overlay.membership_steps import MembershipSettings, SendPing
from rapport.transport.base import Address, Now


class Revisiting:
    """Remembers a bounded number of silent ones and pings one of them, drawn uniformly, every
    `revisit_ms`; nothing is sent while there are none.
    """

    __slots__ = ("_chance", "_due_ms", "_numbers", "_pinged", "_settings", "_silent")

    def __init__(
        self, settings: MembershipSettings, chance: Chance, numbers: Iterator[int]
    ) -> None:
        self._settings, self._chance, self._numbers = settings, chance, numbers
        self._silent: dict[Address, None] = {}
        self._due_ms: float | None = None
        self._pinged: tuple[Address, int] | None = None

    def fell_silent(self, address: Address, now: Now) -> None:
        """It is gone without a word."""
        if address not in self._silent and len(self._silent) >= self._settings.known:
            del self._silent[next(iter(self._silent))]
        self._silent[address] = None
        if self._due_ms is None:
            self._due_ms = now.steady_ms + self._settings.revisit_ms

    def forget(self, address: Address) -> None:
        """It is back, or said that it leaves."""
        self._silent.pop(address, None)

    def forget_all(self) -> None:
        """Asks nobody any more."""
        self._silent.clear()
        self._due_ms = self._pinged = None

    def __contains__(self, address: Address) -> bool:
        return address in self._silent

    def answered(self, by: Address, number: int) -> bool:
        """Whether that is the answer of one that was silent. It is asked again until `forget`."""
        if self._pinged != (by, number):
            return False
        self._pinged = None
        return by in self._silent

    def tick(self, now: Now) -> list[SendPing]:
        """The ping that is due."""
        if self._due_ms is None or now.steady_ms < self._due_ms:
            return []
        if not self._silent:
            self._due_ms = self._pinged = None
            return []
        self._due_ms = now.steady_ms + self._settings.revisit_ms
        self._pinged = (self._chance.choice(list(self._silent)), next(self._numbers))
        return [SendPing(*self._pinged)]

    def next_due_ms(self) -> float | None:
        """The steady time of the next tick that may do something."""
        return self._due_ms
