"""What a broker says in v0: to neighbours freely, to callers as far as may be. [CX-2, CX-9]"""

from __future__ import annotations

import msgspec

from rapport.context.broker.effects import Audited
from rapport.context.messages import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    TOO_BUSY,
    Question,
)
from rapport.context.v0.admission import Caller
from rapport.context.v0.messages import Acknowledgement, Refusal, V0Message
from rapport.context.v0.writing import write
from rapport.transport.base import Address, Now

_IN_V0 = {NOT_ALLOWED: BAD_REQUEST, TOO_BUSY: INTERNAL_ERROR}
"""v0 knows five codes; ours become the nearest of them."""


class V0Counters(msgspec.Struct):
    """What a door did; only ever growing."""

    heard: int = 0
    bad: int = 0
    """Could not be read."""
    dropped: int = 0
    """Came faster than they may."""
    withheld: int = 0
    """Answers to hosts that the site does not name, larger than what they had sent."""
    astray: int = 0
    """Answers from, or with a way back over, an address that is no neighbour."""
    unsaid: int = 0
    """Requests and refusals whose path fitted no datagram."""
    late: int = 0
    """Answers that nobody waits for any more."""
    answered: int = 0
    refused: int = 0
    replicated: int = 0


class Outgoing:
    """Datagrams to send, in order, and what is to be audited; the shell clears both."""

    def __init__(self, identity: str) -> None:
        self.outbox: list[tuple[bytes, Address]] = []
        self.effects: list[Audited] = []
        self.counters = V0Counters()
        self._identity = identity

    def send(self, message: V0Message, to: Address) -> None:
        """To a broker; raises TooLarge."""
        self.outbox.append((write(message), to))

    def tell(self, message: V0Message, caller: Caller) -> None:
        """To a caller, unless it is larger than what may be told; raises TooLarge."""
        datagram = write(message)
        if caller.takes(len(datagram)):
            self.outbox.append((datagram, caller.address))
        else:
            self.counters.withheld += 1

    def audit(self, what: str, caller: Caller, status: int, question: Question | None) -> None:
        """A caller did something, or was not let."""
        entity, scope = (question.entity, question.scope) if question else (None, "")
        self.effects.append(Audited(what, self._identity, caller.address, status, entity, scope))

    def acknowledge(self, caller: Caller, status: int, operation: str, now: Now) -> None:
        """An ACK."""
        host = caller.address[0]
        self.tell(Acknowledgement(now.wall_ms, status, operation, host), caller)

    def refuse(self, caller: Caller, status: int, operation: str, now: Now) -> None:
        """A NACK."""
        self.counters.refused += 1
        code = _IN_V0.get(status, status)
        if code not in (INTERNAL_ERROR, NOT_FOUND, BAD_REQUEST):
            code = INTERNAL_ERROR
        self.tell(Refusal(now.wall_ms, code, operation, caller.address[0]), caller)
