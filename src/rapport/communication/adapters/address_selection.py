"""Which of a peer's addresses are used: algorithm 2.1 of the source. [CO-4, CO-8]

Pure. The order of addresses is the peer's preference and is kept. The text prefers stateless
adapters to stateful ones for the same address; with us a name belongs to one adapter, so there is
nothing to choose between. Instances of stateful adapters are made when the delivery is sent, not
here: one that cannot be made is a failed address, and the next is tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from rapport.communication.delivery_state import PeerDelivery

_TELL_AGAIN_MS = 60_000


class Selection(msgspec.Struct, frozen=True):
    """The addresses to use, in order, and the names of unregistered adapters."""

    usable: tuple[str, ...]
    unknown: tuple[str, ...] = ()


def select_addresses(
    addresses: Sequence[str],
    delivery: PeerDelivery,
    registered: Collection[str],
    *,
    fallback: bool = False,
) -> Selection:
    """The addresses that a registered adapter serves; with `preferred` the first only, unless the
    peer wants the next ones tried when it fails. Addresses without an adapter are no error.

    >>> select_addresses(["fax:1", "mail:a@b", "inbox:"], "preferred", {"mail", "inbox"})
    Selection(usable=('mail:a@b',), unknown=('fax',))
    """
    usable: list[str] = []
    unknown: list[str] = []
    for address in addresses:
        name = address.partition(":")[0]
        if name not in registered:
            unknown.append(name)
            continue
        usable.append(address)
        if delivery == "preferred" and not fallback:
            break
    return Selection(tuple(usable), tuple(unknown))


class UnknownAdapterLog:
    """When adapters that nobody registered were last spoken of: once a minute each is enough,
    however many messages meet them. Holds one entry per name.
    """

    def __init__(self) -> None:
        self._told_ms: dict[str, int] = {}

    def to_tell(self, names: Iterable[str], now_ms: int) -> list[str]:
        """Those that are to be logged now."""
        found = []
        for name in dict.fromkeys(names):
            last_ms = self._told_ms.get(name)
            # A clock that was set back does not keep us silent.
            if last_ms is None or not last_ms <= now_ms < last_ms + _TELL_AGAIN_MS:
                self._told_ms[name] = now_ms
                found.append(name)
        return found
