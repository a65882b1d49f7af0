"""Rows that a context broker knows: what a table asks of it, and its answers as fields of text.
[PO-2, CX-1]

A broker is asked entity by entity, so a table of context says whom to ask for. Each record is a
row for as long as it is valid; who has none is in no row. The node's broker implements
`ContextSource`; where there is none (`rapport check`, a replay) the table is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.telemetry import get_logger
from rapport.tables.declaration import Concepts, TableDeclaration
from rapport.tables.row_file import LooseRows, RowFile, check_size, rows_digest
from rapport.tables.values import typed_column

_log = get_logger(__name__)


class ContextQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What a table asks for: one scope of entities of one type."""

    table: str
    type: str
    scope: str
    ids: tuple[str, ...]
    fields: tuple[str, ...]
    """The headings of a row, first the key; others are values of the scope."""
    within_ms: int

    def row(self, identity: str, values: Mapping[str, Any]) -> list[str]:
        """The fields of an entity with these values; what it lacks is empty."""
        return [identity, *(field_text(values.get(name)) for name in self.fields[1:])]


class ContextSource(Protocol):
    """A broker that is asked as any other pull source is."""

    def ask(self, question: ContextQuestion) -> list[list[str]]:
        """A row for each entity of which a valid record is found.

        May block: it is called in a thread. Raises SourceUnavailable.
        """


def words_of(query: str) -> tuple[str, str] | None:
    """The entity's type and the scope in `room status`; None when it is not written so."""
    words = query.split()
    if len(words) != 2 or "/" in words[0]:
        return None
    return words[0], words[1]


def question_of(declared: TableDeclaration, ids: Sequence[str]) -> ContextQuestion:
    """What this table asks for, about these entities; each once, empty ones not at all."""
    kind, scope = words_of(declared.context) or ("", "")
    return ContextQuestion(
        table=declared.name,
        type=kind,
        scope=scope,
        ids=tuple(dict.fromkeys(one for one in ids if one)),
        fields=declared.fields,
        within_ms=declared.timeout_ms,
    )


def rows_of_context(question: ContextQuestion, name: str, rows: list[list[str]]) -> RowFile:
    """The rows as any source gives them; raises SiteError when there are too many."""
    check_size(name, len(rows))
    header = list(question.fields)
    return LooseRows(name, header, rows, rows_digest(header, rows))


def only_fitting(declared: TableDeclaration, file: RowFile, concepts: Concepts) -> RowFile:
    """The rows without values that are not of their attribute's type: one provider that tells
    nonsense must not keep others from being heard. What was left out is logged.
    """
    faults: list[Problem] = []
    if not declared.concept:
        return file
    rows = file.all_rows()
    for attribute, names in declared.columns.items():
        kind = concepts[declared.concept][attribute]
        if not _faults_of(file, names, kind, declared):
            continue
        places = [file.header.index(name) for name in names]
        for number, row in enumerate(rows):
            one = RowFile(file.name, file.header, [row], "")
            if found := _faults_of(one, names, kind, declared):
                faults += found
                rows[number] = ["" if at in places else text for at, text in enumerate(row)]
    if faults:
        _log.warning("context not usable", table=declared.name, reason=faults[0].message)
    return LooseRows(file.name, file.header, rows, rows_digest(file.header, rows))


def _faults_of(
    file: RowFile, names: tuple[str, ...], kind: Any, declared: TableDeclaration
) -> list[Problem]:
    faults: list[Problem] = []
    typed_column(file, names, kind, faults, decimal=declared.decimal)
    return faults


def field_text(value: Any) -> str:
    """A value of a record as the field of a table.

    >>> [field_text(one) for one in (None, True, 2.5, "open", [1, 2.5])]
    ['', 'true', '2.5', 'open', '1 2.5']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return " ".join(field_text(one) for one in value)
    return str(value)
