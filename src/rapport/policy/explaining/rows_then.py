"""Tables as they were at a time by what is on record of their rows, also after a restart, in a log
or in a lake. [PO-2, PO-11]
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rapport.channel.channel import Channels
from rapport.core.times import format_time
from rapport.policy.explaining.tables_then import EarlierTables
from rapport.policy.explaining.verdict import AnswerNote
from rapport.policy.rows_on_record import RecordedTableRows, version_at, versions_on_record
from rapport.tables.recorded_rows import RowsVersion, TableRows
from rapport.tables.tables import Tables

_MOST_EVENTS = 5_000
"""So many after the base are read, to say what changed since."""


class RecordedTables(EarlierTables):
    """The rows that readings of a time met, and which tables have others since."""

    told_by = "the tables of then, which are on record"

    def __init__(
        self,
        now: Tables,
        then: Tables,
        version: RowsVersion,
        later: Sequence[RowsVersion],
        unusable: Mapping[str, TableRows | None],
        time: int,
    ) -> None:
        """`time`: of the readings that met them."""
        super().__init__(then, now, time)
        self.tables = then
        self._version, self._later, self._unusable = version, later, unusable
        # Of tables of context their own record tells more: who said it, and until when.
        declared = now.declarations().items()
        self._concepts = {name: one.concept for name, one in declared if not one.context}

    def on_record(self) -> frozenset[str]:
        """The tables whose rows are those of then."""
        known = {name for name, rows in self._version.tables.items() if rows.is_known}
        return frozenset(known - self._unusable.keys())

    def loaded_since(self, concept: str) -> Sequence[int]:
        """By the node's clock."""
        own = {name for name, one in self._concepts.items() if one == concept}
        return [one.place.time for one in self._later if one.changed & own]

    def notes(self, concepts: Sequence[str]) -> Sequence[AnswerNote]:
        """Also where the rows of then are not on record, and so others were used."""
        return [*super().notes(concepts), *self._gaps(concepts)]

    def _gaps(self, concepts: Sequence[str]) -> list[AnswerNote]:
        own = {name: one for name, one in self._concepts.items() if one in concepts}
        notes = [
            AnswerNote(
                kind="tables", text=unusable_text(name, self._unusable[name]), time=self._time
            )
            for name in own
            if name in self._unusable
        ]
        begins = self._version.place
        if begins.since > self._time and own:
            text = (
                "nothing is on record of the tables before "
                f"{format_time(begins.since)}: the first rows that are known are used"
            )
            notes.append(AnswerNote(kind="tables", text=text, time=begins.since))
        return notes


def unusable_text(table: str, rows: TableRows | None) -> str:
    """Why the rows of today stand in for those of then."""
    why = "nothing is on record of them"
    if rows is not None and rows.is_known:
        why = "they do not fit what the site says now"
    elif rows is not None:
        why = f"only their number is on record, {rows.count:,}"
    return f"the table {table!r} is used with the rows of today, not those of then: {why}"


async def rows_on_record(tables: Tables, channels: Channels, time: int) -> RecordedTables | None:
    """The tables that readings of a time met; None when nothing is on record.

    Costs what was recorded between two bases, and typing the tables whose rows are others now.
    """
    versions = await versions_on_record(channels, since=time, most_events=_MOST_EVENTS)
    version = version_at(versions, time)
    if version is None:
        return None
    record = await asyncio.to_thread(RecordedTableRows, tables)
    then = await asyncio.to_thread(record.at, version)
    later = [one for one in versions if one.place.since > time]
    return RecordedTables(tables, then, version, later, record.unusable, time)
