"""What a table was told of an entity, and when: the shape of events of the channel `context.found`.
[CX-8, PO-11]

A node appends one whenever the answer changes: another record, or none. So anybody who reads the
log can say later what was known at a time, who provided it, and how far away it was found.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.event import Event, as_subject
from rapport.core.ids import content_id

FOUND_CHANNEL = "context.found"
CONTEXT_FOUND = "rapport.context.found"
_NO_VALUES: dict[str, Any] = {}


class ContextFound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer about one entity; without a provider there was none, and `why` says the reason."""

    table: str
    type: str
    id: str
    scope: str
    time: int
    """When it was told."""
    provider: str = ""
    valid_from: int = 0
    valid_until: int = 0
    values: dict[str, Any] = _NO_VALUES
    hops: int = 0
    holder: str = ""
    """The address of the broker where the provider puts it."""
    why: str = ""
    former: str = ""
    """Where there is no record any more: who provided the last one; `valid_until` is its end."""

    @property
    def is_found(self) -> bool:
        """Whether there was a record."""
        return bool(self.provider)

    def is_valid_at(self, wall_ms: int) -> bool:
        """Whether it could be relied on at that time."""
        return self.is_found and self.valid_from <= wall_ms < self.valid_until

    def lasts_at(self, wall_ms: int) -> bool:
        """Whether it is not over at that time."""
        return self.is_found and wall_ms < self.valid_until

    def says_the_same_as(self, other: ContextFound | None) -> bool:
        """Whether nothing is new for a reader of tables: the same record, wherever it was found, or
        again none.
        """
        return other is not None and self._record() == other._record()

    def _record(self) -> tuple[object, ...]:
        return self.provider, self.valid_from, self.valid_until, self.values

    def after(self, before: ContextFound | None) -> ContextFound:
        """This answer, knowing the one before: that there is none says what there was."""
        if self.is_found or before is None:
            return self
        return msgspec.structs.replace(
            self, former=before.provider or before.former, valid_until=before.valid_until
        )

    def to_event(self, *, source: str) -> Event:
        """As an event of the channel."""
        data = msgspec.json.encode(self)
        return Event(
            source=source,
            id=content_id(CONTEXT_FOUND, data.decode()),
            type=CONTEXT_FOUND,
            subject=as_subject(f"{self.type}/{self.id}"),
            time=self.time,
            data=data,
        )

    @staticmethod
    def from_event(event: Event) -> ContextFound:
        """What `to_event` wrote; raises InvalidInput."""
        found: ContextFound = event.payload_as(ContextFound)
        return found


def found_of(
    table: str, record: ContextRecord, *, time: int, hops: int, holder: str
) -> ContextFound:
    """The answer that a record is."""
    return ContextFound(
        table=table,
        type=record.entity.type,
        id=record.entity.id,
        scope=record.scope,
        time=time,
        provider=record.provider,
        valid_from=record.valid_from,
        valid_until=record.valid_until,
        values=record.values,
        hops=hops,
        holder=holder,
    )


def missing_of(table: str, entity: EntityRef, scope: str, *, time: int, why: str) -> ContextFound:
    """The answer that there is none."""
    return ContextFound(
        table=table, type=entity.type, id=entity.id, scope=scope, time=time, why=why
    )
