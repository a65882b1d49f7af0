"""Peers and collectives, and the directory they are looked up in at sending time. [CO-3]

The default directory is the site file; another one (a roster service) only has to fit
`PeerDirectory`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from rapport.communication.privacy import PrivacyPolicy
from rapport.communication.steps import Ask
from rapport.communication.tracking import CollectiveDelivery, Member, PeerDelivery, Try
from rapport.core.ids import content_id
from rapport.core.message import Identifier


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A person or machine we talk to; the order of `addresses` is their preference."""

    name: str
    addresses: tuple[str, ...]
    delivery: PeerDelivery = "at-least-one"
    fallback: bool = False
    """With `preferred`: try the next address when the first failed."""
    privacy: PrivacyPolicy | None = None


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """Several peers under one name, and how many of them have to be reached."""

    name: str
    members: tuple[str, ...]
    delivery: CollectiveDelivery = "to-any"


class PeerDirectory(Protocol):
    """Who is who now; asked at every sending, so members may change between two."""

    def peer(self, name: str) -> Peer | None:
        """The peer of that name, or None."""

    def collective(self, name: str) -> Collective | None:
        """The collective of that name, or None."""


class SiteDirectory:
    """The directory that a site file declares."""

    def __init__(self, peers: Mapping[str, Peer], collectives: Mapping[str, Collective]) -> None:
        self._peers, self._collectives = dict(peers), dict(collectives)

    def peer(self, name: str) -> Peer | None:
        """The declared peer, or None."""
        return self._peers.get(name)

    def collective(self, name: str) -> Collective | None:
        """The declared collective, or None."""
        return self._collectives.get(name)


def resolve(receiver: Identifier, directory: PeerDirectory, adapters: Collection[str]) -> Ask:
    """Whom to ask now: the members with those of their addresses that an adapter serves.

    Names that nobody knows give a member without an address, so the ledger says who was missing.
    """
    if receiver.kind == "collective":
        collective = directory.collective(receiver.name)
        if collective is None:
            return Ask(str(receiver), [], "to-any")
        members = [_member(name, directory, adapters) for name in collective.members]
        return Ask(str(receiver), members, collective.delivery)
    return Ask(str(receiver), [_member(receiver.name, directory, adapters)])


def adapter_of(address: str) -> str:
    """The adapter's name in an address.

    >>> adapter_of("mail:ana@example.org")
    'mail'
    """
    return address.partition(":")[0]


def shown_address(address: str) -> str:
    """The address as the ledger shows it: web addresses may hold secrets, so only their host and a
    mark stay.

    >>> shown_address("mail:ana@example.org")
    'mail:ana@example.org'
    >>> shown_address("webhook:https://user:pass@example.org/hook?key=1").split("#")[0]
    'webhook:https://example.org/'
    """
    adapter, _, rest = address.partition(":")
    parts = urlsplit(rest) if "://" in rest else None
    if parts is None:
        return address
    host = parts.netloc.rpartition("@")[2]
    return f"{adapter}:{parts.scheme}://{host}/#{content_id(address)[:6]}"


def _member(name: str, directory: PeerDirectory, adapters: Collection[str]) -> Member:
    peer = directory.peer(name)
    if peer is None:
        return Member(peer=name, tries=[])
    served = [entry for entry in peer.addresses if adapter_of(entry) in adapters]
    if peer.delivery == "preferred" and not peer.fallback:
        served = served[:1]
    return Member(
        peer=peer.name,
        tries=[Try(address=entry) for entry in served],
        delivery=peer.delivery,
        privacy=peer.privacy,
    )
