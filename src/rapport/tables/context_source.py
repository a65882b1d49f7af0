"""Rows from a context broker: the query of a table, and the answers on record.
[PO-2, CX-1, CX-8, PO-11]

A broker is queried entity by entity, so a table of context lists its entities. Each record is a row
for as long as it is valid; an entity without a record has no row. The node's broker implements
`ContextSource`; where there is none (`rapport check`, a replay) the table is empty.

A node appends a `ContextAnswer` to the channel `context.found` whenever the answer changes: another
record, or none. So a reader of the log knows later which record was valid at a time, its provider,
and how far away it was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import Problem
from rapport.core.event import Event, as_subject, content_id
from rapport.kernel.telemetry import get_logger
from rapport.tables.declaration import AreaColumns, Concepts, TableDeclaration
from rapport.tables.rows import (
    LooseRows,
    RowFile,
    check_size,
    field_text,
    rows_digest,
    typed_column,
)

_log = get_logger(__name__)


class ContextQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The query of a table: one scope of entities of one type."""

    table: str
    type: str
    scope: str
    ids: tuple[str, ...]
    fields: tuple[str, ...]
    """The headings of a row: the key, then values of the scope."""
    within_ms: int

    def row(self, identity: str, values: Mapping[str, Any]) -> list[str]:
        """The row of an entity; missing values are empty."""
        return [identity, *(field_text(values.get(name)) for name in self.fields[1:])]


class ContextSource(Protocol):
    """A broker as a source of rows."""

    def ask(self, question: ContextQuery) -> list[list[str]]:
        """A row for each entity with a valid record. May block: it is called in a thread. Raises
        SourceUnavailable.
        """


def parse_context_query(query: str) -> tuple[str, str] | None:
    """The entity's type and the scope of `room status`; None for another form."""
    words = query.split()
    if len(words) != 2 or "/" in words[0]:
        return None
    return words[0], words[1]


def context_query(declared: TableDeclaration, ids: Sequence[str]) -> ContextQuery:
    """The query of a table for these entities, without repeated and empty ids."""
    kind, scope = parse_context_query(declared.context) or ("", "")
    return ContextQuery(
        table=declared.name,
        type=kind,
        scope=scope,
        ids=tuple(dict.fromkeys(one for one in ids if one)),
        fields=declared.fields,
        within_ms=declared.timeout_ms,
    )


def rows_of_context(question: ContextQuery, name: str, rows: list[list[str]]) -> RowFile:
    """The rows of an answer; raises SiteError when there are too many."""
    check_size(name, len(rows))
    header = list(question.fields)
    return LooseRows(name, header, rows, rows_digest(header, rows))


def drop_unusable_values(declared: TableDeclaration, file: RowFile, concepts: Concepts) -> RowFile:
    """Empties and logs values that are not of their attribute's type: the fault of one provider
    must not make the rows of others unusable.
    """
    faults: list[Problem] = []
    if not declared.concept:
        return file
    rows = file.all_rows()
    for attribute, names in declared.columns.items():
        kind = concepts[declared.concept][attribute]
        forms = declared.areas.get(attribute)
        if not _faults_of(file, names, kind, declared, forms):
            continue
        places = [file.header.index(name) for name in names]
        for number, row in enumerate(rows):
            one = RowFile(file.name, file.header, [row], "")
            if found := _faults_of(one, names, kind, declared, forms):
                faults += found
                rows[number] = ["" if at in places else text for at, text in enumerate(row)]
    if faults:
        _log.warning("context not usable", table=declared.name, reason=faults[0].message)
    return LooseRows(file.name, file.header, rows, rows_digest(file.header, rows))


def _faults_of(
    file: RowFile,
    names: tuple[str, ...],
    kind: Any,
    declared: TableDeclaration,
    forms: AreaColumns | None,
) -> list[Problem]:
    faults: list[Problem] = []
    typed_column(file, names, kind, faults, decimal=declared.decimal, forms=forms)
    return faults


FOUND_CHANNEL = "context.found"
CONTEXT_FOUND = "rapport.context.found"
_NO_VALUES: dict[str, Any] = {}


class ContextAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer about one entity; without a provider it has no record, and `why` is set."""

    table: str
    type: str
    id: str
    scope: str
    time: int
    """When the table received it."""
    provider: str = ""
    valid_from: int = 0
    valid_until: int = 0
    values: dict[str, Any] = _NO_VALUES
    hops: int = 0
    holder: str = ""
    """The address of the broker that holds the record."""
    why: str = ""
    former: str = ""
    """Without a record: the provider of the last one; `valid_until` is its end."""

    @property
    def is_found(self) -> bool:
        return bool(self.provider)

    def is_valid_at(self, wall_ms: int) -> bool:
        return self.is_found and self.valid_from <= wall_ms < self.valid_until

    def lasts_at(self, wall_ms: int) -> bool:
        """Whether its validity has not ended at that time."""
        return self.is_found and wall_ms < self.valid_until

    def says_the_same_as(self, other: ContextAnswer | None) -> bool:
        """Whether it has the same record, wherever it was found, or again none."""
        return other is not None and self._record() == other._record()

    def _record(self) -> tuple[object, ...]:
        return self.provider, self.valid_from, self.valid_until, self.values

    def after(self, before: ContextAnswer | None) -> ContextAnswer:
        """This answer, with the former record if it has none."""
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
    def from_event(event: Event) -> ContextAnswer:
        """What `to_event` wrote; raises InvalidInput."""
        found: ContextAnswer = event.payload_as(ContextAnswer)
        return found


def answer_with_record(
    table: str, record: ContextRecord, *, time: int, hops: int, holder: str
) -> ContextAnswer:
    return ContextAnswer(
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


def answer_without_record(
    table: str, entity: EntityRef, scope: str, *, time: int, why: str
) -> ContextAnswer:
    return ContextAnswer(
        table=table, type=entity.type, id=entity.id, scope=scope, time=time, why=why
    )
