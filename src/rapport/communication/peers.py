"""Peers and collectives, and the directory in which they are looked up at sending time. [CO-3]

The default directory is the site file; any other one has to fit `PeerDirectory`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from rapport.communication.delivery_state import CollectiveDelivery, PeerDelivery
from rapport.communication.privacy import PrivacyRule
from rapport.core.ids import content_id


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A person or machine that can be reached; `addresses` are in order of preference."""

    name: str
    addresses: tuple[str, ...]
    delivery: PeerDelivery = "at-least-one"
    fallback: bool = False
    """With `preferred`: try the next address when the first failed."""
    fallback_after: int = 0
    """With `fallback`: how long one address has before the next is tried, ms; 0 = the default."""
    privacy: tuple[PrivacyRule, ...] = ()
    """Privacy rules; the first that applies decides."""
    zone: str = ""
    """Time zone in which times are shown; empty = that of the site."""


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """A group of peers, and how many of them have to be reached."""

    name: str
    members: tuple[str, ...]
    delivery: CollectiveDelivery = "to-any"
    least: int = 0
    """With `at-least`: how many have to be reached."""


class PeerDirectory(Protocol):
    """Looks up peers and collectives at every sending; members may change between two."""

    def peer(self, name: str) -> Peer | None:
        """The peer of that name, or None."""

    def collective(self, name: str) -> Collective | None:
        """The collective of that name with all its members, or None."""

    def policy_of(self, name: str) -> Collective | None:
        """The delivery policy of a collective, or None; its members may be left out, so that a
        large one costs nothing.
        """
        return self.collective(name)

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Up to `limit` member names after `after`, sorted by code points, so that a large
        collective is read in slices; none for an unknown collective.
        """
        found = self.collective(name)
        return names_after(sorted(found.members), after, limit) if found else []


class SiteDirectory:
    """The directory that a site file declares."""

    def __init__(self, peers: Mapping[str, Peer], collectives: Mapping[str, Collective]) -> None:
        self._peers, self._collectives = dict(peers), dict(collectives)
        self._sorted = {
            name: sorted(set(collective.members)) for name, collective in collectives.items()
        }

    def peer(self, name: str) -> Peer | None:
        """The declared peer, or None."""
        return self._peers.get(name)

    def collective(self, name: str) -> Collective | None:
        """The declared collective, or None."""
        return self._collectives.get(name)

    def policy_of(self, name: str) -> Collective | None:
        """See PeerDirectory."""
        return self._collectives.get(name)

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See PeerDirectory."""
        return names_after(self._sorted.get(name, ()), after, limit)

    def peer_names(self) -> list[str]:
        """All declared peers, sorted."""
        return sorted(self._peers)

    def collective_names(self) -> list[str]:
        """All declared collectives, sorted."""
        return sorted(self._collectives)

    def collectives_of(self, peer: str) -> list[str]:
        """The declared collectives that name a peer, sorted."""
        return [name for name in sorted(self._sorted) if peer in self._collectives[name].members]


def names_after(names: Sequence[str], after: str, limit: int) -> list[str]:
    """A slice of sorted names.

    >>> names_after(["ana", "ben", "lea"], "ana", 1)
    ['ben']
    """
    start = bisect_right(names, after) if after else 0
    return list(names[start : start + limit])


def adapter_of(address: str) -> str:
    """The adapter's name in an address.

    >>> adapter_of("mail:ana@example.org")
    'mail'
    """
    return address.partition(":")[0]


def shown_address(address: str) -> str:
    """The address as the ledger shows it: of a web address, which may hold
    secrets, only the host and a mark.

    >>> shown_address("mail:ana@example.org")
    'mail:ana@example.org'
    >>> shown_address("webhook:https://user:pass@example.org/hook?key=1").split("#")[0]
    'webhook:https://example.org/'
    """
    adapter, _, rest = address.partition(":")
    if adapter == "apprise" and "://" in rest:
        # In place of the host such an address may have a secret.
        return f"apprise:{rest.partition('://')[0]}://#{content_id(address)[:6]}"
    if "://" not in rest and adapter != "webhook":
        return address
    mark = content_id(address)[:6]
    if "://" not in rest:
        return f"{adapter}:#{mark}"  # not a web address, but it may hold a secret
    try:
        parts = urlsplit(rest)
    except ValueError:
        return f"{adapter}:#{mark}"  # unreadable: any part may be a secret
    host = parts.netloc.rpartition("@")[2]
    return f"{adapter}:{parts.scheme}://{host}/#{mark}"
