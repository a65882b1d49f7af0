"""Whether a delivery that had to wait may still be sent: what its receiver says now. [CO-9]

The engine asked before it was queued. Behind a slow medium, or while nothing ran, quiet hours may
have begun since; what may not go then is given back to the engine, which judges and holds it.
"""

from __future__ import annotations

from rapport.communication.adapters.base import Delivery
from rapport.communication.peers import PeerDirectory
from rapport.communication.privacy import (
    NO_FUNCTIONS,
    Allowed,
    PrivacyFacts,
    PrivacyFunctions,
    verdict,
)
from rapport.core.errors import SourceUnavailable


class StillAllowed:
    """Called with a delivery and the time; from any thread. Costs one look into the directory for
    who has no privacy policy.
    """

    def __init__(
        self, directory: PeerDirectory, functions: PrivacyFunctions = NO_FUNCTIONS
    ) -> None:
        self._directory, self._functions = directory, functions

    def __call__(self, delivery: Delivery, now_ms: int) -> bool:
        """False also while nobody can say who the receiver is. Limits on how many there may be are
        not asked again: it is counted already.
        """
        try:
            peer = self._directory.peer(delivery.peer)
        except SourceUnavailable:
            return False
        if peer is None or not peer.privacy:
            return True
        facts = PrivacyFacts(
            type=delivery.type,
            subtype=delivery.subtype,
            sender=delivery.rule_sender or delivery.sender,
            urgent=delivery.urgent,
            now_ms=now_ms,
            peer=peer.name,
            sent_ms=delivery.sent or delivery.time,
            recent=lambda _count: (),
        )
        return isinstance(verdict(peer.privacy, facts, self._functions), Allowed)
