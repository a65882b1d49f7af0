"""What somebody wishes to be true of an entity for a while: the shape in which actions of policies
hand it to the node's context broker. [PO-10, CX-3]
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.event import Event

CONTEXT_WISHES = "context.wishes"
"""The channel in which wishes wait; the node carries them out in order, each once."""
CONTEXT_WISH = "rapport.context.wish"


class ContextWish(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a wish; the event's time is when it was made."""

    entity: str
    scope: str
    values: dict[str, Any]
    valid_ms: int

    @staticmethod
    def from_event(event: Event) -> ContextWish:
        """What an event of the channel says; raises InvalidInput."""
        wish: ContextWish = event.payload_as(ContextWish)
        EntityRef.parse(wish.entity)
        return wish

    def record(self, provider: str, time: int) -> ContextRecord:
        """The record that fulfils a wish made at `time`; the same wish gives the same record."""
        return ContextRecord(
            provider=provider,
            entity=EntityRef.parse(self.entity),
            scope=self.scope,
            valid_from=time,
            valid_until=time + self.valid_ms,
            values=self.values,
        )
