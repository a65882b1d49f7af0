"""Groupers that one has heard of, but not from. [EN-7]"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.ensemble.grouping.settings import GroupingSettings
from rapport.transport.base import Address


class Acquaintances:
    """The addresses to which a grouper announces itself beside those it knows: the well-known ones
    and those of the membership always, those that others named a few times, and one of those it
    lost each time, so that the halves of a partition find each other again.
    """

    def __init__(self, well_known: Iterable[Address], settings: GroupingSettings) -> None:
        self._well_known = tuple(well_known)
        self._most, self._tries = settings.groupers, settings.tries
        self._members: tuple[Address, ...] = ()
        self._named: dict[Address, int] = {}
        self._lost: dict[Address, None] = {}

    def told(self, addresses: Iterable[Address], *, met: Address) -> None:
        """One that was met named these."""
        self._named.pop(met, None)
        self._lost.pop(met, None)
        for address in addresses:
            if len(self._named) < self._most:
                self._named.setdefault(address, self._tries)

    def know(self, addresses: Iterable[Address]) -> None:
        """The membership knows these groupers, and no others."""
        self._members = tuple(addresses)[: self._most]

    def lost(self, address: Address) -> None:
        """One that was met is silent now."""
        self._lost[address] = None
        if len(self._lost) > self._most:
            del self._lost[next(iter(self._lost))]

    def to_tell(self, known: Iterable[Address]) -> list[Address]:
        """Whom to announce oneself to now: these, and some of those not met."""
        told = dict.fromkeys((*known, *self._well_known, *self._members, *self._named))
        for address, tries in list(self._named.items()):
            if tries > 1:
                self._named[address] = tries - 1
            else:
                del self._named[address]
        if self._lost:
            address = next(iter(self._lost))
            del self._lost[address]
            self._lost[address] = told[address] = None
        return list(told)
