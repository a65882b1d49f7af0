"""Whom a member knows beside its neighbours. [CX-4]"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.transport.base import Address


class Acquaintances:
    """A bounded set of addresses; when full the one learned first gives way."""

    __slots__ = ("_known", "_most", "_own")

    def __init__(self, own: Address, most: int) -> None:
        self._own, self._most = own, most
        self._known: dict[Address, None] = {}

    def learn(self, addresses: Iterable[Address]) -> bool:
        """Knows these from now on; whether one of them is new."""
        news = [one for one in addresses if one != self._own and one not in self._known]
        for address in news:
            self._known[address] = None
            if len(self._known) > self._most:
                del self._known[next(iter(self._known))]
        return bool(news)

    def hear_of(self, address: Address) -> None:
        """Knows it too while there is room: hearsay drives out nobody."""
        if len(self._known) < self._most and address != self._own:
            self._known[address] = None

    def forget(self, address: Address) -> None:
        """It said that it leaves."""
        self._known.pop(address, None)

    def besides(self, neighbours: tuple[Address, ...]) -> list[Address]:
        """All known that are no neighbours."""
        return [address for address in self._known if address not in neighbours]

    def __len__(self) -> int:
        return len(self._known)
