"""Context records: values of an entity that are valid for a while, and requests to set them.
[CX-1, CX-3, PO-10]
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME, Event, as_subject, content_id

CONTEXT_RECORD = "rapport.context.record"
_NO_VALUES: dict[str, Any] = {}


class EntityRef(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A subject of context: `room/r3`. The type has no `/`; the id may have any character."""

    type: str
    id: str

    def __str__(self) -> str:
        return f"{self.type}/{self.id}"

    @staticmethod
    def parse(text: str) -> EntityRef:
        """Reads `type/id`; raises InvalidInput."""
        kind, slash, name = text.partition("/")
        if not (kind and slash and name) or len(text) > MAX_NAME:
            raise InvalidInput(
                f"{text[:80]!r} names no entity",
                code="context.bad_entity",
                hint="an entity is written type/id, for example room/r3",
            )
        return EntityRef(kind, name)


class ContextRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The values of a scope (attributes that belong together) of an entity, from one provider.

    Valid from `valid_from` until before `valid_until` (ms UTC), never outside. Identified by
    (provider, entity, scope); a later one replaces an earlier one. The order of the fields is
    the order on the wire; new ones go at the end with a default.
    """

    provider: str
    entity: EntityRef
    scope: str
    valid_from: int
    valid_until: int
    values: dict[str, Any] = _NO_VALUES
    """Text, numbers, booleans and lists of them by name; v0 knows texts only."""
    proof: bytes = b""
    """The public key and signature of a provider whose name contains its key; else empty."""

    def is_valid_at(self, wall_ms: int) -> bool:
        return self.valid_from <= wall_ms < self.valid_until

    def key(self) -> tuple[str, str, str, str]:
        return self.provider, self.entity.type, self.entity.id, self.scope

    def rank(self) -> tuple[int, str]:
        """Of several valid records for one query the one with the greatest rank is the answer: the
        newest start of validity, then the provider.
        """
        return self.valid_from, self.provider

    def to_event(self, *, source: str, headers: dict[str, str] | None = None) -> Event:
        """The record as an event of the channel `context`; the same record has the same id."""
        data = msgspec.json.encode(
            _RecordData(
                provider=self.provider,
                type=self.entity.type,
                id=self.entity.id,
                scope=self.scope,
                valid_from=self.valid_from,
                valid_until=self.valid_until,
                values=self.values,
                proof=self.proof,
            )
        )
        return Event(
            source=source,
            id=content_id(CONTEXT_RECORD, data.decode()),
            type=CONTEXT_RECORD,
            subject=as_subject(str(self.entity)),
            time=self.valid_from,
            data=data,
            headers=headers or {},
        )

    @staticmethod
    def from_event(event: Event) -> ContextRecord:
        """The record that `to_event` wrote; raises InvalidInput."""
        read: _RecordData = event.payload_as(_RecordData)
        entity = EntityRef(read.type, read.id)
        return ContextRecord(
            read.provider,
            entity,
            read.scope,
            read.valid_from,
            read.valid_until,
            read.values,
            read.proof,
        )


class _RecordData(msgspec.Struct, frozen=True, omit_defaults=True):
    provider: str
    type: str
    id: str
    scope: str
    valid_from: int
    valid_until: int
    values: dict[str, Any]
    proof: bytes = b""


CONTEXT_UPDATES = "context.wishes"
"""The channel of pending updates; the node applies them in order, each once."""
CONTEXT_UPDATE = "rapport.context.wish"


class ContextUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A policy action's request to the node's context broker; the event has its time."""

    entity: str
    scope: str
    values: dict[str, Any]
    valid_ms: int

    @staticmethod
    def from_event(event: Event) -> ContextUpdate:
        """Decodes the update; raises InvalidInput."""
        update: ContextUpdate = event.payload_as(ContextUpdate)
        EntityRef.parse(update.entity)
        return update

    def record(self, provider: str, time: int) -> ContextRecord:
        """The record for an update made at `time`; the same update gives the same record."""
        return ContextRecord(
            provider=provider,
            entity=EntityRef.parse(self.entity),
            scope=self.scope,
            valid_from=time,
            valid_until=time + self.valid_ms,
            values=self.values,
        )
