"""Who is asked now: a receiver's policy and its members with the addresses that can be used. [CO-3,
CO-8]
"""

from __future__ import annotations

from collections.abc import Collection

from rapport.communication.adapters.address_selection import UnknownAdapterLog, select_addresses
from rapport.communication.delivering.steps import Ask
from rapport.communication.delivering.tracking import Member, PeerDelivery, Try
from rapport.communication.peers import Peer, PeerDirectory
from rapport.core.errors import SourceUnavailable
from rapport.core.message import Identifier
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)


class Members:
    """Looks receivers up in the directory, each time anew: members may change between two sends."""

    def __init__(self, directory: PeerDirectory, adapters: Collection[str]) -> None:
        """`adapters`: the names of those that have a dispatch now; looked at each time."""
        self.directory, self.adapters = directory, adapters
        self._unserved = UnknownAdapterLog()

    def ask(self, receiver: Identifier, answer_within: int = 0) -> Ask:
        """How many of a receiver have to be reached."""
        collective = None
        if receiver.kind == "collective":
            collective = self.directory.policy_of(receiver.name)
            if collective is None:
                return Ask(str(receiver), "to-any", answer_within=answer_within)
        if collective is None:
            return Ask(str(receiver), answer_within=answer_within)
        least = max(collective.least, 1)
        return Ask(str(receiver), collective.delivery, least, answer_within)

    def names(self, receiver: Identifier, *, after: str = "", limit: int) -> list[str]:
        """The next names behind a receiver; a peer stands for itself."""
        if receiver.kind == "collective":
            return self.directory.member_names(receiver.name, after=after, limit=limit)
        return [receiver.name] if not after else []

    def member(
        self, name: str, now_ms: int, *, stage: int = 0, delivery: PeerDelivery | None = None
    ) -> Member:
        """A peer as somebody who is told. `delivery` goes before what the peer says.

        A name that nobody knows gives a member without an address, so the ledger says who was
        missing. One whom the directory cannot tell now is looked for later.
        """
        try:
            peer = self.directory.peer(name)
        except SourceUnavailable as error:
            _log.warning("the directory failed", peer=name, error=error.message)
            return Member(peer=name, tries=[], stage=stage, failed_lookups=1)
        if peer is None:
            return Member(peer=name, tries=[], stage=stage, unknown=True)
        chosen = delivery or peer.delivery
        usable = self.usable(peer, chosen, now_ms)
        tries = [Try(address=entry) for entry in dict.fromkeys(usable)]
        return Member(
            peer=peer.name,
            tries=tries,
            delivery=chosen,
            stage=stage,
            fallback_after=peer.fallback_after,
        )

    def again(self, held: Member, now_ms: int, *, delivery: PeerDelivery | None = None) -> Member:
        """A member who was held, looked up once more: held as before, reached as they are now."""
        found = self.member(held.peer, now_ms, stage=held.stage, delivery=delivery)
        found.peer, found.fate, found.held_until = held.peer, held.fate, held.held_until
        found.failed_lookups = held.failed_lookups + 1 if found.failed_lookups else 0
        return found

    def usable(self, peer: Peer, delivery: PeerDelivery, now_ms: int) -> tuple[str, ...]:
        """The addresses to use; those without a registered adapter are logged, not fatal."""
        found = select_addresses(peer.addresses, delivery, self.adapters, fallback=peer.fallback)
        for name in self._unserved.to_tell(found.unknown, now_ms) if found.unknown else ():
            _log.warning("no adapter for an address", peer=peer.name, adapter=name)
        return found.usable
