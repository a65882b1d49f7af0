"""What a running broker writes into its audit log, in words of its effects. [CX-9]"""

from __future__ import annotations

from rapport.context.audit import AuditLine, AuditTrail
from rapport.context.broker.effects import Audited
from rapport.context.messages import NOT_ALLOWED, NOT_FOUND, PROCESSED, RECEIVED
from rapport.core.context_record import EntityRef
from rapport.kernel.clock import Clock
from rapport.transport.addresses import format_address
from rapport.transport.base import Address

OWN_PROCESS: Address = ("own process", 0)
"""Where the broker's own process is: requests from there came over no network."""

_DONE = frozenset((PROCESSED, RECEIVED, NOT_FOUND))


class BrokerAudit:
    """Sorts operations into lines: reads are summed up, refusals and commands stand alone."""

    def __init__(self, clock: Clock, *, is_kept: bool) -> None:
        """Without a channel nothing is noted, as nobody would ever take it."""
        self._clock, self._is_kept = clock, is_kept
        self.trail = AuditTrail()

    def note(self, effect: Audited) -> None:
        """A client did something. Updates are told by the batch, with their places in the log."""
        if not self._is_kept:
            return
        if effect.status not in _DONE:
            self._refused(effect)
        elif effect.what in ("request", "watch") and effect.entity is not None:
            wall_ms = self._clock.now_ms()
            self.trail.read(effect.identity, effect.entity, effect.status, wall_ms)
        elif effect.what != "put":
            self._commanded(effect)

    def note_asked(self, identity: str, entity: EntityRef, scope: str, status: int) -> None:
        """This process asked, for somebody."""
        self.note(Audited("request", identity, OWN_PROCESS, status, entity, scope))

    def note_status(self, identity: str, address: Address) -> None:
        """Somebody without the right wanted to know how the broker is."""
        self.note(Audited("status", identity, address, NOT_ALLOWED))

    def due(self, all_of_it: bool) -> list[AuditLine]:
        """Lines to append now."""
        return self.trail.due(self._clock.now_ms(), all_of_it=all_of_it)

    def _commanded(self, effect: Audited) -> None:
        wall_ms = self._clock.now_ms()
        self.trail.add(
            AuditLine(
                what="control",
                identity=effect.identity,
                since=wall_ms,
                until=wall_ms,
                count=1,
                status=effect.status,
                why=effect.what,
                address=_shown(effect.address),
            )
        )

    def _refused(self, effect: Audited) -> None:
        self.trail.refused(
            effect.identity,
            self._clock.now_ms(),
            entity=str(effect.entity) if effect.entity is not None else "",
            scope=effect.scope,
            status=effect.status,
            why=effect.what,
            address=_shown(effect.address),
        )


def _shown(address: Address) -> str:
    return "" if address == OWN_PROCESS else format_address(address)
