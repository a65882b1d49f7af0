"""What a broker's machine wants its shell to do beside sending. [CX-3, CX-8, CX-9]"""

from __future__ import annotations

import msgspec

from rapport.core.context_record import ContextRecord, EntityRef
from rapport.transport.base import Address


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A record to be put on disk; then call `kept(token)`, or `not_kept(token, why)`."""

    token: int
    record: ContextRecord
    identity: str
    owner: str = ""
    """The identity that the record belongs to, where that is another one."""


class Audited(msgspec.Struct, frozen=True, gc=False):
    """A client did something: `what` is put, overwrite (of another's record, refused), request,
    watch, join, leave or monitor; `status` is
    what it was told (102 for an answered request). Of a request also how long it was looked for, up
    to the moment the machine was told of, and how far away it was found.
    """

    what: str
    identity: str
    address: Address
    status: int
    entity: EntityRef | None = None
    scope: str = ""
    took_ms: float = 0.0
    hops: int = 0


class NeighbourLost(msgspec.Struct, frozen=True, gc=False):
    """A neighbour left, or fell silent."""

    address: Address
    abrupt: bool


class NetworkJoined(msgspec.Struct, frozen=True, gc=False):
    """The search for neighbours ended well."""

    neighbours: tuple[Address, ...]


class NotJoined(msgspec.Struct, frozen=True, gc=False):
    """Too few answered; waits for a new list, or looks again if it was a member before."""

    answered: int
    needed: int


Effect = Kept | Audited | NeighbourLost | NetworkJoined | NotJoined
